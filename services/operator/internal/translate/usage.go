package translate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// users are the objects that refer to a GatewayConfig, a Dataplane or a StaticService, for condition InUse. Gateways of
// other controllers are included: otherwise controllers that share a cluster would overwrite each other's condition.
type users struct {
	// noun is the kind of the users in messages.
	noun string
	// namespace is the namespace of the GatewayConfig, Dataplane or StaticService that is used. Users in other
	// namespaces are counted but not named, because a reader of that object may have no right to see them.
	namespace string
	count     int
	names     []string
}

// add adds objects to the users. It collects names only while there are few enough to show all of them.
func (u *users) add(more resource.Set) {
	u.count += len(more)
	if u.count > condition.MaxUsers {
		return
	}
	for key := range more {
		if key.Namespace == u.namespace {
			u.names = append(u.names, key.String())
		}
	}
}

func usersOfConfig(v *resource.View, key types.NamespacedName) users {
	u := users{noun: resource.KindGateway, namespace: key.Namespace}
	u.addOfConfig(v, key)
	return u
}

func (u *users) addOfConfig(v *resource.View, key types.NamespacedName) {
	u.add(v.GatewaysOfConfig(key))
	for class := range v.ClassesOfConfig(key) {
		u.add(v.GatewaysOfClass(class.Name))
	}
}

func usersOfDataplane(v *resource.View, name string) users {
	u := users{noun: resource.KindGateway}
	for key := range v.ConfigsOfDataplane(name) {
		u.addOfConfig(v, key)
	}
	return u
}

func usersOfStaticService(v *resource.View, key types.NamespacedName) users {
	u := users{noun: "UDPRoute", namespace: key.Namespace}
	u.add(v.RoutesOfStaticService(key))
	return u
}

// inUse returns condition InUse. An operator that watches only some namespaces cannot count the users, so it keeps the
// current condition.
func (opt Options) inUse(u users, before []metav1.Condition) []condition.Condition {
	if !opt.Partial {
		return []condition.Condition{condition.Usage(u.noun, u.count, u.names)}
	}
	for _, c := range before {
		if c.Type == condition.InUse {
			return []condition.Condition{{Condition: c}}
		}
	}
	return nil
}
