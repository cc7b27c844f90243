package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pods are the pods that are connected to a replica.
type pods struct {
	answers []discovery.Answer
	// wait is called before pods answer, if not nil.
	wait func()
	mu   sync.Mutex
	// asked are the queries.
	asked []discovery.Query
}

func (p *pods) Ask(_ context.Context, q discovery.Query) []discovery.Answer {
	p.mu.Lock()
	p.asked = append(p.asked, q)
	p.mu.Unlock()
	if p.wait != nil {
		p.wait()
	}
	return p.answers
}

const secret = "correct-horse"

func (p *pods) Published(id string) (config.Config, string, bool) {
	c := config.Config{Version: "v1", Admin: config.Admin{Name: id}}
	c.Auth.Credentials = map[string]credential.Secret{"secret": secret}
	return c, "0a1b", id == "media/door"
}

func ok(pod, body string) discovery.Answer {
	return discovery.Answer{Pod: pod, Status: http.StatusOK, Body: json.RawMessage(body)}
}

// anyone authorizes every caller.
func anyone(*http.Request, Attributes) (string, error) { return "ada", nil }

// ask sends a request to an API.
func ask(a *API, method, target, source string) (code int, body string) {
	r := httptest.NewRequest(method, target, nil)
	if source != "" {
		r.RemoteAddr = source
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func listIn(t *testing.T, body string) (list inspection.List) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return list
}

// Every path needs a right of its own, and passes its query on to the pods.
func TestPathsNeedTheirRightAndAskPods(t *testing.T) {
	for request, want := range map[string]struct {
		right Attributes
		query discovery.Query
	}{
		"GET status": {
			Attributes{"get", "gateways", "media", "door"}, discovery.Query{Kind: inspection.Dataplane, Target: "/status"},
		},
		"GET reach?peer=192.0.2.1:80&listener=udp": {
			Attributes{"get", "gateways", "media", "door"},
			discovery.Query{Kind: inspection.Dataplane, Target: "/reach?listener=udp&peer=192.0.2.1%3A80"},
		},
		"GET sessions?user=ada&local=false": {
			Attributes{"get", "gateways/sessions", "media", "door"},
			discovery.Query{Kind: inspection.Dataplane, Target: "/sessions?user=ada"},
		},
		"DELETE sessions?user=ada%26client%3D": {
			Attributes{"delete", "gateways/sessions", "media", "door"},
			discovery.Query{Kind: inspection.Dataplane, Target: "/sessions?user=ada%26client%3D"},
		},
		"DELETE sessions/4f%2F..%2Fstatus": {
			Attributes{"delete", "gateways/sessions", "media", "door"},
			discovery.Query{Kind: inspection.Dataplane, Target: "/sessions/4f%2F..%2Fstatus"},
		},
		"GET refusals": {
			Attributes{"get", "gateways/refusals", "media", "door"},
			discovery.Query{Kind: inspection.Dataplane, Target: "/refusals"},
		},
		"GET grants": {
			Attributes{"get", "gateways/sessions", "media", "door"},
			discovery.Query{Kind: inspection.Auth, Target: "/grants"},
		},
	} {
		var right Attributes
		p := &pods{answers: []discovery.Answer{ok("b", `{"n":2}`), ok("a", `{"n":1}`)}}
		a := New(Options{Pods: p, Authorize: func(_ *http.Request, of Attributes) (string, error) {
			right = of
			return "ada", nil
		}})
		method, path, _ := strings.Cut(request, " ")
		code, body := ask(a, method, "/api/v1/gateways/media/door/"+path, "")
		want.query.ID, want.query.Method = "media/door", method
		if code != http.StatusOK || right != want.right || len(p.asked) != 1 || p.asked[0] != want.query {
			t.Errorf("%s: %d, right %+v, asked %+v", request, code, right, p.asked)
			continue
		}
		list := listIn(t, body)
		if len(list.Items) != 2 || list.Items[0].Pod != "a" || string(list.Items[1].Body) != `{"n":2}` ||
			list.Gateway != "media/door" || list.Items[0].Kind != want.query.Kind {
			t.Errorf("%s: %s", request, body)
		}
	}
}

// Requests that are not well-formed reach neither the API server nor a pod.
func TestMalformedRequestsReachNobody(t *testing.T) {
	for request, want := range map[string]string{
		"GET media/door/sessions?user=" + strings.Repeat("a", 3<<10): "query: has 3077 bytes",
		"GET media/door/sessions?user=ada%0aroot":                    `"user": contains`,
		"GET media/door/sessions?us%1ber=ada":                        "contains characters that are not printable",
		"GET media/door/refusals?reason=%ff":                         `"reason": contains`,
		"GET media/door/sessions?user=%zz":                           "query: invalid URL escape",
		"GET media/door/sessions?a;b":                                "query: invalid semicolon",
		"GET me.dia/door/status":                                     "namespace: ",
		"GET media/Door/status":                                      "name of the Gateway: ",
		"GET media/do%0Aor/status":                                   "name of the Gateway: ",
		"DELETE media/door/sessions":                                 "set user or client",
		"DELETE media/door/sessions?user=":                           "set user or client",
		"DELETE media/door/sessions?listener=udp":                    "set user or client",
		"DELETE media/door/sessions/" + strings.Repeat("a", 200):     "id of the session",
		"DELETE media/door/sessions/a%0d":                            "id of the session",
	} {
		p := &pods{}
		a := New(Options{Pods: p, Authorize: anyone})
		method, path, _ := strings.Cut(request, " ")
		code, body := ask(a, method, gatewaysPath+path, "")
		if code != http.StatusBadRequest || !strings.Contains(strings.ReplaceAll(body, `\"`, `"`), want) || len(p.asked) != 0 {
			t.Errorf("%.80s: %d %s, want %q", request, code, body, want)
		}
	}
	a := New(Options{Pods: &pods{}, Authorize: anyone})
	for _, request := range []string{
		"POST media/door/status", "PUT media/door/sessions", "DELETE media/door/status", "DELETE media/door/refusals",
		"DELETE media/door/grants", "GET media/door/other", "GET media/door", "GET media/door/sessions/4f",
	} {
		method, path, _ := strings.Cut(request, " ")
		if code, _ := ask(a, method, gatewaysPath+path, ""); code != http.StatusNotFound &&
			code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", request, code)
		}
	}
}

