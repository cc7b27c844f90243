package kube

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// labelsOf returns labels of about this many bytes.
func labelsOf(bytes int) map[string]string {
	labels := map[string]string{}
	for i := range bytes / 100 {
		labels[fmt.Sprintf("%060d", i)] = strings.Repeat("x", 40)
	}
	return labels
}

// readKinds returns an empty object of each kind whose content the operator watches.
func readKinds() (all []resource.Object) {
	for _, k := range watchedKinds() {
		for _, like := range k.variants {
			if _, metadataOnly := like.(*metav1.PartialObjectMetadata); !metadataOnly {
				all = append(all, like)
			}
		}
	}
	return all
}

// objectWith returns an object of the same kind as a given object.
func objectWith(like resource.Object, namespace, name string, labels map[string]string) resource.Object {
	o := reflect.New(reflect.TypeOf(like).Elem()).Interface().(resource.Object)
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetUID("1")
	o.SetResourceVersion("1")
	o.SetLabels(labels)
	return o
}

func content(o resource.Object) int { return len(o.GetLabels()) }

// A namespace cannot take more than its share with objects of any kind. Another namespace still has room for small
// objects.
func TestNamespaceTakesAtMostItsShare(t *testing.T) {
	const total = 8 << 20
	large, small := labelsOf(400_000), labelsOf(1000)
	for _, like := range readKinds() {
		t.Run(fmt.Sprintf("%T", like), func(t *testing.T) {
			in := newIntake(total, slog.New(slog.DiscardHandler))
			for namespace := range 8 {
				for i := range 20 {
					in.admit(objectWith(like, fmt.Sprint("tenant-", namespace), fmt.Sprint("heavy-", i), large))
				}
			}
			sum := 0
			for name, a := range in.accounts {
				held := 0
				for _, c := range a.counted {
					held += c.price
				}
				if held != a.used || held > total/namespaceShare {
					t.Errorf("account %q has %d bytes, counted as %d, of %d", name, held, a.used, total/namespaceShare)
				}
				sum += held
			}
			if sum != in.used || sum > total-total/reservedShare {
				t.Errorf("all have %d bytes, counted as %d", sum, in.used)
			}
			if in.unreadObjects() == 0 {
				t.Error("everything was read")
			}
			if stub := in.admit(objectWith(like, "neighbour", "light", small)); resource.Unread(stub) != "" {
				t.Errorf("a small object of another namespace: %s", resource.Unread(stub))
			}
		})
	}
}

// Cluster-scoped objects together take at most the share of a namespace.
func TestClusterScopedObjectsTakeAtMostOneShare(t *testing.T) {
	const total = 8 << 20
	in := newIntake(total, slog.New(slog.DiscardHandler))
	for i := range 40 {
		in.admit(objectWith(&stunnerv1.Dataplane{}, "", fmt.Sprint("heavy-", i), labelsOf(400_000)))
	}
	if in.used > total/namespaceShare || in.used < total/namespaceShare/2 || in.unreadObjects() == 0 {
		t.Errorf("%d bytes of %d are in use, %d objects are not read", in.used, total/namespaceShare, in.unreadObjects())
	}
	if stub := in.admit(objectWith(&stunnerv1.Dataplane{}, "", "last", labelsOf(400_000))); !strings.Contains(
		resource.Unread(stub), "other cluster-scoped objects") {
		t.Errorf("the reason is %q", resource.Unread(stub))
	}
}

