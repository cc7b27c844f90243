package kube

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/stunner-gateway/stunner/e2e/internal/reader"
)

// the operator is killed before each of its writes. After a restart the objects equal the objects of an
// undisturbed run, and none was re-created.
func TestOperatorIsKilledBetweenAnyTwoWrites(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	s.sees("gateway/front-door", condition("Accepted"), "True")
	p := s.behindProxy()
	undisturbed := s.testGateway("whole")
	s.apply(undisturbed.text)
	var want map[string]string
	s.await(func(context.Context) error {
		want = undisturbed.state()
		if !strings.Contains(want["Gateway"], `"attachedRoutes":1`) ||
			!strings.Contains(want["UDPRoute"], "ResolvedRefs") || !strings.Contains(want["ConfigMap DOOR"], "echo") ||
			!strings.Contains(want["ConfigMap DOOR"], "cluster-ip") {
			return fmt.Errorf("the objects are not complete: %v", want)
		}
		return nil
	})
	gateways := []testGateway{undisturbed}
	for n := 1; ; n++ {
		d := s.testGateway(fmt.Sprintf("cut-%d", n))
		gateways = append(gateways, d)
		held := p.holdWrites(n)
		s.apply(d.text)
		if !d.completesBefore(held, want) {
			s.must(s.process.Kill())
		} else if n > len(want) {
			t.Logf("killed before each of the %d writes", n-1)
			break
		} else {
			t.Fatalf("only %d writes for %d objects and statuses", n-1, len(want))
		}
		before := d.made()
		p.make(nil)
		s.start()
		s.await(func(context.Context) error { return d.differs(want) })
		after := d.made()
		for object, identity := range before {
			if after[object] != identity {
				t.Errorf("killed before write %d: %s was %s and is %s", n, object, identity, after[object])
			}
		}
	}
	for _, d := range gateways {
		s.must(d.differs(want))
	}
}

// completesBefore reports whether a Gateway reaches the wanted state before a write is held.
func (d testGateway) completesBefore(held <-chan struct{}, want map[string]string) (complete bool) {
	d.Helper()
	d.await(func(context.Context) error {
		select {
		case <-held:
			return nil
		default:
		}
		err := d.differs(want)
		complete = err == nil
		return err
	})
	return complete
}

// testGateway is a Gateway with a route and the objects that the operator creates for it.
type testGateway struct {
	*installation
	client *dynamic.DynamicClient
	id     string
	text   string
}

