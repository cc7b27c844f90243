package resource_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// A standby Secret is used only if its Gateway owns it, so a change of only the owner references is a change.
func TestOwnersOfASecretAreCompared(t *testing.T) {
	ownedBy := func(uid types.UID) *corev1.Secret {
		meta := named("quay", "north-standby")
		meta.OwnerReferences = []metav1.OwnerReference{{Kind: "Gateway", Name: "north", UID: uid}}
		return &corev1.Secret{ObjectMeta: meta}
	}
	v := resource.NewView([]resource.Object{ownedBy("first")})
	if changed := v.Put(ownedBy("first")); len(changed) > 0 {
		t.Errorf("an equal Secret changes %v", changed)
	}
	if changed := v.Put(ownedBy("second")); len(changed) != 1 {
		t.Errorf("another owner of the Secret changes %v", changed)
	}
}

// A Node gets its pod network after it was created.
func TestPodNetworkOfANodeIsCompared(t *testing.T) {
	v := resource.NewView([]resource.Object{&corev1.Node{ObjectMeta: named("", "a")}})
	late := &corev1.Node{ObjectMeta: named("", "a")}
	late.Spec.PodCIDR, late.Spec.PodCIDRs = "10.42.1.0/24", []string{"10.42.1.0/24"}
	if changed := v.Put(late); len(changed) == 0 || len(v.Networks()) != 1 {
		t.Errorf("a pod network changes %v, networks are %v", changed, v.Networks())
	}
}
