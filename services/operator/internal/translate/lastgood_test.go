package translate_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// a listener whose Secret was deleted keeps its certificate.
func TestAListenerKeepsItsLastGoodCertificate(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_grant_lends_a_certificate.txtar"))
	key := c.view().Gateways()[0]
	published := translate.Gateway(c.view(), key, c.options).Config

	gone := c.translateWithout(t, "Secret guests/shared", published)
	if gone.Decision != translate.Held || gone.Config != nil {
		t.Fatalf(
			"the only listener has lost its certificate: %s, config %v, want everything kept", gone.Decision,
			gone.Config,
		)
	}

	c = load(t, filepath.Join("testdata", "a_missing_certificate_leaves_the_other_listeners.txtar"))
	if got := listenerNames(c.after(nil).Config); !slices.Equal(got, []string{"turn/lobby/udp"}) {
		t.Errorf("nothing was published: listeners %v, want udp alone", got)
	}
	last := published.Clone()
	last.Listeners[0].Name = "turn/lobby/gone"
	next := c.after(&last).Config
	if got := listenerNames(next); !slices.Equal(got, []string{"turn/lobby/udp", "turn/lobby/gone"}) {
		t.Fatalf("listeners %v, want udp and gone", got)
	}
	if diff := cmp.Diff(last.Listeners[0], next.Listeners[1]); diff != "" {
		t.Errorf("the listener without certificate has changed (-published +next):\n%s", diff)
	}
	if err := next.Validate(); err != nil {
		t.Error(err)
	}
}

// a listener with an error stays as it is published. Its routes and the rest of the config are current.
func TestAnInvalidListenerStaysAsPublished(t *testing.T) {
	const tcp = 1
	for name, mistake := range map[string]func(*gwapiv1.Listener){
		"protocol":              func(l *gwapiv1.Listener) { l.Protocol = "TURN-TPC" },
		"port out of range":     func(l *gwapiv1.Listener) { l.Port = 70000 },
		"port of another":       func(l *gwapiv1.Listener) { l.Port = 443 },
		"TLS and no reference":  func(l *gwapiv1.Listener) { l.Protocol, l.Port = "TURN-TLS", 8443 },
		"TLS to be passed on":   func(l *gwapiv1.Listener) { l.Protocol, l.TLS = "TURN-TLS", passthrough() },
		"protocol and port too": func(l *gwapiv1.Listener) { l.Protocol, l.Port = "", 9 },
	} {
		t.Run(name, func(t *testing.T) {
			c := load(t, filepath.Join("testdata", "a_listener_that_is_misspelt_waits.txtar"))
			key := c.view().Gateways()[0]
			c.view().Gateway(key).Spec.Listeners[tcp].Protocol = "TURN-TCP"
			published := translate.Gateway(c.view(), key, c.options).Config
			published.Listeners[tcp].Routes = []string{"turn/before"}

			mistake(&c.view().Gateway(key).Spec.Listeners[tcp])
			next := c.after(published).Config
			if got := listenerNames(next); !slices.Equal(got, listenerNames(published)) {
				t.Fatalf("listeners %v, want %v", got, listenerNames(published))
			}
			want := published.Listeners[tcp]
			want.Routes = []string{"turn/media"}
			if diff := cmp.Diff(want, next.Listeners[tcp]); diff != "" {
				t.Errorf("the listener has changed (-want +next):\n%s", diff)
			}
		})
	}
}

