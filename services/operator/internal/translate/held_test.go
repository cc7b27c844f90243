package translate_test

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// edit changes the Gateway turn/lobby, whose listeners are w (TURN-TLS 443), u (TURN-UDP 3478), t (TURN-TCP 3478) and s
// (TURN-TLS 8443).
type edit func(*site)

func onListener(name string, change func(*gwapiv1.Listener)) edit {
	return func(s *site) { change(s.listener(name)) }
}

func annotated(name, value string) edit {
	return func(s *site) { s.gateway.Annotations["stunner.l7mp.io/"+name] = value }
}

func certified(name string) *gwapiv1.ListenerTLSConfig {
	return &gwapiv1.ListenerTLSConfig{
		CertificateRefs: []gwapiv1.SecretObjectReference{{Name: gwapiv1.ObjectName(name)}},
	}
}

// states are edits of listener w.
var states = map[string]edit{
	"as it should be":   func(*site) {},
	"Secret missing":    onListener("w", func(l *gwapiv1.Listener) { l.TLS = certified("nowhere") }),
	"Secret incomplete": onListener("w", func(l *gwapiv1.Listener) { l.TLS = certified("half") }),
	"no reference":      onListener("w", func(l *gwapiv1.Listener) { l.TLS = nil }),
	"not granted": onListener(
		"w", func(l *gwapiv1.Listener) { l.TLS.CertificateRefs[0].Namespace = new(gwapiv1.Namespace("guests")) },
	),
	"passthrough":         onListener("w", func(l *gwapiv1.Listener) { l.TLS.Mode = new(gwapiv1.TLSModePassthrough) }),
	"protocol misspelt":   onListener("w", func(l *gwapiv1.Listener) { l.Protocol = "TURN-TSL" }),
	"port out of range":   onListener("w", func(l *gwapiv1.Listener) { l.Port = 70000 }),
	"port of t":           onListener("w", func(l *gwapiv1.Listener) { l.Port = 3478 }),
	"port of the process": onListener("w", func(l *gwapiv1.Listener) { l.Port = 8086 }),
	"port and no Secret":  onListener("w", func(l *gwapiv1.Listener) { l.Port, l.TLS = 9443, certified("nowhere") }),
	"other network": onListener(
		"w", func(l *gwapiv1.Listener) { l.Protocol, l.TLS = "TURN-DTLS", certified("nowhere") },
	),
	"port in the pod": func(s *site) {
		annotated("targetport", "w=9443")(s)
		s.listener("w").TLS = certified(
			"nowhere",
		)
	},
	"routes of no kind": onListener("w", func(l *gwapiv1.Listener) {
		l.AllowedRoutes = &gwapiv1.AllowedRoutes{Kinds: []gwapiv1.RouteGroupKind{{Kind: "TCPRoute"}}}
	}),
}

