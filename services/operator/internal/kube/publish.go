package kube

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// publisher publishes the configs of Gateways over config discovery. Only the goroutine of the loop uses it.
type publisher struct {
	server   *discovery.Server
	rollouts *rollouts
	meters   *meters
	log      *slog.Logger
	// previous returns the names of the listeners that an earlier operator process published for a Gateway.
	previous func(gateway types.NamespacedName) []string
	// standby returns the standby Secret of a Gateway as it is in the cache, which contains the sum of a long config in
	// place of the config; nil if there is none.
	standby func(gateway types.NamespacedName) *corev1.Secret

	// nodePorts returns the ports of nodes that an earlier operator process published for a Gateway; nil if there are
	// none. Tests may leave it out.
	nodePorts func(gw *gwapiv1.Gateway) *resource.NodePorts

	configs map[types.NamespacedName]config.Config
	// missing are the Gateways that an earlier operator process served and for which this process has not published a
	// config.
	missing map[types.NamespacedName]struct{}
	// unpublished are the ids of the Gateways without a published config: the missing ones, and the Gateways whose
	// first config has a problem.
	unpublished map[string]struct{}
}

func newPublisher(server *discovery.Server, r *rollouts, m *meters, log *slog.Logger) *publisher {
	return &publisher{
		server: server, rollouts: r, meters: m, log: log,
		configs: map[types.NamespacedName]config.Config{}, missing: map[types.NamespacedName]struct{}{},
		unpublished: map[string]struct{}{},
	}
}

// previousListeners returns the names of the listeners in the ConfigMap of a Gateway. Without a ConfigMap, it returns
// the names of the ports of the Service that the operator of the existing STUNner created. Objects of a deleted Gateway
// with the same name exist until they are garbage-collected, and are left out.
func previousListeners(ctx context.Context, cached client.Reader, gw *gwapiv1.Gateway) (names []string) {
	key := resource.KeyOf(gw)
	m := &corev1.ConfigMap{}
	if err := cached.Get(ctx, key, m); err == nil && isOwned(m, gw) {
		for _, l := range shownConfig(m.Data[manifest.ConfigMapKey]).Listeners {
			names = append(names, l.Name)
		}
		return names
	}
	svc := &corev1.Service{}
	if err := cached.Get(ctx, key, svc); err != nil || svc.Annotations[appliedAnnotation] != "" || !isOwned(svc, gw) {
		return nil
	}
	for _, port := range svc.Spec.Ports {
		names = append(names, key.String()+"/"+port.Name)
	}
	return names
}

// isOwned reports whether a Gateway owns an object, and not a former one of its name.
func isOwned(o client.Object, gw *gwapiv1.Gateway) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		return r.Kind == resource.KindGateway && r.UID == gw.UID
	})
}

// previousNodePorts returns the ports of nodes that an earlier operator process published for a Gateway, from its
// ConfigMap and its workload. Unlike the standby Secret, both are in the cache, so that no younger Gateway can take a
// port before they are known.
func previousNodePorts(ctx context.Context, cached client.Reader, gw *gwapiv1.Gateway) *resource.NodePorts {
	key, m := resource.KeyOf(gw), &corev1.ConfigMap{}
	if err := cached.Get(ctx, key, m); err != nil || !isOwned(m, gw) {
		return nil
	}
	return translate.NodePortsOf(key, shownConfig(m.Data[manifest.ConfigMapKey]), cachedWorkload(ctx, cached, gw))
}

// cachedWorkload returns the workload of a Gateway in the cache, or nil. It lists the workloads of the namespace only
// if none has the name of the Gateway, because spec.workloadName of the Dataplane may have named it.
func cachedWorkload(ctx context.Context, cached client.Reader, gw *gwapiv1.Gateway) resource.Object {
	for _, o := range []resource.Object{&appsv1.Deployment{}, &appsv1.DaemonSet{}} {
		if cached.Get(ctx, resource.KeyOf(gw), o) == nil && isOwned(o, gw) {
			return o
		}
	}
	var deployments appsv1.DeploymentList
	var daemonSets appsv1.DaemonSetList
	if cached.List(ctx, &deployments, client.InNamespace(gw.Namespace)) != nil ||
		cached.List(ctx, &daemonSets, client.InNamespace(gw.Namespace)) != nil {
		return nil
	}
	for i := range deployments.Items {
		if isOwned(&deployments.Items[i], gw) {
			return &deployments.Items[i]
		}
	}
	for i := range daemonSets.Items {
		if isOwned(&daemonSets.Items[i], gw) {
			return &daemonSets.Items[i]
		}
	}
	return nil
}

// cachedStandby returns the standby Secret of a Gateway in the cache, or nil.
func cachedStandby(ctx context.Context, cached client.Reader, gateway types.NamespacedName) *corev1.Secret {
	s := &corev1.Secret{}
	if cached.Get(ctx, manifest.StandbyKey(gateway), s) != nil {
		return nil
	}
	return s
}

// current returns the published config of a Gateway; nil if there is none.
func (p *publisher) current(key types.NamespacedName) *config.Config {
	if c, ok := p.configs[key]; ok {
		return &c
	}
	return nil
}

// publish publishes the config of a Gateway. The caller must not modify its lists afterwards.
func (p *publisher) publish(key types.NamespacedName, c config.Config) {
	revision, changed := p.server.Publish(c)
	if !changed {
		return
	}
	p.configs[key] = c // the discovery server shares its lists too
	p.rollouts.publish(key, revision)
	p.rollouts.update(key, time.Now()) // connected dataplanes may have reported already
	p.meters.configs.Set(float64(len(p.configs)))
	p.log.Info("config published", "gateway", key, "revision", revision)
}

// withdraw removes the config of a Gateway and reports whether there was one.
func (p *publisher) withdraw(key types.NamespacedName) bool {
	if p.current(key) == nil {
		return false
	}
	delete(p.configs, key)
	p.rollouts.withdraw(key)
	p.server.Delete(key.String())
	p.meters.configs.Set(float64(len(p.configs)))
	p.log.Info("config withdrawn", "gateway", key)
	return true
}

// updateMissing updates the metric that counts the Gateways without a published config that an earlier operator process
// served. New dataplanes of such a Gateway and the auth service get no config. Readers of all configs receive the
// number of all Gateways of this controller without a config.
func (p *publisher) updateMissing(key types.NamespacedName, d translate.Decision) {
	unpublished := !d.Ends() && p.current(key) == nil
	missing := unpublished && p.previous != nil && len(p.previous(key)) > 0
	setMember(p.missing, key, missing)
	p.meters.missing.Set(float64(len(p.missing)))
	if setMember(p.unpublished, key.String(), missing || unpublished && d.Ours()) {
		p.server.SetUnpublished(slices.Collect(maps.Keys(p.unpublished)))
	}
}

// setMember adds a key to a set or removes it, and reports whether the set has changed.
func setMember[K comparable](set map[K]struct{}, key K, member bool) (changed bool) {
	_, before := set[key]
	if member {
		set[key] = struct{}{}
	} else {
		delete(set, key)
	}
	return before != member
}
