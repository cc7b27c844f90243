package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of the kinds.
const GroupName = "stunner.l7mp.io"

// GroupVersion is the group and version of the kinds.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// AddToScheme registers the kinds with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&GatewayConfig{}, &GatewayConfigList{},
		&Dataplane{}, &DataplaneList{},
		&Revocation{}, &RevocationList{},
		&StaticService{}, &StaticServiceList{},
		&UDPRoute{}, &UDPRouteList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