// A refused caller gets the reason, and no pod is asked.
func TestRefusedCallersReachNoPod(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{Unauthenticated("no token"), http.StatusUnauthorized},
		{Forbidden("user %q needs get", "ada"), http.StatusForbidden},
		{fmt.Errorf("review token: %w", discovery.ErrUndecided), http.StatusServiceUnavailable},
		{io.ErrUnexpectedEOF, http.StatusServiceUnavailable},
	} {
		p := &pods{}
		a := New(Options{Pods: p, Authorize: func(*http.Request, Attributes) (string, error) { return "", c.err }})
		for _, path := range []string{
			"gateways/media/door/status", "gateways/media/door/config", "gateways/none/none/config", "operator",
		} {
			code, body := ask(a, http.MethodGet, "/api/v1/"+path, "")
			if code != c.code || !strings.Contains(body, strings.Split(c.err.Error(), `"`)[0]) || len(p.asked) != 0 {
				t.Errorf("%v: %s: %d %s", c.err, path, code, body)
			}
		}
	}
}

// K-16: the config is shown without its secrets.
func TestConfigIsRedacted(t *testing.T) {
	a := New(Options{Pods: &pods{}, Authorize: anyone})
	code, body := ask(a, http.MethodGet, "/api/v1/gateways/media/door/config", "")
	if code != http.StatusOK || strings.Contains(body, secret) || !strings.Contains(body, `"revision":"0a1b"`) ||
		!strings.Contains(body, `"secret":"<redacted>"`) {
		t.Errorf("%d %s", code, body)
	}
	for _, path := range []string{"config", "status", "sessions"} {
		if code, body := ask(a, http.MethodGet, "/api/v1/gateways/media/other/"+path, ""); code != http.StatusNotFound {
			t.Errorf("%s of another Gateway: %d %s", path, code, body)
		}
	}
}