// A held listener gets a new address of its load balancer, in place of the old one. If its public port or network
// changed, the published address stays.
func TestHeldListenerFollowsTheAddressOfItsService(t *testing.T) {
	for name, test := range map[string]struct {
		edit      func(*gwapiv1.Gateway)
		want      string
		addresses []string
	}{
		"its certificate is missing": {func(*gwapiv1.Gateway) {}, "203.0.113.41", []string{"203.0.113.41"}},
		"its port is another too": {
			func(gw *gwapiv1.Gateway) { gw.Spec.Listeners[1].Port = 6000 }, "203.0.113.40",
			[]string{"203.0.113.41", "203.0.113.40"},
		},
		"its port in the pod too": {func(gw *gwapiv1.Gateway) {
			gw.Annotations = map[string]string{"stunner.l7mp.io/targetport": "tls=6000"}
		}, "203.0.113.41", []string{"203.0.113.41"}},
		"its protocol is misspelt too": {
			func(gw *gwapiv1.Gateway) { gw.Spec.Listeners[1].Protocol = "TURN-TSL" }, "203.0.113.40",
			[]string{"203.0.113.41", "203.0.113.40"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := load(t, filepath.Join("testdata", "a_grant_lends_a_certificate.txtar"))
			v := c.view()
			key := v.Gateways()[0]
			gw := v.Gateway(key).DeepCopy()
			gw.Spec.Listeners = slices.Insert(
				gw.Spec.Listeners, 0, gwapiv1.Listener{Name: "udp", Port: 3478, Protocol: "TURN-UDP"},
			)
			v.Put(gw)
			svc := v.Service(key).DeepCopy()
			svc.Spec.Ports = append(
				svc.Spec.Ports, corev1.ServicePort{Name: "udp", Port: 3478, Protocol: corev1.ProtocolUDP},
			)
			v.Put(svc)
			before := translate.Gateway(v, key, c.options)
			if got := before.Config.Listeners[1]; got.PublicAddress != "203.0.113.40" {
				t.Fatalf("the listener is found at %q", got.PublicAddress)
			}
			gw = withStatus(gw, before.Status)
			test.edit(gw)
			v.Put(gw)
			svc = svc.DeepCopy()
			svc.Status.LoadBalancer.Ingress[0].IP = "203.0.113.41"
			v.Put(svc)
			v.Delete(v.Secret(types.NamespacedName{Namespace: "guests", Name: "shared"}))
			c.options.Published = before.Config
			r := translate.Gateway(v, key, c.options)
			want := before.Config.Listeners[1]
			want.PublicAddress = test.want
			if test.want != before.Config.Listeners[1].PublicAddress {
				want.ServiceAddresses = []string{"10.43.0.9:443", test.want + ":443"}
			}
			if diff := cmp.Diff(want, r.Config.Listeners[1]); diff != "" {
				t.Errorf("the listener that waits differs (-want +got):\n%s", diff)
			}
			var addresses []string
			for _, a := range r.Status.Addresses {
				addresses = append(addresses, a.Value)
			}
			if !slices.Equal(addresses, test.addresses) {
				t.Errorf("the Gateway has the addresses %q, want %q", addresses, test.addresses)
			}
		})
	}
}

func passthrough() *gwapiv1.ListenerTLSConfig {
	return &gwapiv1.ListenerTLSConfig{Mode: new(gwapiv1.TLSModePassthrough)}
}

// A listener that is removed from the spec is not held.
func TestARemovedListenerIsNotHeld(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_listener_that_is_misspelt_waits.txtar"))
	key := c.view().Gateways()[0]
	gw := c.view().Gateway(key)
	gw.Spec.Listeners[1].Protocol = "TURN-TCP"
	published := translate.Gateway(c.view(), key, c.options).Config
	gw.Spec.Listeners = slices.Delete(gw.Spec.Listeners, 1, 2)
	if got := listenerNames(c.after(published).Config); slices.Contains(got, "turn/lobby/tcp") {
		t.Errorf("listeners %v, want tcp gone", got)
	}
}

// If the protocol of a listener is misspelt and the spec gives its port to another listener, the other listener is
// served on the port.
func TestAMisspeltListenerYieldsItsPort(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_listener_that_is_misspelt_waits.txtar"))
	key := c.view().Gateways()[0]
	gw := c.view().Gateway(key)
	gw.Spec.Listeners[1].Protocol = "TURN-TCP"
	published := translate.Gateway(c.view(), key, c.options).Config
	gw.Spec.Listeners[1].Protocol, gw.Spec.Listeners[2].Port = "TURN-TPC", gw.Spec.Listeners[1].Port
	next := c.after(published).Config
	if got := listenerNames(next); !slices.Equal(got, []string{"turn/lobby/udp", "turn/lobby/tunnel"}) {
		t.Fatalf("listeners %v, want udp and tunnel", got)
	}
	if got, want := next.Listeners[1].Port, published.Listeners[1].Port; got != want {
		t.Errorf("tunnel has port %d, want %d", got, want)
	}
}

