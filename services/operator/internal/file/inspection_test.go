package file

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
)

// inspect sends a request to the inspection API, at the URL in the output folder.
func (s *site) inspect(token, path string) (code int, body string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet,
		strings.TrimSpace(s.output("discovery.url"))+"/api/v1/"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// The inspection API of a folder is at the URL in discovery.url, and requires the token in discovery.token. It shows
// the problems of documents and objects, and configs without secrets.
func TestInspectionOfAFolder(t *testing.T) {
	s := newSite(t)
	s.write("broken.yaml", "kind: Gateway\n")
	s.write("gateway.yaml", strings.Replace(gatewayYAML, "protocol: TURN-TCP", "protocol: SCTP", 1))
	s.run()
	s.awaitStatus("calls/door")
	info, err := os.Stat(filepath.Join(s.provider.Output, "discovery.url"))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("discovery.url: %v %v", info, err)
	}
	token := strings.TrimSpace(s.output("discovery.token"))
	for _, wrong := range []string{"", "wrong", token + "a"} {
		for _, path := range []string{"operator", "gateways/calls/door/config", "gateways/calls/door/sessions"} {
			if code, body := s.inspect(wrong, path); code != http.StatusUnauthorized {
				t.Errorf("token %q: %s: %d %s", wrong, path, code, body)
			}
		}
	}
	code, body := s.inspect(token, "gateways/calls/door/config")
	if code != http.StatusOK || !strings.Contains(body, "calls/door/udp") || strings.Contains(body, "correct-horse") {
		t.Errorf("config: %d %s", code, body)
	}
	if code, body := s.inspect(token, "gateways/calls/door/status"); code != http.StatusOK ||
		!strings.Contains(body, `"items":[]`) {
		t.Errorf("status without a dataplane: %d %s", code, body)
	}
	if code, _ := s.inspect(token, "gateways/calls/window/status"); code != http.StatusNotFound {
		t.Errorf("status of an unknown Gateway: %d", code)
	}
	code, body = s.inspect(token, "operator")
	var o inspection.Operator
	if err := json.Unmarshal([]byte(body), &o); code != http.StatusOK || err != nil {
		t.Fatalf("%d %s", code, body)
	}
	objects := map[string]bool{}
	for _, p := range o.Problems {
		objects[p.Object+" "+p.Field+" "+p.Condition] = true
	}
	if !objects["broken.yaml:1 apiVersion Accepted"] || !objects["Gateway calls/door spec.listeners[tcp] Accepted"] {
		t.Errorf("problems %+v", o.Problems)
	}
}

// A dataplane process without a connection is listed as incomplete, as long as the operator runs it.
func TestInspectionOfAFolderListsSilentDataplanes(t *testing.T) {
	s := newSite(t)
	t.Setenv(roleVariable, "silent") // the dataplane never connects
	s.provider.Stunnerd, _ = os.Executable()
	s.run()
	token := strings.TrimSpace(s.output("discovery.token"))
	name, _ := os.Hostname()
	s.awaitStatus("running, pid")
	code, body := s.inspect(token, "gateways/calls/door/sessions")
	var list inspection.List
	if err := json.Unmarshal([]byte(body), &list); code != http.StatusOK || err != nil {
		t.Fatalf("%d %s", code, body)
	}
	if want := []string{name + ": " + inspection.NotConnected}; !slices.Equal(list.Incomplete, want) {
		t.Errorf("incomplete %q, want %q", list.Incomplete, want)
	}
}

// Only callers on the same host are answered, with and without a token.
func TestInspectionOfAFolderIsForThisHost(t *testing.T) {
	for remote, want := range map[string]int{
		"127.0.0.1:1": 0, "[::1]:1": 0, "[::ffff:127.0.0.1]:1": 0, "192.0.2.1:1": http.StatusForbidden,
		"[2001:db8::1]:1": http.StatusForbidden, "": http.StatusForbidden,
	} {
		code := 0
		var refusal *inspect.Error
		if _, err := inspector(&http.Request{RemoteAddr: remote, Host: "localhost:1"}, nil); errors.As(err, &refusal) {
			code = refusal.Code
		}
		if code != want {
			t.Errorf("%q: %d, want %d", remote, code, want)
		}
	}
}
