package kube

import (
	"fmt"
	"log/slog"
	"reflect"
	goruntime "runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Objects that no Gateway owns take only the memory of their identity in a cache, for any size.
func TestForeignObjectsTakeNoMemory(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	heavy := strings.Repeat("x", 1<<18)
	meta := metav1.ObjectMeta{
		Namespace: "flood", Name: "heavy", Labels: map[string]string{manifest.OwnedByLabel: manifest.AppValue},
		Annotations: map[string]string{"heavy": heavy}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: heavy}},
	}
	all := append(generatedKinds(), &corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Namespace{}, &corev1.Node{}, &metav1.PartialObjectMetadata{},
		&stunnerv1.UDPRoute{}, &stunnerv1.StaticService{}, &stunnerv1.GatewayConfig{}, &stunnerv1.Dataplane{})
	for _, o := range all {
		reflect.ValueOf(o).Elem().FieldByName("ObjectMeta").Set(reflect.ValueOf(*meta.DeepCopy()))
		switch o := o.(type) {
		case *corev1.ConfigMap:
			o.Data, o.BinaryData = map[string]string{manifest.ConfigMapKey: heavy}, map[string][]byte{
				"heavy": []byte(heavy),
			}
		case *corev1.Secret:
			o.Data = map[string][]byte{manifest.StandbyDataKey: []byte(heavy)}
		case *corev1.Service:
			o.Spec.ExternalName = heavy
		case *discoveryv1.EndpointSlice:
			o.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &heavy}}
		case *corev1.Node:
			o.Status.Images = []corev1.ContainerImage{{Names: []string{heavy}}}
		}
		if _, err := trimForCache(o); err != nil {
			t.Fatal(err)
		}
		if size := len(fmt.Sprintf("%+v", o)); size > 2_000 && !isCRD(s, o) ||
			strings.Contains(fmt.Sprintf("%+v", o), heavy) {
			t.Errorf("%T takes %d bytes", o, size)
		}
	}
}

// The cache of the KEDA kinds counts objects, in the account of their namespace, regardless of the user that has
// created them: an object that names a Gateway as its owner has at most the share of its namespace, and any other takes
// no memory.
func TestKEDAObjectsTakeTheShareOfTheirNamespace(t *testing.T) {
	const total = 8 << 20
	in := newIntake(total, slog.New(slog.DiscardHandler))
	read := in.transform(trimKEDA)
	heavy := strings.Repeat("x", 1<<18)
	for _, like := range kedaKinds() {
		for _, owned := range []bool{false, true} {
			unread := 0
			for i := range 40 {
				o := like.DeepCopyObject().(*unstructured.Unstructured)
				o.SetNamespace("flood")
				o.SetName(fmt.Sprint("heavy-", owned, i))
				o.SetUID(types.UID(o.GetName()))
				o.SetLabels(map[string]string{manifest.OwnedByLabel: manifest.AppValue})
				o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: heavy}})
				o.Object["spec"], o.Object["status"] = map[string]any{"heavy": heavy}, map[string]any{"heavy": heavy}
				if owned {
					o.SetOwnerReferences([]metav1.OwnerReference{{
						APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "edge", UID: "1",
					}})
				}
				got, err := read(o)
				if err != nil {
					t.Fatal(err)
				}
				kept := got.(*unstructured.Unstructured)
				if kept.GetName() != o.GetName() || kept.GetKind() != o.GetKind() || kept.GetNamespace() != "flood" {
					t.Fatalf("kept %s %s/%s", kept.GetKind(), kept.GetNamespace(), kept.GetName())
				}
				if resource.Unread(kept) != "" {
					unread++
				}
				if size := len(fmt.Sprint(kept.Object)); size > len(heavy)+2_000 || !owned && size > 2_000 {
					t.Errorf("%s, owned %t: %d bytes", kept.GetKind(), owned, size)
				}
			}
			if used := in.accounts["flood"].used; used > total/namespaceShare || owned != (unread > 0) {
				t.Errorf("%s, owned %t: %d bytes are used, and %d not read", like.GetObjectKind().GroupVersionKind().Kind, owned, used, unread)
			}
		}
	}
}

func isCRD(s *runtime.Scheme, o client.Object) bool {
	gvks, _, err := s.ObjectKinds(o)
	return err == nil && gvks[0].Group == stunnerv1.GroupName
}

