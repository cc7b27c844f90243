package translate

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Gateway translates one Gateway. A problem does not end the translation, because the status of a Gateway must always
// be complete. If gatewayRules finds a problem, the published config and objects stay unchanged.
func Gateway(v *resource.View, key types.NamespacedName, opt Options) Result {
	gw := v.Gateway(key)
	class, decision := classOf(v, gw, opt)
	if class == nil {
		if opt.Memo != nil {
			opt.Memo.Forget(ObjectRef{Kind: KindGateway, NamespacedName: key})
		}
		return Result{
			Key: key, Decision: decision, NeedsPublished: opt.Published == nil && decision == Classless,
			Revoked: revokedIf(decision == Classless, v, key, opt),
		}
	}
	d := draft{view: v, opt: opt, gateway: gw, before: v.GatewayStatus(key)}
	d.parameters, d.findings.parameters = parametersOf(v, gw, class, opt)
	d.owner = manifest.OwnerOf(gw, d.parameters.defaultAnnotations())
	d.auth, d.findings.auth = d.authentication()
	d.auth.Revocations = revocations(v, key, opt.Now.Time)
	d.annotations, d.findings.annotations = annotationsOf(gw, d.parameters.config)
	onNodes := takenHostPorts(v, gw, d.parameters, d.annotations, opt)
	portNotes := slices.Concat(d.leaveHostPorts(onNodes), d.leaveUnknownPorts())
	d.listeners = listenersOf(v, gw, d.annotations, d.parameters, onNodes)
	certificates, fit := limitCertificates(d.listeners, opt.Room)
	d.holdListeners()
	portNotes = append(portNotes, d.leaveHeldPorts()...)
	d.admission = admit(v, gw, d.parameters, d.listeners, opt)
	d.admission.demand.Certificates = certificates + resource.SizeOf(d.auth.Revocations)
	d.admission.demand.MoreCertificates = !fit
	d.admission.attach(d.listeners)
	d.clusters, d.named = clustersOf(d.admission.served, d.admission.keptClusters)
	d.exposures = d.exposuresOf()
	overlayNotes := d.applyServiceOverlay()
	d.workload, d.findings.workload = d.workloadOf()
	d.notes = slices.Concat(d.annotations.notes, portNotes, overlayNotes, d.scalingNotes(), d.offloadNotes(),
		d.budgetNotes(), d.addressNotes(), d.externalIPNotes(), d.replicasNotes(), d.refusedNotes(),
		d.ignoredNotes())
	d.announce()
	refused, skeleton := d.firstProblem()
	r := d.assemble(refused)
	if skeleton {
		r.Skeleton = d.skeleton()
	}
	opt.Memo.keep(d, r)
	return r
}

// authentication returns the auth section of the config.
func (d draft) authentication() (config.Auth, condition.Finding) {
	auth, finding := authOf(d.view, d.parameters.config, d.opt)
	if !finding.OK() {
		return auth.Auth, finding.As(condition.ReasonPending)
	}
	own, finding := auth.forGateway(resource.KeyOf(d.gateway), d.parameters.config)
	return own, finding.As(condition.ReasonPending)
}

// scalingNotes warns if autoscaling is requested but KEDA is not installed.
func (d draft) scalingNotes() []condition.Finding {
	if d.workload == nil || !manifest.Scaled(d.parameters.dataplane) || !d.view.ScalingMissing() {
		return nil
	}
	return []condition.Finding{condition.ScalingUnavailable(d.parameters.dataplane.Name)}
}

// budgetNotes warns if routes are not served because they exceed a budget.
func (d draft) budgetNotes() []condition.Finding {
	if len(d.admission.refused) == 0 {
		return nil
	}
	return []condition.Finding{condition.RoutesOverBudget()}
}

// externalIPNotes warns if the API server rejected the external IPs of a Service.
func (d draft) externalIPNotes() []condition.Finding {
	rejection := d.view.Rejection(resource.KeyOf(d.gateway)).ExternalIPs
	if rejection.Problem == "" {
		return nil
	}
	return []condition.Finding{condition.ExternalIPsRefused(rejection.Object, rejection.Problem)}
}

// replicasNotes warns if spec.replicas of the Dataplane is not in force, because something else scales the Deployment.
func (d draft) replicasNotes() []condition.Finding {
	by := d.view.Rejection(resource.KeyOf(d.gateway)).ScaledBy
	if by == "" || d.parameters.dataplane == nil {
		return nil
	}
	return []condition.Finding{condition.ReplicasNotInForce(d.parameters.dataplane.Name, by)}
}

// refusedNotes warns if config discovery refuses some pods. If it refuses all pods, condition Programmed reports it
// instead.
func (d draft) refusedNotes() []condition.Finding {
	rollout := d.view.Rollout(resource.KeyOf(d.gateway))
	if rollout.RefusedPod == "" || rollout.AllRefused || d.parameters.dataplane == nil {
		return nil
	}
	return []condition.Finding{condition.PodRefused(d.parameters.dataplane.Name, rollout.RefusedPod)}
}

// assemble returns the config, the objects and the status of the Gateway. If the Gateway has a problem (refused), if
// the new config would lack a listener in use, or if publishable rejects the config, it returns neither config nor
// objects, and the decision is Held.
func (d draft) assemble(refused condition.Finding) Result {
	r := Result{
		Key: resource.KeyOf(d.gateway), Decision: Held, Notes: d.notes,
		OverBudget: d.admission.overBudget(), Demand: d.admission.demand,
	}
	lost := d.lostListener()
	if refused.OK() && lost == "" {
		c := d.config()
		if refused = publishable(c); refused.OK() {
			r.Decision, r.Config, r.Named, r.Objects = Served, &c, d.named, d.objects(c)
			r.NodePorts = NodePortsOf(r.Key, c, d.workload)
			if d.parameters.dataplane != nil {
				r.RelayPorts = manifest.RelayPorts(d.parameters.dataplane)
			}
			r.KeepReplicas, r.TakeOver = d.keepsReplicas(), d.annotations.takeOver
		}
	}
	r.NeedsPublished = d.opt.Published == nil && (r.Decision == Held || d.unknownPorts || len(d.admission.refused) > 0 ||
		slices.ContainsFunc(d.listeners, (*listener).held))
	r.OverBudget.IgnoresRevocations = r.Decision == Served && d.auth.Type != config.AuthEphemeral
	if r.Decision == Held {
		r.Revoked = d.withoutRevoked()
	}
	r.Status, r.Problems = d.status(refused, lost)
	return r
}
