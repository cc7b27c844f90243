package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// desired is the desired state of one translated object in the cluster: its status and, for a Gateway, the objects that
// are generated for it.
type desired struct {
	// ours is false if the object does not exist or belongs to another controller.
	ours   bool
	status any
	// problems are those conditions in status that report a problem.
	problems []condition.Problem
	// notes are warnings of the translation that become events.
	notes []string
	// uid is the UID of the object from which status was translated.
	uid types.UID
	// version is the resource version of the object from which status was translated.
	version string
	// objects are the generated objects of a Gateway.
	objects []resource.Object
	// complete means that objects lists all generated objects that the Gateway needs, so any other generated object of
	// the Gateway must be deleted.
	complete bool
	// keepServices leaves existing Services unchanged.
	keepServices bool
	// keepReplicas means that the number of replicas of the Deployment must not change when the operator stops setting
	// spec.replicas.
	keepReplicas bool
	// takeOver means that the operator may apply a workload that the operator of the existing STUNner created, which
	// replaces all its pods.
	takeOver bool
	// standby is the config for pods that start while the operator is down, and for an operator that starts while there
	// is a problem; nil if no config is published.
	standby *config.Config
	// frozen means that no new config is published because of a problem, so objects stay as they were before. Of standby,
	// only the revocations change.
	frozen bool
	// skeleton are the Services and workloads of a Gateway whose new config is not published because of a problem. They
	// are recreated if they were deleted, see translate.Result.Skeleton.
	skeleton []resource.Object
}

// all returns the generated objects of a Gateway, including the standby Secret.
func (d desired) all(ref translate.ObjectRef, keys *standbyKeys) []resource.Object {
	if d.standby == nil {
		return d.objects
	}
	return append([]resource.Object{d.standbySecret(ref, keys)}, d.objects...)
}

// standbySecret returns the standby Secret of a Gateway with a published config.
func (d desired) standbySecret(ref translate.ObjectRef, keys *standbyKeys) *corev1.Secret {
	return manifest.Standby(ref.NamespacedName, d.uid, *d.standby, keys.forNew())
}

// withoutEndpoints returns a copy of the desired state without the endpoints in the standby config. Changes of
// endpoints are written with a delay, because they occur every second while a media server is rolled out.
func (d desired) withoutEndpoints() desired {
	if d.standby != nil {
		c := *d.standby
		c.Clusters = nil
		d.standby = &c
	}
	return d
}

// handedOver reports whether the Gateway now belongs to another controller because its GatewayClass was changed. Its
// generated objects are then deleted once.
func (d desired) handedOver() bool { return !d.ours && d.complete }

// hasObjects reports whether ref is a Gateway of this controller for which objects are generated.
func (d desired) hasObjects(ref translate.ObjectRef) bool {
	return ref.Kind == translate.KindGateway && d.ours && d.complete
}
