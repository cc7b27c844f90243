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
}

func newUsers() users {
	return users{
		gatewaysOfClass:       map[types.NamespacedName]Set{},
		gatewaysOfConfig:      map[types.NamespacedName]Set{},
		classesOfConfig:       map[types.NamespacedName]Set{},
		configsOfDataplane:    map[types.NamespacedName]Set{},
		routesOfStaticService: map[types.NamespacedName]Set{},
	}
}

// refer replaces the objects that user refers to, before, by now, and adds the facts of all objects whose users differ.
func refer(index map[types.NamespacedName]Set, s subject, user types.NamespacedName, before, now Set, changed Facts) {
	for key := range before {
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

// parametersOf returns where the parameters of a Gateway come from: its class, or the GatewayConfig in
// spec.infrastructure.parametersRef. The other one is nil.
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

// configRef returns the GatewayConfig to which a reference refers. As in package translate, an empty group and kind
// mean GatewayConfig.
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