// changes are edits of the rest of the Gateway while w is held.
var changes = map[string]edit{
	"nothing":       func(*site) {},
	"udp added":     func(s *site) { s.add(gwapiv1.Listener{Name: "more", Port: 6000, Protocol: "TURN-UDP"}) },
	"tcp added":     func(s *site) { s.add(gwapiv1.Listener{Name: "more", Port: 6000, Protocol: "TURN-TCP"}) },
	"u removed":     func(s *site) { s.remove("u") },
	"t removed":     func(s *site) { s.remove("t") },
	"all removed":   func(s *site) { s.remove("u"); s.remove("t"); s.remove("s") },
	"u renamed":     onListener("u", func(l *gwapiv1.Listener) { l.Name = "port" }),
	"port of u":     onListener("u", func(l *gwapiv1.Listener) { l.Port = 5349 }),
	"port of t":     onListener("t", func(l *gwapiv1.Listener) { l.Port = 5349 }),
	"u is TCP":      onListener("u", func(l *gwapiv1.Listener) { l.Protocol, l.Port = "TURN-TCP", 5350 }),
	"t is UDP":      onListener("t", func(l *gwapiv1.Listener) { l.Protocol, l.Port = "TURN-UDP", 5350 }),
	"t takes 443":   onListener("t", func(l *gwapiv1.Listener) { l.Port = 443 }),
	"certificate":   onListener("s", func(l *gwapiv1.Listener) { l.TLS = certified("second") }),
	"s waits too":   onListener("s", func(l *gwapiv1.Listener) { l.TLS = certified("nowhere") }),
	"target port":   annotated("targetport", "u=10000,t=10001"),
	"node port":     annotated("nodeport", "u=30478"),
	"node ports":    annotated("service-type", "NodePort"),
	"cluster IP":    annotated("service-type", "ClusterIP"),
	"one Service":   annotated("enable-mixed-protocol-lb", "true"),
	"two Services":  annotated("enable-mixed-protocol-lb", "maybe"),
	"first only":    annotated("enable-mixed-protocol-lb", "false"),
	"policy":        annotated("external-traffic-policy", "local"),
	"no affinity":   annotated("disable-session-affinity", "true"),
	"a note":        annotated("note", "for the load balancer"),
	"route added":   func(s *site) { s.route = append(s.route, "more") },
	"route removed": func(s *site) { s.route = nil },
	"other order":   func(s *site) { slices.Reverse(s.gateway.Spec.Listeners) },
}

// A held listener keeps its own ports and affects nothing else. The test combines every state of one listener,
// published before or not, with every change of the rest of the Gateway. Services, config and status of all other
// listeners follow their spec, and the held listener is served as before.
func TestAListenerThatWaitsHoldsBackItsOwnPortsOnly(t *testing.T) {
	n, held := 0, 0
	modes := []string{"", "true", "false"}
	for i, state := range slices.Sorted(maps.Keys(states)) {
		for k, change := range slices.Sorted(maps.Keys(changes)) {
			mixed := modes[(i+k)%len(modes)] // each state and each change is tested with each mode
			for _, first := range []bool{false, true} {
				for _, published := range []bool{false, true} {
					if mixed != "" && !published {
						continue // nothing is published yet
					}
					name := fmt.Sprintf(
						"%s, mixed %q, w first %t, published before %t, then %s", state, mixed, first, published,
						change,
					)
					s := newSite(t, mixed, first)
					if published {
						s.settle(name)
					}
					states[state](s)
					s.settle(name)
					s.check(name + ", before")
					changes[change](s)
					s.settle(name)
					n, held = n+1, held+s.check(name)
				}
			}
		}
	}
	t.Logf("%d sequences, in which listeners that wait were served %d times", n, held)
	if held < n/4 {
		t.Errorf("only %d listeners that wait were served in %d sequences", held, n)
	}
}

// site is a Gateway with all objects that it needs, and a cluster that provides its Services.
type site struct {
	*testing.T
	options translate.Options
	gateway *gwapiv1.Gateway
	route   []string
	objects []resource.Object

	services  map[string]*corev1.Service
	published *config.Config
	before    *config.Config
	// portsBefore are the Service ports that led to the listeners in their published form before.
	portsBefore map[string][]string
	result      translate.Result
}

func newSite(t *testing.T, mixed string, first bool) *site {
	if siteObjects == nil {
		siteObjects = objectsOfSites(t)
	}
	s := &site{
		T: t, options: translate.DefaultOptions(), objects: siteObjects, services: map[string]*corev1.Service{},
		route: []string{"media"},
	}
	s.options.Now = now
	w := gwapiv1.Listener{Name: "w", Port: 443, Protocol: "TURN-TLS", TLS: certified("good")}
	listeners := []gwapiv1.Listener{
		{Name: "u", Port: 3478, Protocol: "TURN-UDP"}, {Name: "t", Port: 3478, Protocol: "TURN-TCP"},
		{Name: "s", Port: 8443, Protocol: "TURN-TLS", TLS: certified("good")},
	}
	if first {
		listeners = append([]gwapiv1.Listener{w}, listeners...)
	} else {
		listeners = append(listeners, w)
	}
	s.gateway = &gwapiv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: "turn", Name: "lobby", UID: "7d3e", Annotations: map[string]string{}},
		Spec:       gwapiv1.GatewaySpec{GatewayClassName: "edge", Listeners: listeners},
	}
	if mixed != "" {
		annotated("enable-mixed-protocol-lb", mixed)(s)
	}
	return s
}

