package translate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

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
