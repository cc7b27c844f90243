package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gwapiv1b1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// scheme knows every kind that the operator reads or writes.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), gwapiv1.Install(s), gwapiv1a2.Install(s), gwapiv1b1.Install(s), stunnerv1.AddToScheme(s))
}

// A kind is watched in the first of its spellings that the API server has. One without any is waited for, unless it is optional.
type watchedKind struct {
	variants []client.Object
	optional bool
}

// read are the kinds of which a translation is told. Of Secrets there is metadata only: their contents are fetched when somebody asks.
func watchedKinds() []watchedKind {
	one := func(o client.Object) watchedKind { return watchedKind{variants: []client.Object{o}} }
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return []watchedKind{
		one(&gwapiv1.GatewayClass{}), one(&gwapiv1.Gateway{}),
		one(&stunnerv1.GatewayConfig{}), one(&stunnerv1.Dataplane{}), one(&stunnerv1.StaticService{}), one(&stunnerv1.UDPRoute{}),
		{variants: []client.Object{&gwapiv1.UDPRoute{}, &gwapiv1a2.UDPRoute{}}, optional: true},
		{variants: []client.Object{&gwapiv1.ReferenceGrant{}, &gwapiv1b1.ReferenceGrant{}}, optional: true},
		one(&corev1.Service{}), one(&discoveryv1.EndpointSlice{}), one(&corev1.Namespace{}), one(&corev1.Node{}), one(secrets),
	}
}

// written are the kinds that are made for Gateways, other than Services: those are read as well.
func generatedKinds() []client.Object {
	return []client.Object{
		&appsv1.Deployment{}, &appsv1.DaemonSet{}, &corev1.ConfigMap{}, &corev1.Secret{}, &networkingv1.NetworkPolicy{}, &policyv1.PodDisruptionBudget{},
	}
}

// newCache returns a cache that holds of the kinds that are written only what is ours, and nothing that nobody reads.
func (p *Provider) newCache(s *runtime.Scheme) (cache.Cache, error) {
	own := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{manifest.OwnedByLabel: manifest.AppValue})}
	by := map[client.Object]cache.ByObject{}
	for _, o := range generatedKinds() {
		if _, secret := o.(*corev1.Secret); !secret {
			by[o] = own
		}
	}
	o := cache.Options{Scheme: s, ByObject: by, DefaultTransform: trim}
	if o.DefaultNamespaces = p.watched(); o.DefaultNamespaces != nil {
		also := maps.Clone(o.DefaultNamespaces) // where the other replicas are
		also[p.Namespace] = cache.Config{}
		by[&discoveryv1.EndpointSlice{}] = cache.ByObject{Namespaces: also}
	}
	most, err := cache.New(p.Config, o)
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	o.ByObject = map[client.Object]cache.ByObject{&corev1.Secret{}: own}
	secrets, err := cache.New(p.Config, o)
	if err != nil {
		return nil, fmt.Errorf("make cache of Secrets: %w", err)
	}
	return caches{most, secrets}, nil
}

// watched are the namespaces to watch; nil are all of them.
func (p *Provider) watched() map[string]cache.Config {
	if len(p.Namespaces) == 0 {
		return nil
	}
	namespaces := map[string]cache.Config{}
	for _, namespace := range p.Namespaces {
		namespaces[namespace] = cache.Config{}
	}
	return namespaces
}

// cache returns a cache as soon as the API server can be asked for its kinds, and says meanwhile why it cannot. Its error is the end of ctx.
func (p *Provider) cache(ctx context.Context, s *runtime.Scheme, notReadyReason *atomic.Pointer[string]) (cache.Cache, error) {
	defer notReadyReason.Store(nil)
	for {
		c, err := p.newCache(s)
		if err == nil {
			return c, nil
		}
		notReadyReason.Store(new(err.Error()))
		p.Log.Warn("wait for the API server", "error", err)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(serverRetry):
		}
	}
}

// serverRetry is how often an API server is asked that could not say what kinds it has.
const serverRetry = time.Second

// kindRetry is how often it is looked whether a kind has come to be known.
const kindRetry = 5 * time.Second

// watcher starts the watches.
type watcher struct {
	cache  cache.Cache
	scheme *runtime.Scheme
	mapper meta.RESTMapper
	inbox  *inbox
	// lack is what the start waits for, as long as it does.
	notReadyReason *atomic.Pointer[string]
	log            *slog.Logger
}

// watch follows every kind and returns once all that is there now has been handed over. Nothing may be concluded from less: what has not been
// listed yet looks like something that does not exist. A kind that the API server does not know yet is waited for: operator and
// CustomResourceDefinitions may be installed in any order.
func (w watcher) watch(ctx context.Context, own toolscache.ResourceEventHandler) error {
	var handed []toolscache.InformerSynced
	follow := func(k watchedKind, h toolscache.ResourceEventHandler) error {
		synced, err := w.subscribe(ctx, k, h)
		switch {
		case k.optional && meta.IsNoMatchError(err):
			go w.insist(ctx, k, h, err, new(atomic.Pointer[string]))
			return nil
		case err != nil:
			synced, err = w.insist(ctx, k, h, err, w.notReadyReason)
		}
		handed = append(handed, synced)
		return err
	}
	for _, k := range watchedKinds() {
		if err := follow(k, w.inbox); err != nil {
			return err
		}
	}
	for _, o := range append(generatedKinds(), &corev1.Service{}) {
		if err := follow(watchedKind{variants: []client.Object{o}}, own); err != nil {
			return err
		}
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handed...) {
		return fmt.Errorf("list objects: %w", context.Cause(ctx))
	}
	return nil
}

// insist subscribes to a kind as soon as that is possible, and says meanwhile why it is not. Its error is the end of ctx.
func (w watcher) insist(ctx context.Context, k watchedKind, h toolscache.ResourceEventHandler, why error, notReadyReason *atomic.Pointer[string]) (toolscache.InformerSynced, error) {
	defer notReadyReason.Store(nil)
	ticker := time.NewTicker(kindRetry)
	defer ticker.Stop()
	for {
		if said := notReadyReason.Swap(new(why.Error())); said == nil || *said != why.Error() {
			w.log.Warn("wait for a kind", "error", why)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
		synced, err := w.subscribe(ctx, k, h)
		if err == nil {
			w.log.Info("watch a kind that was waited for", "kind", fmt.Sprintf("%T", k.variants[0]))
			return synced, nil
		}
		why = err
	}
}

// subscribe has a handler told of every object of a kind, and returns what tells whether it was told of all that there are.
func (w watcher) subscribe(ctx context.Context, k watchedKind, h toolscache.ResourceEventHandler) (toolscache.InformerSynced, error) {
	o, err := w.served(k)
	if err != nil {
		return nil, err
	}
	informer, err := w.cache.GetInformer(ctx, o, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", o, err)
	}
	registration, err := informer.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", o, err)
	}
	return registration.HasSynced, nil
}

// served returns the spelling to watch.
func (w watcher) served(k watchedKind) (client.Object, error) {
	var none error
	for _, o := range k.variants {
		gvk, err := apiutil.GVKForObject(o, w.scheme)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", o, err)
		}
		_, err = w.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		switch {
		case err == nil:
			return o, nil
		case !meta.IsNoMatchError(err):
			return nil, fmt.Errorf("watch %s: %w", gvk.Kind, err)
		}
		none = fmt.Errorf("watch %s: %w: install the CustomResourceDefinitions", gvk.Kind, err)
	}
	return nil, none
}