// A revoked certificate is no longer used, even if the protocol of its listener is misspelt.
func TestAMisspeltProtocolDoesNotKeepARevokedCertificate(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_certificate_of_another_namespace_needs_a_grant.txtar"))
	key := c.view().Gateways()[0]
	gw := c.view().Gateway(key)
	for i := range gw.Spec.Listeners {
		if gw.Spec.Listeners[i].Protocol == "TURN-TLS" {
			gw.Spec.Listeners[i].Protocol = "TURN-TSL"
		}
	}
	if held := heldListeners(translate.Gateway(c.view(), key, c.options)); len(held) != 0 {
		t.Errorf("waiting %v, want none", held)
	}
}

// K-06: after the removal of a grant, the certificate is not used any more, not even in the published form.
func TestAnUngrantedCertificateIsNotUsed(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_certificate_of_another_namespace_needs_a_grant.txtar"))
	r := translate.Gateway(c.view(), c.view().Gateways()[0], c.options)
	last := r.Config.Clone()
	last.Listeners = append(
		last.Listeners,
		config.Listener{Name: "turn/lobby/tls", Protocol: config.TURNTLS, Port: 443, Cert: "YQ==", Key: "Yg=="},
	)
	if got := listenerNames(c.after(&last).Config); !slices.Equal(got, []string{"turn/lobby/udp"}) {
		t.Errorf("listeners %v, want udp alone", got)
	}
	// A mistake keeps the rest of the published config in force, but not the certificate. It is unknown whether
	// spec.legacyGrants permits the certificate while the GatewayConfig is missing.
	v := c.view()
	gw := v.Gateway(v.Gateways()[0]).DeepCopy()
	gw.Annotations = map[string]string{"stunner.l7mp.io/targetport": "{"}
	v.Put(gw)
	held := c.afterIn(v, &last)
	if held.Decision != translate.Held || held.Revoked == nil || !slices.Equal(listenerNames(held.Revoked), []string{"turn/lobby/udp"}) {
		t.Errorf("%s, revoked %+v, want udp alone", held.Decision, held.Revoked)
	} else if again := c.afterIn(v, held.Revoked); again.Revoked != nil {
		t.Errorf("the second time %+v", again.Revoked)
	}
	v.Delete(v.GatewayConfig(v.GatewayConfigs()[0]))
	if held := c.afterIn(v, &last); held.Decision != translate.Held || held.Revoked != nil {
		t.Errorf("without GatewayConfig: %s, revoked %+v", held.Decision, held.Revoked)
	}
}

// While a mistake keeps the published config of a Gateway in force, a certificate whose reference is not permitted any
// more is removed from it.
func TestAnUngrantedCertificateLeavesAHeldConfig(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_certificate_that_is_taken_back_leaves_the_others.txtar"))
	v := c.view()
	permitted := c.afterIn(v, nil).Config
	last := permitted.Clone()
	last.Listeners[0].Cert, last.Listeners[0].Key = "YQ==", "Yg=="
	last.Listeners[0].Certificates = []config.Certificate{{Cert: permitted.Listeners[0].Cert, Key: permitted.Listeners[0].Key}}
	gw := v.Gateway(v.Gateways()[0]).DeepCopy()
	gw.Annotations = map[string]string{"stunner.l7mp.io/targetport": "{"}
	v.Put(gw)
	if r := c.afterIn(v, &last); r.Decision != translate.Held || r.Revoked == nil ||
		!slices.Equal(r.Revoked.Listeners[0].AllCertificates(), permitted.Listeners[0].AllCertificates()) {
		t.Errorf("%s, revoked %+v", r.Decision, r.Revoked)
	}
}

// K-07: the next translation removes a route whose namespace is not allowed any more.
func TestARouteOfADisallowedNamespaceIsRemoved(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_selector_takes_routes_from_labelled_namespaces.txtar"))
	key := c.view().Gateways()[0]
	if got := len(translate.Gateway(c.view(), key, c.options).Config.Clusters); got != 1 {
		t.Fatalf("%d clusters, want 1", got)
	}
	c.view().Namespace("rooms").Labels["tier"] = "storage"
	if got := len(translate.Gateway(c.view(), key, c.options).Config.Clusters); got != 0 {
		t.Errorf("%d clusters after the label has changed, want none", got)
	}
}