// Trimmed objects are compared in full: diff finds no difference in an unchanged object, and finds every change, also
// in long values.
func TestLeanObjectsAreComparedInFull(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	owner := metav1.OwnerReference{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "edge", UID: "1"}
	meta := metav1.ObjectMeta{
		Namespace: "media", Name: "edge", Labels: map[string]string{manifest.OwnedByLabel: manifest.AppValue},
		Annotations:     map[string]string{"short": "a", "long": strings.Repeat("a", 1000)},
		OwnerReferences: []metav1.OwnerReference{owner},
	}
	config := `{"version":"v1","admin":{"name":"media/edge"},"listeners":[{"name":"media/edge/udp","protocol":"TURN-UDP","port":3478,"routes":["` + strings.Repeat("r", 1000) + `"]}]}`
	wanted := map[string]resource.Object{
		"ConfigMap": &corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta,
			Data: map[string]string{manifest.ConfigMapKey: config},
		},
		"Secret": &corev1.Secret{TypeMeta: metav1.TypeMeta{
			APIVersion: "v1", Kind: "Secret",
		}, ObjectMeta: meta, Type: manifest.StandbyType,
			Data: map[string][]byte{manifest.StandbyDataKey: []byte(config)}},
		"Service": &corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta,
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort},
		},
	}
	changes := map[string]func(client.Object){
		"nothing":            func(client.Object) {},
		"another annotation": func(o client.Object) { o.GetAnnotations()["other"] = "b" },
		"a short annotation": func(o client.Object) { o.GetAnnotations()["short"] = "b" },
		"a long annotation":  func(o client.Object) { o.GetAnnotations()["long"] = strings.Repeat("a", 999) + "b" },
		"the owner":          func(o client.Object) { o.SetOwnerReferences(nil) },
		"the content": func(o client.Object) {
			switch o := o.(type) {
			case *corev1.ConfigMap:
				o.Data[manifest.ConfigMapKey] = strings.Replace(config, "rrr", "rra", 1)
			case *corev1.Secret:
				o.Data[manifest.StandbyDataKey] = []byte(strings.Replace(config, "rrr", "rra", 1))
			case *corev1.Service:
				o.Spec.Type = corev1.ServiceTypeClusterIP
			}
		},
	}
	for kind, o := range wanted {
		for name, change := range changes {
			patch, err := patchFor(o)
			if err != nil {
				t.Fatal(err)
			}
			live := o.DeepCopyObject().(client.Object)
			live.SetAnnotations(patch.GetAnnotations())
			change(live)
			if _, err := trimForCache(live); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(live).Build()
			patch, found, err := diff(
				t.Context(), c, o, reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object),
			)
			if due := patch != nil; err != nil || !found || due != (name != "nothing" && name != "another annotation") {
				t.Errorf("%s: after a change of %s: due %t, found %t, %v", kind, name, due, found, err)
			}
		}
	}
}

// A condensed config keeps the names and ports of its listeners, and the endpoints of the process.
func TestLeanConfigsNameTheirListeners(t *testing.T) {
	short := `{"version":"v1","admin":{"name":"m/e","metrics_endpoint":"http://:8081/metrics"},"listeners":[{"name":"m/e/a","protocol":"TURN-UDP","port":3479},{"name":"m/e/b","protocol":"TURN-TCP"}]}`
	for _, text := range []string{short, short + strings.Repeat(" ", 1000)} {
		once := condenseKey(manifest.ConfigMapKey, text)
		want := []config.Listener{
			{Name: "m/e/a", Protocol: config.TURNUDP, Port: 3479}, {Name: "m/e/b", Protocol: config.TURNTCP, Port: 3478},
		}
		if c := shownConfig(once); !reflect.DeepEqual(c.Listeners, want) || c.Admin.MetricsEndpoint != "http://:8081/metrics" ||
			condenseKey(manifest.ConfigMapKey, once) != once {
			t.Errorf("%+v of %d bytes", c, len(text))
		}
	}
	if c := shownConfig(condenseKey(manifest.ConfigMapKey, strings.Repeat("{", 1000))); len(c.Listeners) > 0 {
		t.Errorf("listeners %v of what is no config", c.Listeners)
	}
}

