package translate_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// largeSlice returns an EndpointSlice with many endpoints of the Service of the only Gateway of the view.
func largeSlice(endpoints int) *discoveryv1.EndpointSlice {
	s := liveSlice(0, 0).(*discoveryv1.EndpointSlice)
	s.AddressType, s.Endpoints = discoveryv1.AddressTypeIPv6, nil
	for e := range endpoints {
		address := fmt.Sprintf("2001:db8:1111:2222:3333:4444:%x:%x", 0x1000+e>>12, 0x1000+e&0xfff)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return s
}

// allow sets the budget of the class of the view.
func (w *liveView) allow(b stunnerv1.Budget) {
	gc := w.view.GatewayConfig(types.NamespacedName{Namespace: "media", Name: "media"}).DeepCopy()
	gc.Spec.Budget = &b
	w.view.Put(gc)
}

// gateway translates the only Gateway of the view.
func (w *liveView) gateway() translate.Result {
	r := translate.Gateway(w.view, types.NamespacedName{Namespace: "media", Name: "gw-0"}, w.options)
	w.view.Put(r.OverBudget)
	return r
}

// unserved returns the reason why the only route of the view is not served.
func (w *liveView) unserved(t *testing.T) string {
	t.Helper()
	u, _ := translate.RefOf(liveRoute(0, 0))
	parents := u.Translate(w.view, w.options).Status.(gwapiv1.RouteStatus).Parents
	for _, c := range parents[0].Conditions {
		if c.Type == "Accepted" && c.Status == metav1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// A config that is too large would break the stream of every client that reads all configs. The route that makes it too
// large is refused even if the budget allows it, and the Gateway is served.
func TestARouteThatMakesAConfigUnreadableWaits(t *testing.T) {
	w := newLiveView(1)
	w.allow(stunnerv1.Budget{EndpointsPerRoute: 100_000, Endpoints: 200_000})
	w.view.Put(largeSlice(90_000))
	r := w.gateway()
	if r.Decision != translate.Served || len(r.Config.Clusters) != 0 {
		t.Fatalf("%s, config %v: want one without the route", r.Decision, r.Config)
	}
	if why := w.unserved(t); !strings.Contains(why, "BudgetExceeded") ||
		!strings.Contains(why, fmt.Sprint(config.MaxDocument)) {
		t.Errorf("the route says %q", why)
	}
	w.view.Put(largeSlice(10))
	if r := w.gateway(); len(r.Config.Clusters) != 1 || w.unserved(t) != "" {
		t.Errorf("with 10 endpoints the route waits: %s", w.unserved(t))
	}
}

// Whatever the size of an allowed route, dataplanes accept the config.
func TestEveryConfigCanBeRead(t *testing.T) {
	for _, endpoints := range []int{70_000, 80_000, 90_000} {
		w := newLiveView(1)
		w.allow(stunnerv1.Budget{EndpointsPerRoute: 100_000, Endpoints: 200_000})
		w.view.Put(largeSlice(endpoints))
		r := w.gateway()
		if r.Config == nil {
			t.Fatalf("%d endpoints: no config: %+v", endpoints, r.Status.Conditions)
		}
		if size := len(r.Config.Canonical()); size > config.MaxDocument {
			t.Errorf("%d endpoints: the config has %d bytes", endpoints, size)
		}
	}
}

// A route over budget keeps the published endpoints that its backends still contain. It keeps no removed endpoint and
// gets no new endpoint. A new operator needs the published config for that.
func TestARouteOverBudgetKeepsPublishedEndpoints(t *testing.T) {
	w := newLiveView(1)
	w.allow(stunnerv1.Budget{EndpointsPerRoute: 100})
	before := w.gateway()
	had := before.Config.Clusters[0].Endpoints
	if len(had) != liveEndpoints+1 {
		t.Fatalf("%d endpoints", len(had))
	}
	s := largeSlice(200)
	// 20 are removed, 200 are added
	s.Endpoints = append(s.Endpoints, liveSlice(0, 0).(*discoveryv1.EndpointSlice).Endpoints[:30]...)
	s.AddressType = discoveryv1.AddressTypeIPv4
	w.view.Put(s)
	if r := w.gateway(); !r.NeedsPublished || len(r.Config.Clusters) > 0 {
		t.Errorf("a new operator: needs the published config %t, clusters %v", r.NeedsPublished, r.Config.Clusters)
	}
	w.options.Published = before.Config
	r := w.gateway()
	if r.Decision != translate.Served || r.NeedsPublished || len(r.Config.Clusters) != 1 {
		t.Fatalf("%s, needs the published config %t, config %v", r.Decision, r.NeedsPublished, r.Config)
	}
	kept := r.Config.Clusters[0].Endpoints
	if len(kept) != 31 || slices.ContainsFunc(kept, func(e string) bool { return !slices.Contains(had, e) }) {
		t.Errorf("the route keeps %d endpoints, want 30 and the cluster IP: %v", len(kept), kept)
	}
	if !slices.Equal(r.Config.Listeners[0].Routes, []string{"media/route-0"}) ||
		!strings.Contains(w.unserved(t), "231 endpoints") {
		t.Errorf("routes %v, status %q", r.Config.Listeners[0].Routes, w.unserved(t))
	}
	for name, take := range map[string]func(){
		"its backend is denied": func() {
			gc := w.view.GatewayConfig(types.NamespacedName{Namespace: "media", Name: "media"}).DeepCopy()
			gc.Spec.DeniedBackends = []stunnerv1.DeniedBackend{{Namespace: "media"}}
			w.view.Put(gc)
		},
		"the Service is gone": func() { w.view.Delete(liveService(0, "")) },
	} {
		take()
		if r := w.gateway(); len(r.Config.Clusters) > 0 && len(r.Config.Clusters[0].Endpoints) > 0 {
			t.Errorf("%s, and it keeps %v", name, r.Config.Clusters)
		}
	}
}

// yardstick measures how long this machine, with its monitoring, takes to build, sort and encode the endpoints of a
// config of maximum size: some 80 ms. A translation may take at most 100 ms; twice the yardstick allows for noise.
func yardstick() time.Duration {
	return processorTime(func() {
		endpoints := make([]string, 100_000)
		for i := range endpoints {
			n := i * 7919 % len(endpoints)
			endpoints[i] = fmt.Sprintf("10.%d.%d.%d:<1000-2000>", n>>16, n>>8&255, n&255)
		}
		slices.Sort(endpoints)
		_, _ = json.Marshal(endpoints)
	})
}

// A Gateway with thousands of labels or annotations is not applied to generated objects: the API server needs seconds
// for each of them.
func TestGatewayWithTooManyLabelsAndAnnotationsIsHeld(t *testing.T) {
	for number, decision := range map[int]translate.Decision{490: translate.Served, 510: translate.Held} {
		w := newLiveView(1)
		gw := w.view.Gateway(types.NamespacedName{Namespace: "media", Name: "gw-0"}).DeepCopy()
		gw.Labels, gw.Annotations = map[string]string{}, map[string]string{}
		for i := range number {
			gw.Labels[fmt.Sprint("label-", i)], gw.Annotations[fmt.Sprint("annotation-", i)] = "", ""
		}
		w.view.Put(gw)
		if r := w.gateway(); r.Decision != decision {
			t.Errorf("with %d labels and annotations: decision %v, want %v", 2*number, r.Decision, decision)
		}
	}
}

// No object that the API server accepts keeps the operator busy for long or makes it build a config that is too large.
// Each case uses the default budgets fully, or exceeds them by far.
func TestTheLargestObjectsTakeLittleTime(t *testing.T) {
	views := map[string]func(w *liveView){
		"one route of 114,688 endpoints":     func(w *liveView) { w.wide(1, 7) },
		"40 routes of 114,688 endpoints":     func(w *liveView) { w.wide(40, 7) },
		"1,000 routes of 262,144 endpoints":  func(w *liveView) { w.wide(1000, 16) },
		"two routes that fill the Gateway":   func(w *liveView) { w.wide(2, 1) },
		"a Service of 16,000 endpoints":      func(w *liveView) { w.view.Put(largeSlice(16_000)) },
		"10,001 routes":                      func(w *liveView) { w.narrow(10_001, 1) },
		"2,000 routes with 16 backends each": func(w *liveView) { w.narrow(2_000, 16) },
		"2,000 routes at 64 listeners":       func(w *liveView) { w.narrow(2_000, 1); w.listen(64) },
		"10,001 routes with 32 parents each": func(w *liveView) { w.narrow(10_001, 32); w.listen(64) },
		"2,000 routes while 64 denials hold": func(w *liveView) { w.narrow(2_000, 16); w.deny(64) },
		"40 routes that keep what they had": func(w *liveView) {
			w.narrow(
				40, 1,
			)
			w.options.Published = w.gateway().Config
			w.wide(40, 7)
		},
		"1,000 routes in 1,000 other namespaces": func(w *liveView) { w.addForeignRoutes(1000) },
	}
	for name, make := range views {
		t.Run(name, func(t *testing.T) {
			w := newLiveView(1)
			make(w)
			for _, u := range []translate.ObjectRef{unit(liveGateway(0, 0)), unit(liveRoute(0, 0))} {
				w.withinYardsticks(t, u)
			}
		})
	}
}

// withinYardsticks fails the test if no round of several translates an object within twice the yardstick of the same
// round. Other load of the machine makes single rounds slow, also in CPU time, because it shares caches and memory.
func (w *liveView) withinYardsticks(t *testing.T, u translate.ObjectRef) {
	t.Helper()
	const rounds = 10
	var used, bound time.Duration
	for range rounds {
		used, bound = processorTime(func() { w.process(t, u) }), 2*yardstick()
		if used <= bound {
			t.Logf("%s takes %s, the bound is %s", u, used.Round(time.Millisecond), bound.Round(time.Millisecond))
			return
		}
	}
	t.Errorf("a translation of %s takes %s, want at most %s in one of %d rounds", u, used, bound, rounds)
}

// process translates an object, and does the work of the operator on its config in the same goroutine.
func (w *liveView) process(t *testing.T, u translate.ObjectRef) {
	out := u.Translate(w.view, w.options)
	if out.Gateway == nil || out.Gateway.Config == nil {
		return
	}
	c := out.Gateway.Config
	_ = c.Canonical()
	_ = c.Clone()
	_ = out.Gateway.ObjectsWith(c)
}

// processorTime returns the CPU time of a function, which does not depend on other load of the machine.
func processorTime(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(1, &u); err != nil { // RUSAGE_THREAD
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begun := used()
	do()
	return used() - begun
}

func unit(o resource.Object) translate.ObjectRef {
	u, _ := translate.RefOf(o)
	return u
}

// wide adds routes with n rules each. A rule has 16 backends of 1,024 prefixes.
func (w *liveView) wide(routes, n int) {
	s := &stunnerv1.StaticService{ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: "wide"}}
	for i := range 1024 {
		s.Spec.Prefixes = append(s.Spec.Prefixes, fmt.Sprintf("172.16.%d.%d/32", i/250, i%250))
	}
	w.view.Put(s)
	for i := range routes {
		r := liveRoute(i, i).(*stunnerv1.UDPRoute)
		r.Spec.ParentRefs[0].Name = "gw-0"
		r.Spec.Rules = nil
		for range n {
			rule := stunnerv1.UDPRouteRule{}
			for range 16 {
				group, kind := gwapiv1.Group(stunnerv1.GroupName), gwapiv1.Kind(stunnerv1.KindStaticService)
				port := gwapiv1.PortNumber(1000 + len(r.Spec.Rules)*16 + len(rule.BackendRefs))
				rule.BackendRefs = append(
					rule.BackendRefs, stunnerv1.BackendRef{Group: &group, Kind: &kind, Name: "wide", Port: &port},
				)
			}
			r.Spec.Rules = append(r.Spec.Rules, rule)
		}
		w.view.Put(r)
	}
}

// narrow makes routes with n backends of one endpoint each, and with n parents.
func (w *liveView) narrow(routes, n int) {
	for i := range routes {
		r := liveRoute(i, i).(*stunnerv1.UDPRoute)
		r.Spec.ParentRefs, r.Spec.Rules = nil, []stunnerv1.UDPRouteRule{{}}
		for b := range n {
			section := gwapiv1.SectionName("none")
			if b == n-1 {
				section = "udp"
			}
			r.Spec.ParentRefs = append(r.Spec.ParentRefs, gwapiv1.ParentReference{Name: "gw-0", SectionName: &section})
			port := gwapiv1.PortNumber(1000 + b)
			r.Spec.Rules[0].BackendRefs = append(
				r.Spec.Rules[0].BackendRefs, stunnerv1.BackendRef{Name: "headless", Port: &port},
			)
		}
		w.view.Put(r)
	}
	service := liveService(0, "10.96.0.7")
	service.SetName("headless")
	w.view.Put(service)
}

func (w *liveView) listen(listeners int) {
	gw := liveGateway(0, 0).(*gwapiv1.Gateway)
	for i := range listeners - 1 {
		l := gw.Spec.Listeners[0]
		l.Name, l.Port = gwapiv1.SectionName(fmt.Sprintf("udp-%d", i)), l.Port+gwapiv1.PortNumber(i)+1
		gw.Spec.Listeners = append(gw.Spec.Listeners, l)
	}
	w.view.Put(gw)
}

func (w *liveView) deny(denials int) {
	gc := w.view.GatewayConfig(types.NamespacedName{Namespace: "media", Name: "media"}).DeepCopy()
	for i := range denials {
		gc.Spec.DeniedBackends = append(gc.Spec.DeniedBackends, stunnerv1.DeniedBackend{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"deny": fmt.Sprint(i)}},
		})
	}
	w.view.Put(gc)
}

// addForeignRoutes adds routes of other namespaces to a Gateway that allows routes from all.
func (w *liveView) addForeignRoutes(n int) {
	gw := liveGateway(0, 0).(*gwapiv1.Gateway)
	all := gwapiv1.NamespacesFromAll
	gw.Spec.Listeners[0].AllowedRoutes = &gwapiv1.AllowedRoutes{Namespaces: &gwapiv1.RouteNamespaces{From: &all}}
	w.view.Put(gw)
	namespace := gwapiv1.Namespace("media")
	for i := range n {
		r := liveRoute(0, i).(*stunnerv1.UDPRoute)
		r.Namespace, r.Spec.ParentRefs[0].Namespace = fmt.Sprint("stranger-", i), &namespace
		w.view.Put(r)
	}
}