var siteObjects []resource.Object

// objectsOfSites returns the objects that a Gateway needs, with two valid certificates.
func objectsOfSites(t *testing.T) (objects []resource.Object) {
	for _, file := range []string{
		"a_missing_certificate_leaves_the_other_listeners.txtar", "a_tls_listener_carries_its_certificate.txtar",
	} {
		for _, o := range load(t, filepath.Join("testdata", file)).objects {
			switch o := o.(type) {
			case *gwapiv1.Gateway:
				continue
			case *corev1.Service:
				if o.Namespace == "turn" {
					continue
				}
			case *corev1.Secret:
				if len(o.Data["tls.key"]) > 0 && o.Name != "wrong" {
					for _, name := range []string{"good", "second"} {
						usable := o.DeepCopy()
						usable.Namespace, usable.Name = "turn", name
						objects = append(objects, usable)
					}
				}
			}
			objects = append(objects, o)
		}
	}
	return objects
}

func (s *site) listener(name string) *gwapiv1.Listener {
	i := slices.IndexFunc(s.gateway.Spec.Listeners, func(l gwapiv1.Listener) bool { return string(l.Name) == name })
	return &s.gateway.Spec.Listeners[i]
}

func (s *site) add(l gwapiv1.Listener) {
	s.gateway.Spec.Listeners = append(s.gateway.Spec.Listeners, l)
}

func (s *site) remove(name string) {
	s.gateway.Spec.Listeners = slices.DeleteFunc(
		s.gateway.Spec.Listeners, func(l gwapiv1.Listener) bool { return string(l.Name) == name },
	)
}

// settle repeats the translation and the reaction of the cluster until nothing changes.
func (s *site) settle(name string) {
	s.Helper()
	s.before, s.portsBefore = s.published, map[string][]string{}
	if s.before != nil {
		for _, l := range s.before.Listeners {
			s.portsBefore[l.Name] = s.servicePorts(l)
		}
	}
	for range 5 {
		var objects []resource.Object
		for _, svc := range s.services {
			objects = append(objects, svc)
		}
		objects = append(append(objects, s.gateway.DeepCopy()), s.objects...)
		for _, route := range s.route {
			objects = append(objects, &stunnerv1.UDPRoute{ObjectMeta: metav1.ObjectMeta{
				Namespace: "turn", Name: route,
			}, Spec: stunnerv1.UDPRouteSpec{
				CommonRouteSpec: gwapiv1.CommonRouteSpec{ParentRefs: []gwapiv1.ParentReference{{Name: "lobby"}}},
				Rules: []stunnerv1.UDPRouteRule{
					{BackendRefs: []stunnerv1.BackendRef{{Name: "sfu", Namespace: new(gwapiv1.Namespace("rooms"))}}},
				},
			}})
		}
		s.options.Published = s.published
		was := s.result
		s.result = translate.Gateway(resource.NewView(objects), resource.KeyOf(s.gateway), s.options)
		s.gateway.Status = s.result.Status
		if s.result.Decision != translate.Held {
			s.published = s.result.Config
			s.provide()
		}
		if reflect.DeepEqual(was, s.result) {
			return
		}
	}
	s.Errorf("%s: it does not settle", name)
}

