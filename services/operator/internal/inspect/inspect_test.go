package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
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
		"GET usage?by=route&from=2026-01-02T15:04:05Z": {
			Attributes{"get", "gateways/usage", "media", "door"},
			discovery.Query{Kind: inspection.Dataplane, Target: "/usage?by=route&from=2026-01-02T15%3A04%3A05Z"},
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
func TestMalformedRequestsAreNotForwarded(t *testing.T) {
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

// The state of all auth services is in one answer, also the state of auth services at other replicas. The request needs
// the right to list all Gateways. An answer without an auth service is not an error.
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

// A list that is written item by item is the same JSON as a list that is written at once, for any texts in it.
func TestListsAreWrittenItemByItem(t *testing.T) {
	item := inspection.Item{Pod: `"items":[`, Kind: inspection.Dataplane, Status: 200, Body: json.RawMessage(`{"a":"<b>"}`)}
	for _, list := range []inspection.List{
		{Version: "v1", Gateway: "media/door", Items: []inspection.Item{}},
		{Version: `"items":[`, Gateway: `"items":[`, Items: []inspection.Item{item}, Incomplete: []string{"<x>", `"items":[`}},
		{Items: []inspection.Item{item, {Pod: "b", Error: "no <answer>"}, item}},
	} {
		var got, want, compact bytes.Buffer
		if err := errors.Join(encodeList(&got, list), encode(&want, list)); err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&compact, got.Bytes()); err != nil || compact.String() != strings.TrimSpace(want.String()) {
			t.Errorf("%s, want %s: %v", &compact, &want, err)
		}
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

// A running dataplane without a connection is listed as incomplete, because a call through it may continue. A request
// of another replica, and a request for auth services, concerns only connected pods.
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

// The log names the caller that ends sessions. It shows user and client as hashes; equal values have equal hashes.
func TestEndedSessionsAreLoggedWithoutUserNames(t *testing.T) {
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
