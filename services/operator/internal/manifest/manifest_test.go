package manifest_test

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

var owner = manifest.Owner{
	Namespace: "quay", Name: "north", UID: "a1", Labels: map[string]string{}, Annotations: map[string]string{},
}

func TestPullPolicyFollowsTheTag(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	for image, want := range map[string]corev1.PullPolicy{
		"relay":                                 corev1.PullAlways,
		"relay:latest":                          corev1.PullAlways,
		"relay:1.9.2":                           corev1.PullIfNotPresent,
		"registry.example.org:5000/relay":       corev1.PullAlways,
		"registry.example.org:5000/relay:1":     corev1.PullIfNotPresent,
		"relay" + digest:                        corev1.PullIfNotPresent,
		"registry.example.org/relay:1" + digest: corev1.PullIfNotPresent,
	} {
		pod := deployment(t, stunnerv1.DataplaneSpec{Image: image}).Spec.Template.Spec
		if got := pod.Containers[0].ImagePullPolicy; got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

func TestStateVolumeHasRoomForTheJournal(t *testing.T) {
	for memory, want := range map[string]string{"": "1Gi", "0": "1Gi", "128Mi": "16Mi", "1Gi": "32Mi", "1Ti": "1Gi"} {
		spec := stunnerv1.DataplaneSpec{}
		if memory != "" {
			spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		}
		volume := deployment(t, spec).Spec.Template.Spec.Volumes[0].EmptyDir
		if got := volume.SizeLimit.String(); got != want || volume.Medium != corev1.StorageMediumMemory {
			t.Errorf("memory limit %q: %s of state on %q, want %s", memory, got, volume.Medium, want)
		}
	}
}

// The volume of the node can be removed, for clusters whose policies deny it.
func TestJournalIsOnTheNodeOnlyWithHostNetwork(t *testing.T) {
	const patch = `{"spec":{"volumes":[{"name":"journal","$patch":"delete"}],"containers":[{"name":"stunner-daemon",
		"volumeMounts":[{"mountPath":"/var/lib/stunner-journal","$patch":"delete"}]}]}}`
	for name, c := range map[string]struct {
		spec stunnerv1.DataplaneSpec
		want string
	}{
		"pod network":  {stunnerv1.DataplaneSpec{}, ""},
		"host network": {stunnerv1.DataplaneSpec{HostNetwork: true}, "/dev/shm/stunner-a1"},
		"patched": {stunnerv1.DataplaneSpec{
			HostNetwork: true, PodTemplatePatch: &runtime.RawExtension{Raw: []byte(patch)},
		}, ""},
	} {
		pod, got := deployment(t, c.spec).Spec.Template.Spec, ""
		for _, v := range pod.Volumes {
			for _, m := range pod.Containers[0].VolumeMounts {
				if v.HostPath != nil && m.Name == v.Name {
					got = path.Join(v.HostPath.Path, m.SubPath)
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: the journal is in %q of the node, want %q", name, got, c.want)
		}
	}
}

// A Dataplane with a command or an image of its own is supervised too, unless it sets the variable.
func TestDataplanesAreSupervised(t *testing.T) {
	own := []corev1.EnvVar{{Name: "STUNNER_SUPERVISE", Value: "false"}}
	for want, spec := range map[string]stunnerv1.DataplaneSpec{
		"true":  {Image: "relay:1", Command: []string{"stunnerd"}, Args: []string{"-w"}},
		"false": {Env: own},
	} {
		var got []string
		for _, e := range deployment(t, spec).Spec.Template.Spec.Containers[0].Env {
			if e.Name == "STUNNER_SUPERVISE" {
				got = append(got, e.Value)
			}
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("STUNNER_SUPERVISE is %q, want %s", got, want)
		}
	}
}

func TestReplicasAreUnsetForOneAndForAutoscaling(t *testing.T) {
	for _, test := range []struct {
		name string
		spec stunnerv1.DataplaneSpec
		want *int32
	}{
		{"unset", stunnerv1.DataplaneSpec{}, nil},
		{"one", stunnerv1.DataplaneSpec{Replicas: new(int32(1))}, nil},
		{"none", stunnerv1.DataplaneSpec{Replicas: new(int32(0))}, new(int32(0))},
		{"five", stunnerv1.DataplaneSpec{Replicas: new(int32(5))}, new(int32(5))},
		{"scaled", stunnerv1.DataplaneSpec{
			Replicas: new(int32(5)), Autoscaling: &stunnerv1.Autoscaling{MaxReplicas: 9},
		}, nil},
	} {
		got := deployment(t, test.spec).Spec.Replicas
		if (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

func TestTheTemplateIsNotShared(t *testing.T) {
	template := &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{
		Labels:      map[string]string{"ring": "two"},
		Annotations: map[string]string{"ring": "two"},
		Args:        []string{"-w"},
	}}
	before := template.DeepCopy()
	w := manifest.Workload{Template: template, Image: "relay:1"}
	built, err := w.Build(owner)
	if err != nil {
		t.Fatal(err)
	}
	pod := built.(*appsv1.Deployment).Spec.Template
	pod.Labels["ring"], pod.Annotations["ring"], pod.Spec.Containers[0].Args[0] = "three", "three", "-x"
	if diff := cmp.Diff(before, template); diff != "" {
		t.Errorf("the Dataplane has changed with its pod (-before +after):\n%s", diff)
	}
}

func TestServicePortsHaveNamesThatKubernetesTakes(t *testing.T) {
	svc := manifest.Service(owner, manifest.Exposure{Name: "north", Type: corev1.ServiceTypeLoadBalancer, Ports: []manifest.Port{
		{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 3478},
		{Name: "udp.late", Protocol: corev1.ProtocolUDP, Port: 5349},
		{Name: strings.Repeat("t", 100), Protocol: corev1.ProtocolTCP, Port: 443},
	}})
	for i, want := range []string{"udp", "udp-5349", "tcp-443"} {
		if got := svc.Spec.Ports[i].Name; got != want {
			t.Errorf("port %d is called %q, want %q", i, got, want)
		}
	}
}

// The API server rejects a Service with two ports of one name, and listener names are arbitrary.
func TestServicePortsHaveDifferentNames(t *testing.T) {
	ports := []manifest.Port{
		{Name: "a.b", Protocol: "UDP", Port: 3478, TargetPort: 3478},
		{Name: "udp-3478", Protocol: "UDP", Port: 5000, TargetPort: 5000},
		{Name: "udp-3478-1", Protocol: "UDP", Port: 5001, TargetPort: 5001},
		{Name: manifest.HealthPortName, Protocol: "UDP", Port: 5002, TargetPort: 5002},
		{Name: strings.Repeat("x", 64), Protocol: "TCP", Port: 443, TargetPort: 443},
	}
	for health, want := range map[int32][]string{
		0:    {"udp-3478-2", "udp-3478", "udp-3478-1", manifest.HealthPortName, "tcp-443"},
		8086: {"udp-3478-2", "udp-3478", "udp-3478-1", "udp-5002", "tcp-443", manifest.HealthPortName},
	} {
		svc := manifest.Service(
			owner,
			manifest.Exposure{Name: "north", Type: corev1.ServiceTypeLoadBalancer, Ports: ports, HealthPort: health},
		)
		var names []string
		for _, p := range svc.Spec.Ports {
			names = append(names, p.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("health port %d: the ports are called %q, want %q", health, names, want)
		}
	}
}

func TestFitKeepsImmutableServiceFields(t *testing.T) {
	service := func(kind corev1.ServiceType, class string, families ...corev1.IPFamily) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, IPFamilies: families}}
		if class != "" {
			s.Spec.LoadBalancerClass = &class
		}
		return s
	}
	const balancer, node = corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort
	for name, test := range map[string]struct {
		wanted, has, possible *corev1.Service
		fields                []string
	}{
		"the same": {
			service(balancer, "a", "IPv6"), service(balancer, "a", "IPv6"), service(balancer, "a", "IPv6"), nil,
		},
		"another class": {
			service(balancer, "b"), service(balancer, "a"), service(balancer, "a"), []string{"loadBalancerClass"},
		},
		"a class at last": {
			service(balancer, "b"), service(balancer, ""), service(balancer, ""), []string{"loadBalancerClass"},
		},
		"no class any more": {
			service(balancer, ""), service(balancer, "a"), service(balancer, "a"), nil,
		},
		"a class of a new load balancer": {service(balancer, "b"), service(node, ""), service(balancer, "b"), nil},
		"no load balancer any more":      {service(node, ""), service(balancer, "a"), service(node, ""), nil},
		"another first family": {
			service(node, "", "IPv6"), service(node, "", "IPv4", "IPv6"), service(node, "", "IPv4", "IPv6"),
			[]string{"ipFamilies"},
		},
		"another second family": {
			service(node, "", "IPv4", "IPv6"), service(node, "", "IPv4"), service(node, "", "IPv4", "IPv6"), nil,
		},
		"families that nobody asked about": {service(node, ""), service(node, "", "IPv4"), service(node, ""), nil},
	} {
		before := test.wanted.DeepCopy()
		possible, fields := manifest.Fit(test.wanted, test.has)
		if diff := cmp.Diff(test.possible, possible); diff != "" || !slices.Equal(fields, test.fields) {
			t.Errorf("%s: fields %v, want %v (-want +got):\n%s", name, fields, test.fields, diff)
		}
		if diff := cmp.Diff(before, test.wanted); diff != "" {
			t.Errorf("%s: what is wanted has changed:\n%s", name, diff)
		}
	}
}

func TestAHealthPortThatAListenerHasIsNotOpenedTwice(t *testing.T) {
	for protocol, want := range map[corev1.Protocol]int{corev1.ProtocolTCP: 1, corev1.ProtocolUDP: 2} {
		svc := manifest.Service(owner, manifest.Exposure{Name: "north", Type: corev1.ServiceTypeLoadBalancer, HealthPort: 8086,
			Ports: []manifest.Port{{Name: "odd", Protocol: protocol, Port: 8086}}})
		if got := len(svc.Spec.Ports); got != want {
			t.Errorf("%s: %d ports, want %d", protocol, got, want)
		}
	}
}

// The API server rejects a ConfigMap that is too large.
func TestAConfigThatDoesNotFitIsShownInPart(t *testing.T) {
	c := config.Config{Listeners: []config.Listener{
		{Name: "quay/north/tls", Protocol: config.TURNTLS, Port: 443, Cert: strings.Repeat("QUJD", 10)},
	}}
	for _, test := range []struct {
		name, leftOut string
		grow          func(*config.Config)
	}{
		{"small", "", func(*config.Config) {}},
		{"long chain", "certificates", func(c *config.Config) {
			c.Listeners[0].Cert = strings.Repeat(
				"QUJD", 300_000,
			)
		}},
		{"many prefixes", "certificates, clusters", func(c *config.Config) {
			c.Clusters = []config.Cluster{{Name: "quay/out", Endpoints: make([]string, 60_000)}}
			for i := range c.Clusters[0].Endpoints {
				c.Clusters[0].Endpoints[i] = fmt.Sprintf("2001:db8:%x::/48:<1000-2000>", i)
			}
		}},
	} {
		large := c.Clone()
		test.grow(&large)
		m := manifest.ConfigMap(owner, large, "")
		if got, _, _ := strings.Cut(m.Data["left-out"], ":"); got != test.leftOut {
			t.Errorf("%s: left out %q, want %q", test.name, got, test.leftOut)
		}
		if m.Size() > 1<<20 {
			t.Errorf("%s: %d bytes", test.name, m.Size())
		}
		if shown, _, err := config.Parse([]byte(m.Data[manifest.ConfigMapKey])); err != nil ||
			len(shown.Listeners) != 1 {
			t.Errorf("%s: %d listeners, %v", test.name, len(shown.Listeners), err)
		}
	}
}

// Two pods in the host network of one node need the same ports: the scheduler keeps the pods of a Gateway on
// different nodes, no update starts a pod before another has ended, and the pod that ends leaves its calls to the next
// one. With autoscaling, pods of a Deployment end without a successor. A pod with a network of its own waits for its
// calls.
func TestPodsThatShareTheHostAreReplacedInPlace(t *testing.T) {
	own := corev1.PodAffinityTerm{TopologyKey: "topology.kubernetes.io/zone"}
	for _, kind := range []stunnerv1.DataplaneResource{"", stunnerv1.ResourceDeployment, stunnerv1.ResourceDaemonSet} {
		for _, onHost := range []bool{false, true} {
			for _, scaling := range []*stunnerv1.Autoscaling{nil, {MaxReplicas: 3}} {
				for _, unprobed := range []bool{false, true} {
					spec := stunnerv1.DataplaneSpec{
						DataplaneResource: kind, HostNetwork: onHost, Autoscaling: scaling, DisableHealthCheck: unprobed,
						Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
							RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{own},
						}},
					}
					name := fmt.Sprintf("%q, host network %t, scaled %t, without probes %t", kind, onHost, scaling != nil, unprobed)
					strategy, pod := replacement(t, spec)
					daemons := kind == stunnerv1.ResourceDaemonSet
					terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
					apart := slices.ContainsFunc(terms, func(term corev1.PodAffinityTerm) bool {
						s, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
						return err == nil && term.TopologyKey == corev1.LabelHostname && s.Matches(labels.Set(pod.Labels))
					})
					if apart != onHost || !reflect.DeepEqual(terms[0], own) {
						t.Errorf("%s: anti-affinity %v", name, terms)
					}
					inPlace := strategy != nil && strategy.MaxSurge.IntValue() == 0 && strategy.MaxUnavailable.IntValue() == 1
					if inPlace != (onHost && !daemons) {
						t.Errorf("%s: strategy %v", name, strategy)
					}
					handsOver := slices.Contains(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "STUNNER_HAND_OVER", Value: "true"})
					if handsOver != (onHost && (daemons || scaling == nil)) {
						t.Errorf("%s: hands over: %t", name, handsOver)
					}
				}
			}
		}
	}
}

// replacement returns the rolling update of a Deployment, and the pod template.
func replacement(t *testing.T, spec stunnerv1.DataplaneSpec) (*appsv1.RollingUpdateDeployment, corev1.PodTemplateSpec) {
	t.Helper()
	built, err := manifest.Workload{Template: &stunnerv1.Dataplane{Spec: spec}, Image: "relay:1"}.Build(owner)
	if err != nil {
		t.Fatal(err)
	}
	switch w := built.(type) {
	case *appsv1.Deployment:
		return w.Spec.Strategy.RollingUpdate, w.Spec.Template
	case *appsv1.DaemonSet:
		return nil, w.Spec.Template
	}
	t.Fatalf("%T", built)
	return nil, corev1.PodTemplateSpec{}
}

// A pod must not open the default port of the probes before it has its config: another Gateway may use the port.
func TestProbesStartOnTheirPort(t *testing.T) {
	for _, test := range []struct {
		name     string
		ports    manifest.ProcessPorts
		disabled bool
		want     string
		probed   int32
	}{
		{"default", manifest.ProcessPorts{}, false, "", 8086},
		{"the default is asked for", manifest.ProcessPorts{Health: 8086}, false, "", 8086},
		{"another one", manifest.ProcessPorts{Health: 8087}, false, "http://:8087", 8087},
		{"none", manifest.ProcessPorts{Health: 8087}, true, "none", 0},
	} {
		template := &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{DisableHealthCheck: test.disabled}}
		built, err := manifest.Workload{Template: template, Image: "relay:1", Ports: test.ports}.Build(owner)
		if err != nil {
			t.Fatal(err)
		}
		c, got := built.(*appsv1.Deployment).Spec.Template.Spec.Containers[0], ""
		for _, e := range c.Env {
			if e.Name == "STUNNER_HEALTHCHECK_ENDPOINT" {
				got = e.Value
			}
		}
		if got != test.want {
			t.Errorf("%s: endpoint %q, want %q", test.name, got, test.want)
		}
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			if probe == nil {
				probe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{}}}
			}
			if got := probe.HTTPGet.Port.IntVal; got != test.probed {
				t.Errorf("%s: port %d is probed, want %d", test.name, got, test.probed)
			}
		}
	}
}

