package inspect

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

type replica struct {
	*httptest.Server
	*pods
	tokens []string
}

func startReplica(t *testing.T, others func() []string, answers ...discovery.Answer) *replica {
	t.Helper()
	r := &replica{pods: &pods{answers: answers}}
	a := New(Options{
		Pods: r.pods, Replicas: others, Client: NewClient(nil, ""),
		Authorize: func(q *http.Request, _ Attributes) (string, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tokens = append(r.tokens, q.Header.Get("Authorization"))
			return "replica", nil
		},
	})
	r.Server = httptest.NewServer(a)
	t.Cleanup(r.Close)
	t.Cleanup(a.Client.http.CloseIdleConnections)
	return r
}

// Replicas ask each other once, although each lists the other and itself, and with their own token.
func TestReplicasAskEachOtherOnce(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("of-the-replica\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var urls []string
	all := func() []string { return urls }
	one := startReplica(t, all, ok("a", `{"by":1}`), discovery.Answer{Pod: "b", Error: "the connection has ended"})
	two := startReplica(t, all, ok("b", `{"by":2}`), ok("c", `{"by":2}`))
	urls = []string{one.URL, two.URL}
	own := &pods{answers: []discovery.Answer{ok("d", `{"by":3}`)}}
	a := New(Options{Pods: own, Replicas: all, Client: NewClient(nil, token), Authorize: anyone})
	defer a.Client.http.CloseIdleConnections()
	r := httptest.NewRequest(http.MethodDelete, "/api/v1/gateways/media/door/sessions?user=ada%20l", nil)
	r.Header.Set("Authorization", "Bearer of-the-caller")
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	list := listIn(t, w.Body.String())
	var got []string
	for _, item := range list.Items {
		got = append(got, item.Pod+string(item.Body))
	}
	if want := `a{"by":1} b{"by":2} c{"by":2} d{"by":3}`; strings.Join(got, " ") != want || len(list.Incomplete) != 0 {
		t.Errorf("%q, incomplete %q, want %s", got, list.Incomplete, want)
	}
	for _, p := range []*pods{own, one.pods, two.pods} {
		if len(p.asked) != 1 || p.asked[0].Target != "/sessions?user=ada+l" || p.asked[0].Method != http.MethodDelete {
			t.Errorf("asked %+v", p.asked)
		}
	}
	for _, sent := range append(one.tokens, two.tokens...) {
		if sent != "Bearer of-the-replica" {
			t.Errorf("token %q was sent to a replica", sent)
		}
	}
}

// A replica that is unreachable, silent or sends invalid data does not delay the answer, and is named in it.
func TestBrokenReplicasAreNamed(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	serve := func(address string, h http.HandlerFunc) string {
		ln, err := net.Listen("tcp", address+":0")
		if err != nil {
			t.Fatal(err)
		}
		s := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h}}
		s.Start()
		t.Cleanup(s.Close)
		return s.URL
	}
	elsewhere := serve("127.0.0.8", func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	urls := map[string]string{
		"127.0.0.2: it has not answered within 2s": "http://" + silent.Addr().String(),
		"127.0.0.3: ": "http://127.0.0.3:1",
		"127.0.0.4: its answer has another form": serve("127.0.0.4", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("garbage"))
		}),
		"127.0.0.5: it answered with status 503: the token cannot be checked": serve(
			"127.0.0.5", func(w http.ResponseWriter, _ *http.Request) {
				writeHeader(w, http.StatusServiceUnavailable)
				_ = encode(w, Error{503, "the token cannot be checked"})
			}),
		"127.0.0.6: its answer has": serve("127.0.0.6", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"items":["` + strings.Repeat("a", 3*maxAnswer)))
		}),
		"127.0.0.7: it answered with status 307": serve("127.0.0.7", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		}),
	}
	a := New(Options{
		Pods: &pods{answers: []discovery.Answer{ok("a", `{}`)}}, Client: NewClient(nil, ""), Authorize: anyone,
		Replicas: func() (all []string) {
			for _, url := range urls {
				all = append(all, url)
			}
			return all
		},
	})
	defer a.Client.http.CloseIdleConnections()
	_, body := ask(a, http.MethodGet, "/api/v1/gateways/media/door/status", "")
	list := listIn(t, body)
	said := strings.Join(list.Incomplete, "\n")
	for want := range urls {
		if !strings.Contains(said, "replica "+want) {
			t.Errorf("%q is missing in\n%s", want, said)
		}
	}
	if len(list.Items) != 1 || list.Items[0].Error != "" {
		t.Errorf("items %+v", list.Items)
	}
}

// A request that is not for the API is passed on.
func TestOtherPathsArePassedOn(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	h := New(Options{Pods: &pods{}, Authorize: anyone}).Or(next)
	for path, want := range map[string]int{
		"/api/v1/configs": http.StatusTeapot, "/api/v1/gateways/media/door/config": http.StatusOK,
		"/api/v1/operators": http.StatusTeapot, "/": http.StatusTeapot,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}

// A request that a proxy, a service mesh or a browser on a foreign page forwards is not of this host.
func TestForwardedRequestsAreNotOfThisHost(t *testing.T) {
	for name, c := range map[string]struct {
		remote, host, forwarded string
		want                    bool
	}{
		"IPv4":             {"127.0.0.1:1", "127.0.0.1:13478", "", true},
		"IPv6":             {"[::1]:1", "[::1]:13478", "", true},
		"by name":          {"127.0.0.1:1", "localhost:13478", "", true},
		"mapped":           {"[::ffff:127.0.0.1]:1", "localhost", "", true},
		"a page":           {"127.0.0.1:1", "evil.example:13478", "", false},
		"a proxy":          {"127.0.0.1:1", "localhost:13478", "192.0.2.1", false},
		"a service mesh":   {"127.0.0.6:1", "localhost:13478", "", false},
		"another host":     {"192.0.2.1:1", "localhost:13478", "", false},
		"a unix socket":    {"@", "localhost:13478", "", false},
		"an empty address": {"", "localhost:13478", "", false},
	} {
		r := &http.Request{RemoteAddr: c.remote, Host: c.host, Header: http.Header{}}
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		if OnThisHost(r) != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
}
