package resource

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Referrer is the source of a reference: all objects of a kind in a namespace, as in spec.from of a ReferenceGrant.
type Referrer struct {
	Group     string
	Kind      string
	Namespace string
}

// Target is the object that a reference names.
type Target struct {
	Group string
	Kind  string
	types.NamespacedName
}

// Granted reports whether a reference is allowed: the object that refers and its target are in the same namespace, or a
// ReferenceGrant in the namespace of the target allows the reference.
func (v *View) Granted(from Referrer, to Target) bool {
	if from.Namespace == to.Namespace {
		return true
	}
	grants := list(v, v.grantsOfNamespace, allGrantsOf, types.NamespacedName{Namespace: to.Namespace})
	return slices.ContainsFunc(grants, func(g *gwapiv1.ReferenceGrant) bool {
		return grantsFrom(g.Spec.From, from) && grantsTo(g.Spec.To, to)
	})
}

func grantsFrom(list []gwapiv1.ReferenceGrantFrom, from Referrer) bool {
	return slices.ContainsFunc(list, func(f gwapiv1.ReferenceGrantFrom) bool {
		return string(f.Group) == from.Group && string(f.Kind) == from.Kind && string(f.Namespace) == from.Namespace
	})
}

func grantsTo(list []gwapiv1.ReferenceGrantTo, to Target) bool {
	return slices.ContainsFunc(list, func(t gwapiv1.ReferenceGrantTo) bool {
		name := string(deref(t.Name, gwapiv1.ObjectName(to.Name)))
		return string(t.Group) == to.Group && string(t.Kind) == to.Kind && name == to.Name
	})
}
