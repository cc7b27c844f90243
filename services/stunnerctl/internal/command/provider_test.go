package command

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// provider is the folder of a file provider with a fake operator.
type provider struct {
	folder string
	url    string

	mu       sync.Mutex
	requests []string
	// answers are the answers by method and path without query. A text that starts with a number is an error.
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