// If a new version of an object exceeds the memory of its namespace, the previous version stays in force. The new
// version is read as soon as it fits.
func TestUnreadVersionLeavesThePreviousOneInForce(t *testing.T) {
	in := newIntake(4<<20, slog.New(slog.DiscardHandler))
	route := func(version string, labels int) *stunnerv1.UDPRoute {
		r := objectWith(&stunnerv1.UDPRoute{}, "media", "route", labelsOf(labels)).(*stunnerv1.UDPRoute)
		r.ResourceVersion = version
		r.Spec.Rules = make([]stunnerv1.UDPRouteRule, 1)
		r.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: "edge"}}
		return r
	}
	before := in.admit(route("1", 100))
	stub := in.admit(route("2", 2<<20))
	if resource.Empty(stub) == "" || content(stub) != 0 {
		t.Fatalf("a route of 2 MiB was read with %d labels", content(stub))
	}
	if len(stub.(*stunnerv1.UDPRoute).Spec.ParentRefs) != 1 {
		t.Error("the parents are unknown, so the status cannot show the reason")
	}
	now := lastRead(before, stub).(*stunnerv1.UDPRoute)
	if resource.Empty(now) != "" || resource.Unread(now) == "" || now.ResourceVersion != "2" || len(now.Spec.Rules) != 1 {
		t.Errorf("in the view: %+v", now.ObjectMeta)
	}
	again, err := in.transform(trimForCache)(stub)
	if err != nil || again != any(stub) {
		t.Error("an informer that transforms an object twice reads the empty object")
	}
	if len(in.retry()) != 0 {
		t.Error("it is read again without room")
	}
	in.remove(stub)
	if in.used != 0 || len(in.accounts) != 0 {
		t.Errorf("%d bytes after the deletion", in.used)
	}
	other := in.admit(route("3", 700_000)) // then 900 kB of 1 MiB are in use
	waiting := route("4", 700_000)
	waiting.Name, waiting.UID = "waiting", "2"
	if resource.Unread(other) != "" || resource.Unread(in.admit(waiting)) == "" {
		t.Fatal("the room is not as expected")
	}
	in.remove(other)
	<-in.freed
	if list := in.retry(); len(list) != 1 || list[0].GetName() != "waiting" {
		t.Errorf("to read again: %v", list)
	}
}

// The certificates of a Gateway are counted in its namespace, and nothing is left of a namespace without objects.
func TestCertificatesAreCountedInTheirNamespace(t *testing.T) {
	in := newIntake(4<<20, slog.New(slog.DiscardHandler))
	one, other := types.NamespacedName{Namespace: "media", Name: "one"}, types.NamespacedName{Namespace: "media", Name: "other"}
	room := in.certificateRoom(one)
	if want := 1 << 20 / certificateCopies; room != want {
		t.Fatalf("room for %d bytes, want %d", room, want)
	}
	in.countCertificates(one, room)
	if again, rest := in.certificateRoom(one), in.certificateRoom(other); again != room || rest != 1 {
		t.Errorf("room for %d bytes of the same Gateway and %d of another, want %d and 1", again, rest, room)
	}
	if elsewhere := in.certificateRoom(types.NamespacedName{Namespace: "games", Name: "one"}); elsewhere != room {
		t.Errorf("another namespace has room for %d bytes, want %d", elsewhere, room)
	}
	in.countCertificates(one, 0)
	if in.used != 0 || len(in.accounts) != 0 {
		t.Errorf("%d bytes in %d accounts are left", in.used, len(in.accounts))
	}
}

// A user cannot mark objects as unread.
func TestUserCannotMarkObjectsAsUnread(t *testing.T) {
	for _, total := range []int{0, 1 << 20} {
		in := newIntake(total, slog.New(slog.DiscardHandler))
		gw := &gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: "edge", Annotations: map[string]string{
			resource.UnreadAnnotation: "x", resource.EmptyAnnotation: "true",
		}}}
		if o := in.admit(gw); resource.Unread(o) != "" || resource.Empty(o) != "" {
			t.Errorf("with %d bytes: %v", total, o.GetAnnotations())
		}
	}
}

// The size of an object is at least the size of its texts.
func TestSizeCoversAllTexts(t *testing.T) {
	text := strings.Repeat("x", 1000)
	for name, o := range map[string]any{
		"labels":    &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{text: text}}},
		"endpoints": &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{text}, NodeName: &text}}},
		"data":      &corev1.Secret{Data: map[string][]byte{"a": []byte(text), "b": []byte(text)}},
	} {
		if size := sizeOf(o); size < 2000 || size > 4000 {
			t.Errorf("%s: %d bytes", name, size)
		}
	}
}

func BenchmarkIntake(b *testing.B) {
	slice := &discoveryv1.EndpointSlice{}
	for i := range 1000 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.0.0.", i)}})
	}
	gateway := &gwapiv1.Gateway{Spec: gwapiv1.GatewaySpec{Listeners: make([]gwapiv1.Listener, 2)}}
	for name, o := range map[string]resource.Object{"slice of 1000": slice, "gateway": gateway} {
		b.Run(name, func(b *testing.B) {
			in := newIntake(1<<30, slog.New(slog.DiscardHandler))
			b.ReportAllocs()
			for b.Loop() {
				in.admit(o)
			}
		})
	}
}
