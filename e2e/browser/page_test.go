package browser

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// The test page tries each URL alone. It explains why a URL fails, and the remedy.
func TestPageTriesEachURLAlone(t *testing.T) {
	stack := harnesstest.Quickstart(t, "")
	ice, err := stack.ICEServers(t.Context())
	harnesstest.NoError(t, err)
	good, wrong := ice.Servers[0], ice.Servers[0]
	wrong.Credential += "x"
	gateway, silent := stack.Gateway(), silence(t)
	with := func(server harness.ICEServer, url string) harness.ICEServer {
		server.URLs = []string{url}
		return server
	}
	type want struct{ verdict, reason string }
	rows := []struct {
		server harness.ICEServer
		want   want
		code   int
		hint   string
	}{
		{with(good, fmt.Sprintf("turn:%s?transport=udp", gateway)), want{verdict: "ok"}, 0, ""},
		{with(good, fmt.Sprintf("turn:%s?transport=tcp", gateway)), want{verdict: "ok"}, 0, ""},
		{with(wrong, fmt.Sprintf("turn:%s?transport=udp", gateway)), want{"failed", "refused"}, unauthorized, "clocks"},
		{with(good, fmt.Sprintf("turn:%s?transport=udp", silent)), want{"failed", "no_answer"}, 0, "firewall"},
		{
			with(good, fmt.Sprintf("turns:%s?transport=tcp", gateway)), want{"failed", "no_answer"}, cannotConnect,
			"certificate",
		},
		{with(good, fmt.Sprintf("turns:%s?transport=udp", gateway)), want{"failed", "not_supported"}, 0, "Offer UDP"},
		{harness.ICEServer{URLs: []string{fmt.Sprintf("stun:%s", gateway)}}, want{verdict: "ok"}, 0, ""},
	}
	var servers []harness.ICEServer
	for _, row := range rows {
		servers = append(servers, row.server)
	}
	p := chromium.Open(t, answering(t, stack.AuthURL(), servers)+"/demo/?run=1&timeout=2")
	r := p.Reports("the test is over", over)
	if r.Verdict != "ok" || !strings.HasPrefix(r.Sentence, "Relay works over UDP (") || len(r.Results) != len(rows) {
		t.Fatalf("%+v", r)
	}
	for i, row := range rows {
		got := r.Results[i]
		if got.URL != row.server.URLs[0] || got.Verdict != row.want.verdict ||
			(got.Error != nil) != (row.want.reason != "") {
			t.Errorf("%s: %+v, error %+v", row.server.URLs[0], got, got.Error)
			continue
		}
		if e := got.Error; e != nil &&
			(e.Reason != row.want.reason || e.Code != row.code || !strings.Contains(e.Hint, row.hint)) {
			t.Errorf("%s: %+v, want %s %d, and a hint about %s", got.URL, *e, row.want.reason, row.code, row.hint)
		}
		if relayed := got.Verdict == "ok" && got.Transport != "stun"; relayed != (got.Jitter != nil) {
			t.Errorf("%s: jitter %v", got.URL, got.Jitter)
		}
	}
	if problems := p.Trouble(); len(problems) > 0 {
		t.Errorf("errors on the page: %q", problems)
	}
}

// silence returns the address of a socket that answers nothing.
func silence(t *testing.T) net.Addr {
	t.Helper()
	socket, err := net.ListenPacket("udp4", harness.Loopback+":0")
	harnesstest.NoError(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	return socket.LocalAddr()
}

// answering serves an auth service that returns other ICE servers, and returns its URL.
func answering(t *testing.T, auth string, servers []harness.ICEServer) string {
	t.Helper()
	origin, err := url.Parse(auth)
	harnesstest.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/", httputil.NewSingleHostReverseProxy(origin))
	mux.HandleFunc("POST /v1/ice-servers", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"iceTransportPolicy": "relay", "iceServers": servers, "ttl": 3600})
	})
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	return front.URL
}

// The test page shows the refusal of the auth service, with the remedy.
func TestPageRepeatsRefusals(t *testing.T) {
	const detail = "The token has expired (claim exp): request a new one."
	page := http.FileServer(http.Dir(filepath.Join(harnesstest.Root(t), "services/auth/internal/demo/page")))
	mux := http.NewServeMux()
	mux.Handle("GET /demo/", http.StripPrefix("/demo/", page))
	mux.HandleFunc("POST /v1/ice-servers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"reason":"token_expired","detail":%q}`, detail)
	})
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	r := chromium.Open(t, front.URL+"/demo/?run=1").Reports("the test is over", over)
	if e := r.Error; r.Verdict != "failed" || e == nil || e.Cause != "The auth service says 401: "+detail ||
		e.Reason != "token_expired" || e.Hint == "" {
		t.Errorf("%+v, error %+v", r, e)
	}
}

// In a network namespace that has loopback only, a browser finds no candidates. The test page does not blame a
// firewall.
func TestLoopbackOnlyIsNoFirewall(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	interfaces, err := net.Interfaces()
	other := func(i net.Interface) bool { return i.Flags&net.FlagLoopback == 0 }
	if err != nil || slices.ContainsFunc(interfaces, other) {
		t.Fatalf("interfaces are %v, want loopback only: %v", interfaces, err)
	}
	stack := harnesstest.Quickstart(t, "")
	p := chromium.OpenBy(t, chromium.WithoutLoopback, stack.AuthURL()+"/demo/?run=1&transport=udp")
	r := p.Reports("the test is over", over)
	if e := r.Error; r.Verdict != "failed" || e == nil || e.Reason != "no_network" ||
		!strings.Contains(e.Hint, "no firewall") {
		t.Errorf("%+v, error %+v", r, e)
	}
}
