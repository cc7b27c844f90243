package kube

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// secretFetcher fetches the Secrets that translations need. Namespaces take turns. The content of other Secrets never
// enters the process, because the watch of all Secrets delivers only metadata. The Secrets that the operator itself
// writes are an exception.
type secretFetcher struct {
	reader client.Reader
	inbox  *inbox
	intake *intake
	queue  workqueue.TypedRateLimitingInterface[types.NamespacedName]
	log    *slog.Logger

	// existing are the resource versions of all Secrets, according to the watch. fetched are the resource versions of
	// the Secrets in the view. Only the goroutine of the loop uses these maps.
	existing, fetched map[types.NamespacedName]string
}

func newSecretFetcher(reader client.Reader, in *inbox, take *intake, log *slog.Logger) *secretFetcher {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](200*time.Millisecond,
		10*time.Second)
	inTurn := newRoundRobin(func(key types.NamespacedName) string { return key.Namespace })
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[types.NamespacedName]{Queue: inTurn})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(
		workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Queue: queue})
	return &secretFetcher{
		reader: reader, inbox: in, intake: take, log: log,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limit,
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{DelayingQueue: delaying}),
		existing: map[types.NamespacedName]string{}, fetched: map[types.NamespacedName]string{},
	}
}

// observe records the resource version of a Secret according to the watch, and reports whether the Secret is new. If
// the view contains another version of the Secret, the Secret is fetched again.
func (s *secretFetcher) observe(key types.NamespacedName, version string) (appeared bool) {
	_, known := s.existing[key]
	s.existing[key] = version
	if have, used := s.fetched[key]; used && have != version {
		s.queue.Add(key)
	}
	return !known
}

// forget removes a deleted Secret.
func (s *secretFetcher) forget(key types.NamespacedName) {
	s.queue.Forget(key)
	delete(s.existing, key)
	delete(s.fetched, key)
}

// ensure reports whether the view is correct for a Secret: it contains the Secret, or the Secret does not exist.
// Otherwise it queues the Secret to be fetched.
func (s *secretFetcher) ensure(key types.NamespacedName) bool {
	if _, there := s.existing[key]; !there {
		return true
	}
	if _, have := s.fetched[key]; have {
		return true
	}
	s.queue.Add(key)
	return false
}

// release records that the content of a Secret is no longer in the view.
func (s *secretFetcher) release(key types.NamespacedName) { delete(s.fetched, key) }

// retryNotFound queues a Secret to be fetched again if the watch still lists it although a fetch returned NotFound, and
// reports whether it did so.
func (s *secretFetcher) retryNotFound(key types.NamespacedName) bool {
	_, there := s.existing[key]
	if there {
		s.queue.AddRateLimited(key)
	}
	return there
}

// accept records a fetched Secret, and reports whether it must be put into the view. It must not be put there if the
// watch has reported its deletion during the fetch.
func (s *secretFetcher) accept(secret *corev1.Secret, deleted bool) bool {
	key := resource.KeyOf(secret)
	if deleted {
		s.forget(key)
		return true
	}
	if _, there := s.existing[key]; !there {
		return false
	}
	s.fetched[key] = secret.ResourceVersion
	return true
}

// fetchers is the number of Secrets that are fetched concurrently. Concurrency shortens the start of the operator,
// which waits for all Secrets that Gateways refer to.
const fetchers = 8

// run fetches Secrets until ctx ends. A failed fetch is retried. Until it succeeds, the objects that need the Secret
// keep their published state.
func (s *secretFetcher) run(ctx context.Context, t *task) {
	defer context.AfterFunc(ctx, s.queue.ShutDown)()
	for {
		key, down := s.queue.Get()
		if down {
			return
		}
		t.begin()
		s.fetch(ctx, key)
		t.end()
		s.queue.Done(key)
	}
}

func (s *secretFetcher) fetch(ctx context.Context, key types.NamespacedName) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	err := s.reader.Get(ctx, key, secret)
	deleted := apierrors.IsNotFound(err)
	if err != nil && !deleted {
		s.log.Warn("cannot read a Secret, will retry", "secret", key, "error", err)
		s.inbox.put(objectChange{object: secret, failed: true})
		s.queue.AddRateLimited(key)
		return
	}
	if deleted {
		s.inbox.put(objectChange{object: secret, deleted: true})
		return
	}
	s.queue.Forget(key)
	if secret.Type != manifest.StandbyType {
		resource.TrimSecret(secret)
	}
	c := objectChange{object: s.intake.admit(secret)}
	if c.object == secret {
		// parsing a large key takes milliseconds, so the loop does not do it
		c.certificate = resource.ParseCertificate(secret)
	}
	s.inbox.put(c)
}
