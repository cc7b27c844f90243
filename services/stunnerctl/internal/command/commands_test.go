package command

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// at is the time of the commands in tests.
var at = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	clock = func() time.Time { return at }
	os.Unsetenv("KUBECONFIG")
	os.Setenv("HOME", "/nonexistent")
	os.Exit(m.Run())
}

// provider is the folder of a file provider with a fake operator.
type provider struct {
	folder string
	url    string

	mu       sync.Mutex
	requests []string
	// answers by method and path without query; a text starting with a number is an error.
	answers map[string]string
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	w := &provider{folder: t.TempDir(), answers: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		query, _ := url.QueryUnescape(r.URL.RawQuery)
		w.requests = append(
			w.requests,
			strings.TrimSuffix(r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api/v1/")+"?"+query, "?"),
		)
		answer := w.answers[r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api/v1/")]
		if answer == "" {
			answer = `404 {"message":"no such Gateway"}`
		}
		code := http.StatusOK
		if _, err := fmt.Sscanf(answer, "%d", &code); err == nil {
			_, answer, _ = strings.Cut(answer, " ")
		}
		rw.WriteHeader(code)
		fmt.Fprint(rw, answer)
	}))
	t.Cleanup(server.Close)
	w.url = server.URL
	w.write(t, "discovery.url", server.URL)
	w.write(t, "discovery.token", "token")
	w.write(t, "status/gateway/media_berlin.yaml", gatewayYAML("media", "berlin", "True", "Programmed", ""))
	w.write(t, "status/gateway/media_frankfurt.yaml", gatewayYAML("media", "frankfurt", "False", "AddressNotAssigned",
		"the LoadBalancer Service media/frankfurt has no address yet: see its events"))
	w.write(t, "status/gateway/shop_turn.yaml", gatewayYAML("shop", "turn", "True", "Programmed", ""))
	w.answers["GET operator"] = `{"version":"operator v1.2.3 go1.26.0 abc","replica":"operator-1","now":"2026-11-23T12:00:00Z"}`
	for _, name := range []string{"media/berlin", "media/frankfurt", "shop/turn"} {
		w.answers["GET gateways/"+name+"/config"] = `{"revision":"sha256:0123456789abcdef","config":` + publishedJSON(
			name,
		) + `}`
		w.answers["GET gateways/"+name+"/status"] = list(name)
		w.answers["GET gateways/"+name+"/sessions"] = list(name)
		w.answers["GET gateways/"+name+"/refusals"] = list(name)
	}
	return w
}

func (w *provider) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(w.folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs a command line in the folder.
func (w *provider) run(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	return execute(t, "", append([]string{"--folder", w.folder}, args...)...)
}

func gatewayYAML(namespace, name, status, reason, message string) string {
	return fmt.Sprintf(`apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: %s, name: %s}
status:
  conditions:
  - {type: Accepted, status: "True", reason: Accepted, message: ""}
  - {type: Programmed, status: %q, reason: %s, message: %q}
  listeners:
  - name: udp
    conditions:
    - {type: Conflicted, status: "False", reason: NoConflicts, message: ""}
`, namespace, name, status, reason, message)
}

func publishedJSON(name string) string {
	return `{"version":"v1","admin":{"name":"` + name + `","loglevel":"all:INFO"},
"auth":{"type":"static","realm":"stunner.l7mp.io","credentials":{"username":"<redacted>","password":"<redacted>"}},
"listeners":[{"name":"` + name + `/udp","protocol":"TURN-UDP","public_address":"192.0.2.7","public_port":3478,
"address":"$STUNNER_ADDR","port":3478,"routes":["media/calls"]}],
"clusters":[{"name":"media/calls","type":"STATIC","endpoints":["10.0.0.0/8","10.1.0.1"]}]}`
}

// list returns the answer of the operator with items, each POD STATUS BODY.
func list(gateway string, items ...string) string {
	l := inspection.List{Version: inspection.Version, Gateway: gateway, Items: []inspection.Item{}}
	for _, text := range items {
		item := inspection.Item{Kind: inspection.Dataplane, Status: http.StatusOK}
		var body string
		item.Pod, body, _ = strings.Cut(text, " ")
		if strings.HasPrefix(body, "!") {
			item.Status, item.Error = 0, body[1:]
		} else if _, err := fmt.Sscanf(body, "%d", &item.Status); err == nil {
			_, body, _ = strings.Cut(body, " ")
		}
		if item.Error == "" {
			item.Body = json.RawMessage(body)
		}
		l.Items = append(l.Items, item)
	}
	data, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func expectGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%s: %v\ngot\n%s\nwant\n%s", name, err, got, want)
	}
}

