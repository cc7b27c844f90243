package resource

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Set is a set of names. Callers must not modify a set that a View returns.
type Set map[types.NamespacedName]struct{}

// users is an index from an object to the objects that refer to it.
type users struct {
	gatewaysOfClass       map[types.NamespacedName]Set
	gatewaysOfConfig      map[types.NamespacedName]Set
	classesOfConfig       map[types.NamespacedName]Set
	configsOfDataplane    map[types.NamespacedName]Set
	routesOfStaticService map[types.NamespacedName]Set
	dataplanesOfWorkload  map[types.NamespacedName]Set
}

func newUsers() users {
	return users{
		gatewaysOfClass:       map[types.NamespacedName]Set{},
		gatewaysOfConfig:      map[types.NamespacedName]Set{},
		classesOfConfig:       map[types.NamespacedName]Set{},
		configsOfDataplane:    map[types.NamespacedName]Set{},
		routesOfStaticService: map[types.NamespacedName]Set{},
		dataplanesOfWorkload:  map[types.NamespacedName]Set{},
	}
}

// setUsers updates an index of users after the references of the object user have changed: old are the objects that
// it referred to, now those that it refers to. It adds the facts of all objects whose users differ to changed.
func setUsers(index map[types.NamespacedName]Set, s subject, user types.NamespacedName, old, now Set, changed Facts) {
	for key := range old {
		if _, still := now[key]; !still {
			delete(index[key], user)
			if len(index[key]) == 0 {
				delete(index, key)
			}
			changed.add(s, key)
		}
	}
	for key := range now {
		if index[key] == nil {
			index[key] = Set{}
		}
		if _, known := index[key][user]; !known {
			index[key][user] = struct{}{}
			changed.add(s, key)
		}
	}
}

// parametersOf returns the source of a Gateway's parameters: its GatewayClass, or the GatewayConfig in
// spec.infrastructure.parametersRef. The other result is nil.
func parametersOf(gw *gwapiv1.Gateway) (class, config Set) {
	switch {
	case gw == nil:
		return nil, nil
	case gw.Spec.Infrastructure == nil || gw.Spec.Infrastructure.ParametersRef == nil:
		return Set{types.NamespacedName{Name: string(gw.Spec.GatewayClassName)}: {}}, nil
	}
	p := gw.Spec.Infrastructure.ParametersRef
	return nil, configRef(string(p.Group), string(p.Kind), gw.Namespace, p.Name)
}

// configOf returns the GatewayConfig that a class refers to.
func configOf(class *gwapiv1.GatewayClass) Set {
	if class == nil || class.Spec.ParametersRef == nil {
		return nil
	}
	p := class.Spec.ParametersRef
	return configRef(string(p.Group), string(p.Kind), string(deref(p.Namespace, "")), p.Name)
}

// configRef returns the GatewayConfig to which a reference refers. An empty group and an empty kind mean GatewayConfig,
// as in package translate.
func configRef(group, kind, namespace, name string) Set {
	if cmp.Or(group, stunnerv1.GroupName) != stunnerv1.GroupName ||
		cmp.Or(kind, KindGatewayConfig) != KindGatewayConfig {
		return nil
	}
	return Set{types.NamespacedName{Namespace: namespace, Name: name}: {}}
}

// dataplaneOf returns the Dataplane that a GatewayConfig refers to.
func dataplaneOf(gc *stunnerv1.GatewayConfig) Set {
	if gc == nil {
		return nil
	}
	return Set{types.NamespacedName{Name: cmp.Or(gc.Spec.Dataplane, stunnerv1.DefaultDataplane)}: {}}
}

// workloadOf returns spec.workloadName of a Dataplane, if it is set.
func workloadOf(d *stunnerv1.Dataplane) Set {
	if d == nil || d.Spec.WorkloadName == "" {
		return nil
	}
	return Set{types.NamespacedName{Name: d.Spec.WorkloadName}: {}}
}