// after translates the Gateway of the case with a published config.
func (c *testCase) after(published *config.Config) translate.Result {
	return c.afterIn(c.view(), published)
}

func (c *testCase) afterIn(v *resource.View, published *config.Config) translate.Result {
	opt := c.options
	opt.Published = published
	return translate.Gateway(v, v.Gateways()[0], opt)
}

func (c *testCase) translateWithout(t *testing.T, name string, published *config.Config) translate.Result {
	t.Helper()
	objects := slices.DeleteFunc(slices.Clone(c.objects), func(o resource.Object) bool { return identity(o) == name })
	if len(objects) != len(c.objects)-1 {
		t.Fatalf("case has no %s", name)
	}
	return c.afterIn(c.viewOf(objects), published)
}

func listenerNames(c *config.Config) []string {
	var names []string
	for _, l := range c.Listeners {
		names = append(names, l.Name)
	}
	return names
}

// The NetworkPolicy of ObjectsWith opens the relay ports of the Dataplane, and no others.
func TestObjectsOfAPublishedConfigKeepTheRelayPorts(t *testing.T) {
	c := load(t, filepath.Join("testdata", "relays_may_have_ports_of_a_range.txtar"))
	r := translate.Gateway(c.view(), c.view().Gateways()[0], c.options)
	published := r.Config.Clone()
	published.Listeners[0].Port = 9999
	for _, o := range r.ObjectsWith(&published) {
		policy, ok := o.(*networkingv1.NetworkPolicy)
		if !ok {
			continue
		}
		var opened []string
		for _, p := range policy.Spec.Ingress[0].Ports {
			last := p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			opened = append(opened, fmt.Sprintf("%s %d-%d", *p.Protocol, p.Port.IntVal, last))
		}
		if want := []string{
			"UDP 9999-9999", "TCP 3478-3478", "UDP 40000-40999", "TCP 8086-8086",
		}; !slices.Equal(opened, want) {
			t.Errorf("opened %v, want %v", opened, want)
		}
		return
	}
	t.Error("there is no NetworkPolicy")
}

// A route that selects a listener by its port stays attached while the spec has an invalid port, so that its calls
// continue.
func TestRouteToThePortOfAHeldListenerStays(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_listener_that_is_misspelt_waits.txtar"))
	v := c.view()
	key := v.Gateways()[0]
	parent := gwapiv1.ParentReference{
		Name: "lobby", SectionName: new(gwapiv1.SectionName("udp")), Port: new(gwapiv1.PortNumber(3478)),
	}
	v.Put(&stunnerv1.UDPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: "turn", Name: "media"}, Spec: stunnerv1.UDPRouteSpec{
			CommonRouteSpec: gwapiv1.CommonRouteSpec{ParentRefs: []gwapiv1.ParentReference{parent}},
			Rules: []stunnerv1.UDPRouteRule{
				{BackendRefs: []stunnerv1.BackendRef{{Name: "sfu", Namespace: new(gwapiv1.Namespace("rooms"))}}},
			},
		},
	})
	published := translate.Gateway(v, key, c.options).Config
	for name, mistake := range map[string]gwapiv1.Listener{
		"port out of range": {Name: "udp", Port: 70000, Protocol: "TURN-UDP"},
		"protocol and port": {Name: "udp", Port: 9, Protocol: "TURN-UPD"},
	} {
		gw := v.Gateway(key).DeepCopy()
		gw.Spec.Listeners[0] = mistake
		v.Put(gw)
		next := c.afterIn(v, published).Config
		if diff := cmp.Diff(published.Clusters, next.Clusters); diff != "" {
			t.Errorf("%s: the clusters have changed:\n%s", name, diff)
		}
		if got := next.Listeners[0]; got.Port != 3478 || !slices.Equal(got.Routes, []string{"turn/media"}) {
			t.Errorf("%s: the listener is at %d with the routes %v", name, got.Port, got.Routes)
		}
	}
}

