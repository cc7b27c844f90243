package kube

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// takeFields makes the Gateway the controller of the object, and keeps the owner references that others added.
func TestTakeFieldsKeepsOtherOwners(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "release", UID: "release"}
	for name, owners := range map[string][]metav1.OwnerReference{
		"with a reference to the Gateway": {
			{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "edge", UID: "edge"}, other,
		},
		"without one": {other},
	} {
		wanted := newEdge(t).objects(deployment())[1]
		live := wanted.DeepCopyObject().(*appsv1.Deployment)
		live.OwnerReferences = owners
		c := fake.NewClientBuilder().WithScheme(s).WithReturnManagedFields().Build()
		if err := c.Create(t.Context(), live, client.FieldOwner(formerManager)); err != nil {
			t.Fatal(err)
		}
		if took, err := takeFields(t.Context(), c, wanted); err != nil || !took {
			t.Errorf("%s: took fields %t, error %v", name, took, err)
		}
		if err := c.Get(t.Context(), resource.KeyOf(wanted), live); err != nil {
			t.Fatal(err)
		}
		uids := map[types.UID]bool{}
		for _, o := range live.OwnerReferences {
			uids[o.UID] = o.Controller != nil && *o.Controller
		}
		if controls, has := uids["release"]; len(live.OwnerReferences) != 2 || !has || controls || !uids["edge"] {
			t.Errorf("%s: owner references %+v", name, live.OwnerReferences)
		}
	}
}
