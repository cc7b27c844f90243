package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A client asks the inspection API at the address of config discovery, with its token. Refusals of the API and of a
// server without it differ, and an answer is bounded.
func TestInspect(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	answer := func(id string, status int, body string) {
		mux.HandleFunc("GET /prefix/api/v1/gateways/media/"+id+"/usage", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret" || r.URL.RawQuery != "by=user&user=a%26b" {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		})
	}
	answer("door", 200, `{"items":[{"pod":"a","status":200,"body":{"n":1}}]}`)
	answer("none", 404, `{"code":404,"message":"no config"}`)
	answer("busy", 429, `{"code":429,"message":"secret"}`)
	answer("text", 200, "hello")
	answer("long", 200, `{"gateway":"`+strings.Repeat("x", inspectLimit)+`"}`)
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, origin := range []string{"/prefix", "/prefix/", "/prefix/api/v1/configs", "/prefix/api/v1/configs/media"} {
		source, err := Open(server.URL+origin, Options{TokenFile: token})
		if err != nil {
			t.Fatal(err)
		}
		inspector, ok := source.(Inspector)
		if !ok {
			t.Fatal("a discovery server is no Inspector")
		}
		ask := func(id string) (pods int, refused *InspectError, err error) {
			list, err := inspector.Inspect(t.Context(), "media/"+id, "usage", url.Values{"by": {"user"}, "user": {"a&b"}})
			errors.As(err, &refused)
			return len(list.Items), refused, err
		}
		if pods, _, err := ask("door"); err != nil || pods != 1 {
			t.Errorf("%s: %d pods, %v", origin, pods, err)
		}
		for id, want := range map[string]InspectError{"none": {404, true}, "busy": {429, true}, "unknown": {404, false}} {
			if _, refused, err := ask(id); refused == nil || *refused != want || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", id, err)
			}
		}
		for id, want := range map[string]string{"text": "has another form", "long": "more than 2097152 bytes"} {
			if _, refused, err := ask(id); refused != nil || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	source, err := Open(server.URL, Options{TokenFile: token + "-missing"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = source.(Inspector).Inspect(ctx, "media/door", "usage", nil)
	if err == nil || !strings.Contains(err.Error(), "read token") {
		t.Errorf("without a token: %v", err)
	}
	if file, err := Open(filepath.Join(t.TempDir(), "config.yaml"), Options{}); err != nil {
		t.Fatal(err)
	} else if _, ok := file.(Inspector); ok {
		t.Error("a file is an Inspector")
	}
}