const syncedStatus = `{"version":"v1","program":"stunnerd v1.2.3 go1.26.0","status":"READY","revision":"sha256:0123456789abcdef",
"allocationCount":12,"capacity":4000,"now":"2026-11-23T12:00:01Z","started":"2026-11-20T11:00:00Z","admin":{"name":"media/frankfurt"},
"auth":{"type":"static","realm":"stunner.l7mp.io","credentials":{"username":"<redacted>","password":"<redacted>"}},
"listeners":[{"name":"media/frankfurt/tls","protocol":"TURN-TLS","certificate":{"subject":"CN=a","notAfter":"2026-12-03T12:30:00Z"},
"otherCertificates":[{"subject":"CN=b","notAfter":"2027-12-03T12:30:00Z"}]}]}`

func newStatusProvider(t *testing.T) *provider {
	w := newProvider(t)
	w.answers["GET gateways/media/frankfurt/status"] = strings.Replace(list(
		"media/frankfurt",
		"frankfurt-1 "+syncedStatus,
		`frankfurt-2 {"status":"READY","revision":"sha256:fedcba","allocationCount":3,"now":"2026-11-23T12:01:00Z",`+
			`"config":{"age_seconds":320,"lost":"dial tcp: i/o timeout"},"lost":"dial tcp: i/o timeout"}`,
		`frankfurt-3 {"status":"NOT-READY","revision":"sha256:fedcba","config":{"rejected":"listeners[0].port: 70000 is no port"}}`,
		`frankfurt-4 {"status":"TERMINATING","revision":"sha256:0123456789abcdef","failures":{"udp":"listener udp: address in use"},
"drain":{"moved":40,"stay":{"TCP":2,"peer":1}}}`,
		"frankfurt-5 !this release of stunnerd answers no requests",
	), `"items"`, `"incomplete":["operator-2: no answer in 2s"],"items"`, 1)
	return w
}

