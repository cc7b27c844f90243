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

// workloadOf returns the Deployment or DaemonSet; nil if the operator does not manage the dataplane.
func (d draft) workloadOf() (resource.Object, condition.Finding) {
	if d.parameters.dataplane == nil || d.annotations.unmanaged {
		return nil, condition.Finding{}
	}
	workload, err := manifest.Workload{
		Template: d.parameters.dataplane, Image: d.opt.Image,
		ConfigOrigin: d.opt.DiscoveryAddress, Secured: d.opt.DiscoverySecured,
		Unprivileged: d.offloadDeniedBy() != "", Ports: d.annotations.processPorts,
	}.Build(d.owner)
	if err != nil {
		return nil, condition.PodTemplateInvalid(d.parameters.dataplane.Name)
	}
	if manifest.CheckScaling(d.parameters.dataplane) != nil {
		return nil, condition.GatewayScalingInvalid(d.parameters.dataplane.Name)
	}
	return workload, condition.Finding{}
}

// objects returns the Kubernetes objects of the Gateway, sorted by kind and name.
func (d draft) objects(c config.Config) []resource.Object {
	objects := append(d.skeleton(), manifest.ConfigMap(d.owner, withServiceNames(c, d.named), d.view.TrustBundle()))
	if d.workload != nil {
		objects = append(objects, d.protection(c)...)
		scaling := manifest.Scaling{
			Template: d.parameters.dataplane, Address: d.opt.ScalerAddress, Secured: d.opt.DiscoverySecured,
		}
		objects = append(objects, scaling.Build(d.owner)...)
	}
	slices.SortFunc(objects, func(a, b resource.Object) int {
		kind := func(o resource.Object) string { return o.GetObjectKind().GroupVersionKind().Kind }
		return cmp.Or(strings.Compare(kind(a), kind(b)), strings.Compare(a.GetName(), b.GetName()))
	})
	return objects
}

// skeleton returns Result.Skeleton.
func (d draft) skeleton() (objects []resource.Object) {
	for _, e := range d.exposures {
		objects = append(objects, manifest.Service(d.owner, e))
	}
	if d.workload != nil {
		objects = append(objects, d.workload)
	}
	return objects
}

// keepsReplicas returns Result.KeepReplicas.
func (d draft) keepsReplicas() bool {
	return d.workload != nil && manifest.KeepsReplicas(d.parameters.dataplane)
}

// protection returns the PodDisruptionBudget and the NetworkPolicy of the pods.
func (d draft) protection(c config.Config) (objects []resource.Object) {
	template := d.parameters.dataplane
	if manifest.AlwaysTwoPods(template) {
		objects = append(objects, manifest.DisruptionBudget(d.owner))
	}
	if template.Spec.EnableNetworkPolicy && !template.Spec.HostNetwork {
		objects = append(objects,
			manifest.NetworkPolicy(d.owner, c, manifest.RelayPorts(template), d.opt.DiscoveryAddress))
	}
	return objects
}
