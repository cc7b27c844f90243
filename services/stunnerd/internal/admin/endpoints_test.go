package admin

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

func newEndpoints(t *testing.T) *Endpoints {
	t.Helper()
	e := NewEndpoints(slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		e.Close()
	})
	return e
}

// shown serves a value.
func shown(value func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, value()) })
}

// saying returns an endpoint that answers with its name and path.
func saying(name, url string) Endpoint {
	return Endpoint{Name: name, URL: url, Port: HealthPort, Handler: func(path string) http.Handler {
		mux := http.NewServeMux()
		mux.Handle(path, shown(func() any { return name + " at " + path }))
		return mux
	}}
}

// T-20: endpoints are read-only on every path: other methods get 405 with the allowed methods, also for library
// handlers and unknown paths.
func TestEndpointsAreReadOnly(t *testing.T) {
	e, url := newEndpoints(t), freeURL(t)
	i := inspected(Access{})
	set(t, e, Endpoint{Name: "all", URL: url, Port: HealthPort, Handler: func(string) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/", telemetry.Health{})
		mux.Handle("/status", i.Status())
		mux.Handle("/sessions", i.Sessions())
		mux.Handle("/refusals", i.Refusals())
		mux.Handle("/reach", i.Reach())
		mux.Handle("/metrics", promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{}))
		return mux
	}})
	for _, path := range []string{
		"live", "ready", "status", "sessions?nonsense=1", "sessions?user=ann", "refusals", "reach", "metrics", "nowhere", "",
	} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} {
			if status, allow := answered(t, method, url+path); status != http.StatusMethodNotAllowed ||
				allow != "GET, HEAD" {
				t.Errorf("%s /%s: %d, Allow %q", method, path, status, allow)
			}
		}
		for _, method := range []string{"GET", "HEAD"} {
			if status, _ := answered(t, method, url+path); status == http.StatusMethodNotAllowed {
				t.Errorf("%s /%s: %d", method, path, status)
			}
		}
	}
}

// answered returns the status of the answer to a request, and its header Allow.
func answered(t *testing.T, method, url string) (status int, allow string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Allow")
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// says checks that an endpoint answers with the given name.
func says(t *testing.T, url, name string) {
	t.Helper()
	if code, body := get(t, url); code != http.StatusOK || !strings.Contains(body, name+" at") {
		t.Errorf("%s answers %d %s, want %s", url, code, body, name)
	}
}

// silent checks that an address refuses connections.
func silent(t *testing.T, url string) {
	t.Helper()
	if code, body := get(t, url); code != 0 {
		t.Errorf("%s still answers: %d %s", url, code, body)
	}
}

func set(t *testing.T, e *Endpoints, wanted ...Endpoint) {
	t.Helper()
	if err := e.Set(wanted...); err != nil {
		t.Fatal(err)
	}
}

// An endpoint may be an address without scheme.
func TestEndpointWithoutSchemeIsOpened(t *testing.T) {
	e, url := newEndpoints(t), freeURL(t)
	set(t, e, saying("one", strings.TrimPrefix(url, "http://")))
	says(t, url, "one")
}

// freeURL returns a URL with a free port on loopback, ending in a slash.
func freeURL(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("http://127.0.0.1:%d/", testport.Free(t))
}

// takenURL returns a URL whose port is in use.
func takenURL(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return fmt.Sprintf("http://%s/", ln.Addr())
}

func TestEndpointMovesOnlyWhenTheNewOneIsUp(t *testing.T) {
	e := newEndpoints(t)
	first, second, taken := freeURL(t), freeURL(t), takenURL(t)
	set(t, e, saying("health", first))
	if err := e.Set(saying("health", taken)); err == nil || !strings.Contains(err.Error(), taken) {
		t.Errorf("error %v does not name the taken port", err)
	}
	says(t, first, "health")
	set(t, e, saying("health", second))
	says(t, second, "health")
	silent(t, first)
	set(t, e, saying("health", ""))
	silent(t, second)
	set(t, e, saying("health", first))
	set(t, e)
	silent(t, first)
}

// A change of the path keeps the socket and its connections.
func TestEndpointChangesItsPath(t *testing.T) {
	e := newEndpoints(t)
	url := freeURL(t)
	set(t, e, saying("metrics", url+"metrics"))
	says(t, url+"metrics", "metrics")
	before := e.open["metrics"]
	for _, path := range []string{"stats", "stats/all", "metrics", "stats"} {
		set(t, e, saying("metrics", url+path))
		says(t, url+path, "metrics")
	}
	if code, _ := get(t, url+"metrics"); code != http.StatusNotFound {
		t.Errorf("the old path answers %d", code)
	}
	if e.open["metrics"] != before {
		t.Error("a path costs a socket")
	}
}

// The same port with another spelling of its address cannot be opened twice.
func TestEndpointChangesItsAddressOnItsPort(t *testing.T) {
	e := newEndpoints(t)
	narrow := freeURL(t)
	wide := strings.Replace(narrow, "127.0.0.1", "", 1)
	for _, url := range []string{narrow, wide, narrow, strings.Replace(narrow, "127.0.0.1", "0.0.0.0", 1)} {
		set(t, e, saying("health", url))
		says(t, narrow, "health")
	}
}

func TestEndpointReturnsToItsAddress(t *testing.T) {
	e := newEndpoints(t)
	narrow := freeURL(t)
	nowhere := strings.Replace(narrow, "127.0.0.1", "192.0.2.1", 1) // an address that this host does not have
	wide := strings.Replace(narrow, "127.0.0.1", "", 1)
	stranger, err := net.Listen(
		"tcp",
		strings.TrimSuffix(strings.TrimPrefix(strings.Replace(narrow, "127.0.0.1", "127.0.0.2", 1), "http://"), "/"),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Close() })
	set(t, e, saying("health", narrow))
	for _, url := range []string{nowhere, wide, wide} {
		if err := e.Set(saying("health", url)); err == nil || !strings.Contains(err.Error(), url) {
			t.Errorf("error %v does not name %s", err, url)
		}
		says(t, narrow, "health")
	}
	if err := stranger.Close(); err != nil {
		t.Fatal(err)
	}
	set(t, e, saying("health", wide))
	says(t, narrow, "health")
}