// The cloud provider of a node stays known in the cache, also when a trimmed node is trimmed again.
func TestProviderOfANodeStaysInTheCache(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-central-1a/i-0a1", PodCIDR: "10.42.0.0/24", Unschedulable: true},
	}
	for range 2 {
		if _, err := trimForCache(node); err != nil {
			t.Fatal(err)
		}
		v := resource.NewView([]resource.Object{node})
		if got := v.NodeProviders(); len(got) != 1 || got[0] != "aws" || node.Spec.PodCIDR == "" || node.Spec.Unschedulable {
			t.Errorf("providers %q, spec %+v", got, node.Spec)
		}
	}
}

// A trimmed Service of a backend has the cluster IPs of both families, to which its routes lead.
func TestTrimmedServiceKeepsItsClusterIPs(t *testing.T) {
	for name, ips := range map[string][]string{"one family": {"10.96.0.7"}, "both": {"10.96.0.7", "fd00:96::7"}} {
		objects := collision()
		for _, o := range objects {
			if s, is := o.(*corev1.Service); is {
				s.Spec = corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips, SessionAffinity: "ClientIP"}
				if _, err := trimForCache(s); err != nil || s.Spec.SessionAffinity != "" {
					t.Fatal(s.Spec, err)
				}
			}
		}
		clusters := startWith(t, objects...).published.current(gatewayKey).Clusters
		for _, ip := range ips {
			if !strings.Contains(strings.Join(clusters[0].Endpoints, " "), ip) {
				t.Errorf("%s: the route leads to %v, want %s too", name, clusters, ip)
			}
		}
	}
}

// A trimmed EndpointSlice has everything that is read of its endpoints, also when it is trimmed again.
func TestTrimmedEndpointsKeepTheFieldsThatAreRead(t *testing.T) {
	s := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{
		{
			Addresses:  []string{"10.0.0.1", "10.0.0.2"},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "media", Name: "a", UID: "1"},
			NodeName:   new("node"), Zone: new("zone"), Hostname: new("host"),
		},
		{Conditions: discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)}},
		{Addresses: []string{"fd00::1"}, TargetRef: &corev1.ObjectReference{Kind: "VirtualMachine", Name: "b"}},
		{Addresses: []string{""}, TargetRef: &corev1.ObjectReference{Kind: "Pod"}},
	}}
	want := []discoveryv1.Endpoint{
		{
			Addresses:  []string{"10.0.0.1", "10.0.0.2"},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Terminating: new(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: "a"},
		},
		{Addresses: []string{}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)}},
		{Addresses: []string{"fd00::1"}, TargetRef: &corev1.ObjectReference{Kind: "VirtualMachine", Name: "b"}},
		{Addresses: []string{""}, TargetRef: &corev1.ObjectReference{Kind: "Pod"}},
	}
	for range 2 {
		if _, err := trimForCache(s); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(s.Endpoints, want) {
			t.Errorf("kept %+v", s.Endpoints)
		}
	}
	if longer := append(s.Endpoints[0].Addresses, "other"); s.Endpoints[2].Addresses[0] != "fd00::1" {
		t.Errorf("appending %q to the addresses of an endpoint changes those of another one", longer[2])
	}
}

// BenchmarkEndpoint prints the memory of an endpoint in the cache, as it is decoded and trimmed.
func BenchmarkEndpoint(b *testing.B) {
	const each = 100
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for i := range each {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.17.%d", i)},
			Conditions: discoveryv1.EndpointConditions{
				Ready: new(true), Serving: new(true), Terminating: new(false),
			},
			NodeName:  new("ip-10-0-17-5.eu-central-1.compute.internal"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "media", Name: fmt.Sprintf("media-server-6f7d9c5b8d-x%04d", i), UID: "f47ac10b-58cc-4372-a567-0e02b2c3d479"},
		})
	}
	encoded, err := slice.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	heap := func() uint64 {
		var m goruntime.MemStats
		goruntime.GC()
		goruntime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, kept := heap(), make([]*discoveryv1.EndpointSlice, b.N)
	for i := range kept {
		kept[i] = &discoveryv1.EndpointSlice{}
		if err := kept[i].Unmarshal(encoded); err != nil {
			b.Fatal(err)
		}
		if _, err := trimForCache(kept[i]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(heap()-before)/float64(b.N*each), "B/endpoint")
	goruntime.KeepAlive(kept)
}
