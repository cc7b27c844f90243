package kube

import (
	"log/slog"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A status is made for one version of an object, with what others say in it: of any other version nothing is written.
func TestStatusIsWrittenToTheVersionThatItIsMadeFor(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	key := types.NamespacedName{Namespace: "media", Name: "branch"}
	unit := translate.Unit{Kind: translate.KindStaticService, NamespacedName: key}
	object := &stunnerv1.StaticService{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(object).WithStatusSubresource(object).Build()
	w := newWriter(c, s, newMeters(), &tasks{}, slog.New(slog.DiscardHandler))
	read := func() *stunnerv1.StaticService {
		live := &stunnerv1.StaticService{}
		if err := c.Get(t.Context(), key, live); err != nil {
			t.Fatal(err)
		}
		return live
	}
	seen := read().ResourceVersion
	status := stunnerv1.Status{Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: metav1.Now()}}}
	w.want(unit, job{ours: true, status: status, version: seen})

	other := read()
	other.Status.Conditions = []metav1.Condition{{Type: "Other", Status: metav1.ConditionTrue, Reason: "Said", LastTransitionTime: metav1.Now()}}
	if err := c.Status().Update(t.Context(), other, client.FieldOwner("other")); err != nil {
		t.Fatal(err)
	}
	if err := w.write(t.Context(), unit); err != nil {
		t.Fatal(err)
	}
	if got := read().Status.Conditions; len(got) != 1 || got[0].Type != "Other" {
		t.Fatalf("what another controller has said is overwritten: %v", got)
	}
	w.sameAs(unit, "not the one", "any")
	w.sameAs(unit, seen, read().ResourceVersion)
	if err := w.write(t.Context(), unit); err != nil {
		t.Fatal(err)
	}
	if got := read().Status.Conditions; len(got) != 1 || got[0].Type != "Accepted" {
		t.Errorf("nothing is written to the version that it is meant for: %v", got)
	}
}
