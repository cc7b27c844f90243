package kube

import (
	"context"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// caches are one cache, in which of Secrets those are whole that are ours, and all others metadata: no cache has two selections of one kind.
type caches struct {
	cache.Cache
	secrets cache.Cache
}

// of returns the cache of an object.
func (c caches) of(o any) cache.Cache {
	switch o.(type) {
	case *corev1.Secret, *corev1.SecretList:
		return c.secrets
	}
	return c.Cache
}

// Get is part of cache.Cache, as the others are.
func (c caches) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.of(o).Get(ctx, key, o, opts...)
}

// List asks the cache of the kind.
func (c caches) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.of(list).List(ctx, list, opts...)
}

// GetInformer asks the cache of the kind.
func (c caches) GetInformer(ctx context.Context, o client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	return c.of(o).GetInformer(ctx, o, opts...)
}

// Start runs both until ctx ends.
func (c caches) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Cache.Start(ctx) })
	group.Go(func() error { return c.secrets.Start(ctx) })
	return group.Wait()
}

// WaitForCacheSync waits for both.
func (c caches) WaitForCacheSync(ctx context.Context) bool {
	return c.Cache.WaitForCacheSync(ctx) && c.secrets.WaitForCacheSync(ctx)
}
