package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// The inbox keeps the newest state of each object, and objects of different kinds apart.
func TestInboxKeepsTheNewest(t *testing.T) {
	in := newInbox()
	meta := metav1.ObjectMeta{Namespace: "media", Name: "edge"}
	service := func(version string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: meta}
		s.ResourceVersion = version
		return s
	}
	in.OnAdd(service("1"), true)
	in.OnUpdate(service("1"), service("2"))
	in.OnAdd(&corev1.Namespace{ObjectMeta: meta}, false)
	in.OnDelete(cache.DeletedFinalStateUnknown{Key: "media/edge", Obj: &corev1.Node{ObjectMeta: meta}})
	in.OnDelete("no object")
	select {
	case <-in.wake:
	default:
		t.Error("no notification")
	}
	got := in.drain()
	if len(got) != 3 || len(in.drain()) != 0 {
		t.Fatalf("%d changes, want 3 once", len(got))
	}
	for _, c := range got {
		_, node := c.object.(*corev1.Node)
		if s, ok := c.object.(*corev1.Service); ok && s.ResourceVersion != "2" || node != c.deleted {
			t.Errorf("%T %s, gone %t", c.object, c.object.GetResourceVersion(), c.deleted)
		}
	}
}
