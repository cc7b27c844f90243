package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// scaling are the kinds of KEDA that are made for Gateways.
func kedaKinds() (kinds []client.Object) {
	for _, kind := range []string{manifest.KindScaledObject, manifest.KindTriggerAuthentication} {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(manifest.KEDA.WithKind(kind))
		kinds = append(kinds, o)
	}
	return kinds
}

// isKEDA tells whether an object is of one of those kinds.
func isKEDA(o resource.Object) bool {
	return o.GetObjectKind().GroupVersionKind().Group == manifest.KEDA.Group
}

// keda follows whether the cluster knows the kinds of KEDA, which come and go with KEDA. Nobody has to have it: without it nothing is watched, and
// nothing fails.
type kedaWatcher struct {
	config *rest.Config
	cache  cache.Options
	asks   rest.Interface
	writer *writer
	inbox  *inbox
	log    *slog.Logger
	// known is what the loop was told; nil when that was nothing yet.
	known *bool
	// client reads from a cache of the kinds, and handed tell whether that holds what there is. There are none before KEDA was found.
	client client.Client
	handed []toolscache.InformerSynced
}

// newKEDAWatcher takes what a cache of the kinds is made with: one that holds others as well could not be made without them.
func (p *Provider) newKEDAWatcher(l *loop, o cache.Options) (*kedaWatcher, error) {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(p.Config, o.HTTPClient)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	o.DefaultLabelSelector = labels.SelectorFromSet(labels.Set{manifest.OwnedByLabel: manifest.AppValue})
	o.DefaultTransform = cache.TransformStripManagedFields()
	o.DefaultNamespaces = p.watched()
	return &kedaWatcher{config: p.Config, cache: o, asks: d.RESTClient(), writer: l.writer, inbox: l.inbox, log: l.log}, nil
}

// await returns once it is known whether there is KEDA. Its error is the end of ctx.
func (k *kedaWatcher) await(ctx context.Context) error {
	for k.known == nil {
		err := k.look(ctx)
		if err == nil {
			break
		}
		k.log.Warn("look for KEDA, to be tried again", "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(serverRetry):
		}
	}
	return nil
}

// run looks until ctx ends.
func (k *kedaWatcher) run(ctx context.Context, t *task) {
	ticker := time.NewTicker(kindRetry)
	defer ticker.Stop()
	for {
		t.begin()
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("look for KEDA, to be tried again", "error", err)
		}
		t.begin()
		if *k.known && k.listed(ctx) {
			k.writer.scale(k.client)
		} else {
			k.writer.scale(nil)
		}
		t.end()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look finds out whether there is KEDA. When that cannot be said, what was known stays.
func (k *kedaWatcher) look(ctx context.Context) error {
	found, err := k.served(ctx)
	if err != nil {
		return err
	}
	if found && k.client == nil {
		if err := k.watch(ctx); err != nil {
			return err
		}
	}
	if k.known == nil || *k.known != found {
		k.log.Info("look for KEDA", "found", found)
		k.known = &found
		k.inbox.put(objectChange{object: &resource.Scaling{Missing: !found}})
	}
	return nil
}

// listed tells whether what there is of the kinds is known, and waits for it a while. What has not been listed looks like something that does not exist.
// Without the right to list, that stays so, and nothing else may wait for it.
func (k *kedaWatcher) listed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, kindRetry)
	defer cancel()
	return toolscache.WaitForCacheSync(ctx.Done(), k.handed...)
}

// served asks the API server whether it knows all of the kinds.
func (k *kedaWatcher) served(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var known metav1.APIResourceList
	err := k.asks.Get().AbsPath("/apis", manifest.KEDA.Group, manifest.KEDA.Version).Do(ctx).Into(&known)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("list kinds of %s: %w", manifest.KEDA, err)
	}
	for _, o := range kedaKinds() {
		kind := o.GetObjectKind().GroupVersionKind().Kind
		if !slices.ContainsFunc(known.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind }) {
			return false, nil
		}
	}
	return true, nil
}

// watch follows the kinds until ctx ends. While they are gone, the watches wait for them to come back.
func (k *kedaWatcher) watch(ctx context.Context) error {
	c, err := cache.New(k.config, k.cache)
	if err != nil {
		return fmt.Errorf("make cache: %w", err)
	}
	var handed []toolscache.InformerSynced
	for _, o := range kedaKinds() {
		informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %s: %w", o.GetObjectKind().GroupVersionKind().Kind, err)
		}
		registration, err := informer.AddEventHandler(k.writer)
		if err != nil {
			return fmt.Errorf("watch %s: %w", o.GetObjectKind().GroupVersionKind().Kind, err)
		}
		handed = append(handed, registration.HasSynced)
	}
	k.client, err = client.New(k.config, client.Options{
		HTTPClient: k.cache.HTTPClient, Scheme: k.cache.Scheme, Mapper: k.cache.Mapper, Cache: &client.CacheOptions{Reader: c, Unstructured: true},
	})
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	k.handed = handed
	go func() {
		if err := c.Start(ctx); err != nil {
			k.log.Error("watch the kinds of KEDA", "error", err)
		}
	}()
	return nil
}
