package translate

import (
	"cmp"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// ObjectRef refers to an object that is translated, which means that the operator writes its status.
type ObjectRef struct {
	Kind string
	types.NamespacedName
	// GroupVersion is the API group and version of a route; zero for other kinds.
	GroupVersion schema.GroupVersion
}

// The kinds of objects that are translated.
const (
	KindGateway       = resource.KindGateway
	KindRoute         = string(resource.KindUDPRoute)
	KindClass         = resource.KindGatewayClass
	KindGatewayConfig = resource.KindGatewayConfig
	KindDataplane     = resource.KindDataplane
	KindStaticService = string(stunnerv1.KindStaticService)
	KindRevocation    = stunnerv1.KindRevocation
)

// RefOf returns the reference to an object. The result is false if the operator does not translate objects of this
// kind.
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
	case *stunnerv1.Revocation:
		u.Kind = KindRevocation
	case *stunnerv1.UDPRoute:
		u.Kind, u.GroupVersion = KindRoute, stunnerv1.GroupVersion
	case *gwapiv1.UDPRoute:
		u.Kind, u.GroupVersion = KindRoute, schema.GroupVersion(gwapiv1.GroupVersion)
	case *gwapiv1a2.UDPRoute:
		u.Kind, u.GroupVersion = KindRoute, schema.GroupVersion(gwapiv1a2.GroupVersion)
	}
	return u, u.Kind != ""
}

// Compare orders references by kind, namespace and name.
func (u ObjectRef) Compare(other ObjectRef) int {
	return cmp.Or(cmp.Compare(u.Kind, other.Kind), cmp.Compare(u.Namespace, other.Namespace),
		cmp.Compare(u.Name, other.Name), cmp.Compare(u.GroupVersion.String(), other.GroupVersion.String()))
}

// String returns kind, namespace and name for logs, and the API group and version of a route.
func (u ObjectRef) String() string {
	if u.Kind == KindRoute {
		return u.Kind + " " + resource.RouteRef{NamespacedName: u.NamespacedName, GroupVersion: u.GroupVersion}.String()
	}
	return u.Kind + " " + u.NamespacedName.String()
}

// Object returns the object in a view, or nil.
func (u ObjectRef) Object(v *resource.View) resource.Object {
	switch u.Kind {
	case KindGateway:
		return orNil(v.Gateway(u.NamespacedName))
	case KindRoute:
		if r := v.Route(resource.RouteRef{NamespacedName: u.NamespacedName, GroupVersion: u.GroupVersion}); r != nil {
			return r.Origin
		}
		return nil
	case KindClass:
		return orNil(v.Class(u.Name))
	case KindGatewayConfig:
		return orNil(v.GatewayConfig(u.NamespacedName))
	case KindDataplane:
		return orNil(v.Dataplane(u.Name))
	case KindRevocation:
		return orNil(v.Revocation(u.NamespacedName))
	}
	return orNil(v.StaticService(u.NamespacedName))
}

// orNil returns a nil interface for a nil pointer.
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

// Outcome is the result of translating an object of any kind.
type Outcome struct {
	// Ours is false if the object does not exist, or if its status belongs to another controller and must not be
	// written.
	Ours bool
	// Status is the complete status. It has the type of the object's status field, or gwapiv1.RouteStatus for a route.
	Status any
	// Problems are those conditions in Status that report a problem.
	Problems []condition.Problem
	// Gateway is the complete result for a Gateway; nil for other kinds.
	Gateway *Result
}

func outcomeOf(r Result) Outcome {
	return Outcome{Ours: r.Decision.Ours(), Status: r.Status, Problems: r.Problems, Gateway: &r}
}

// Translate translates the object.
func (u ObjectRef) Translate(v *resource.View, opt Options) Outcome {
	switch u.Kind {
	case KindGateway:
		return outcomeOf(Gateway(v, u.NamespacedName, opt))
	case KindRoute:
		r := Route(v, resource.RouteRef{NamespacedName: u.NamespacedName, GroupVersion: u.GroupVersion}, opt)
		return Outcome{Ours: r.Ours, Status: gwapiv1.RouteStatus{Parents: r.Parents}, Problems: r.Problems}
	case KindClass:
		r := Class(v, u.Name, opt)
		return Outcome{Ours: r.Ours, Status: r.Status, Problems: r.Problems}
	case KindGatewayConfig:
		return GatewayConfig(v, u.NamespacedName, opt).outcome()
	case KindDataplane:
		return Dataplane(v, u.Name, opt).outcome()
	case KindRevocation:
		return Revocation(v, u.NamespacedName, opt).outcome()
	}
	return StaticService(v, u.NamespacedName, opt).outcome()
}

func (r ConditionsResult) outcome() Outcome {
	return Outcome{Ours: r.Ours, Status: stunnerv1.Status{Conditions: r.Conditions}, Problems: r.Problems}
}
