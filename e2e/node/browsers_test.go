//go:build node

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// pages is the number of test pages, each with a call to the echo peer. They are frames of one browser, because ten
// browsers use all processors of a small machine.
const pages = 10

// frames is an HTML page with the test pages in frames. Its report contains the result of each test page.
const frames = `<!doctype html><body><script>
const all = Array.from({ length: PAGES }, () => {
  const frame = document.createElement('iframe');
  frame.src = 'demo/?run=1&transport=udp&keep=1';
  document.body.append(frame);
  return frame.contentWindow;
});
Object.defineProperty(window, '__report', { get: () => ({ verdict: 'running', results: all.map((w) => w.__report?.results[0] ?? {}) }) });
window.__stop = () => all.forEach((w) => w.__stop());
</script>`

// TestBrowsersMove: ten calls of a browser continue while each of the three pods of their Gateway is deleted, one
// after the other, and while KEDA removes two of them.
func TestBrowsersMove(t *testing.T) {
	if err := cluster.KEDA(t.Context()); err != nil {
		t.Fatal(err)
	}
	system := testNamespace{t, home}
	system.prepare()
	system.follow(nil, block{manual, "kubectl apply --server-side"})
	s := newSite(t, "browsers")
	s.kubectl("", "patch", "udproutes.stunner.l7mp.io", "to-echo", "--type=json", "-p",
		`[{"op":"add","path":"/spec/rules/0/backendRefs/-","value":{"name":"echo","port":7001}}]`)
	s.threePods()
	b := s.browsers()
	b.goOn("without a change", 750)
	for i, p := range s.pods(dataplanes) {
		s.kubectl("", "delete", "pod", p.Name, "--wait=false")
		s.wait("delete", "pod/"+p.Name)
		s.forwarding(3)
		b.goOn(fmt.Sprintf("pod %d is deleted", i+1), 100)
	}
	s.autoscale(`{"minReplicas":1,"maxReplicas":3,"allocationsPerReplica":50,"trigger":"external","pollingInterval":5,
		"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}`)
	s.until("KEDA has removed two pods", func(context.Context) error {
		if pods := s.pods(dataplanes); len(pods) != 1 {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		return nil
	})
	b.goOn("KEDA has removed two pods", 100)
	b.page.Tell("stop")
	s.until("no pod has a session", func(context.Context) error {
		for _, p := range s.pods(dataplanes) {
			if n := s.status(p).AllocationCount; n > 0 {
				return fmt.Errorf("pod %s has %d", p.Name, n)
			}
		}
		return nil
	})
}

// threePods creates the Gateway front-door with three pods. Its Service has no session affinity, so that all pods have
// calls of one address.
func (s site) threePods() {
	s.Helper()
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "--patch", `{"spec":{"replicas":3}}`)
	s.open(`stunner.l7mp.io/external-traffic-policy: local, stunner.l7mp.io/disable-session-affinity: "true"`, udpListener)
	s.kubectl("", "rollout", "status", "deployment/front-door", "--timeout="+timeout.String())
	s.forwarding(3)
}

// autoscale sets spec.autoscaling of the Dataplane.
func (s site) autoscale(settings string) {
	s.Helper()
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "--patch",
		`{"spec":{"replicas":null,"autoscaling":`+settings+`}}`)
}

// browsers are test pages with a call each. A call sends 50 messages a second on a data channel.
type browsers struct {
	site
	page *chromium.Page
	lost []int // number of lost messages of each call
}

// browsers opens the test pages, which call the echo peer through the Gateway front-door.
func (s site) browsers() *browsers {
	s.Helper()
	b := &browsers{site: s, lost: make([]int, pages)}
	b.page = chromium.Open(s.T, s.testPage())
	b.goOn("the calls have begun", 100)
	return b
}

// testPage serves the test pages with credentials of the site, and returns their URL.
func (s site) testPage() string {
	s.Helper()
	echo, err := url.Parse(fmt.Sprintf("http://%s:7000", s.address("echo")))
	if err != nil {
		s.Fatal(err)
	}
	at := listenerAddress{call.UDP, netip.AddrPortFrom(s.address("front-door"), 3478)}
	mux := http.NewServeMux()
	page := http.FileServer(http.Dir(filepath.Join(harnesstest.Root(s), "services/auth/internal/demo/page")))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.ReplaceAll(frames, "PAGES", strconv.Itoa(pages)))
	})
	mux.Handle("GET /demo/", http.StripPrefix("/demo/", page))
	mux.Handle("POST /demo/echo", http.StripPrefix("/demo/echo", httputil.NewSingleHostReverseProxy(echo)))
	mux.HandleFunc("POST /v1/ice-servers", func(w http.ResponseWriter, _ *http.Request) {
		o := s.options(at, s.echo())
		_ = json.NewEncoder(w).Encode(map[string]any{"iceTransportPolicy": "relay", "ttl": 3600,
			"iceServers": []harness.ICEServer{{
				URLs: []string{fmt.Sprintf("turn:%s?transport=udp", at.at)}, Username: o.Username,
				Credential: o.Password,
			}}})
	})
	server := httptest.NewServer(mux)
	s.Cleanup(server.Close)
	return server.URL
}

// goOn checks that each call receives a number of further messages, and logs how many it has lost since the last check.
func (b *browsers) goOn(after string, messages int) {
	b.Helper()
	before := b.page.Reports("the calls run", func(r chromium.Report) bool { return len(r.Results) == pages })
	now := b.page.Reports("messages come back on all calls", func(r chromium.Report) bool {
		for i, result := range r.Results {
			switch {
			case result.Verdict == "failed":
				return true
			case result.Received < before.Results[i].Received+messages:
				return false
			}
		}
		return true
	})
	var lost []string
	var longest float64
	for i, r := range now.Results {
		if r.Verdict == "failed" {
			b.Errorf("%s: call %d has ended: %+v", after, i, r.Error)
		}
		lost = append(lost, strconv.Itoa(r.Lost-b.lost[i]))
		b.lost[i], longest = r.Lost, max(longest, r.MaxGap)
	}
	for _, p := range b.pods(dataplanes) {
		if ready(p) {
			b.Logf("%s: pod %s has %d sessions", after, p.Name, b.status(p).AllocationCount)
		}
	}
	b.Logf("%s: %d calls continue; messages lost, of 20 ms each: %s; the longest time without one until now is %.0f ms",
		after, pages, strings.Join(lost, ", "), longest)
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
