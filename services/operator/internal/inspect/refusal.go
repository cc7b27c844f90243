package inspect

import (
	"log/slog"
	"net/http"
	"slices"
)

// Refusal is a reason for which the API refuses requests. The answer, the metric, the log line and
// docs/reference/operator-refusals.md are made from it. The answer contains further details.
type Refusal struct {
	// Code is the status code of the answer.
	Code int
	// Reason is a label value of the metric.
	Reason string
	// Text is the text of the log line.
	Text string
	// Level is the level of the log line: WARN if the installation causes the refusal.
	Level slog.Level
}

// Refusals are all reasons for which the API refuses requests.
var Refusals = []Refusal{
	{http.StatusBadRequest, "bad_request", "A name or a parameter of the request is invalid", slog.LevelInfo},
	{http.StatusUnauthorized, "unauthenticated", "The request has no token, or one that is not valid", slog.LevelInfo},
	{http.StatusForbidden, "forbidden", "The caller has not the right that the request needs", slog.LevelInfo},
	{http.StatusNotFound, "not_found", "There is no such path, method, or published config", slog.LevelInfo},
	{http.StatusTooManyRequests, "hasty", "Too many requests of a caller, of an address or for a namespace", slog.LevelWarn},
	{http.StatusServiceUnavailable, "unavailable", "The request cannot be authorized or answered now", slog.LevelWarn},
}

// count counts and logs the refusal of a request. A code that is not in Refusals counts as unavailable.
func (a *API) count(code int, r *http.Request) {
	why := Refusals[len(Refusals)-1]
	if at := slices.IndexFunc(Refusals, func(known Refusal) bool { return known.Code == code }); at >= 0 {
		why = Refusals[at]
	}
	if a.OnRefusal != nil {
		a.OnRefusal(why.Reason)
	}
	a.lines.Log(a.Log, why.Level, "inspection request refused", why.Reason, why.Text, "remote", r.RemoteAddr, "code", code)
}
