package admin

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Each refused request of an endpoint is counted and logged with its reason, without any text of the request. A
// successful answer and the 503 of a probe are not refusals.
func TestRefusedRequestsAreCountedAndLogged(t *testing.T) {
	const remote, local = "203.0.113.7:9", "127.0.0.1:9"
	for name, tc := range map[string]struct {
		method, target, from string
		status               int
		reason               string
	}{
		"answer":            {"GET", "/sessions", local, 200, ""},
		"unknown parameter": {"GET", "/sessions?nonsense=forged", local, 400, "http_parameter"},
		"another host":      {"GET", "/sessions", remote, 403, "http_caller"},
		"unknown path":      {"GET", "/forged", local, 404, "http_path"},
		"another method":    {"DELETE", "/sessions", local, 405, "http_method"},
		"not ready":         {"GET", "/unready", local, 503, ""},
		"failure":           {"GET", "/failure", local, 500, "http_other"},
	} {
		t.Run(name, func(t *testing.T) {
			i := inspected(Access{})
			m, log := meter.New(), new(bytes.Buffer)
			m.LogRefusals(slog.New(slog.NewTextHandler(log, nil)))
			mux := http.NewServeMux()
			mux.Handle("/sessions", i.Sessions())
			for path, status := range map[string]int{"/unready": 503, "/failure": 500} {
				mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			}
			set := NewEndpoints(slog.New(slog.DiscardHandler))
			set.Count(m)
			ep := &endpoint{set: set}
			ep.handler.Store(new(http.Handler(mux)))
			r := httptest.NewRequest(tc.method, tc.target, nil)
			r.RemoteAddr, r.Host = tc.from, "localhost"
			w := httptest.NewRecorder()
			ep.ServeHTTP(w, r)
			if w.Code != tc.status {
				t.Errorf("status %d, want %d", w.Code, tc.status)
			}
			counted := m.Declined(meter.HTTP)
			if tc.reason == "" {
				if len(counted) > 0 || log.Len() > 0 {
					t.Errorf("counted %v, log %s", counted, log)
				}
				return
			}
			if len(counted) != 1 || counted[tc.reason] != 1 {
				t.Errorf("counted %v, want one %s", counted, tc.reason)
			}
			if !strings.Contains(log.String(), " reason="+tc.reason+" ") || strings.Contains(log.String(), "forged") {
				t.Errorf("log %s", log)
			}
		})
	}
}

// Each family has its metric, with the reasons of the family.
func TestMetricsHaveTheReasonsOfTheirFamily(t *testing.T) {
	for _, name := range []string{telemetry.HTTPRefused, telemetry.JournalRefused, telemetry.ConfigRejected} {
		if descs[name] == nil {
			t.Errorf("%s is not exported", name)
		}
	}
}