func (s *installation) testGateway(id string) testGateway {
	s.Helper()
	client, err := dynamic.NewForConfig(control.Admin.Config)
	s.must(err)
	return testGateway{s, client, id, fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: %[2]s}
spec: {gatewayClassName: %[2]s, listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: %[1]s, namespace: %[2]s}
spec: {parentRefs: [{name: %[1]s}], rules: [{backendRefs: [{name: echo}]}]}
`, id, s.name)}
}

// generated lists the kinds that the operator may create for a Gateway.
var generated = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Version: "v1", Resource: "services"}, {Version: "v1", Resource: "configmaps"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
}

// objects returns the generated objects of the Gateway.
func (d testGateway) objects() (all []unstructured.Unstructured) {
	d.Helper()
	for _, kind := range generated {
		list, err := d.client.Resource(kind).Namespace(d.name).List(
			d.Context(), metav1.ListOptions{LabelSelector: "stunner.l7mp.io/related-gateway-name=" + d.id},
		)
		d.must(err)
		all = append(all, list.Items...)
	}
	return all
}

// made returns the identity of each generated object: UID and node ports.
func (d testGateway) made() map[string]string {
	d.Helper()
	identities := map[string]string{}
	for _, o := range d.objects() {
		identity := string(o.GetUID())
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		for _, p := range ports {
			if port, ok := p.(map[string]any); ok {
				identity += fmt.Sprint(" ", port["nodePort"])
			}
		}
		identities[o.GetKind()+" "+o.GetName()] = identity
	}
	return identities
}

// state returns spec and status of all objects of the Gateway by name, without fields that differ between Gateways.
func (d testGateway) state() map[string]string {
	d.Helper()
	said := map[string]string{}
	for _, o := range d.objects() {
		unstructured.RemoveNestedField(o.Object, "status")
		said[o.GetKind()+" "+d.plain(o.GetName())] = d.say(o.Object)
	}
	for kind, resource := range map[string]schema.GroupVersionResource{
		"Gateway":  {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"},
		"UDPRoute": {Group: "stunner.l7mp.io", Version: "v1", Resource: "udproutes"},
	} {
		o, err := d.client.Resource(resource).Namespace(d.name).Get(d.Context(), d.id, metav1.GetOptions{})
		d.must(err)
		status, _, _ := unstructured.NestedMap(o.Object, "status")
		said[kind] = d.say(status)
	}
	return said
}

// own lists fields that the API server sets individually for each object.
var own = []string{
	"uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "nodePort",
	"healthCheckNodePort", "clusterIP", "clusterIPs",
	"stunner.l7mp.io/applied", "deployment.kubernetes.io/revision",
}

func (d testGateway) say(fields map[string]any) string {
	d.Helper()
	text, err := json.Marshal(without(fields))
	d.must(err)
	return d.plain(string(text))
}

func (d testGateway) plain(text string) string {
	return withoutAllocated(strings.ReplaceAll(text, d.id, "DOOR"))
}

func without(v any) any {
	switch v := v.(type) {
	case map[string]any:
		kept := map[string]any{}
		for name, field := range v {
			if !slices.Contains(own, name) {
				kept[name] = without(field)
			}
		}
		return kept
	case []any:
		kept := make([]any, len(v))
		for i, item := range v {
			kept[i] = without(item)
		}
		return kept
	}
	return v
}

// differs returns the difference between the objects of the Gateway and the wanted objects.
func (d testGateway) differs(want map[string]string) error {
	d.Helper()
	got := d.state()
	names := slices.Sorted(maps.Keys(want))
	if there := slices.Sorted(maps.Keys(got)); !slices.Equal(there, names) {
		return fmt.Errorf("%s has %q, want %q", d.id, there, names)
	}
	for _, name := range names {
		if got[name] != want[name] {
			return fmt.Errorf("%s of %s is\n%s\nwant\n%s", name, d.id, got[name], want[name])
		}
	}
	return nil
}

// outage is the length of an API server outage. Watches reconnect after 0.8 s and retry later, so a longer outage tests
// the same code.
var outage = flag.Duration("outage", 3*time.Second, "how long the API server is unreachable")

// R-06, L-3, L-6: while the API server is unreachable, slow or failing, dataplanes are served as before and nothing is
// deleted.
// Changes from that time take effect when it is back.
func TestAPIServerIsDownSlowOrFailing(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	p := s.behindProxy()
	r := s.reader("front-door")
	s.shows(r, "192.0.2.50", "192.0.2.7")
	begun, known := time.Now(), r.State()

	p.down()
	s.moveEcho("192.0.2.51")
	s.unchanged(r, known, *outage)
	s.must(p.up())
	s.recovers("an outage", func() { s.shows(r, "192.0.2.51", "192.0.2.7") })

	p.make(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		select {
		case <-time.After(time.Second):
			pass.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
	known = r.State()
	s.recovers("a restart over a slow API server", func() { s.must(s.process.Kill()); s.start() })
	s.recovers(
		"a reconnect",
		func() { s.seen(r, func(now reader.State) bool { return now.Visits > known.Visits && now.Connected }) },
	)
	s.mark("slow")
	s.recovers(
		"a change over a slow API server", func() { s.sees("deployment/front-door", ".metadata.labels.mark", "slow") },
	)
	s.unchanged(r, known, 0)

	random, turn := rand.New(rand.NewPCG(6, 0)), sync.Mutex{}
	p.make(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		turn.Lock()
		dice := random.IntN(20)
		turn.Unlock()
		switch {
		case dice < 3:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		case dice < 6:
			http.Error(w, "failed", http.StatusInternalServerError)
		default:
			pass.ServeHTTP(w, r)
		}
	})
	s.recovers("a restart over a failing API server", func() { s.must(s.process.Kill()); s.start() })
	s.mark("failing")
	s.moveEcho("192.0.2.52")
	s.recovers("a change over a failing API server", func() {
		s.shows(r, "192.0.2.52", "192.0.2.7")
		s.sees("deployment/front-door", ".metadata.labels.mark", "failing")
	})
	if now := r.State(); now.Changes != known.Changes+1 {
		t.Errorf("%d configs after one change", now.Changes-known.Changes)
	}
	for _, w := range p.since(begun) {
		if strings.HasPrefix(w.what, http.MethodDelete) {
			t.Errorf("%s was requested: an error was treated as NotFound", w.what)
		}
	}
}

// reader starts a reader of the config of a Gateway that runs until the test ends.
func (s *installation) reader(gateway string) *reader.Reader {
	return reader.Read(s.Context(), fmt.Sprintf("127.0.0.1:%d", s.discovery), s.name+"/"+gateway)
}

func (s *installation) seen(r *reader.Reader, wanted func(reader.State) bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), timeout)
	defer cancel()
	_, err := r.Await(ctx, wanted)
	s.must(err)
}

// shows waits until a config contains all of these texts.
func (s *installation) shows(r *reader.Reader, texts ...string) {
	s.Helper()
	s.seen(r, func(now reader.State) bool {
		return !slices.ContainsFunc(
			texts, func(text string) bool { return !strings.Contains(string(now.Last.Data), text) },
		)
	})
}

// unchanged checks for some time that discovery works and the reader receives no new frame.
func (s *installation) unchanged(r *reader.Reader, known reader.State, during time.Duration) {
	s.Helper()
	for end := time.Now().Add(during); ; {
		if len(s.config().Listeners) != 2 {
			s.Fatal("discovery does not serve the config")
		}
		if now := r.State(); now.Changes != known.Changes || during > 0 &&
			(!now.Connected || now.Visits != known.Visits) {
			s.Fatalf(
				"%d more configs and %d more connections: %s", now.Changes-known.Changes, now.Visits-known.Visits,
				now.Last.Data,
			)
		}
		if time.Now().After(end) {
			return
		}
		<-time.After(100 * time.Millisecond) // between two checks
	}
}

// recovers runs do and logs how long it took.
func (s *installation) recovers(what string, do func()) {
	s.Helper()
	begun := time.Now()
	do()
	s.Logf("%s: %s", what, time.Since(begun).Round(100*time.Millisecond))
}

// moveEcho changes the endpoint address of the media server.
func (s *installation) moveEcho(address string) {
	s.Helper()
	s.patch(
		"endpointslice/echo", types.JSONPatchType,
		`[{"op":"replace","path":"/endpoints/0/addresses/0","value":"`+address+`"}]`,
	)
}

// mark sets a label of the Gateway that is copied to its objects.
func (s *installation) mark(value string) {
	s.Helper()
	s.label("gateway/front-door", "mark", value)
}

// before the operator has listed all objects of every kind, it serves and writes nothing. Afterwards it serves
// the same config as before.
func TestStartWaitsForEveryKind(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	whole := s.reader("front-door")
	s.shows(whole, "192.0.2.50", "192.0.2.7", `"TURN-TCP"`)
	p := s.behindProxy()
	for _, kind := range []string{
		"gatewayclasses", "gateways", "gatewayconfigs", "dataplanes", "staticservices", "udproutes", "referencegrants",
		"services", "endpointslices", "namespaces", "nodes", "secrets", "deployments", "configmaps",
	} {
		s.stop()
		begun := time.Now()
		asked, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		p.make(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if strings.HasSuffix(r.URL.Path, "/"+kind) && r.Method == http.MethodGet {
				once.Do(func() { close(asked) })
				select {
				case <-release:
				case <-r.Context().Done():
					return
				}
			}
			pass.ServeHTTP(w, r)
		})
		s.launch()
		r := s.reader("front-door")
		select {
		case <-asked:
		case <-time.After(timeout):
			t.Fatalf("%s was not requested", kind)
		}
		s.seen(r, func(now reader.State) bool { return now.Connected })
		for end := time.Now().Add(time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
			if now := r.State(); now.Changes > 0 || s.isReady() == nil {
				t.Fatalf("without %s: ready %t, config %s", kind, s.isReady() == nil, now.Last.Data)
			}
		}
		close(release)
		s.await(func(context.Context) error { return s.isReady() })
		s.seen(r, func(now reader.State) bool { return now.Changes > 0 })
		if got, want := r.State(), whole.State(); got.Changes != 1 || string(got.Last.Data) != string(want.Last.Data) {
			t.Errorf("delayed %s: %d configs, the last %s\nwant %s", kind, got.Changes, got.Last.Data, want.Last.Data)
		}
		if wrote := p.since(begun); len(wrote) > 0 {
			t.Errorf("delayed %s: wrote %v", kind, wrote)
		}
	}
	if n := whole.State().Changes; n != 1 {
		t.Errorf("a reader got %d configs", n)
	}
}

// isReady returns nil if /ready of the operator returns 200.
func (s *installation) isReady() error {
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/ready", s.health))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}
