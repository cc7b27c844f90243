package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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
func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), gwapiv1.Install(s), gwapiv1a2.Install(s), gwapiv1b1.Install(s), stunnerv1.AddToScheme(s))
}

// A kind is watched in the first of its spellings that the API server has. One without any is waited for, unless it is optional.
type kind struct {
	spellings []client.Object
	optional  bool
}

// read are the kinds of which a translation is told. Of Secrets there is metadata only: their contents are fetched when somebody asks.
func read() []kind {
	one := func(o client.Object) kind { return kind{spellings: []client.Object{o}} }
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return []kind{
		one(&gwapiv1.GatewayClass{}), one(&gwapiv1.Gateway{}),
		one(&stunnerv1.GatewayConfig{}), one(&stunnerv1.Dataplane{}), one(&stunnerv1.StaticService{}), one(&stunnerv1.UDPRoute{}),
		{spellings: []client.Object{&gwapiv1.UDPRoute{}, &gwapiv1a2.UDPRoute{}}, optional: true},
		{spellings: []client.Object{&gwapiv1.ReferenceGrant{}, &gwapiv1b1.ReferenceGrant{}}, optional: true},
		one(&corev1.Service{}), one(&discoveryv1.EndpointSlice{}), one(&corev1.Namespace{}), one(&corev1.Node{}), one(secrets),
	}
}

// written are the kinds that are made for Gateways, other than Services: those are read as well.
func written() []client.Object {
	return []client.Object{&appsv1.Deployment{}, &appsv1.DaemonSet{}, &corev1.ConfigMap{}}
}

// newCache returns a cache that holds of the kinds that are written only what is ours, and nothing that nobody reads.
func (p Provider) newCache(s *runtime.Scheme) (cache.Cache, error) {
	own := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{manifest.OwnedByLabel: manifest.AppValue})}
	by := map[client.Object]cache.ByObject{}
	for _, o := range written() {
		by[o] = own
	}
	c, err := cache.New(p.Config, cache.Options{Scheme: s, ByObject: by, DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	return c, nil
}

// optionalRetry is how often it is looked whether an optional kind has come to be known.
const optionalRetry = 30 * time.Second

// watch subscribes to every kind and returns once all that is there now has been handed over. Nothing may be concluded from less: what has not
// been listed yet looks like something that does not exist.
func (p Provider) watch(ctx context.Context, c cache.Cache, s *runtime.Scheme, mapper meta.RESTMapper, in *inbox, own toolscache.ResourceEventHandler) error {
	var handed []toolscache.InformerSynced
	for _, k := range read() {
		o, err := k.served(s, mapper)
		if err == nil && o == nil {
			go p.await(ctx, c, k, s, mapper, in)
			continue
		}
		if err != nil {
			return err
		}
		synced, err := subscribe(ctx, c, o, in)
		if err != nil {
			return err
		}
		handed = append(handed, synced)
	}
	for _, o := range append(written(), &corev1.Service{}) {
		synced, err := subscribe(ctx, c, o, own)
		if err != nil {
			return err
		}
		handed = append(handed, synced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handed...) {
		return fmt.Errorf("list objects: %w", context.Cause(ctx))
	}
	return nil
}

// subscribe has a handler told of every object of a kind, and returns what tells whether it was told of all that there are.
func subscribe(ctx context.Context, c cache.Cache, o client.Object, h toolscache.ResourceEventHandler) (toolscache.InformerSynced, error) {
	informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", o, err)
	}
	registration, err := informer.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", o, err)
	}
	return registration.HasSynced, nil
}

// served returns the spelling to watch; nil for an optional kind of which there is none.
func (k kind) served(s *runtime.Scheme, mapper meta.RESTMapper) (client.Object, error) {
	for _, o := range k.spellings {
		gvk, err := apiutil.GVKForObject(o, s)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", o, err)
		}
		_, err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		switch {
		case err == nil:
			return o, nil
		case !meta.IsNoMatchError(err):
			return nil, fmt.Errorf("watch %s: %w", gvk.Kind, err)
		}
	}
	if k.optional {
		return nil, nil
	}
	return nil, fmt.Errorf("watch %T: the API server does not know this kind: install the CustomResourceDefinitions", k.spellings[0])
}

// await watches an optional kind once it is known.
func (p Provider) await(ctx context.Context, c cache.Cache, k kind, s *runtime.Scheme, mapper meta.RESTMapper, in *inbox) {
	ticker := time.NewTicker(optionalRetry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		o, err := k.served(s, mapper)
		if err == nil && o != nil {
			if _, err = subscribe(ctx, c, o, in); err == nil {
				return
			}
		}
		if err != nil {
			p.Log.Warn("watch optional kind", "error", err)
		}
	}
}
