package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// waitForCache calls create as soon as the API server is available: a cache with different options for kinds needs the
// list of kinds. Until then, notReadyReason holds the last error. It returns an error only when ctx ends.
func waitForCache(
	ctx context.Context, log *slog.Logger, notReadyReason *atomic.Pointer[string], create func() (cache.Cache, error),
) (cache.Cache, error) {
	defer notReadyReason.Store(nil)
	for {
		c, err := create()
		if err == nil {
			return c, nil
		}
		notReadyReason.Store(new(err.Error()))
		log.Warn("the API server is not available, will retry", "error", err)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(serverRetry):
		}
	}
}

// newCache returns a cache of all watched and generated kinds. Of the kinds in generatedKinds, it contains only objects
// with the operator's label, so that other objects do not take memory. Of other Secrets, it contains the metadata.
func newCache(s Settings, scheme *runtime.Scheme, in *intake) (cache.Cache, error) {
	labelled := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{manifest.OwnedByLabel: manifest.AppValue})}
	by := map[client.Object]cache.ByObject{}
	for _, o := range generatedKinds() {
		if _, secret := o.(*corev1.Secret); !secret {
			by[o] = labelled
		}
	}
	o := cache.Options{Scheme: scheme, ByObject: by, DefaultTransform: in.transform(trimForCache)}
	if o.DefaultNamespaces = s.watchedNamespaces(); o.DefaultNamespaces != nil {
		also := maps.Clone(o.DefaultNamespaces) // plus the operator's namespace, to find the other replicas
		also[s.Namespace] = cache.Config{}
		by[&discoveryv1.EndpointSlice{}] = cache.ByObject{Namespaces: also}
	}
	most, err := cache.New(s.Config, o)
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	o.ByObject = map[client.Object]cache.ByObject{&corev1.Secret{}: labelled}
	secrets, err := cache.New(s.Config, o)
	if err != nil {
		return nil, fmt.Errorf("make cache of Secrets: %w", err)
	}
	return splitCache{most, secrets}, nil
}

// splitCache contains the metadata of all Secrets, and the generated Secrets with their content. It consists of two
// caches, because one cache cannot have two selectors for a kind.
type splitCache struct {
	cache.Cache
	secrets cache.Cache
}

func (c splitCache) cacheOf(o any) cache.Cache {
	switch o.(type) {
	case *corev1.Secret, *corev1.SecretList:
		return c.secrets
	}
	return c.Cache
}

// Get implements cache.Cache.
func (c splitCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.cacheOf(o).Get(ctx, key, o, opts...)
}

// List implements cache.Cache.
func (c splitCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.cacheOf(list).List(ctx, list, opts...)
}

// GetInformer implements cache.Cache.
func (c splitCache) GetInformer(
	ctx context.Context, o client.Object, opts ...cache.InformerGetOption,
) (cache.Informer, error) {
	return c.cacheOf(o).GetInformer(ctx, o, opts...)
}

// Start implements cache.Cache. It runs both caches until ctx ends.
func (c splitCache) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Cache.Start(ctx) })
	group.Go(func() error { return c.secrets.Start(ctx) })
	return group.Wait()
}

// WaitForCacheSync implements cache.Cache.
func (c splitCache) WaitForCacheSync(ctx context.Context) bool {
	return c.Cache.WaitForCacheSync(ctx) && c.secrets.WaitForCacheSync(ctx)
}