func TestEndpointsSwapTheirPorts(t *testing.T) {
	e := newEndpoints(t)
	a, b := freeURL(t), freeURL(t)
	for range 2 {
		set(t, e, saying("health", a), saying("metrics", b))
		says(t, a, "health")
		says(t, b, "metrics")
		set(t, e, saying("health", b), saying("metrics", a))
		says(t, b, "health")
		says(t, a, "metrics")
	}
}

// An endpoint gets the port that another endpoint releases, in either order.
func TestEndpointTakesThePortThatAnotherLeaves(t *testing.T) {
	e := newEndpoints(t)
	a, b, c := freeURL(t), freeURL(t), freeURL(t)
	set(t, e, saying("health", a), saying("metrics", b))
	set(t, e, saying("health", b), saying("metrics", c))
	says(t, b, "health")
	says(t, c, "metrics")
	silent(t, a)
	set(t, e, saying("health", c), saying("metrics", ""))
	says(t, c, "health")
	silent(t, b)
}

// If an endpoint needs the port of another endpoint that cannot move, both stay.
func TestEndpointsStayWhenOneCannotMove(t *testing.T) {
	e := newEndpoints(t)
	a, b, taken := freeURL(t), freeURL(t), takenURL(t)
	set(t, e, saying("health", a), saying("metrics", b))
	if err := e.Set(saying("health", b), saying("metrics", taken)); err == nil ||
		!strings.Contains(err.Error(), taken) {
		t.Errorf("error %v does not name %s", err, taken)
	}
	says(t, a, "health")
	says(t, b, "metrics")
	nowhere := strings.Replace(a, "127.0.0.1", "192.0.2.1", 1)
	if err := e.Set(saying("health", b), saying("metrics", nowhere)); err == nil {
		t.Error("no error for an address that this host does not have")
	}
	says(t, a, "health")
	says(t, b, "metrics")
}

// A request that is running while its endpoint moves on its port is answered, and the new endpoint does not wait for
// it.
func TestEndpointDoesNotWaitForRequests(t *testing.T) {
	e := newEndpoints(t)
	url := freeURL(t)
	arrived, answer, answered := make(chan struct{}), make(chan struct{}), make(chan string)
	slow := saying("health", url)
	slow.Handler = func(string) http.Handler {
		return shown(func() any {
			close(arrived)
			<-answer
			return "slow"
		})
	}
	set(t, e, slow)
	go func() {
		_, body := get(t, url)
		answered <- body
	}()
	<-arrived
	old := e.open["health"].socket
	moved := make(chan error)
	go func() { moved <- e.Set(saying("health", strings.Replace(url, "127.0.0.1", "", 1))) }()
	<-old.closed
	for code := 0; code == 0; { // connections are refused until the new socket is open
		code, _ = get(t, url)
	}
	close(answer)
	if body := <-answered; !strings.Contains(body, "slow") {
		t.Errorf("the request that was under way: %s", body)
	}
	if err := <-moved; err != nil {
		t.Error(err)
	}
}

// T-20: the health endpoint answers POST with 405.
func TestStatusIsReadOnly(t *testing.T) {
	e := newEndpoints(t)
	url := freeURL(t)
	set(t, e, saying("health", url))
	resp, err := http.Post(url, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", resp.StatusCode)
	}
}
