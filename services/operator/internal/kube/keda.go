package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// kedaWatcher detects whether KEDA is installed, and watches its kinds. KEDA is optional, and may be installed and
// removed while the operator runs.
type kedaWatcher struct {
	config    *rest.Config
	cache     cache.Options
	discovery rest.Interface
	inbox     *inbox
	handler   toolscache.ResourceEventHandler
	// setClient is called with the client for the KEDA kinds, or with nil while objects of these kinds cannot be
	// written.
	setClient func(client.Client)
	log       *slog.Logger
	// installed reports whether KEDA was installed at the last detection. This result was sent to the translation loop.
	// It is nil before the first detection.
	installed *bool
	// client reads the KEDA kinds from a cache; nil until KEDA was detected for the first time.
	client client.Client
	// synced are functions that report whether the cache of client contains all existing objects.
	synced []toolscache.InformerSynced
}

// newKEDAWatcher returns a watcher of the KEDA kinds with a cache of its own. The main cache could not be filled if it
// contained a kind that the API server does not serve.
func newKEDAWatcher(
	s Settings, o cache.Options, in *inbox, take *intake, h toolscache.ResourceEventHandler,
	setClient func(client.Client),
) (*kedaWatcher, error) {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(s.Config, o.HTTPClient)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	o.DefaultLabelSelector = labels.SelectorFromSet(labels.Set{manifest.OwnedByLabel: manifest.AppValue})
	o.DefaultTransform = take.transform(trimKEDA)
	o.DefaultNamespaces = s.watchedNamespaces()
	return &kedaWatcher{
		config: s.Config, cache: o, discovery: d.RESTClient(), inbox: in, handler: take.releasing(h),
		setClient: setClient, log: s.Log,
	}, nil
}

// await returns when it is known whether KEDA is installed. It returns an error only when ctx ends.
func (k *kedaWatcher) await(ctx context.Context) error {
	for k.installed == nil {
		err := k.detect(ctx)
		if err == nil {
			break
		}
		k.log.Warn("cannot detect KEDA, will retry", "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(serverRetry):
		}
	}
	return nil
}

// run detects KEDA periodically until ctx ends.
func (k *kedaWatcher) run(ctx context.Context, t *task) {
	ticker := time.NewTicker(kindRetry)
	defer ticker.Stop()
	for {
		t.begin()
		if err := k.detect(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("cannot detect KEDA, will retry", "error", err)
		}
		t.begin()
		if *k.installed && k.waitForSync(ctx) {
			k.setClient(k.client)
		} else {
			k.setClient(nil)
		}
		t.end()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// detect checks whether KEDA is installed, and starts the watches when it is found for the first time. If the result
// has changed, detect sends it to the translation loop.
func (k *kedaWatcher) detect(ctx context.Context) error {
	found, err := k.isServed(ctx)
	if err != nil {
		return err
	}
	if found && k.client == nil {
		if err := k.watch(ctx); err != nil {
			return err
		}
	}
	if k.installed == nil || *k.installed != found {
		k.log.Info("detected KEDA", "installed", found)
		k.installed = &found
		k.inbox.put(objectChange{object: &resource.Scaling{Missing: !found}})
	}
	return nil
}

// waitForSync waits for up to kindRetry until the existing KEDA objects are listed, and reports whether they are.
// Before that, existing objects look absent. The wait is limited because the list never completes if RBAC does not
// allow listing these objects.
func (k *kedaWatcher) waitForSync(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, kindRetry)
	defer cancel()
	return toolscache.WaitForCacheSync(ctx.Done(), k.synced...)
}

// isServed reports whether the API server serves all KEDA kinds.
func (k *kedaWatcher) isServed(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var served metav1.APIResourceList
	err := k.discovery.Get().AbsPath("/apis", manifest.KEDA.Group, manifest.KEDA.Version).Do(ctx).Into(&served)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("list kinds of %s: %w", manifest.KEDA, err)
	}
	for _, o := range kedaKinds() {
		kind := o.GetObjectKind().GroupVersionKind().Kind
		if !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind }) {
			return false, nil
		}
	}
	return true, nil
}

// watch watches the KEDA kinds until ctx ends. If KEDA is removed, the informers retry until it is installed again.
func (k *kedaWatcher) watch(ctx context.Context) error {
	c, err := cache.New(k.config, k.cache)
	if err != nil {
		return fmt.Errorf("make cache: %w", err)
	}
	var all []toolscache.InformerSynced
	for _, o := range kedaKinds() {
		synced, err := addHandler(ctx, c, o, k.handler)
		if err != nil {
			return fmt.Errorf("watch %s: %w", o.GetObjectKind().GroupVersionKind().Kind, err)
		}
		all = append(all, synced)
	}
	k.client, err = client.New(k.config, client.Options{
		HTTPClient: k.cache.HTTPClient, Scheme: k.cache.Scheme, Mapper: k.cache.Mapper,
		Cache: &client.CacheOptions{Reader: c, Unstructured: true},
	})
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	k.synced = all
	go func() {
		if err := c.Start(ctx); err != nil {
			k.log.Error("watch of the KEDA kinds failed", "error", err)
		}
	}()
	return nil
}