// provide creates the Services of the result with addresses, and deletes the others.
func (s *site) provide() {
	wanted := map[string]*corev1.Service{}
	for _, o := range s.result.Objects {
		svc, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		svc = svc.DeepCopy()
		number := map[string]int{"lobby": 1, "lobby-tcp": 2, "lobby-udp": 3}[svc.Name]
		svc.Spec.ClusterIP = fmt.Sprintf("10.43.0.%d", number)
		if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", number)}}
		}
		wanted[svc.Name] = svc
	}
	s.services = wanted
}

// servicePorts returns the Service ports that lead to a listener of a config.
func (s *site) servicePorts(l config.Listener) (ports []string) {
	for _, svc := range s.services {
		for _, p := range svc.Spec.Ports {
			if strings.EqualFold(string(p.Protocol), l.Protocol.Network()) && int(p.TargetPort.IntVal) == l.Port {
				ports = append(ports, fmt.Sprintf("%s:%d", svc.Name, p.Port))
			}
		}
	}
	slices.Sort(ports)
	return ports
}

// heldListeners returns the listeners whose published config stays in use, by their names in a config: listeners that
// cannot be served as specified, except listeners with a revoked certificate.
func heldListeners(r translate.Result) (ids []string) {
	for _, l := range r.Status.Listeners {
		reasons := map[string]bool{}
		for _, c := range l.Conditions {
			reasons[c.Type+" "+c.Reason] = true
		}
		if r.Decision == translate.Served && reasons[condition.Programmed+" "+condition.ReasonInvalid] &&
			!reasons[condition.ResolvedRefs+" "+condition.ReasonRefNotPermitted] {
			ids = append(ids, r.Key.String()+"/"+string(l.Name))
		}
	}
	return ids
}

// check compares Services, config and status with the spec. It returns the number of held listeners that are served.
func (s *site) check(name string) (held int) {
	s.Helper()
	if s.result.Decision == translate.Held {
		if len(s.gateway.Spec.Listeners) > len(s.result.Status.Listeners) || !s.allWait() {
			s.Errorf("%s: everything is kept: %+v", name, s.result.Status.Conditions)
		}
		return 0
	}
	explained := map[string]bool{}
	for _, spec := range s.gateway.Spec.Listeners {
		id := "turn/lobby/" + string(spec.Name)
		i := slices.IndexFunc(s.published.Listeners, func(l config.Listener) bool { return l.Name == id })
		waits := slices.Contains(heldListeners(s.result), id)
		switch {
		case waits && i >= 0:
			held++
			s.checkHeld(name, s.published.Listeners[i], explained)
		case waits: // a Service may have the port of the listener
			for service, svc := range s.services {
				for _, p := range svc.Spec.Ports {
					if p.Name == string(spec.Name) && p.Port == int32(spec.Port) {
						explained[fmt.Sprintf("%s:%d/%s", service, p.Port, p.Protocol)] = true
					}
				}
			}
		case i >= 0:
			s.checkServed(name, spec, s.published.Listeners[i], explained)
		default: // the certificate of the listener was revoked
			explained[fmt.Sprintf("lobby:%d/TCP", spec.Port)], explained[fmt.Sprintf(
				"lobby-tcp:%d/TCP", spec.Port,
			)] = true, true
		}
	}
	for service, svc := range s.services {
		for _, p := range svc.Spec.Ports {
			if port := fmt.Sprintf("%s:%d/%s", service, p.Port, p.Protocol); !explained[port] {
				s.Errorf("%s: Service port %s leads to no listener", name, port)
			}
		}
		for key, value := range s.gateway.Annotations {
			if svc.Annotations[key] != value {
				s.Errorf(
					"%s: Service %s has annotation %s=%q, want %q", name, service, key, svc.Annotations[key], value,
				)
			}
		}
		if want := cmp.Or(
			s.gateway.Annotations["stunner.l7mp.io/service-type"], "LoadBalancer",
		); string(svc.Spec.Type) != want {
			s.Errorf("%s: Service %s is of type %s, want %s", name, service, svc.Spec.Type, want)
		}
	}
	return held
}