func TestStatus(t *testing.T) {
	w := newStatusProvider(t)
	for name, args := range map[string][]string{
		"status":           {"status", "media/frankfurt"},
		"status-wide":      {"status", "media/frankfurt", "-o", "wide"},
		"status-json":      {"status", "-n", "media", "-o", "json"},
		"status-namespace": {"status", "-n", "media"},
		"status-pod":       {"status", "media/frankfurt", "--pod-name", "frankfurt-2", "--no-headers"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != exitFailed || !strings.Contains(errs, "no answer from operator-2: no answer in 2s") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	if out, errs, code := w.run(t, "status", "shop/turn"); code != 0 || errs != "" || !strings.Contains(out, "no pod") {
		t.Error(out, errs, code)
	}
}

const sessionsOf1 = `{"total":250,"sessions":[
{"id":"s1","listener":"media/frankfurt/udp","protocol":"TURN-UDP","user":"ada","client":"203.0.113.7","relay":"10.0.0.1:40000",
"started":"2026-11-23T11:00:00Z","age":"1h0m0s","channels":1,"stats":{"rx":{"pkts":10,"bytes":123456},"tx":{"pkts":20,"bytes":99}}},
{"id":"s2","listener":"media/frankfurt/udp","protocol":"TURN-UDP","user":"bob","client":"203.0.113.8","relay":"10.0.0.1:40001","front":"10.0.0.2:39001",
"started":"2026-11-23T11:59:30Z","age":"30s","channels":0,"stats":{"rx":{},"tx":{}}}]}`

func TestSessions(t *testing.T) {
	w := newProvider(t)
	w.answers["GET gateways/media/frankfurt/sessions"] = list(
		"media/frankfurt",
		"frankfurt-1 "+sessionsOf1,
		`frankfurt-2 {"total":1,"sessions":[{"id":"s3","listener":"media/frankfurt/tls","protocol":"TURN-TLS","user":"eve",`+
			`"client":"2001:db8::1","relay":"10.0.0.2:1","started":"2026-11-23T11:30:00Z"}]}`,
	)
	for name, args := range map[string][]string{
		"sessions":      {"sessions", "frankfurt", "-n", "media"},
		"sessions-all":  {"sessions", "-A"},
		"sessions-wide": {"sessions", "media/frankfurt", "-o", "wide"},
		"sessions-yaml": {"sessions", "media/frankfurt", "-o", "yaml"},
		"sessions-path": {"sessions", "media/frankfurt", "-o", "jsonpath={.sessions[*].user}"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		table := !strings.HasSuffix(name, "yaml") && !strings.HasSuffix(name, "path")
		if code != 0 || table && !strings.Contains(errs, "3 of 251 sessions") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	w.requests = nil
	_, errs, code := w.run(
		t,
		"sessions",
		"media/frankfurt",
		"--user",
		"ada",
		"--client",
		"203.0.113.7",
		"--listener",
		"udp",
		"--since",
		"10m",
		"--limit",
		"7",
	)
	want := []string{
		"GET gateways/media/frankfurt/sessions?client=203.0.113.7&limit=7&listener=media/frankfurt/udp&since=10m&user=ada",
	}
	if code != 0 || !slices.Equal(w.requests, want) {
		t.Error(w.requests, errs, code)
	}
	for _, args := range [][]string{{"--since", "yesterday"}, {"--limit", "0.5"}, {"--limit", "5000"}, {"--reason", "x"}} {
		if _, errs, code := w.run(t, append([]string{"sessions", "media/frankfurt"}, args...)...); code != exitUsage {
			t.Errorf("%s: exit code %d: %s", args, code, errs)
		}
	}
	w.answers["GET gateways/media/frankfurt/sessions"] = `403 {"message":"needs get on gateways/sessions in namespace media"}`
	if out, errs, code := w.run(t, "sessions", "media/frankfurt"); code != exitFailed || out != "" ||
		!strings.Contains(errs, "needs get on gateways/sessions in namespace media") {
		t.Error(out, errs, code)
	}
	out, errs, code := w.run(t, "sessions", "-A")
	if code != exitFailed || !strings.Contains(errs, "gateway media/frankfurt: the operator refuses") {
		t.Error(out, errs, code)
	}
}

func TestRefusals(t *testing.T) {
	w := newProvider(t)
	w.answers["GET gateways/media/frankfurt/refusals"] = list(
		"media/frankfurt",
		`frankfurt-1 {"suppressed":3,"refusals":[{"last":"2026-11-23T11:59:00Z","first":"2026-11-23T10:00:00Z","times":7,`+
			`"answered":true,"reason":"peer_denied","text":"no route of the listener allows the peer; routes: media/calls",`+
			`"listener":"media/frankfurt/udp","user":"ada","client":"203.0.113.7","peer":"10.9.9.9:5000"}]}`,
		`frankfurt-2 {"suppressed":0,"refusals":[{"last":"2026-11-23T11:59:50Z","first":"2026-11-23T11:59:50Z","times":1,`+
			`"answered":true,"reason":"bad_credential","text":"wrong password","listener":"media/frankfurt/udp"}]}`,
	)
	for name, args := range map[string][]string{
		"refusals":      {"refusals", "media/frankfurt"},
		"refusals-json": {"refusals", "media/frankfurt", "-o", "json"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != 0 || name == "refusals" && !strings.Contains(errs, "3 more were too frequent") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	w.requests = nil
	_, _, _ = w.run(t, "refusals", "media/frankfurt", "--reason", "peer_denied")
	if want := []string{"GET gateways/media/frankfurt/refusals?limit=100&reason=peer_denied"}; !slices.Equal(
		w.requests,
		want,
	) {
		t.Error(w.requests)
	}
}

func TestConfig(t *testing.T) {
	w := newStatusProvider(t)
	for name, args := range map[string][]string{
		"config":      {"config", "media/frankfurt"},
		"config-dump": {"config", "dump", "media/frankfurt"},
		"config-path": {"config", "media/frankfurt", "-o", "jsonpath={.listeners[*].public_address}"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != 0 || errs != "" {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	w.answers["GET gateways/media/frankfurt/status"] = list(
		"media/frankfurt",
		"frankfurt-1 "+syncedStatus,
		`frankfurt-2 {"revision":"sha256:old","auth":{"type":"static","realm":"old.example"},"config":{"rejected":"bad"},`+
			`"listeners":[{"name":"media/frankfurt/udp","protocol":"TURN-UDP","port":3479,"address":"10.0.0.1",`+
			`"public_address":"192.0.2.7","public_port":3478,"routes":["media/calls"],"stats":{"rx":{"pkts":1}}}],`+
			`"clusters":[{"name":"media/calls","type":"STATIC","endpoints":["10.1.0.1","10.0.0.0/8"]},`+
			`{"name":"media/gone","type":"STATIC","endpoints":["10.2.0.0/16"]}]}`,
	)
	for name, args := range map[string][]string{
		"config-diff":      {"config", "diff", "media/frankfurt"},
		"config-diff-json": {"config", "diff", "media/frankfurt", "-o", "json"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != exitFailed {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	out, errs, code := w.run(t, "config", "dump", "media/frankfurt", "--running")
	if code != 0 || !strings.Contains(out, "frankfurt-2:") || !strings.Contains(out, "port: 3479") {
		t.Error(out, errs, code)
	}
}

// The summary of a listener behind a load balancer has the protocol of its clients.
func TestConfigOfAListenerBehindALoadBalancer(t *testing.T) {
	w := newProvider(t)
	const key = "GET gateways/media/frankfurt/config"
	w.answers[key] = strings.Replace(w.answers[key], `"protocol":"TURN-UDP"`,
		`"protocol":"TURN-TCP","tls_at_load_balancer":true,"proxy_protocol":["10.0.0.0/24","fd00::7/128"]`, 1)
	out, errs, code := w.run(t, "config", "media/frankfurt")
	for _, line := range []string{
		"    Protocol:            TURN-TCP\n",
		"    Client protocol:     TURN-TLS, TLS ends at the load balancer\n",
		"    PROXY protocol from: 10.0.0.0/24, fd00::7/128\n",
	} {
		if code != 0 || !strings.Contains(out, line) {
			t.Errorf("exit code %d, %s; no line %q in\n%s", code, errs, line, out)
		}
	}
	for protocol, found := range map[config.Protocol]int{config.TURNTCP: 0, config.TURNTLS: 1} {
		g := newGlobals(Streams{})
		g.folder = w.folder
		listeners, err := g.gatewayListeners(t.Context(), types.NamespacedName{Namespace: "media", Name: "frankfurt"},
			func(_ string, p config.Protocol) bool { return p == protocol })
		if err != nil || len(listeners) != found || found > 0 && listeners[0].uri.Protocol() != config.TURNTLS {
			t.Errorf("listeners of %s: %+v, %v; want %d", protocol, listeners, err, found)
		}
	}
}

func TestCanReach(t *testing.T) {
	w := newProvider(t)
	allowed := `{"listener":"media/frankfurt/udp","allowed":true,"cluster":"media/calls","endpoint":"10.0.0.0/8:<1-65535>"}`
	denied := `{"listener":"media/frankfurt/tls","allowed":false,"reason":"peer_denied","text":"no route allows the peer"}`
	w.answers["GET gateways/media/frankfurt/reach"] = list("media/frankfurt",
		`frankfurt-1 {"peer":"10.0.0.1:5000","listeners":[`+allowed+`,`+denied+`]}`,
		`frankfurt-2 {"peer":"10.0.0.1:5000","listeners":[`+allowed+`]}`)
	out, errs, code := w.run(t, "can-reach", "media/frankfurt", "10.0.0.1:5000")
	expectGolden(t, "can-reach", out)
	if code != exitFailed || errs != "" {
		t.Error(errs, code)
	}
	w.answers["GET gateways/media/frankfurt/reach"] = list("media/frankfurt", `frankfurt-1 {"listeners":[`+allowed+`]}`)
	for query, args := range map[string][]string{
		"peer=10.0.0.1:5000":                                 {"media/frankfurt", "10.0.0.1:5000"},
		"listener=media/frankfurt/udp&peer=10.0.0.1:5000":    {"media/frankfurt/udp", "10.0.0.1:5000"},
		"listener=media/frankfurt/udp&peer=10.0.0.1:5001":    {"frankfurt/udp", "10.0.0.1:5001", "-n", "media"},
		"listener=media/frankfurt/udp&peer=10.0.0.1:5002":    {"media/frankfurt:udp", "10.0.0.1:5002"},
		"listener=media/frankfurt/udp&peer=[2001:db8::1]:50": {"media/frankfurt", "[2001:db8::1]:50", "--listener", "udp"},
	} {
		w.requests = nil
		out, errs, code := w.run(t, append([]string{"can-reach"}, args...)...)
		if code != 0 || !slices.Equal(w.requests, []string{"GET gateways/media/frankfurt/reach?" + query}) {
			t.Error(args, w.requests, out, errs, code)
		}
	}
	for _, args := range [][]string{{"a/b/c/d", "10.0.0.1:5"}, {"media/frankfurt", "10.0.0.1"}, {"media/frankfurt", "host:5"}, {"x"}} {
		if _, errs, code := w.run(t, append([]string{"can-reach"}, args...)...); code != exitUsage {
			t.Errorf("%s: exit code %d: %s", args, code, errs)
		}
	}
}

func TestKick(t *testing.T) {
	w := newProvider(t)
	w.answers["DELETE gateways/media/frankfurt/sessions/s2"] = list(
		"media/frankfurt",
		`frankfurt-1 404 {"message":"no such session"}`,
		`frankfurt-2 {"ended":[{"id":"s2","user":"bob"}]}`,
	)
	w.answers["DELETE gateways/media/frankfurt/sessions/s9"] = list(
		"media/frankfurt",
		`frankfurt-1 404 {"message":"no such session"}`,
	)
	w.answers["DELETE gateways/media/frankfurt/sessions"] = list(
		"media/frankfurt",
		`frankfurt-1 {"ended":[],"total":0}`,
		`frankfurt-2 {"ended":[{"id":"s2","user":"bob"}],"total":1}`,
	)
	for _, c := range []struct {
		args []string
		code int
		errs string
		sent string
	}{
		{[]string{"media/frankfurt", "s2"}, 0, "Ended 1 sessions.", "/s2"},
		{[]string{"media/frankfurt", "s9"}, 1, "no pod of Gateway media/frankfurt has this session", "/s9"},
		{[]string{"media/frankfurt", "--user", "bob"}, 0, "Ended 1 sessions.", "?user=bob"},
		{[]string{"media/frankfurt", "--client", "::1"}, 0, "Ended 1 sessions.", "?client=::1"},
		{[]string{"media/frankfurt"}, exitUsage, "name the sessions to end", ""},
		{[]string{"media/frankfurt", "s2", "--user", "bob"}, exitUsage, "name the sessions to end", ""},
	} {
		w.requests = nil
		out, errs, code := w.run(t, append([]string{"kick"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.errs) || code == 0 && !strings.Contains(out, "bob") {
			t.Error(c.args, out, errs, code)
		}
		if c.sent != "" && !slices.Equal(w.requests, []string{"DELETE gateways/media/frankfurt/sessions" + c.sent}) {
			t.Error(c.args, w.requests)
		}
	}
}

// A running pod that is not connected is named, and the exit code is 1: its sessions are not in the answer.
func TestPodsThatDoNotAnswerAreNamed(t *testing.T) {
	w := newProvider(t)
	silent := "frankfurt-9 !" + inspection.NotConnected
	path := "gateways/media/frankfurt/"
	w.answers["GET "+path+"status"] = list("media/frankfurt", silent, `frankfurt-1 {"status":"READY"}`)
	w.answers["GET "+path+"sessions"] = list("media/frankfurt", silent, `frankfurt-1 {"sessions":[{"id":"s1"}],"total":1}`)
	w.answers["GET "+path+"refusals"] = list("media/frankfurt", silent, `frankfurt-1 {"refusals":[{"reason":"quota"}],"total":1}`)
	w.answers["GET "+path+"reach"] = list("media/frankfurt", silent,
		`frankfurt-1 {"listeners":[{"listener":"media/frankfurt/udp","allowed":true}]}`)
	w.answers["DELETE "+path+"sessions"] = list("media/frankfurt", silent, `frankfurt-1 {"ended":[{"id":"s1"}],"total":1}`)
	w.answers["DELETE "+path+"sessions/s1"] = list("media/frankfurt", silent, `frankfurt-1 404 {"message":"none"}`)
	for _, c := range []struct{ args, out string }{
		{"status media/frankfurt", "frankfurt-9"},
		{"sessions media/frankfurt", "s1"},
		{"refusals media/frankfurt", "quota"},
		{"can-reach media/frankfurt 10.0.0.1:5000", "allowed"},
		{"kick media/frankfurt --user ada", "s1"},
		{"kick media/frankfurt s1", ""},
	} {
		out, errs, code := w.run(t, strings.Fields(c.args)...)
		if code != 1 || !strings.Contains(out+errs, inspection.NotConnected) || !strings.Contains(out, c.out) {
			t.Errorf("%s: exit code %d\n%s%s", c.args, code, out, errs)
		}
	}
}

func TestAuth(t *testing.T) {
	w := newProvider(t)
	w.answers["GET /ice"] = `{"iceServers":[{"urls":["turn:192.0.2.7:3478"],"username":"1:ada","credential":"hunter2"}],"iceTransportPolicy":"all"}`
	w.answers["GET /"] = `{"username":"1:ada","password":"hunter2","ttl":3600,"uris":["turn:192.0.2.7:3478"]}`
	address := strings.TrimPrefix(w.url, "http://")
	for _, c := range []struct {
		args          []string
		sent          string
		want          string
		secretInSight bool
	}{
		{[]string{"media/frankfurt", "-u", "ada"}, "GET /ice?gateway=frankfurt&namespace=media&service=turn&username=ada", "<redacted>", false},
		{[]string{"media/frankfurt", "--show-secrets", "--ttl", "10m"}, "GET /ice?gateway=frankfurt&namespace=media&service=turn&ttl=600", "hunter2", true},
		{[]string{"frankfurt", "-n", "media", "--auth-turn-credential"}, "GET /?gateway=frankfurt&namespace=media&service=turn", "<redacted>", false},
		{[]string{"-A", "-o", "jsonpath={.iceServers[0].urls[0]}"}, "GET /ice?service=turn", "turn:192.0.2.7:3478\n", false},
	} {
		w.requests = nil
		out, errs, code := execute(t, "", append([]string{"auth", "--auth-server-address", address}, c.args...)...)
		if code != 0 || !strings.Contains(out, c.want) || strings.Contains(out+errs, "hunter2") != c.secretInSight {
			t.Error(c.args, out, errs, code)
		}
		if !slices.Equal(w.requests, []string{c.sent}) {
			t.Error(c.args, w.requests)
		}
	}
	w.answers["GET /ice"] = `401 {"detail":"This service needs a valid bearer token."}`
	if _, errs, code := execute(t, "", "auth", "--auth-server-address", address, "-n", "x"); code != exitFailed ||
		!strings.Contains(errs, "needs a valid bearer token") || !strings.Contains(errs, "--auth-token-file") {
		t.Error(errs, code)
	}
	if _, errs, code := w.run(t, "auth", "media/frankfurt"); code != exitUsage ||
		!strings.Contains(errs, "--auth-server-address") {
		t.Error(errs, code)
	}
}

// A token is not sent in clear text to another host.
func TestAuthTokenNeedsTLS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("marker"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"auth.example.org", "192.0.2.1:8088", "http://auth.example.org"} {
		_, errs, code := execute(t, "", "auth", "media/frankfurt", "--auth-server-address", address, "--auth-token-file", file)
		if code != exitUsage || !strings.Contains(errs, "verified TLS only") {
			t.Errorf("%s: exit code %d: %s", address, code, errs)
		}
	}
	w := newProvider(t)
	w.answers["GET /ice"] = `{"iceServers":[]}`
	out, errs, code := w.run(t, "auth", "media/frankfurt", "--auth-server-address", w.url, "--auth-token-file", file)
	if code != 0 || !strings.Contains(out, "iceServers") {
		t.Error("loopback:", out, errs, code)
	}
}

// A pod that drains says which calls have moved, and why others stay.
func TestRemainingCalls(t *testing.T) {
	moving := inspection.Status{AllocationCount: 3, Drain: &inspection.DrainStatus{
		Moved: 40, Stay: map[string]int{"TCP": 2, inspection.StaysForPeer: 1},
	}}
	for want, s := range map[string]inspection.Status{
		"3 calls remain: 40 moved, 3 stay (2 TCP, 1 peer).": moving, "5 calls remain.": {AllocationCount: 5},
	} {
		if got := remaining(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDrainInAFolder(t *testing.T) {
	w := newProvider(t)
	_, errs, code := w.run(t, "drain", "frankfurt-1")
	if code != exitUsage || !strings.Contains(errs, "remove the Gateway from the input folder") {
		t.Error(errs, code)
	}
}

func TestVersion(t *testing.T) {
	w := newStatusProvider(t)
	out, errs, code := w.run(t, "version", "media/frankfurt")
	for _, want := range []string{"Client:    stunnerctl", "Operator:  operator v1.2.3", "frankfurt-1   stunnerd v1.2.3"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if code != exitFailed || !strings.Contains(errs, "frankfurt-5: this release of stunnerd answers no requests") {
		t.Error(errs, code)
	}
	if out, errs, code = execute(t, "", "version", "--client"); code != 0 || errs != "" ||
		!strings.HasPrefix(out, "Client:") {
		t.Error(out, errs, code)
	}
	if out, errs, code = execute(t, "", "version"); code != exitFailed || !strings.Contains(errs, "no kubeconfig") ||
		!strings.HasPrefix(out, "Client:") {
		t.Error(out, errs, code)
	}
}

// Pods of tenants choose many of the texts that operators print.
func TestHostileAnswers(t *testing.T) {
	w := newProvider(t)
	evil, err := json.Marshal("x\x1b[2J\x1b]52;c;ZXZpbA==\x07\u009b31m\u202e\r\ny")
	if err != nil {
		t.Fatal(err)
	}
	e := string(evil)
	incomplete := func(answer string) string {
		return strings.Replace(answer, `"items"`, `"incomplete":[`+e+`],"items"`, 1)
	}
	w.answers["GET gateways/media/frankfurt/status"] = incomplete(list(
		"x",
		`pod {"status":`+e+`,"revision":`+e+`,"program":`+e+`,"problem":`+e+`,"listeners":[{"name":`+e+`,"routes":[`+e+`]}]}`,
		"pod2 !x\x1b[2J\r\ny",
		`pod3 500 {"message":`+e+`}`,
	))
	w.answers["GET gateways/media/frankfurt/sessions"] = incomplete(list("x",
		`pod {"sessions":[{"id":`+e+`,"user":`+e+`,"client":`+e+`,"relay":`+e+`,"listener":`+e+`}]}`))
	w.answers["GET gateways/media/frankfurt/refusals"] = list("x",
		`pod {"refusals":[{"reason":`+e+`,"text":`+e+`,"user":`+e+`,"peer":`+e+`}]}`)
	w.answers["GET gateways/media/frankfurt/reach"] = list("x",
		`pod {"listeners":[{"listener":`+e+`,"cluster":`+e+`,"endpoint":`+e+`,"reason":`+e+`,"text":`+e+`}]}`)
	w.answers["GET gateways/media/frankfurt/config"] = `{"revision":` + e + `,"config":{"admin":{"name":` + e + `},"listeners":[{"name":` +
		e + `,"routes":[` + e + `]}]}}`
	w.answers["GET gateways/media/berlin/sessions"] = `403 {"message":` + e + `}`
	w.answers["GET operator"] = `{"version":` + e + `}`
	for _, args := range [][]string{
		{"status", "media/frankfurt"}, {"sessions", "media/frankfurt"}, {"refusals", "media/frankfurt"},
		{"can-reach", "media/frankfurt", "10.0.0.1:5"}, {"config", "media/frankfurt"}, {"config", "diff", "media/frankfurt"},
		{"config", "dump", "media/frankfurt"}, {"config", "dump", "media/frankfurt", "--running"}, {"sessions", "-A"},
		{"sessions", "media/berlin"}, {"version", "media/frankfurt"},
	} {
		for _, format := range []string{"table", "wide", "json", "yaml", "jsonpath={}"} {
			out, errs, _ := w.run(t, append(args, "-o", format)...)
			if strings.ContainsAny(out+errs, "\x1b\r\x07\u009b\u202e") {
				t.Errorf("%s -o %s: %q", args, format, out+errs)
			}
			if out+errs == "" {
				t.Errorf("%s -o %s: no output", args, format)
			}
		}
	}
}

func TestHelp(t *testing.T) {
	root := newRoot("stunnerctl", Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}})
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		if out, errs, code := execute(t, "", append(path, "--help")...); code != 0 || out == "" || errs != "" {
			t.Errorf("%s --help: %s %d", path, errs, code)
		}
		if !c.Hidden && c.Runnable() && c.Name() != "help" && c.Long == "" && c.Example == "" {
			t.Errorf("%s: neither Long nor Example", path)
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	for _, c := range root.Commands() {
		visit(c)
	}
}

func TestCompletion(t *testing.T) {
	w := newStatusProvider(t)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"status", ""}, []string{"media/berlin", "media/frankfurt", "shop/turn"}},
		{[]string{"kick", "media/frankfurt", ""}, nil},
		{[]string{"can-reach", "media/frankfurt", "--listener", ""}, []string{"tls"}},
		{[]string{"status", "-o", ""}, []string{"table", "wide", "json", "yaml", "jsonpath="}},
		{[]string{"status", "-n", ""}, []string{"media", "shop"}},
	} {
		out, errs, code := w.run(t, append([]string{"__complete"}, c.args...)...)
		var got []string
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, ":") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if code != 0 || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q; %s", c.args, got, c.want, errs)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errs, code := execute(t, "", "completion", shell); code != 0 || len(out) < 1000 {
			t.Error(shell, errs, code)
		}
	}
}