// The problems of the operator are sorted, and their number is bounded.
func TestOperatorShowsItsState(t *testing.T) {
	var right Attributes
	problems := []inspection.Problem{{Object: "Gateway b/b"}, {Object: "Gateway a/a", Field: "spec"}, {Object: "Gateway a/a"}}
	a := New(Options{
		Pods: &pods{}, Version: "operator v1", State: func() inspection.Operator {
			return inspection.Operator{Replica: "one", Leader: "two", Problems: problems}
		},
		Authorize: func(_ *http.Request, of Attributes) (string, error) { right = of; return "ada", nil },
	})
	state := func() (o inspection.Operator) {
		code, body := ask(a, http.MethodGet, "/api/v1/operator", "")
		if err := json.Unmarshal([]byte(body), &o); code != http.StatusOK || err != nil {
			t.Fatalf("%d %s", code, body)
		}
		return o
	}
	o := state()
	if o.Version != "operator v1" || o.Replica != "one" || o.Leader != "two" || time.Since(o.Now) > time.Minute ||
		!reflect.DeepEqual(o.Problems, []inspection.Problem{problems[2], problems[1], problems[0]}) || o.Omitted != 0 {
		t.Errorf("%+v", o)
	}
	if right != (Attributes{Verb: "list", Resource: "gateways"}) {
		t.Errorf("right %+v", right)
	}
	problems = make([]inspection.Problem, maxProblems+7)
	if o := state(); len(o.Problems) != maxProblems || o.Omitted != 7 {
		t.Errorf("%d problems, %d omitted", len(o.Problems), o.Omitted)
	}
}

