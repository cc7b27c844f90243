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

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// secrets fetches the Secrets that translations ask for, and only those. A watch tells of all of them which there are, by metadata; the
// contents of a Secret that no Gateway names never come into this process.
type secretFetcher struct {
	reader client.Reader
	inbox  *inbox
	queue  workqueue.TypedRateLimitingInterface[types.NamespacedName]
	log    *slog.Logger

	// there is the version of every Secret that exists, have that of those whose content the view has. Both belong to the loop.
	existing, fetched map[types.NamespacedName]string
}

func newSecretFetcher(reader client.Reader, in *inbox, log *slog.Logger) *secretFetcher {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](200*time.Millisecond, 10*time.Second)
	return &secretFetcher{
		reader: reader, inbox: in, log: log, queue: workqueue.NewTypedRateLimitingQueue(limit),
		existing: map[types.NamespacedName]string{}, fetched: map[types.NamespacedName]string{},
	}
}

// noted hears of the version that a Secret has now, and reports whether it has not been there before. One whose content is in use is fetched
// again.
func (s *secretFetcher) observe(key types.NamespacedName, version string) (appeared bool) {
	_, known := s.existing[key]
	s.existing[key] = version
	if have, used := s.fetched[key]; used && have != version {
		s.queue.Add(key)
	}
	return !known
}

// forget hears that a Secret is gone.
func (s *secretFetcher) forget(key types.NamespacedName) {
	s.queue.Forget(key)
	delete(s.existing, key)
	delete(s.fetched, key)
}

// want tells whether the view has what there is of a Secret; if not, it is being fetched.
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

// early tells whether a Secret that was not found is there for the watch, which has the last word: it is deleted, and the watch will say so, or it
// was made anew. Until one of them is certain it is asked for again.
func (s *secretFetcher) retryNotFound(key types.NamespacedName) bool {
	_, there := s.existing[key]
	if there {
		s.queue.AddRateLimited(key)
	}
	return there
}

// arrived hears of a fetched Secret, or that there is none. It reports whether the view should have it: it may be gone again.
func (s *secretFetcher) accept(secret *corev1.Secret, gone bool) bool {
	key := resource.KeyOf(secret)
	if gone {
		s.forget(key)
		return true
	}
	if _, there := s.existing[key]; !there {
		return false
	}
	s.fetched[key] = secret.ResourceVersion
	return true
}

// fetchers is how many Secrets are fetched at a time: a start waits for all that are needed.
const fetchers = 8

// run fetches until ctx ends. A Secret that cannot be fetched is tried again; whatever waits for it stays as it is.
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
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		s.log.Warn("read Secret, to be tried again", "secret", key, "error", err)
		s.inbox.put(objectChange{object: secret, failed: true})
		s.queue.AddRateLimited(key)
		return
	}
	if !gone {
		s.queue.Forget(key)
	}
	s.inbox.put(objectChange{object: secret, deleted: gone})
}
