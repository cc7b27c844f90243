package translate

import (
	"cmp"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// ObjectRef names an object that is translated on its own: one that has a status of ours.
type ObjectRef struct {
	Kind string
	types.NamespacedName
	// Spelling is the group and version of a route.
	Spelling schema.GroupVersion
}

// The kinds of objects that are translated.
const (
	KindGateway       = "Gateway"
	KindRoute         = string(resource.KindUDPRoute)
	KindClass         = "GatewayClass"
	KindGatewayConfig = "GatewayConfig"
	KindDataplane     = "Dataplane"
	KindStaticService = "StaticService"
)

// RefOf returns the unit that an object is; false for an object that has no status of ours.
func RefOf(o resource.Object) (ObjectRef, bool) {
	u := ObjectRef{NamespacedName: resource.KeyOf(o)}
	switch o.(type) {
	case *gwapiv1.Gateway:
		u.Kind = KindGateway
	case *gwapiv1.GatewayClass:
		u.Kind = KindClass
	case *stunnerv1.GatewayConfig:
		u.Kind = KindGatewayConfig
	case *stunnerv1.Dataplane:
		u.Kind = KindDataplane
	case *stunnerv1.StaticService:
		u.Kind = KindStaticService
	case *stunnerv1.UDPRoute:
		u.Kind, u.Spelling = KindRoute, stunnerv1.GroupVersion
	case *gwapiv1.UDPRoute:
		u.Kind, u.Spelling = KindRoute, schema.GroupVersion(gwapiv1.GroupVersion)
	case *gwapiv1a2.UDPRoute:
		u.Kind, u.Spelling = KindRoute, schema.GroupVersion(gwapiv1a2.GroupVersion)
	}
	return u, u.Kind != ""
}

// Compare orders units by kind and name.
func (u ObjectRef) Compare(other ObjectRef) int {
	return cmp.Or(
		cmp.Compare(u.Kind, other.Kind), cmp.Compare(u.Namespace, other.Namespace), cmp.Compare(u.Name, other.Name),
		cmp.Compare(u.Spelling.String(), other.Spelling.String()),
	)
}

// String names the unit for logs; a route together with its API group and version.
func (u ObjectRef) String() string {
	if u.Kind == KindRoute {
		return u.Kind + " " + resource.RouteRef{NamespacedName: u.NamespacedName, GroupVersion: u.Spelling}.String()
	}
	return u.Kind + " " + u.NamespacedName.String()
}

// Object returns the object as a view has it, nil when there is none.
func (u ObjectRef) Object(v *resource.View) resource.Object {
	switch u.Kind {
	case KindGateway:
		return orNil(v.Gateway(u.NamespacedName))
	case KindRoute:
		if r := v.Route(resource.RouteRef{NamespacedName: u.NamespacedName, GroupVersion: u.Spelling}); r != nil {
			return r.Origin
		}
		return nil
	case KindClass:
		return orNil(v.Class(u.Name))
	case KindGatewayConfig:
		return orNil(v.GatewayConfig(u.NamespacedName))
	case KindDataplane:
		return orNil(v.Dataplane(u.Name))
	}
	return orNil(v.StaticService(u.NamespacedName))
}

// orNil keeps a nil pointer from becoming an interface that is not nil.
func orNil[T interface {
	resource.Object
	comparable
}](o T) resource.Object {
	var none T
	if o == none {
		return nil
	}
	return o
}

// Outcome is what became of a unit.
type Outcome struct {
	// Ours is false for an object whose status must not be touched, or that does not exist.
	Ours bool
	// Status is the whole status: a value of the type that the object's field has.
	Status any
	// Gateway is the rest of what a Gateway means; nil for other units.
	Gateway *Result
}

// Translate translates one unit.
func (u ObjectRef) Translate(v *resource.View, opt Options) Outcome {
	switch u.Kind {
	case KindGateway:
		r := Gateway(v, u.NamespacedName, opt)
		return Outcome{Ours: r.Ours, Status: r.Status, Gateway: &r}
	case KindRoute:
		r := Route(v, resource.RouteRef{NamespacedName: u.NamespacedName, GroupVersion: u.Spelling}, opt)
		return Outcome{Ours: r.Ours, Status: gwapiv1.RouteStatus{Parents: r.Parents}}
	case KindClass:
		r := Class(v, u.Name, opt)
		return Outcome{Ours: r.Ours, Status: r.Status}
	case KindGatewayConfig:
		return GatewayConfig(v, u.NamespacedName, opt).outcome()
	case KindDataplane:
		return Dataplane(v, u.Name, opt).outcome()
	}
	return StaticService(v, u.NamespacedName, opt).outcome()
}

func (r ConditionsResult) outcome() Outcome {
	return Outcome{Ours: r.Ours, Status: stunnerv1.Status{Conditions: r.Conditions}}
}