// The state of all auth services is in one answer, also of those of other replicas. It needs the right to list all
// Gateways, and no auth service is no error.
func TestAuthServicesShowTheirState(t *testing.T) {
	other := startReplica(t, nil, ok("b", `{"granted":2}`))
	own := &pods{answers: []discovery.Answer{ok("a", `{"granted":1}`)}}
	var right Attributes
	a := New(Options{
		Pods: own, Replicas: func() []string { return []string{other.URL} }, Client: NewClient(nil, ""),
		Authorize: func(_ *http.Request, of Attributes) (string, error) { right = of; return "ada", nil },
	})
	defer a.Client.http.CloseIdleConnections()
	code, body := ask(a, http.MethodGet, "/api/v1/auth", "")
	list := listIn(t, body)
	if code != http.StatusOK || len(list.Items) != 2 || list.Items[0].Pod != "a" || string(list.Items[1].Body) != `{"granted":2}` ||
		len(list.Incomplete) > 0 {
		t.Errorf("%d %s", code, body)
	}
	if right != (Attributes{Verb: "list", Resource: "gateways"}) {
		t.Errorf("right %+v", right)
	}
	want := discovery.Query{Kind: inspection.Auth, Method: http.MethodGet, Target: "/status"}
	for _, p := range []*pods{own, other.pods} {
		if len(p.asked) != 1 || p.asked[0] != want {
			t.Errorf("asked %+v, want %+v", p.asked, want)
		}
	}
	own.answers, other.answers = nil, nil
	if code, body := ask(a, http.MethodGet, "/api/v1/auth", ""); code != http.StatusOK || len(listIn(t, body).Items) != 0 {
		t.Errorf("without auth services: %d %s", code, body)
	}
	w := httptest.NewRecorder()
	a.Or(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/auth", nil))
	if w.Code != http.StatusOK {
		t.Errorf("beside another handler: %d", w.Code)
	}
}

// A pod that answers with garbage or with too much hides the answers of no other pod.
func TestAnswersOfPodsAreChecked(t *testing.T) {
	large := `{"text":"` + strings.Repeat("a", discovery.ResponseLimit-20) + `"}`
	p := &pods{answers: []discovery.Answer{
		ok("array", `[1]`), ok("empty", ``), ok("null", `null`), ok("text", `"\u001b[2J"`), ok("broken", `{"a":`),
		ok("good", `{}`), {Pod: "away", Error: "no answer within 5 s"},
	}}
	for i := range 2 * maxAnswer / discovery.ResponseLimit {
		p.answers = append(p.answers, ok(fmt.Sprintf("large-%02d", i), large))
	}
	a := New(Options{Pods: p, Authorize: anyone})
	code, body := ask(a, http.MethodGet, "/api/v1/gateways/media/door/status", "")
	list := listIn(t, body)
	if code != http.StatusOK || len(list.Items) != len(p.answers) || len(body) > maxAnswer+64<<10 {
		t.Fatalf("%d with %d items in %d bytes", code, len(list.Items), len(body))
	}
	for _, item := range list.Items {
		var want string
		switch item.Pod {
		case "array", "empty", "null", "text", "broken":
			want = "no JSON object"
		case "away":
			want = "no answer within 5 s"
		case "large-14", "large-15":
			want = "omitted: "
		case "good", "large-00":
			if item.Error != "" || item.Status != http.StatusOK {
				t.Errorf("%s: %+.200v", item.Pod, item)
			}
			continue
		default:
			continue
		}
		if !strings.Contains(item.Error, want) || item.Body != nil ||
			!strings.Contains(strings.Join(list.Incomplete, "\n"), item.Pod+": "+item.Error) {
			t.Errorf("%s: %+.200v, want %q", item.Pod, item, want)
		}
	}
}

// A running dataplane without a connection is listed as incomplete, because a call on it may continue. A request of
// another replica, and one for auth services, is only about connected pods.
func TestRunningPodsWithoutAConnectionAreListed(t *testing.T) {
	reasons := map[string]string{
		"away": inspection.NotConnected, "crashed": "its container does not run: Error", "here": inspection.NotConnected,
	}
	silent := []string{"away: " + inspection.NotConnected, "crashed: its container does not run: Error"}
	known := func(string) (map[string]string, error) { return maps.Clone(reasons), nil }
	for name, c := range map[string]struct {
		request string
		running func(string) (map[string]string, error)
		want    []string
	}{
		"status":  {"GET status", known, silent},
		"kick":    {"DELETE sessions?user=ada", known, silent},
		"replica": {"GET status?local=true", known, nil},
		"grants":  {"GET grants", known, nil},
		"unknown": {
			"GET status", func(string) (map[string]string, error) { return nil, io.ErrUnexpectedEOF },
			[]string{"operator: unexpected EOF"},
		},
	} {
		a := New(Options{Pods: &pods{answers: []discovery.Answer{ok("here", `{}`)}}, Authorize: anyone, Running: c.running})
		method, path, _ := strings.Cut(c.request, " ")
		code, body := ask(a, method, gatewaysPath+"media/door/"+path, "")
		list := listIn(t, body)
		if code != http.StatusOK || !slices.Equal(list.Incomplete, c.want) {
			t.Errorf("%s: %d, incomplete %q, want %q", name, code, list.Incomplete, c.want)
		}
		for _, item := range list.Items {
			if reason := reasons[item.Pod]; item.Pod != "here" && (item.Error != reason || item.Status != 0) {
				t.Errorf("%s: %+v", name, item)
			}
		}
	}
}

// An error that all pods answer with is the error of the request.
func TestCommonErrorOfPodsIsTheAnswer(t *testing.T) {
	wrong := func(pod string, status int) discovery.Answer {
		return discovery.Answer{Pod: pod, Status: status, Body: json.RawMessage(`{"message":"limit \"x\": use 1 to 1000"}`)}
	}
	for name, c := range map[string]struct {
		answers []discovery.Answer
		code    int
	}{
		"all":            {[]discovery.Answer{wrong("a", 400), wrong("b", 400)}, 400},
		"one of two":     {[]discovery.Answer{wrong("a", 400), ok("b", `{}`)}, 200},
		"two errors":     {[]discovery.Answer{wrong("a", 400), wrong("b", 404)}, 200},
		"one is silent":  {[]discovery.Answer{wrong("a", 400), {Pod: "b", Error: "silent"}}, 200},
		"internal error": {[]discovery.Answer{wrong("a", 500)}, 200},
	} {
		a := New(Options{Pods: &pods{answers: c.answers}, Authorize: anyone})
		code, body := ask(a, http.MethodGet, "/api/v1/gateways/media/door/sessions?limit=x", "")
		if code != c.code || c.code == 400 && !strings.Contains(body, `use 1 to 1000`) {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
}

// The log names the caller that ends sessions, and not the person: equal values have equal hashes.
func TestEndedSessionsAreLoggedWithoutThePerson(t *testing.T) {
	var log bytes.Buffer
	a := New(Options{
		Pods: &pods{}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Authorize: func(*http.Request, Attributes) (string, error) { return "operator-of-calls", nil },
	})
	for _, query := range []string{"?user=person", "?user=person", "?client=192.0.2.7&user=person", "/4f1d"} {
		ask(a, http.MethodDelete, gatewaysPath+"media/door/sessions"+query, "")
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%q", lines)
	}
	target := regexp.MustCompile(`caller=operator-of-calls target="?/sessions(\S*?)"?$`)
	var targets []string
	for _, line := range lines {
		found := target.FindStringSubmatch(line)
		if found == nil || strings.Contains(line, "person") || strings.Contains(line, "192.0.2.7") {
			t.Fatal(line)
		}
		targets = append(targets, found[1])
	}
	hash, _ := strings.CutPrefix(targets[0], "?user=")
	if len(hash) != 12 || targets[1] != targets[0] || !strings.HasSuffix(targets[2], "&user="+hash) || targets[3] != "/4f1d" {
		t.Errorf("%q", targets)
	}
}

// everyone authorizes every caller with a credential other than "invented", by the name in the credential.
func everyone(r *http.Request, _ Attributes) (string, error) {
	name := r.Header.Get("Authorization")
	if name == "invented" {
		return "", Unauthenticated("invented token")
	}
	return name, nil
}

// askAs sends a request with a credential to an API and returns the status code.
func askAs(a *API, caller, target, source string) int {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr = source
	r.Header.Set("Authorization", caller)
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Code
}

// Of 1,000 parallel requests only a few ask pods at a time, a few wait for a second, and a caller or a namespace leaves
// room for others.
func TestParallelRequestsAreBounded(t *testing.T) {
	const shared = "127.0.0.1:1"
	addresses := func(i int) string { return fmt.Sprintf("10.0.%d.%d:1", i/250, i%250) }
	namespaces := func(i int) string { return fmt.Sprintf("n%d/door", i) }
	for name, c := range map[string]struct {
		source, caller, path func(i int) string
		most                 int64
	}{
		"one caller": {
			func(int) string { return shared }, func(int) string { return "ada" }, namespaces, maxPerCaller,
		},
		"one namespace": {addresses, addresses, func(int) string { return "media/door" }, maxPerNamespace},
		"many of both":  {addresses, addresses, namespaces, maxRequests},
	} {
		for took, answers := range map[time.Duration]int64{
			100 * time.Millisecond: (1 + queueFactor) * c.most,
			3 * time.Second:        c.most,
		} {
			synctest.Test(t, func(t *testing.T) {
				var refused, answered, asking, most atomic.Int64
				a := New(Options{Authorize: everyone, Pods: &pods{
					answers: []discovery.Answer{ok("a", `{}`)},
					wait: func() {
						most.Store(max(most.Load(), asking.Add(1)))
						time.Sleep(took)
						asking.Add(-1)
					},
				}})
				askAs(a, c.caller(0), gatewaysPath+"media/door/config", c.source(0)) // its credential is known now
				var group sync.WaitGroup
				for i := range 1_000 {
					group.Go(func() {
						switch askAs(a, c.caller(i), gatewaysPath+c.path(i)+"/status", c.source(i)) {
						case http.StatusOK:
							answered.Add(1)
						case http.StatusTooManyRequests:
							refused.Add(1)
						}
					})
				}
				synctest.Wait()
				// requests of other replicas have room of their own
				path := gatewaysPath + "media/door/config?local=true"
				if code, _ := ask(a, http.MethodGet, path, "198.51.100.9:1"); code != http.StatusOK {
					t.Errorf("%s: a request of another replica: %d", name, code)
				}
				group.Wait()
				if most.Load() > c.most || answered.Load() != answers || refused.Load() != 1_000-answers {
					t.Errorf("%s, %v each: %d at a time, %d answered, %d refused, want %d at a time and %d answered", name,
						took, most.Load(), answered.Load(), refused.Load(), c.most, answers)
				}
				if len(a.unknown.keys)+len(a.callers.keys)+len(a.namespaces.keys)+len(a.requests.keys) != 0 {
					t.Errorf("%s: requests stay counted", name)
				}
			})
		}
	}
}

// Callers behind one address, such as users of kubectl port-forward, do not use up the requests of each other: neither
// one whose pods are slow, nor one with invented tokens while they are reviewed.
func TestCallersBehindOneAddressAreIndependent(t *testing.T) {
	const shared = "127.0.0.1:1"
	synctest.Test(t, func(t *testing.T) {
		var reviews, most atomic.Int64
		a := New(Options{
			Pods: &pods{wait: func() { time.Sleep(5 * time.Second) }},
			Authorize: func(r *http.Request, of Attributes) (string, error) {
				if name := r.Header.Get("Authorization"); strings.HasPrefix(name, "invented") {
					most.Store(max(most.Load(), reviews.Add(1)))
					defer reviews.Add(-1)
					time.Sleep(time.Minute)
					return "", Unauthenticated("invented token")
				}
				return everyone(r, of)
			},
		})
		config := gatewaysPath + "media/door/config"
		for _, caller := range []string{"ada", "bob"} {
			if code := askAs(a, caller, config, shared); code != http.StatusOK {
				t.Errorf("%s: %d", caller, code)
			}
		}
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() { askAs(a, "ada", gatewaysPath+"media/door/status", shared) })
			group.Go(func() { askAs(a, fmt.Sprint("invented-", i), config, shared) })
		}
		synctest.Wait()
		begun := time.Now()
		if code := askAs(a, "bob", config, shared); code != http.StatusOK || time.Since(begun) > 0 {
			t.Errorf("bob: %d after %v", code, time.Since(begun))
		}
		group.Wait()
		if most.Load() != maxUnknown {
			t.Errorf("%d unknown credentials are reviewed at a time, want %d", most.Load(), maxUnknown)
		}
	})
}

// Known credentials are bounded in number and time.
func TestKnownCredentialsAreBounded(t *testing.T) {
	var c credentials
	now := time.Unix(1_000, 0)
	key := func(i int) credentialKey {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return credentialKey{source: netip.PrefixFrom(address, 32)}
	}
	for i := range 3 * maxCredentials {
		c.add(key(i), now)
		if len(c.until) > maxCredentials || !c.has(key(i), now) {
			t.Fatalf("%d credentials are known", len(c.until))
		}
	}
	last := key(3*maxCredentials - 1)
	if c.has(last, now.Add(credentialTTL)) {
		t.Error("a credential does not expire")
	}
}

// The rate of requests of one address is limited before authorization, except for other replicas and for known
// credentials on this host.
func TestRequestRateIsBounded(t *testing.T) {
	for _, c := range []struct {
		source, caller string
		want           int
	}{
		{"192.0.2.1:1", "ada", sourceBurst},
		{"192.0.2.1:1", "invented", sourceBurst},
		{"[2001:db8::1]:1", "ada", sourceBurst},
		{"127.0.0.1:1", "ada", 100},
		{"[::1]:1", "ada", 100},
		{"127.0.0.1:1", "invented", sourceBurst},
		{"10.0.0.2:1", "invented", 100}, // a replica
	} {
		synctest.Test(t, func(t *testing.T) {
			authorized := 0
			a := New(Options{
				Pods: &pods{}, Replicas: func() []string { return []string{"https://10.0.0.2:13478"} },
				Authorize: func(r *http.Request, of Attributes) (string, error) {
					authorized++
					return everyone(r, of)
				},
			})
			for range 100 {
				askAs(a, c.caller, gatewaysPath+"media/door/config", c.source)
			}
			if authorized != c.want {
				t.Errorf("%s %s: %d of 100 requests are authorized, want %d", c.source, c.caller, authorized, c.want)
			}
			time.Sleep(time.Second)
			if askAs(a, c.caller, gatewaysPath+"media/door/config", c.source); authorized != c.want+1 {
				t.Errorf("%s %s: no request is authorized a second later", c.source, c.caller)
			}
		})
	}
}

// replica is another replica.
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

// A replica that is dead, silent or sends garbage is not waited for, and is named.
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