// A listener and an endpoint of the process never have one port in a config: if the probes or the metrics get the port
// of a served listener, the listener stays as published, and new pods do not have the endpoint.
func TestEndpointsOfTheProcessLeaveTheirPortsToHeldListeners(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_listener_that_is_misspelt_waits.txtar"))
	v := c.view()
	key := v.Gateways()[0]
	gw := v.Gateway(key).DeepCopy()
	gw.Spec.Listeners = []gwapiv1.Listener{
		{Name: "udp", Port: 3478, Protocol: "TURN-UDP"}, {Name: "tcp", Port: 8080, Protocol: "TURN-TCP"},
	}
	v.Put(gw)
	published := translate.Gateway(v, key, c.options).Config
	for name, mistake := range map[string]func(*gwapiv1.Gateway, *stunnerv1.Dataplane){
		"probes": func(gw *gwapiv1.Gateway, _ *stunnerv1.Dataplane) {
			gw.Annotations = map[string]string{"stunner.l7mp.io/health-port": "8080", "stunner.l7mp.io/metrics-port": "8081"}
		},
		"metrics": func(_ *gwapiv1.Gateway, d *stunnerv1.Dataplane) { d.Spec.EnableMetricsEndpoint = true },
	} {
		v := c.view()
		gw, d := gw.DeepCopy(), v.Dataplane("default").DeepCopy()
		mistake(gw, d)
		v.Put(gw)
		v.Put(d)
		r := c.afterIn(v, published)
		if r.Config == nil || r.Config.Listeners[1].Port != 8080 {
			t.Fatalf("%s: config %+v, want listener tcp on port 8080", name, r.Config)
		}
		admin := r.Config.Admin
		if strings.Contains(admin.MetricsEndpoint+*admin.HealthcheckEndpoint, ":8080") {
			t.Errorf("%s: the listener has the port of %q or %q", name, admin.MetricsEndpoint, *admin.HealthcheckEndpoint)
		}
		i := slices.IndexFunc(r.Objects, func(o resource.Object) bool { _, ok := o.(*appsv1.Deployment); return ok })
		pod := r.Objects[i].(*appsv1.Deployment).Spec.Template.Spec.Containers[0]
		if probes := pod.LivenessProbe != nil; probes == (name == "probes") || len(pod.Ports) != 0 {
			t.Errorf("%s: the pods have probes %t and the ports %v", name, probes, pod.Ports)
		}
		if !slices.ContainsFunc(r.Notes, func(f condition.Finding) bool {
			return strings.Contains(f.Message(), "the pods have no "+name+": tcp port 8080 of the pod is that of listener \"tcp\"")
		}) {
			t.Errorf("%s: notes %v", name, condition.Messages(r.Notes))
		}
	}
}

// While the selector of a listener is invalid, the listener keeps the namespaces of its routes, because it is unknown
// which namespaces the spec allows. A deleted route is removed, and routes of other namespaces are not added.
func TestListenerWithAnInvalidSelectorKeepsItsRoutes(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_selector_takes_routes_from_labelled_namespaces.txtar"))
	v := c.view()
	key := v.Gateways()[0]
	gw := v.Gateway(key).DeepCopy()
	gw.Spec.Listeners = append(gw.Spec.Listeners, gwapiv1.Listener{Name: "tcp", Port: 3478, Protocol: "TURN-TCP"})
	v.Put(gw)
	published := translate.Gateway(v, key, c.options).Config
	if len(published.Listeners[0].Routes) == 0 {
		t.Fatal("TEST NOT VALID: no route is attached")
	}
	gw = gw.DeepCopy()
	gw.Spec.Listeners[0].AllowedRoutes.Namespaces.Selector = &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn}},
	}
	v.Put(gw)
	if r := c.afterIn(v, nil); !r.NeedsPublished {
		t.Error("after a restart, the published config is not asked for")
	}
	r := c.afterIn(v, published)
	if r.Config == nil {
		t.Fatalf("%s: %+v", r.Decision, r.Status.Conditions)
	}
	if diff := cmp.Diff(published, r.Config); diff != "" {
		t.Errorf("the config has changed:\n%s", diff)
	}
	if accepted := r.Status.Listeners[0].Conditions[0]; accepted.Status != metav1.ConditionFalse ||
		!strings.Contains(accepted.Message, "allowedRoutes.namespaces.selector is invalid") {
		t.Errorf("the listener says %+v", accepted)
	}
	for _, ref := range v.Routes() {
		if slices.Contains(published.Listeners[0].Routes, ref.NamespacedName.String()) {
			v.Delete(v.Route(ref).Origin)
		}
	}
	if r := c.afterIn(v, published); r.Config != nil && len(r.Config.Listeners[0].Routes) > 0 {
		t.Errorf("routes that were deleted: %v", r.Config.Listeners[0].Routes)
	}
}

