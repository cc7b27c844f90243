//go:build node

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
)

// callers are the browsers, each with a call to the echo peer.
const callers = 10

// TestBrowsersMove: the calls of ten browsers continue while each of the three pods of their Gateway is deleted, one
// after the other, and while KEDA removes two of them.
func TestBrowsersMove(t *testing.T) {
	system := testNamespace{t, home}
	system.prepare()
	if err := cluster.KEDA(t.Context()); err != nil {
		t.Fatal(err)
	}
	system.follow(nil, block{manual, "kubectl apply --server-side"})
	s := newSite(t, "browsers")
	s.kubectl("", "patch", "udproutes.stunner.l7mp.io", "to-echo", "--type=json", "-p",
		`[{"op":"add","path":"/spec/rules/0/backendRefs/-","value":{"name":"echo","port":7001}}]`)
	s.threePods()
	b := s.browsers()

	for i, p := range s.pods(dataplanes) {
		s.kubectl("", "delete", "pod", p.Name, "--wait=false")
		s.wait("delete", "pod/"+p.Name)
		s.forwarding(3)
		b.goOn(fmt.Sprintf("pod %d is deleted", i+1))
	}
	s.autoscale(`{"minReplicas":1,"maxReplicas":3,"allocationsPerReplica":50,"trigger":"external","pollingInterval":5,
		"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}`)
	s.until("KEDA has removed two pods", func(context.Context) error {
		if pods := s.pods(dataplanes); len(pods) != 1 {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		return nil
	})
	b.goOn("KEDA has removed two pods")
	b.end()
}

// threePods creates the Gateway front-door with three pods. Its Service has no session affinity, so that all pods have
// calls of one address.
func (s site) threePods() {
	s.Helper()
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "--patch", `{"spec":{"replicas":3}}`)
	s.open(`stunner.l7mp.io/external-traffic-policy: local, stunner.l7mp.io/disable-session-affinity: "true"`, udpListener)
	s.kubectl("", "rollout", "status", "deployment/front-door", "--timeout="+patience.String())
	s.forwarding(3)
}

// autoscale sets spec.autoscaling of the Dataplane.
func (s site) autoscale(settings string) {
	s.Helper()
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "--patch",
		`{"spec":{"replicas":null,"autoscaling":`+settings+`}}`)
}

// browsers are browsers with a call each. A call sends 50 messages a second on a data channel.
type browsers struct {
	site
	pages []*chromium.Page
	lost  []int // messages of each call
}

// browsers opens the test page in browsers, which call the echo peer through the Gateway front-door.
func (s site) browsers() *browsers {
	s.Helper()
	b := &browsers{site: s, lost: make([]int, callers)}
	url := s.testPage() + "/demo/?run=1&transport=udp&keep=1"
	for range callers {
		b.pages = append(b.pages, chromium.Open(s.T, url))
	}
	b.goOn("the calls have begun")
	return b
}

// testPage serves the test page with credentials of the site, and returns its URL.
func (s site) testPage() string {
	s.Helper()
	echo, err := url.Parse(fmt.Sprintf("http://%s:7000", s.address("echo")))
	if err != nil {
		s.Fatal(err)
	}
	at := listenerAddress{call.UDP, netip.AddrPortFrom(s.address("front-door"), 3478)}
	mux := http.NewServeMux()
	page := http.FileServer(http.Dir(filepath.Join(bedtest.Root(s), "services/auth/internal/demo/page")))
	mux.Handle("GET /demo/", http.StripPrefix("/demo/", page))
	mux.Handle("POST /demo/echo", http.StripPrefix("/demo/echo", httputil.NewSingleHostReverseProxy(echo)))
	mux.HandleFunc("POST /v1/ice-servers", func(w http.ResponseWriter, _ *http.Request) {
		o := s.options(at, s.echo())
		_ = json.NewEncoder(w).Encode(map[string]any{"iceTransportPolicy": "relay", "ttl": 3600, "iceServers": []bed.ICEServer{{
			URLs: []string{fmt.Sprintf("turn:%s?transport=udp", at.at)}, Username: o.Username, Credential: o.Password,
		}}})
	})
	server := httptest.NewServer(mux)
	s.Cleanup(server.Close)
	return server.URL
}

// goOn checks that each call continues, and logs what it has lost since the last time.
func (b *browsers) goOn(after string) {
	b.Helper()
	var lost []string
	for i, page := range b.pages {
		running := func(r chromium.Report) bool { return r.Verdict == "running" }
		n := page.Reports("the call runs", running).Received
		r := page.Reports("messages come back", func(r chromium.Report) bool { return !running(r) || r.Received >= n+100 })
		if !running(r) {
			b.Errorf("%s: call %d ended: %s", after, i, r.Sentence)
		}
		lost = append(lost, fmt.Sprintf("%d (%d ms)", r.Lost-b.lost[i], 20*(r.Lost-b.lost[i])))
		b.lost[i] = r.Lost
	}
	b.Logf("%s: %d calls continue; messages lost: %s", after, len(b.pages), strings.Join(lost, ", "))
}

// end ends all calls, and logs the longest time in which a call received nothing.
func (b *browsers) end() {
	b.Helper()
	for i, page := range b.pages {
		page.Tell("stop")
		r := page.Reports("the call is over", func(r chromium.Report) bool { return r.Verdict != "running" })
		b.Logf("call %d: %d messages sent, %d lost, longest time without one %.0f ms", i, r.Sent, r.Lost, r.MaxGap)
	}
}

// forwarding waits until a number of pods forward to each other.
func (s site) forwarding(pods int) {
	s.Helper()
	s.until(fmt.Sprintf("%d pods forward to each other", pods), func(ctx context.Context) error {
		all := s.pods(dataplanes)
		if len(all) != pods {
			return fmt.Errorf("there are %d pods", len(all))
		}
		for _, p := range all {
			if !ready(p) {
				return errors.New("pod " + p.Name + " is not ready")
			}
			if f := s.status(p).Forwarding; f == nil || f.Peers != pods-1 || f.Problem != "" {
				return fmt.Errorf("forwarding of pod %s: %+v", p.Name, f)
			}
		}
		return nil
	})
}
