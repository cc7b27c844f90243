package admin

import (
	"net/http"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// refusedReasons are the reasons of refused HTTP requests by their status code. Any other error has HTTPOther.
var refusedReasons = map[int]meter.Reason{
	http.StatusBadRequest: meter.HTTPParameter, http.StatusForbidden: meter.HTTPCaller,
	http.StatusNotFound: meter.HTTPPath, http.StatusMethodNotAllowed: meter.HTTPMethod,
}

// counted returns a handler that counts and logs the requests that h refuses. The probes answer 503 to report a state,
// so 503 is not a refusal. A nil Meter is valid: it counts nothing.
func counted(m *meter.Meter, h http.Handler) http.Handler {
	if m == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &statusWriter{ResponseWriter: w}
		h.ServeHTTP(s, r)
		if s.status < http.StatusBadRequest || s.status == http.StatusServiceUnavailable {
			return
		}
		why, known := refusedReasons[s.status]
		if !known {
			why = meter.HTTPOther
		}
		m.Decline(why, meter.Note{})
	})
}

// statusWriter records the status code of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
