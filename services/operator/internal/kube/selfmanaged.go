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
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// keeper looks after what the operator makes for itself in its own namespace, one name of one or two kinds: every replica follows it, the leader
// writes it.
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

// own is what a keeper needs of the API server.
type own struct {
	cache  cache.Options
	owner  []metav1.OwnerReference
	meters *meters
}

// keep starts to look after objects of these kinds: step brings them up to date, and is called whenever one of them changes.
func (p *Provider) keep(ctx context.Context, group *errgroup.Group, o own, k *selfManaged, step func(context.Context) error, kinds ...client.Object) error {
	options := o.cache
	// A right to read others of the namespace is not needed.
	named := cache.Config{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, k.name.Name)}
	options.DefaultNamespaces = map[string]cache.Config{k.name.Namespace: named}
	c, err := cache.New(p.Config, options)
	if err != nil {
		return fmt.Errorf("make cache: %w", err)
	}
	k.client, err = client.New(p.Config, client.Options{
		HTTPClient: options.HTTPClient, Scheme: options.Scheme, Mapper: options.Mapper, Cache: &client.CacheOptions{Reader: c},
	})
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	k.owner = o.owner
	p.selfManaged = append(p.selfManaged, k)
	p.tasks.join(group, "watch of "+k.name.Name, func() error { return c.Start(ctx) })
	p.tasks.join(group, "start of "+k.name.Name, func() error {
		w := watcher{cache: c, scheme: options.Scheme, mapper: options.Mapper, notReadyReason: new(atomic.Pointer[string]), log: p.Log}
		if err := k.follow(ctx, w, kinds); err != nil {
			return ignoreEnd(ctx, err)
		}
		group.Go(func() error { p.tasks.do("keeping of "+k.name.Name, func(t *task) { k.run(ctx, t, step) }); return nil })
		return nil
	})
	return nil
}

// follow has the keeper told of every change, and returns once it knows what there is. Its error is the end of ctx: an API server that cannot be
// asked is waited for.
func (k *selfManaged) follow(ctx context.Context, w watcher, kinds []client.Object) error {
	told := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify(k.wake) },
		UpdateFunc: func(any, any) { notify(k.wake) },
		DeleteFunc: func(any) { notify(k.wake) },
	}
	var handed []toolscache.InformerSynced
	for _, o := range kinds {
		watched := watchedKind{variants: []client.Object{o}}
		synced, err := w.subscribe(ctx, watched, told)
		if err != nil {
			synced, err = w.insist(ctx, watched, told, err, w.notReadyReason)
		}
		if err != nil {
			return fmt.Errorf("watch %T %s: %w", o, k.name, err)
		}
		handed = append(handed, synced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handed...) {
		return fmt.Errorf("read %s: %w", k.name, context.Cause(ctx))
	}
	return nil
}

// resyncInterval is how often it is looked whether something has to be renewed, or tried again.
const resyncInterval = 10 * time.Second

// run brings the objects up to date until ctx ends.
func (k *selfManaged) run(ctx context.Context, t *task, step func(context.Context) error) {
	ticker := time.NewTicker(resyncInterval)
	defer ticker.Stop()
	for {
		t.begin()
		bounded, cancel := context.WithTimeout(ctx, callTime)
		if err := step(bounded); err != nil && ctx.Err() == nil {
			k.log.Warn("keep an object of the operator's own, to be tried again", "name", k.name, "error", err)
		}
		cancel()
		t.end()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-k.wake:
		}
	}
}

// lead runs what the leader does, and has the selfManaged write meanwhile.
func (p *Provider) lead(ctx context.Context, other func(context.Context)) {
	for _, k := range p.selfManaged {
		k.leading.Store(true)
		defer k.leading.Store(false)
		notify(k.wake)
	}
	other(ctx)
}

// write makes an object, or makes another one of it, if it has to.
func (k *selfManaged) write(ctx context.Context, o client.Object, want func()) error {
	did, err := controllerutil.CreateOrUpdate(ctx, k.client, o, func() error {
		want()
		if !k.owned(o) {
			o.SetOwnerReferences(k.owner)
		}
		return nil
	})
	return k.written(o, did != controllerutil.OperationResultNone, err)
}

// create makes an object that is not there yet.
func (k *selfManaged) create(ctx context.Context, o client.Object) error {
	o.SetOwnerReferences(k.owner)
	err := k.client.Create(ctx, o)
	return k.written(o, err == nil, err)
}

func (k *selfManaged) written(o client.Object, did bool, err error) error {
	if did {
		k.meters.writes.WithLabelValues(reflect.TypeOf(o).Elem().Name(), "apply").Inc()
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil // the cache was behind: what is there now is on its way
	}
	if err != nil {
		return fmt.Errorf("write %T %s: %w", o, k.name, err)
	}
	return nil
}

// owned tells whether an object goes with what the operator's objects go with.
func (k *selfManaged) owned(o client.Object) bool {
	return len(k.owner) == 0 || reflect.DeepEqual(o.GetOwnerReferences(), k.owner)
}

func (k *selfManaged) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: k.name.Namespace, Name: k.name.Name}
}

// account is the ServiceAccount that this process runs as, in the form of an owner: what it makes for itself is collected as garbage when an
// installation is removed. An account is the right owner because it cannot make anything any more when it is gone. There is none outside of a
// cluster, or where the API server does not say.
func ownAccount(ctx context.Context, clients kubernetes.Interface, namespace string) ([]metav1.OwnerReference, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	self, err := clients.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for own account: %w", err)
	}
	user := self.Status.UserInfo
	name, ours := strings.CutPrefix(user.Username, accountPrefix+namespace+":")
	if !ours || user.UID == "" {
		return nil, nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: name, UID: types.UID(user.UID)}}, nil
}

// owner is what the objects of the operator's own go with. Without one they stay when an installation is removed, which is worth a warning only.
func (p *Provider) owner(ctx context.Context) []metav1.OwnerReference {
	clients, err := kubernetes.NewForConfig(p.Config)
	var owner []metav1.OwnerReference
	if err == nil {
		owner, err = ownAccount(ctx, clients, p.Namespace)
	}
	if err != nil && ctx.Err() == nil {
		p.Log.Warn("find out what the lease and the CA belong to; until another start they stay when the operator is uninstalled", "error", err)
	}
	return owner
}