// A mistake in the parameters of a Gateway in the host network frees none of its ports, because its pods still run. The
// pods of a younger Gateway get no further probes and metrics, also after a restart of the operator, and keep the
// existing ones.
func TestPortsOfAGatewayWithoutParametersStayTaken(t *testing.T) {
	c := load(t, filepath.Join("testdata", "gateways_in_the_host_network_share_the_ports_of_their_nodes.txtar"))
	v := c.view()
	key := types.NamespacedName{Namespace: "rooms", Name: "stranger"}
	v.Delete(v.Gateway(types.NamespacedName{Namespace: "turn", Name: "attic"}))
	translated := func(published *config.Config) translate.Result {
		opt := c.options
		opt.Published = published
		return translate.Gateway(v, key, opt)
	}
	published := translated(nil).Config
	if published == nil || *published.Admin.HealthcheckEndpoint != "" || published.Admin.MetricsEndpoint != "" {
		t.Fatalf("TEST NOT VALID: the config is %+v", published)
	}
	lobby := v.Gateway(types.NamespacedName{Namespace: "turn", Name: "lobby"}).DeepCopy()
	lobby.Spec.Infrastructure = &gwapiv1.GatewayInfrastructure{
		ParametersRef: &gwapiv1.LocalParametersReference{Group: "stunner.l7mp.io", Kind: "GatewayConfig", Name: "gone"},
	}
	v.Put(lobby)
	if r := translated(nil); !r.NeedsPublished {
		t.Error("after a restart, the published config is not asked for")
	}
	r := translated(published)
	if got := r.Config.Admin; *got.HealthcheckEndpoint != "" || got.MetricsEndpoint != "" {
		t.Errorf("the pods get probes at %q and metrics at %q", *got.HealthcheckEndpoint, got.MetricsEndpoint)
	}
	if notes := condition.Messages(r.Notes); !strings.Contains(fmt.Sprint(notes), "tcp port 8086 of the nodes may be that of the probes of a Gateway") {
		t.Errorf("notes %v", notes)
	}
	// The GatewayConfig of the older Gateway is invalid, and its annotation sets the port of the probes.
	lobby = lobby.DeepCopy()
	lobby.Spec.Infrastructure.ParametersRef.Name = "ports"
	ports := &stunnerv1.GatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "turn", Name: "ports"}}
	ports.Spec.LoadBalancerServiceAnnotations = map[string]string{"stunner.l7mp.io/health-port": "9090"}
	ports.Spec.DeniedBackends = []stunnerv1.DeniedBackend{{Selector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Within"}},
	}}}
	stranger := v.Gateway(key).DeepCopy()
	stranger.Annotations = map[string]string{"stunner.l7mp.io/health-port": "9090"}
	for _, o := range []resource.Object{lobby, ports, stranger} {
		v.Put(o)
	}
	if got := translated(published).Config.Admin; *got.HealthcheckEndpoint != "" {
		t.Errorf("the pods get probes at %q, the port in the GatewayConfig of an older Gateway", *got.HealthcheckEndpoint)
	}
	stranger = stranger.DeepCopy()
	stranger.Annotations = nil
	v.Put(stranger)
	served := published.Clone()
	served.Admin.HealthcheckEndpoint, served.Admin.MetricsEndpoint = new("http://:8086"), "http://:8080/metrics"
	if got := translated(&served).Config.Admin; *got.HealthcheckEndpoint == "" || got.MetricsEndpoint == "" {
		t.Errorf("pods with probes and metrics lose them: %+v", got)
	}
}
