package kube

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// desired is the desired state of one translated object in the cluster: its status and, for a Gateway, the generated
// objects.
type desired struct {
	// ours is false if the object does not exist or belongs to another controller.
	ours   bool
	status any
	// notes are warnings of the translation that become events.
	notes []string
	// uid is the UID of the object from which status was translated.
	uid types.UID
	// version is the resource version of the object from which status was translated.
	version string
	// objects are the generated objects of a Gateway.
	objects []resource.Object
	// complete means that all other generated objects of the Gateway must be deleted.
	complete bool
	// keepServices leaves existing Services unchanged.
	keepServices bool
	// keepReplicas keeps the number of replicas of the Deployment when the operator stops setting spec.replicas.
	keepReplicas bool
	// takeOver permits the first apply of a workload that a former operator created.
	takeOver bool
	// standby is the config for pods that start while the operator is down; nil if the operator does not manage the
	// dataplane.
	standby *config.Config
	// skeleton are the objects of a Gateway whose config is held back. They are recreated if they were deleted, see
	// translate.Result.Skeleton.
	skeleton []resource.Object
}

// all returns the generated objects of a Gateway, including the standby Secret.
func (d desired) all(ref translate.ObjectRef) []resource.Object {
	if d.standby == nil {
		return d.objects
	}
	return append([]resource.Object{manifest.Standby(ref.NamespacedName, d.uid, *d.standby)}, d.objects...)
}

// withoutEndpoints returns d without the endpoints in the standby config. Changes of endpoints are written with a
// delay, because they occur every second while a media server is rolled out.
func (d desired) withoutEndpoints() desired {
	if d.standby != nil {
		c := *d.standby
		c.Clusters = nil
		d.standby = &c
	}
	return d
}

// givenAway reports whether the GatewayClass of the Gateway was changed to that of another controller. The generated
// objects are then deleted once.
func (d desired) givenAway() bool { return !d.ours && d.complete }

// hasObjects reports whether ref is a Gateway of this controller with generated objects.
func (d desired) hasObjects(ref translate.ObjectRef) bool {
	return ref.Kind == translate.KindGateway && d.ours && d.complete
}