func TestNodesThatNoTwoDataplanesShare(t *testing.T) {
	selector := func(label, value string) *stunnerv1.Dataplane {
		patch := fmt.Sprintf(`{"spec":{"nodeSelector":{%q:%q}}}`, label, value)
		return &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{PodTemplatePatch: &runtime.RawExtension{Raw: []byte(patch)}}}
	}
	affinity := func(operator corev1.NodeSelectorOperator, terms ...[]string) *stunnerv1.Dataplane {
		required := &corev1.NodeSelector{}
		for _, values := range terms {
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: operator, Values: values}},
			})
		}
		return &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{Affinity: &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}}}
	}
	anywhere, in := &stunnerv1.Dataplane{}, corev1.NodeSelectorOpIn
	for _, test := range []struct {
		name string
		a, b *stunnerv1.Dataplane
		want bool
	}{
		{"anywhere", anywhere, &stunnerv1.Dataplane{}, false},
		{"one of them is anywhere", anywhere, selector("pool", "a"), false},
		{"the same pool", selector("pool", "a"), selector("pool", "a"), false},
		{"two pools", selector("pool", "a"), selector("pool", "b"), true},
		{"different labels", selector("pool", "a"), selector("zone", "b"), false},
		{"selector and affinity", selector("pool", "a"), affinity(in, []string{"b", "c"}), true},
		{"one pool in common", selector("pool", "b"), affinity(in, []string{"b", "c"}), false},
		{"one alternative in common", affinity(in, []string{"a"}, []string{"b"}), affinity(in, []string{"c"}, []string{"b"}), false},
		{"no alternative in common", affinity(in, []string{"a"}, []string{"b"}), affinity(in, []string{"c"}, []string{"d"}), true},
		{"another operator", selector("pool", "a"), affinity(corev1.NodeSelectorOpNotIn, []string{"a"}), false},
		{"the patch is none", selector("pool", "a"), &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{
			PodTemplatePatch: &runtime.RawExtension{Raw: []byte(`{"spec":1}`)}}}, false},
	} {
		for _, pair := range [][2]*stunnerv1.Dataplane{{test.a, test.b}, {test.b, test.a}} {
			if got := manifest.OnDifferentNodes(pair[0], pair[1]); got != test.want {
				t.Errorf("%s: %t, want %t", test.name, got, test.want)
			}
		}
	}
}

func deployment(t *testing.T, spec stunnerv1.DataplaneSpec) *appsv1.Deployment {
	t.Helper()
	built, err := manifest.Workload{Template: &stunnerv1.Dataplane{Spec: spec}, Image: "relay:1"}.Build(owner)
	if err != nil {
		t.Fatal(err)
	}
	return built.(*appsv1.Deployment)
}
