package kube

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// desired is the desired state of one translated object in the cluster: its status and, for a Gateway, the objects
// that it owns.
type desired struct {
	// ours is false for an object of another controller, and for one that does not exist.
	ours   bool
	status any
	// notes are remarks that become events.
	notes []string
	// uid and version are those of the object for which the status was made.
	uid     types.UID
	version string
	// objects are the objects of a Gateway. If complete, other objects that the Gateway owns are deleted.
	objects  []resource.Object
	complete bool
	// keepServices and keepReplicas leave existing Services and the replicas of the Deployment unchanged.
	keepServices bool
	keepReplicas bool
	// standby is the config with which pods start while the operator is down; nil if the operator runs no pods for the
	// Gateway.
	standby *config.Config
	// skeleton are the objects of a Gateway without a config that are recreated when they are deleted.
	skeleton []resource.Object
}

// all returns the objects of a Gateway including the standby Secret.
func (d desired) all(ref translate.ObjectRef) []resource.Object {
	if d.standby == nil {
		return d.objects
	}
	return append([]resource.Object{manifest.Standby(ref.NamespacedName, d.uid, *d.standby)}, d.objects...)
}

// withoutEndpoints returns d without the endpoints in the standby config, which change every second while a media
// server is rolled out.
func (d desired) withoutEndpoints() desired {
	if d.standby != nil {
		c := *d.standby
		c.Clusters = nil
		d.standby = &c
	}
	return d
}

// givenAway reports whether a Gateway was assigned to another controller, so that its generated objects are to be
// deleted once.
func (d desired) givenAway() bool { return !d.ours && d.complete }

// hasObjects reports whether ref is a Gateway with generated objects.
func (d desired) hasObjects(ref translate.ObjectRef) bool {
	return ref.Kind == translate.KindGateway && d.ours && d.complete
}
