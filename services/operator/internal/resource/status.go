package resource

import (
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// A status that the operator writes is a Fact of its own. Otherwise each status write would repeat all translations
// that depend on the spec: a thousand Gateways may depend on the spec of one Dataplane.

// ClassStatus returns the status of a GatewayClass.
func (v *View) ClassStatus(name string) gwapiv1.GatewayClassStatus {
	if c := find(v, v.classes, aClass|itsStatus, types.NamespacedName{Name: name}); c != nil {
		return c.Status
	}
	return gwapiv1.GatewayClassStatus{}
}

// GatewayStatus returns the status of a Gateway.
func (v *View) GatewayStatus(key types.NamespacedName) gwapiv1.GatewayStatus {
	if g := find(v, v.gateways, aGateway|itsStatus, key); g != nil {
		return g.Status
	}
	return gwapiv1.GatewayStatus{}
}

// GatewayConfigStatus returns the status of a GatewayConfig.
func (v *View) GatewayConfigStatus(key types.NamespacedName) stunnerv1.Status {
	if c := find(v, v.configs, aGatewayConfig|itsStatus, key); c != nil {
		return c.Status
	}
	return stunnerv1.Status{}
}

// DataplaneStatus returns the status of a Dataplane.
func (v *View) DataplaneStatus(name string) stunnerv1.Status {
	if d := find(v, v.dataplanes, aDataplane|itsStatus, types.NamespacedName{Name: name}); d != nil {
		return d.Status
	}
	return stunnerv1.Status{}
}

// StaticServiceStatus returns the status of a StaticService.
func (v *View) StaticServiceStatus(key types.NamespacedName) stunnerv1.Status {
	if s := find(v, v.staticServices, aStaticService|itsStatus, key); s != nil {
		return s.Status
	}
	return stunnerv1.Status{}
}