// status returns the status of a listener of a config.
func (s *site) status(l config.Listener) gwapiv1.ListenerStatus {
	i := slices.IndexFunc(
		s.result.Status.Listeners,
		func(st gwapiv1.ListenerStatus) bool { return "turn/lobby/"+string(st.Name) == l.Name },
	)
	return s.result.Status.Listeners[i]
}

func (s *site) allWait() bool {
	return !slices.ContainsFunc(s.result.Status.Listeners, func(l gwapiv1.ListenerStatus) bool {
		return isTrue(l.Conditions, condition.Accepted) && isTrue(l.Conditions, condition.ResolvedRefs)
	})
}

func isTrue(conditions []metav1.Condition, kind string) bool {
	return slices.ContainsFunc(
		conditions, func(c metav1.Condition) bool { return c.Type == kind && c.Status == metav1.ConditionTrue },
	)
}

// checkHeld compares a held listener with its form before.
func (s *site) checkHeld(name string, l config.Listener, explained map[string]bool) {
	s.Helper()
	i := slices.IndexFunc(s.before.Listeners, func(b config.Listener) bool { return b.Name == l.Name })
	if i < 0 {
		s.Errorf("%s: %s waits, was not published, and is", name, l.Name)
		return
	}
	was := s.before.Listeners[i]
	if l.Protocol != was.Protocol || l.Port != was.Port || l.Cert != was.Cert || l.Key != was.Key {
		s.Errorf(
			"%s: %s waits and has become %s %d, it was %s %d", name, l.Name, l.Protocol, l.Port, was.Protocol, was.Port,
		)
	}
	if got := s.servicePorts(l); len(s.portsBefore[l.Name]) > 0 && !slices.Equal(got, s.portsBefore[l.Name]) {
		s.Errorf("%s: %s waits, and is reached by %v, before by %v", name, l.Name, got, s.portsBefore[l.Name])
	}
	if said := s.status(l).AttachedRoutes; len(l.Routes) != int(said) {
		s.Errorf("%s: %s has the routes %v, its status counts %d", name, l.Name, l.Routes, said)
	}
	for _, port := range s.servicePorts(l) {
		explained[port+"/"+strings.ToUpper(l.Protocol.Network())] = true
	}
}

// checkServed compares a listener that is not held with the spec.
func (s *site) checkServed(name string, spec gwapiv1.Listener, l config.Listener, explained map[string]bool) {
	s.Helper()
	if string(l.Protocol) != string(spec.Protocol) {
		s.Errorf("%s: %s has protocol %s, want %s", name, l.Name, l.Protocol, spec.Protocol)
	}
	status := s.status(l)
	programmed := isTrue(status.Conditions, condition.Programmed)
	if len(l.Routes) != len(s.route) && spec.AllowedRoutes == nil || len(l.Routes) != int(status.AttachedRoutes) {
		s.Errorf(
			"%s: %s has the routes %v, its status counts %d, and there are %v", name, l.Name, l.Routes,
			status.AttachedRoutes, s.route,
		)
	}
	ports, balanced := s.servicePorts(l), s.gateway.Annotations["stunner.l7mp.io/service-type"] == ""
	hidden := s.gateway.Annotations["stunner.l7mp.io/enable-mixed-protocol-lb"] == "false" && len(ports) == 0
	switch {
	case hidden && programmed:
		s.Errorf("%s: %s is programmed and has no Service", name, l.Name)
	case hidden:
		return
	case len(ports) != 1 || !strings.HasSuffix(ports[0], fmt.Sprintf(":%d", spec.Port)):
		s.Errorf("%s: %s is reached by %v, want port %d", name, l.Name, ports, spec.Port)
	case balanced && (!programmed || l.PublicPort != int(spec.Port)):
		s.Errorf(
			"%s: %s: programmed %t, clients are told port %d, want %d", name, l.Name, programmed, l.PublicPort,
			spec.Port,
		)
	}
	for _, port := range ports {
		explained[port+"/"+strings.ToUpper(l.Protocol.Network())] = true
	}
}
