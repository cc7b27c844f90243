package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// AuthorityName is the name of the Secret, in the operator's namespace, that holds the CA of config discovery, under the keys of package trust;
// and of the ConfigMap that shows its certificates, under the first of them, to who reads configs and is no dataplane.
const AuthorityName = "stunner-discovery-ca"

// authority keeps the CA of config discovery: the leader makes it and renews it, every replica follows it and has a certificate of its own from it.
//
// The Secret is the truth. While it is gone or cannot be read, what it said last stays in force, and the leader writes that back. What is made anew
// is used once the Secret says it, so that replicas never differ for longer than a watch takes.
type authority struct {
	namespace string
	client    client.Client // reads from a cache of the two objects
	identity  *trust.Identity
	inbox     *inbox
	meters    *meters
	log       *slog.Logger
	now       func() time.Time

	wake    chan struct{}
	leading atomic.Bool
	// held is what the Secret said last, told what the loop knows of it. Both belong to one goroutine.
	held trust.Authority
	told string
	// spread is closed when the loop has been told for the first time.
	spread chan struct{}
}

func newAuthority(namespace string, c client.Client, id *trust.Identity, in *inbox, m *meters, log *slog.Logger) *authority {
	return &authority{
		namespace: namespace, client: c, identity: id, inbox: in, meters: m, log: log, now: time.Now,
		wake: make(chan struct{}, 1), spread: make(chan struct{}),
	}
}

// keepAuthority starts to keep the CA of config discovery; it returns nil where discovery shows no certificate.
func (p *Provider) keepAuthority(ctx context.Context, group *errgroup.Group, l *loop, id *trust.Identity, o cache.Options) (*authority, error) {
	if p.DiscoveryAuth == AuthOff {
		return nil, nil
	}
	own, err := p.ownObjects(o)
	if err != nil {
		return nil, err
	}
	c, err := client.New(p.Config, client.Options{HTTPClient: o.HTTPClient, Scheme: o.Scheme, Mapper: o.Mapper, Cache: &client.CacheOptions{Reader: own}})
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	a := newAuthority(p.Namespace, c, id, l.inbox, l.meters, p.Log)
	p.tasks.join(group, "watch of the CA", func() error { return own.Start(ctx) })
	p.tasks.join(group, "start of the CA", func() error {
		if err := a.follow(ctx, own); err != nil {
			return ignoreEnd(ctx, err)
		}
		group.Go(func() error { p.tasks.do("keeping of the CA", func(t *task) { a.run(ctx, t) }); return nil })
		return nil
	})
	return a, nil
}

// ownObjects is a cache of the two objects and of nothing else: a right to read other Secrets of the namespace is not needed.
func (p *Provider) ownObjects(o cache.Options) (cache.Cache, error) {
	named := cache.Config{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, AuthorityName)}
	o.DefaultNamespaces = map[string]cache.Config{p.Namespace: named}
	c, err := cache.New(p.Config, o)
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	return c, nil
}

// follow has the authority told of every change, and returns once it knows what there is.
func (a *authority) follow(ctx context.Context, c cache.Cache) error {
	told := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { knock(a.wake) },
		UpdateFunc: func(any, any) { knock(a.wake) },
		DeleteFunc: func(any) { knock(a.wake) },
	}
	for _, o := range []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}} {
		informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(told)
		}
		if err != nil {
			return fmt.Errorf("watch %T %s: %w", o, AuthorityName, err)
		}
	}
	if !c.WaitForCacheSync(ctx) {
		return fmt.Errorf("read Secret %s/%s: %w", a.namespace, AuthorityName, context.Cause(ctx))
	}
	return nil
}

// lookEvery is how often it is looked whether something has to be renewed, or tried again.
const lookEvery = 10 * time.Second

// run keeps the authority until ctx ends.
func (a *authority) run(ctx context.Context, t *task) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		t.begin()
		if err := a.step(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("keep CA of config discovery, to be tried again", "error", err)
		}
		t.end()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-a.wake:
		}
	}
}

// lead runs what the leader does, and looks after the Secret meanwhile. Without an authority there is none.
func (a *authority) lead(ctx context.Context, other func(context.Context)) {
	if a != nil {
		a.leading.Store(true)
		defer a.leading.Store(false)
		knock(a.wake)
	}
	other(ctx)
}

// await returns when dataplanes can be told what to believe; until then lack says what is missing.
func (a *authority) await(ctx context.Context, lack *atomic.Pointer[string]) error {
	if a == nil {
		return nil
	}
	lack.Store(new(fmt.Sprintf("there is no Secret %s/%s with a CA for config discovery: the leader makes it, see its log", a.namespace, AuthorityName)))
	select {
	case <-a.spread:
		lack.Store(nil)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// step brings everything up to date.
func (a *authority) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	now, secret := a.now(), a.secret()
	if err := a.client.Get(ctx, client.ObjectKeyFromObject(secret), secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Secret: %w", err)
	}
	stored, broken := trust.Parse(secret.Data)
	if broken == nil && stored.Usable(now) {
		a.held = stored
	}
	best := stored // or what could be read of it
	var errs []error
	if a.held.Usable(now) {
		best = a.held
		errs = append(errs, a.identity.Renew(a.held, now))
		a.tell(a.held.Bundle())
	}
	if a.leading.Load() {
		errs = append(errs, a.renew(ctx, best, secret, broken, now), a.show(ctx))
	}
	return errors.Join(errs...)
}

// tell tells the loop which certificates dataplanes should know.
func (a *authority) tell(bundle string) {
	if bundle == a.told {
		return
	}
	a.inbox.put(change{object: &resource.Trust{Bundle: bundle}})
	if a.told == "" {
		close(a.spread)
	}
	a.told = bundle
}

// renew writes the Secret where it is not what it should be by now.
func (a *authority) renew(ctx context.Context, best trust.Authority, secret *corev1.Secret, broken error, now time.Time) error {
	next, err := best.Next(now)
	if err != nil || reflect.DeepEqual(next.Encode(), secret.Data) {
		return err
	}
	a.log.Info("write CA of config discovery", "secret", client.ObjectKeyFromObject(secret), "found", len(secret.UID) > 0, "problem", broken)
	secret = a.secret()
	return a.write(ctx, secret, func() error { secret.Data = next.Encode(); return nil })
}

// show writes the certificates to where the readers find them that are no dataplanes.
func (a *authority) show(ctx context.Context) error {
	if a.told == "" {
		return nil // the Secret does not say it yet
	}
	m := &corev1.ConfigMap{ObjectMeta: a.secret().ObjectMeta}
	return a.write(ctx, m, func() error {
		m.Data = map[string]string{trust.CertificatesKey: a.told}
		return nil
	})
}

// write makes an object, or makes another one of it, if it has to.
func (a *authority) write(ctx context.Context, o client.Object, want func() error) error {
	did, err := controllerutil.CreateOrUpdate(ctx, a.client, o, want)
	if did != controllerutil.OperationResultNone {
		a.meters.writes.WithLabelValues(reflect.TypeOf(o).Elem().Name(), "apply").Inc()
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil // the cache was behind: what is there now is on its way
	}
	if err != nil {
		return fmt.Errorf("write %T %s/%s: %w", o, a.namespace, AuthorityName, err)
	}
	return nil
}

func (a *authority) secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: AuthorityName}}
}
