package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// config is the dataplane config of the Gateway.
func (d draft) config() config.Config {
	c := config.Config{Admin: d.admin(), Auth: d.auth, Clusters: d.clusters}
	for _, l := range d.listeners {
		switch {
		case l.served():
			c.Listeners = append(c.Listeners, d.configListener(l))
		case l.held != nil:
			c.Listeners = append(c.Listeners, d.heldListener(l))
		}
	}
	c.Default()
	return c
}

func (d draft) admin() config.Admin {
	gc, template := d.parameters.config.Spec, d.parameters.dataplane.Spec
	a := config.Admin{
		Name:              resource.KeyOf(d.gateway).String(),
		LogLevel:          cmp.Or(gc.LogLevel, stunnerv1.DefaultLogLevel),
		UserQuota:         int(gc.UserQuota),
		SourceQuota:       int(gc.SourceQuota),
		SessionByteRate:   gc.SessionByteRate,
		UserByteRate:      gc.UserByteRate,
		OffloadEngine:     string(template.OffloadEngine),
		OffloadInterfaces: template.OffloadInterfaces,
	}
	a.MetricsEndpoint, a.HealthcheckEndpoint = d.adminEndpoints(template)
	return a
}

// adminEndpoints are fixed in a pod, where the probes look for them, and differ between the processes of one host.
func (d draft) adminEndpoints(template stunnerv1.DataplaneSpec) (metrics string, health *string) {
	if host := d.view.Host(); host != nil {
		ports := host.Admin[resource.KeyOf(d.gateway)]
		return loopback(ports.Metrics, "/metrics"), new(loopback(ports.Health, ""))
	}
	if template.EnableMetricsEndpoint {
		metrics = fmt.Sprintf("http://:%d/metrics", manifest.MetricsPort)
	}
	if template.DisableHealthCheck {
		return metrics, new("")
	}
	return metrics, new(fmt.Sprintf("http://:%d", manifest.HealthPort))
}

func loopback(port int, path string) string {
	if port == 0 {
		return ""
	}
	return fmt.Sprintf("http://127.0.0.1:%d%s", port, path)
}

func (d draft) configListener(l *listener) config.Listener {
	c := config.Listener{
		Name:     d.listenerName(l),
		Protocol: l.protocol,
		Address:  d.relayAddress(),
		Port:     int(boundPort(d.view, d.gateway, l)),
		Routes:   routeNames(l),

		ServiceAddresses: serviceAddresses(d.view, d.gateway, l),
	}
	if l.address.known() {
		c.PublicAddress, c.PublicPort = l.address.host, int(l.address.port)
	}
	for i, cert := range l.certificates {
		if i == 0 {
			c.Cert, c.Key = cert.encoded().Cert, cert.encoded().Key
			continue
		}
		c.Certificates = append(c.Certificates, cert.encoded())
	}
	return c
}

func (d draft) listenerName(l *listener) string {
	return resource.KeyOf(d.gateway).String() + "/" + l.name()
}

func routeNames(l *listener) []string {
	var names []string
	for _, r := range l.routes {
		names = append(names, r.Ref.NamespacedName.String())
	}
	names = append(names, l.kept...)
	slices.Sort(names)
	return names
}

// relayAddress is known to the process in the pod rather than here. The address of the node is for whoever serves the config to fill in.
func (d draft) relayAddress() string {
	switch {
	case d.view.Host() != nil:
		return d.view.Host().Address
	case d.wishes.relayDiscovery:
		return config.NodeAddressPlaceholder
	}
	return config.AddressPlaceholder
}

// workloadOf is what runs the dataplane pods; nil where somebody else does.
func (d draft) workloadOf() (resource.Object, condition.Finding) {
	if d.parameters.dataplane == nil || d.wishes.unmanaged {
		return nil, condition.Finding{}
	}
	workload, err := manifest.Workload{
		Template: d.parameters.dataplane, Image: d.opt.Image, ConfigOrigin: d.opt.DiscoveryAddress, Secured: d.opt.DiscoverySecured,
	}.Build(d.owner)
	if err != nil {
		return nil, condition.PodsUnmakeable(d.parameters.dataplane.Name)
	}
	if manifest.CheckScaling(d.parameters.dataplane) != nil {
		return nil, condition.ScalingUnusable(d.parameters.dataplane.Name)
	}
	return workload, condition.Finding{}
}

// objects are the Kubernetes objects of the Gateway, sorted by kind and name.
func (d draft) objects(c config.Config) []resource.Object {
	objects := append(d.skeleton(), manifest.ConfigMap(d.owner, shown(c, d.named), d.view.TrustBundle()))
	if d.workload != nil {
		objects = append(objects, d.guards(c)...)
		objects = append(objects, manifest.Scaling{Template: d.parameters.dataplane, Address: d.opt.ScalerAddress, Secured: d.opt.DiscoverySecured}.Build(d.owner)...)
	}
	slices.SortFunc(objects, func(a, b resource.Object) int {
		kind := func(o resource.Object) string { return o.GetObjectKind().GroupVersionKind().Kind }
		return cmp.Or(strings.Compare(kind(a), kind(b)), strings.Compare(a.GetName(), b.GetName()))
	})
	return objects
}

// skeleton are the objects that do not depend on the config.
func (d draft) skeleton() (objects []resource.Object) {
	for _, e := range d.exposures {
		objects = append(objects, manifest.Service(d.owner, e))
	}
	if d.workload != nil {
		objects = append(objects, d.workload)
	}
	return objects
}

// scaled says what keeps the number of pods from following the calls.
func (d draft) scaled() (notes []string) {
	if d.workload == nil || !manifest.Scaled(d.parameters.dataplane) || !d.view.ScalingMissing() {
		return nil
	}
	return []string{condition.ScalingWaits(d.parameters.dataplane.Name)}
}

// crowded says that not all routes are served.
func (d draft) crowded() []string {
	if len(d.admission.held) == 0 {
		return nil
	}
	return []string{condition.RoutesWait}
}

// keepsReplicas tells whether a number of pods that nobody says any more must stay.
func (d draft) keepsReplicas() bool {
	return d.workload != nil && manifest.KeepsReplicas(d.parameters.dataplane)
}

// guards are what protects the pods: from being evicted all at once, and from traffic that is none of theirs.
func (d draft) guards(c config.Config) (objects []resource.Object) {
	template := d.parameters.dataplane
	if manifest.Spare(template) {
		objects = append(objects, manifest.DisruptionBudget(d.owner))
	}
	if template.Spec.EnableNetworkPolicy && !template.Spec.HostNetwork {
		objects = append(objects, manifest.NetworkPolicy(d.owner, c, manifest.RelayPorts(template), d.opt.DiscoveryAddress))
	}
	return objects
}
