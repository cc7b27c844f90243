package translate

import (
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// podSecurity is the label of a namespace with the Pod Security Standard of its pods.
const podSecurity = "pod-security.kubernetes.io/enforce"

// offloadDeniedBy returns the Pod Security Standard of the Gateway's namespace if the pods need the capabilities of
// in-kernel forwarding and the standard forbids them. Pods with the capabilities could not be created there: an update
// of a DaemonSet deletes a pod before it creates the next one, so it would leave nodes without a pod.
func (d draft) offloadDeniedBy() (standard string) {
	template := d.parameters.dataplane
	if template == nil || template.Spec.ContainerSecurityContext != nil || !manifest.NeedsOffload(template.Spec) {
		return ""
	}
	switch standard := d.view.NamespaceLabels(d.gateway.Namespace)[podSecurity]; standard {
	case "baseline", "restricted":
		return standard
	}
	return ""
}

// offloadNotes warns if the pods forward media in user space because of the Pod Security Standard of the namespace.
func (d draft) offloadNotes() []condition.Finding {
	standard := d.offloadDeniedBy()
	if standard == "" || d.workload == nil {
		return nil
	}
	return []condition.Finding{condition.OffloadDenied(d.parameters.dataplane.Name, d.gateway.Namespace, podSecurity, standard)}
}

// offloadWarning returns why spec.offloadEngine of a Dataplane is not in use as requested. Dataplanes that are
// processes of this host have no pods, and report in their own status whether they have the capabilities.
func offloadWarning(v *resource.View, d *stunnerv1.Dataplane) condition.Finding {
	engine := string(d.Spec.OffloadEngine)
	switch d.Spec.OffloadEngine {
	case "", stunnerv1.OffloadNone:
		return condition.Finding{}
	case stunnerv1.OffloadTC, stunnerv1.OffloadXDP, stunnerv1.OffloadAuto:
	default:
		return condition.OffloadUnknown(engine)
	}
	if v.Host() == nil {
		if err := manifest.CheckOffload(d); err != nil {
			return condition.OffloadImpossible(engine, err)
		}
	}
	return condition.Finding{}
}
