package kube

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// selfManaged maintains objects in the operator's namespace that the operator itself needs, for example the Secret of
// its CA. The objects have one name and one or two kinds. Every replica watches them, but only the leader writes them.
type selfManaged struct {
	name   types.NamespacedName
	client client.Client // reads from a cache of the objects with this name
	owner  []metav1.OwnerReference
	meters *meters
	log    *slog.Logger
	now    func() time.Time

	wake    chan struct{}
	leading atomic.Bool
}

func newSelfManaged(name types.NamespacedName, c client.Client, m *meters, log *slog.Logger) selfManaged {
	return selfManaged{name: name, client: c, meters: m, log: log, now: time.Now, wake: make(chan struct{}, 1)}
}

// selfManagedOptions are the parameters of selfManaged.start.
type selfManagedOptions struct {
	config *rest.Config
	cache  cache.Options
	owner  []metav1.OwnerReference
	tasks  *tasks
}

// start watches the objects of the given kinds. It calls step after each change and every resyncInterval.
func (m *selfManaged) start(
	ctx context.Context, group *errgroup.Group, o selfManagedOptions,
	step func(context.Context) error, kinds ...client.Object,
) error {
	// With this field selector, RBAC can restrict the rights to objects with this name (resourceNames).
	named := cache.Config{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, m.name.Name)}
	o.cache.DefaultNamespaces = map[string]cache.Config{m.name.Namespace: named}
	c, err := cache.New(o.config, o.cache)
	if err != nil {
		return fmt.Errorf("make cache: %w", err)
	}
	m.client, err = client.New(o.config, client.Options{
		HTTPClient: o.cache.HTTPClient, Scheme: o.cache.Scheme, Mapper: o.cache.Mapper,
		Cache: &client.CacheOptions{Reader: c},
	})
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	m.owner = o.owner
	o.tasks.join(group, "watch of "+m.name.Name, func() error { return c.Start(ctx) })
	o.tasks.join(group, "start of "+m.name.Name, func() error {
		w := watcher{
			cache: c, scheme: o.cache.Scheme, mapper: o.cache.Mapper, notReadyReason: new(atomic.Pointer[string]),
			log: m.log,
		}
		if err := m.watch(ctx, w, kinds); err != nil {
			return ignoreEnd(ctx, err)
		}
		o.tasks.run(group, "maintenance of "+m.name.Name, func(t *task) { m.run(ctx, t, step) })
		return nil
	})
	return nil
}

// watch subscribes to changes of the objects, and returns when the existing objects are listed. It retries while the
// API server is not available. It returns an error only when ctx ends.
func (m *selfManaged) watch(ctx context.Context, w watcher, kinds []client.Object) error {
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify(m.wake) },
		UpdateFunc: func(any, any) { notify(m.wake) },
		DeleteFunc: func(any) { notify(m.wake) },
	}
	var all []toolscache.InformerSynced
	for _, o := range kinds {
		k := watchedKind{variants: []client.Object{o}}
		synced, err := w.subscribe(ctx, k, handler)
		if err != nil {
			synced, err = w.subscribeWhenServed(ctx, k, handler, err, w.notReadyReason)
		}
		if err != nil {
			return fmt.Errorf("watch %T %s: %w", o, m.name, err)
		}
		all = append(all, synced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), all...) {
		return fmt.Errorf("read %s: %w", m.name, context.Cause(ctx))
	}
	return nil
}

// resyncInterval is how often step is called if no object has changed. These calls renew certificates and retry after
// errors.
const resyncInterval = 10 * time.Second

func (m *selfManaged) run(ctx context.Context, t *task, step func(context.Context) error) {
	ticker := time.NewTicker(resyncInterval)
	defer ticker.Stop()
	for {
		t.begin()
		bounded, cancel := context.WithTimeout(ctx, callTime)
		if err := step(bounded); err != nil && ctx.Err() == nil {
			m.log.Warn("cannot update an object of the operator itself, will retry", "name", m.name, "error", err)
		}
		cancel()
		t.end()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-m.wake:
		}
	}
}

// createOrUpdate creates an object if it does not exist. It updates an existing object if mutate or setting the owner
// references changes it.
func (m *selfManaged) createOrUpdate(ctx context.Context, o client.Object, mutate func()) error {
	did, err := controllerutil.CreateOrUpdate(ctx, m.client, o, func() error {
		mutate()
		if !m.hasOwner(o) {
			o.SetOwnerReferences(m.owner)
		}
		return nil
	})
	return m.written(o, did != controllerutil.OperationResultNone, err)
}

// create creates an object that does not exist in the cache.
func (m *selfManaged) create(ctx context.Context, o client.Object) error {
	o.SetOwnerReferences(m.owner)
	err := m.client.Create(ctx, o)
	return m.written(o, err == nil, err)
}

func (m *selfManaged) written(o client.Object, did bool, err error) error {
	if did {
		m.meters.countWrite(m.client.Scheme(), o, "apply")
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil // the cache was outdated; the watch will deliver the current version of the object
	}
	if err != nil {
		return fmt.Errorf("write %T %s: %w", o, m.name, err)
	}
	return nil
}

// hasOwner reports whether an object already has the owner references that the operator sets on its own objects.
func (m *selfManaged) hasOwner(o client.Object) bool {
	return len(m.owner) == 0 || reflect.DeepEqual(o.GetOwnerReferences(), m.owner)
}

func (m *selfManaged) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.name.Namespace, Name: m.name.Name}
}

// ownerReferences returns the owner references for the objects that the operator creates for itself. An error is only
// logged: without an owner, these objects remain after the operator was uninstalled, which does no harm.
func ownerReferences(ctx context.Context, s Settings) []metav1.OwnerReference {
	clients, err := kubernetes.NewForConfig(s.Config)
	var owner []metav1.OwnerReference
	if err == nil {
		owner, err = ownAccount(ctx, clients, s.Namespace)
	}
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot determine the own ServiceAccount; the Lease and the CA remain when the operator is uninstalled",
			"error", err)
	}
	return owner
}

// ownAccount returns an owner reference to the ServiceAccount of this process, so that the objects that refer to it are
// garbage-collected when the operator is uninstalled. A ServiceAccount is a safe owner, because the process cannot
// create objects any more once its account is deleted. It returns nil if the process does not run under a
// ServiceAccount of the namespace.
func ownAccount(ctx context.Context, clients kubernetes.Interface, namespace string) ([]metav1.OwnerReference, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	self, err := clients.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review own account: %w", err)
	}
	user := self.Status.UserInfo
	name, ours := strings.CutPrefix(user.Username, accountPrefix+namespace+":")
	if !ours || user.UID == "" {
		return nil, nil
	}
	return []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ServiceAccount", Name: name, UID: types.UID(user.UID)},
	}, nil
}
