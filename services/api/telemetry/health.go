package telemetry

import (
	"encoding/json"
	"net/http"
)

// Health answers the probes /live and /ready.
type Health struct {
	// Live returns nil if the process is live. Otherwise it returns an error, whose text is in the answer. If Live is
	// nil, the process counts as live.
	Live func() error
	// Ready returns nil if the process is ready. Otherwise it returns an error, whose text is in the answer. If Ready
	// is nil, the process counts as ready.
	Ready func() error
}

// verdict is the body of an answer.
type verdict struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
}

// ServeHTTP answers 200 or 503: /live with an empty object, /ready with status and message.
func (h Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/live" && r.URL.Path != "/ready":
		http.NotFound(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	case r.URL.Path == "/live":
		answer(w, h.Live, struct{}{})
	default:
		answer(w, h.Ready, verdict{Status: http.StatusOK, Message: "READY"})
	}
}

func answer(w http.ResponseWriter, check func() error, body any) {
	status := http.StatusOK
	if check != nil {
		if err := check(); err != nil {
			status = http.StatusServiceUnavailable
			body = verdict{Status: status, Message: err.Error()}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only if the client has disconnected
}
