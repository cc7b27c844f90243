package resource

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// A status that the operator writes is a separate Fact. Otherwise each status write would repeat all translations that
// depend on the spec of the same object: a thousand Gateways may depend on the spec of one Dataplane.

// ClassStatus returns the status of a GatewayClass.
func (v *View) ClassStatus(name string) gwapiv1.GatewayClassStatus {
	c := find(v, v.classes, aClass|itsStatus, types.NamespacedName{Name: name})
	return cmp.Or(c, &gwapiv1.GatewayClass{}).Status
}

// GatewayStatus returns the status of a Gateway.
func (v *View) GatewayStatus(key types.NamespacedName) gwapiv1.GatewayStatus {
	return cmp.Or(find(v, v.gateways, aGateway|itsStatus, key), &gwapiv1.Gateway{}).Status
}

// GatewayConfigStatus returns the status of a GatewayConfig.
func (v *View) GatewayConfigStatus(key types.NamespacedName) stunnerv1.Status {
	return cmp.Or(find(v, v.configs, aGatewayConfig|itsStatus, key), &stunnerv1.GatewayConfig{}).Status
}

// DataplaneStatus returns the status of a Dataplane.
func (v *View) DataplaneStatus(name string) stunnerv1.Status {
	d := find(v, v.dataplanes, aDataplane|itsStatus, types.NamespacedName{Name: name})
	return cmp.Or(d, &stunnerv1.Dataplane{}).Status
}

// StaticServiceStatus returns the status of a StaticService.
func (v *View) StaticServiceStatus(key types.NamespacedName) stunnerv1.Status {
	return cmp.Or(find(v, v.staticServices, aStaticService|itsStatus, key), &stunnerv1.StaticService{}).Status
}

// RevocationStatus returns the status of a Revocation.
func (v *View) RevocationStatus(key types.NamespacedName) stunnerv1.Status {
	return cmp.Or(find(v, v.revocations, aRevocation|itsStatus, key), &stunnerv1.Revocation{}).Status
}
