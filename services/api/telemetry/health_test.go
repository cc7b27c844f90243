package telemetry_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

func TestContractProbes(t *testing.T) {
	bad := func() error { return errors.New("stunnerd not ready") }
	good := func() error { return nil }
	for name, c := range map[string]struct {
		health       telemetry.Health
		method, path string
		status       int
		body         string
	}{
		"live":          {telemetry.Health{}, "GET", "/live", 200, `{}`},
		"live, checked": {telemetry.Health{Live: good, Ready: bad}, "GET", "/live", 200, `{}`},
		"not live": {
			telemetry.Health{Live: bad}, "GET", "/live", 503, `{"status":503,"message":"stunnerd not ready"}`,
		},
		"ready": {telemetry.Health{}, "GET", "/ready", 200, `{"status":200,"message":"READY"}`},
		"ready, checked": {
			telemetry.Health{Live: bad, Ready: good}, "GET", "/ready", 200, `{"status":200,"message":"READY"}`,
		},
		"not ready": {
			telemetry.Health{Ready: bad}, "GET", "/ready", 503, `{"status":503,"message":"stunnerd not ready"}`,
		},
		"HEAD": {
			telemetry.Health{Ready: bad}, "HEAD", "/ready", 503, `{"status":503,"message":"stunnerd not ready"}`,
		},
		"another method":     {telemetry.Health{}, "POST", "/ready", 405, "method not allowed"},
		"another path":       {telemetry.Health{}, "GET", "/", 404, "404 page not found"},
		"something below it": {telemetry.Health{}, "GET", "/ready/now", 404, "404 page not found"},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			c.health.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
			if body := strings.TrimSpace(w.Body.String()); w.Code != c.status || body != c.body {
				t.Errorf("answer %d %s, want %d %s", w.Code, body, c.status, c.body)
			}
			if c.status == 200 && w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("content type %q", w.Header().Get("Content-Type"))
			}
		})
	}
	var _ http.Handler = telemetry.Health{}
}

// T-20: the port of the probes is read only, on every path.
func TestProbesAreReadOnly(t *testing.T) {
	h := telemetry.Probes(telemetry.NewRegistry(), nil)
	for _, path := range []string{"/live", "/ready", "/metrics", "/nowhere"} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
			if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d, Allow %q", method, path, w.Code, w.Header().Get("Allow"))
			}
		}
	}
}
