package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// watcher subscribes event handlers to the informers of a cache.
type watcher struct {
	cache  cache.Cache
	scheme *runtime.Scheme
	mapper meta.RESTMapper
	// notReadyReason holds the error about the kind that the API server does not serve yet and for which the start is
	// waiting; nil if the start is not waiting.
	notReadyReason *atomic.Pointer[string]
	log            *slog.Logger
}

// watchAll subscribes the handler translated to every watched kind, and generated to every kind that the operator
// generates. It returns when both handlers have received all existing objects, because an object that is not listed yet
// looks absent. It waits for kinds that the API server does not serve yet, except optional kinds, because operator and
// CRDs may be installed in any order.
func (w watcher) watchAll(ctx context.Context, translated, generated toolscache.ResourceEventHandler) error {
	var synced []toolscache.InformerSynced
	add := func(k watchedKind, h toolscache.ResourceEventHandler) error {
		s, err := w.subscribe(ctx, k, h)
		switch {
		case k.optional && meta.IsNoMatchError(err):
			go w.subscribeWhenServed(ctx, k, h, err, new(atomic.Pointer[string]))
			return nil
		case err != nil:
			s, err = w.subscribeWhenServed(ctx, k, h, err, w.notReadyReason)
		}
		synced = append(synced, s)
		return err
	}
	for _, k := range watchedKinds() {
		if err := add(k, translated); err != nil {
			return err
		}
	}
	for _, o := range append(generatedKinds(), &corev1.Service{}) {
		if err := add(watchedKind{variants: []client.Object{o}}, generated); err != nil {
			return err
		}
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("list objects: %w", context.Cause(ctx))
	}
	return nil
}

// subscribeWhenServed retries subscribe until it succeeds. err is the error of the first attempt. notReadyReason
// receives the last error. The function returns an error only when ctx ends.
func (w watcher) subscribeWhenServed(
	ctx context.Context, k watchedKind, h toolscache.ResourceEventHandler,
	err error, notReadyReason *atomic.Pointer[string],
) (toolscache.InformerSynced, error) {
	defer notReadyReason.Store(nil)
	ticker := time.NewTicker(kindRetry)
	defer ticker.Stop()
	for {
		if before := notReadyReason.Swap(new(err.Error())); before == nil || *before != err.Error() {
			w.log.Warn("cannot watch a kind yet, will retry", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
		var synced toolscache.InformerSynced
		if synced, err = w.subscribe(ctx, k, h); err == nil {
			w.log.Info("a kind is now served and watched", "kind", fmt.Sprintf("%T", k.variants[0]))
			return synced, nil
		}
	}
}

// subscribe adds a handler to the informer of a kind. The returned function reports whether the handler has received
// all objects of the initial list.
func (w watcher) subscribe(
	ctx context.Context, k watchedKind, h toolscache.ResourceEventHandler,
) (toolscache.InformerSynced, error) {
	o, err := w.servedVariant(k)
	if err != nil {
		return nil, err
	}
	synced, err := addHandler(ctx, w.cache, o, h)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", o, err)
	}
	return synced, nil
}

// addHandler adds a handler to the informer of an object's kind.
func addHandler(
	ctx context.Context, c cache.Cache, o client.Object, h toolscache.ResourceEventHandler,
) (toolscache.InformerSynced, error) {
	informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	registration, err := informer.AddEventHandler(h)
	if err != nil {
		return nil, err
	}
	return registration.HasSynced, nil
}

// servedVariant returns an object of the first API version of a kind that the API server serves.
func (w watcher) servedVariant(k watchedKind) (client.Object, error) {
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
