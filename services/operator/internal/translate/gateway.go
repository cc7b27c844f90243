package translate

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

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

// unaddressed says that Services have to do without their external addresses.
func (d draft) unaddressed() []string {
	refusal := d.view.Refusal(resource.KeyOf(d.gateway)).ExternalIPs
	if refusal.Problem == "" {
		return nil
	}
	return []string{condition.ExternalIPsRefused(refusal.Object, refusal.Problem)}
}

// Gateway translates one Gateway. Each step works with what the steps before it found, as far as they came: a Gateway that is
// refused still gets a full status.
func Gateway(v *resource.View, key types.NamespacedName, opt Options) Result {
	gw := v.Gateway(key)
	class := classOf(v, gw, opt)
	if class == nil {
		return Result{Gateway: key}
	}
	d := draft{view: v, opt: opt, gateway: gw, before: v.GatewayStatus(key)}
	var unfit, unauthentic, unreadable, unmakeable condition.Finding
	d.parameters, unfit = parametersOf(v, gw, class, opt)
	d.owner = manifest.OwnerOf(gw, d.parameters.annotations())
	d.auth, unauthentic = d.authOf()
	d.wishes, unreadable = wishesOf(gw, d.parameters.config)
	d.listeners = listenersOf(v, gw, d.wishes, d.parameters)
	d.hold()
	d.budget = d.parameters.budget()
	d.admission = d.admit()
	d.admission.attach(d.listeners)
	d.clusters, d.named = clustersOf(d.admission.served, d.admission.kept)
	d.exposures = d.exposuresOf()
	d.notes = append(d.wishes.notes, d.layOver()...)
	d.workload, unmakeable = d.workloadOf()
	d.notes = append(d.notes, d.scaled()...)
	d.notes = append(d.notes, d.crowded()...)
	d.notes = append(d.notes, d.unaddressed()...)
	findAddresses(v, gw, d.listeners)
	unsound := first(unreadable, unmakeable, gatewayRules.judge(d))
	r := d.assemble(first(unfit, unauthentic.As(condition.ReasonPending), unsound))
	if first(unfit, unsound).OK() {
		r.Skeleton = d.skeleton()
	}
	return r
}

// authOf returns who may use the Gateway.
func (d draft) authOf() (config.Auth, condition.Finding) {
	auth, unfit := authOf(d.view, d.parameters.config, d.opt)
	if !unfit.OK() {
		return auth.Auth, unfit
	}
	return auth.of(resource.KeyOf(d.gateway), d.parameters.config)
}

// assemble puts config, objects and status together, or, when the Gateway is refused, the status alone.
func (d draft) assemble(refused condition.Finding) Result {
	r := Result{Gateway: resource.KeyOf(d.gateway), Ours: true, Notes: d.notes, OverBudget: d.admission.holds(), Demand: d.admission.demand}
	if refused.OK() {
		c := d.config()
		if refused = publishable(c); refused.OK() {
			r.Config, r.Named, r.HeldListeners, r.Objects = &c, d.named, d.waiting(), d.objects(c)
			if d.parameters.dataplane != nil {
				r.RelayPorts = manifest.RelayPorts(d.parameters.dataplane)
			}
			r.KeepReplicas = d.keepsReplicas()
		}
	}
	r.Hold = !refused.OK()
	r.Status = d.status(refused)
	return r
}
