package translate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// users are those that refer to an object. Whose classes they are makes no difference: controllers that share a cluster would not agree on
// what the object says.
type users struct {
	noun string
	// namespace is that of the object. Users elsewhere are counted and not named: whoever reads the object need not know of them.
	namespace string
	count     int
	names     []string
}

// add costs no more for many than for few.
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
	u := users{noun: "Gateway", namespace: key.Namespace}
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
	u := users{noun: "Gateway"}
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

// inUse is the condition that says who uses an object. Who sees a part of the cluster only leaves it as it is.
func (opt Options) inUse(u users, before []metav1.Condition) []metav1.Condition {
	if !opt.Partial {
		return []metav1.Condition{condition.Usage(u.noun, u.count, u.names)}
	}
	for _, c := range before {
		if c.Type == condition.InUse {
			return []metav1.Condition{c}
		}
	}
	return nil
}
