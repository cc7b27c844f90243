package discovery

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Grant is the authorization of a caller.
type Grant struct {
	// All allows the caller to read all configs.
	All bool
	// ID is the id of the only config that the caller may read, unless All is set.
	ID string
	// Pod is the name of the caller's pod, or "" if the caller is not known to be a pod.
	Pod string
	// Absent is set if the Gateway of the pod does not exist. The pod can then open no stream. Otherwise any user who
	// may create pods could open all streams.
	Absent bool
	// Unreported is set if no node has reported an address of Pod yet: either its containers have just started, or they
	// never will. See Limits.Unreported.
	Unreported bool
	// Node is the node on which Pod runs.
	Node string
	// ForAuth is set for an auth service. It receives config.Config.ForAuth of each config, and cannot send reports.
	ForAuth bool

	// redacted is set if the caller receives configs without secrets.
	redacted bool
}

// allows reports whether the caller may read every config that want selects.
func (g Grant) allows(want selector) bool {
	return g.All || want.one() && string(want) == g.ID
}

// mayReport reports whether the caller may send a report. A pod may report only about itself.
func (g Grant) mayReport(r Report) bool {
	return !g.redacted && !g.ForAuth && (g.Pod == "" || r.Pod == g.Pod && r.ID == g.ID)
}

// scope returns the properties on which the form of the caller's configs depends. For a pod the node is taken from the
// grant and not from the request, because a pod must not receive the address of another node.
func (g Grant) scope(r *http.Request) readerScope {
	node := g.Node
	if g.Pod == "" {
		node = r.URL.Query().Get("node")
	}
	return readerScope{node: node, redacted: g.redacted, forAuth: g.ForAuth}
}

// ErrUndecided is returned if a caller cannot be authorized now, for example because the API server does not answer.
// The request is refused, and an open stream stays open.
var ErrUndecided = errors.New("the caller cannot be authorized now")

// Refusal is the reason for a refusal. It is a label value of a metric.
type Refusal string

// The refusals.
const (
	Unauthenticated Refusal = "unauthenticated"
	Forbidden       Refusal = "forbidden"
	Undecided       Refusal = "undecided" // see ErrUndecided
	TooManyRequests Refusal = "hasty"     // from one source
	TooManyStreams  Refusal = "crowded"   // see Limits
	NotFound        Refusal = "not_found"
	NoStream        Refusal = "no_stream"
	Misreported     Refusal = "misreported" // a report about another pod, its peer at another address, or an answer without a request
	Withheld        Refusal = "withheld"    // only the secrets are refused: see ServerOptions.Permissive
)

// RefusalRow describes a Refusal.
type RefusalRow struct {
	Refusal
	// Text is the message of the answer, and the text of the log line.
	Text string
	// Level is the level of the log line: WARN if the installation causes the refusal.
	Level slog.Level
	// code is the status code of the answer. It is 0 if there is no answer, or if the answer has another status code.
	// retry is the value of Retry-After in seconds, or 0 if a retry cannot succeed.
	code, retry int
}

// Refusals are all reasons for which a Server refuses requests and streams.
var Refusals = []RefusalRow{
	{Unauthenticated, "A valid bearer token is needed", slog.LevelInfo, http.StatusUnauthorized, 0},
	{Forbidden, "This token does not grant these configs", slog.LevelInfo, http.StatusForbidden, 0},
	{Undecided, "The token cannot be checked now", slog.LevelWarn, http.StatusServiceUnavailable, 2},
	{TooManyRequests, "Too many requests from this address", slog.LevelWarn, http.StatusTooManyRequests, 1},
	{TooManyStreams, "Too many streams are open", slog.LevelWarn, http.StatusServiceUnavailable, 5},
	{NotFound, "There is no config of this Gateway, or no such path or method", slog.LevelInfo, 0, 0},
	{NoStream, "The request for a stream is no valid WebSocket handshake", slog.LevelInfo, 0, 0},
	{Misreported, "A client has sent a report about another Gateway or pod, or with an address that is not its own, " +
		"or an answer without a request: it is ignored", slog.LevelWarn, 0, 0},
	{Withheld, "A caller that is not authorized has received configs without their secrets", slog.LevelInfo, 0, 0},
}

// refusals are the Refusals by reason.
var refusals = func() map[Refusal]RefusalRow {
	all := make(map[Refusal]RefusalRow, len(Refusals))
	for _, row := range Refusals {
		all[row.Refusal] = row
	}
	return all
}()

// refuse answers a request with a refusal.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, why Refusal, details ...any) {
	s.count(why, append([]any{"remote", r.RemoteAddr}, details...)...)
	as := refusals[why]
	if as.retry > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(as.retry))
	}
	if why == Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeError(w, as.code, as.Text)
}

// count counts and logs a refusal.
func (s *Server) count(why Refusal, details ...any) {
	if s.options.OnRefusal != nil {
		s.options.OnRefusal(why)
	}
	s.lines.Log(s.options.Log, refusals[why].Level, "config reader refused", string(why), refusals[why].Text, details...)
}

// authorized returns the grant of a request. If the caller may not read the configs that want selects, it answers the
// request and returns false.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request, want selector) (Grant, bool) {
	grant, why, err := s.judge(s.options.Authorize, r, want)
	switch {
	case why != "":
		s.refuse(w, r, why, "wants", string(want), "error", err)
	case grant.redacted:
		s.count(Withheld, "remote", r.RemoteAddr, "wants", string(want))
	}
	return grant, why == ""
}

// judge returns the grant of a caller for the configs that want selects. If the caller may not read them, it returns
// the reason.
func (s *Server) judge(authorize func(*http.Request) (Grant, error), r *http.Request, want selector) (
	grant Grant, why Refusal, err error,
) {
	if authorize == nil {
		return Grant{All: true}, "", nil
	}
	grant, err = authorize(r)
	switch {
	case errors.Is(err, ErrUndecided):
		// A refused reader keeps its current config. If it received a config without secrets instead, it might apply
		// that.
		return Grant{}, Undecided, err
	case err == nil && grant.allows(want):
		return grant, "", nil
	case s.options.Permissive:
		return Grant{All: true, redacted: true}, "", nil
	case err != nil:
		return Grant{}, Unauthenticated, err
	}
	return Grant{}, Forbidden, nil
}

// reviewInterval is the longest time for which a stream stays open after its token has become invalid.
const reviewInterval = 10 * time.Minute

var errRevoked = errors.New("the reader may no longer read what it reads")

// review repeats the authorization of a stream periodically, and ends the stream if the authorization fails or changes.
// It uses a timer and no goroutine, because there are thousands of streams. The zero review does nothing.
type review struct {
	timer *time.Timer
	run   func()
	// running serializes run.
	running sync.Mutex
}

// review starts the review of a stream. The intervals are random, because all clients may have connected at the same
// time after a restart.
func (s *Server) review(stream *stream, r *http.Request, want selector, grant Grant) *review {
	v := &review{}
	if s.options.Confirm == nil {
		return v
	}
	v.run = func() {
		v.running.Lock()
		defer v.running.Unlock()
		if stream.ctx.Err() != nil {
			return
		}
		now, why, err := s.judge(s.options.Confirm, r, want)
		reported := grant.Unreported && !now.Unreported
		// The stream of a pod whose Gateway was deleted stays open, and so does one of a pod that was reported since.
		now.Absent, now.Unreported = grant.Absent, grant.Unreported
		if why != Undecided && now != grant {
			stream.cancel(fmt.Errorf("%w: %w", errRevoked, errors.Join(err, errors.New(string(why)))))
			return
		}
		if reported && why == "" {
			s.streams.reported(grant, stream)
		}
		v.timer.Reset(reviewDelay())
	}
	v.running.Lock()
	v.timer = time.AfterFunc(reviewDelay(), v.run)
	v.running.Unlock()
	return v
}

func reviewDelay() time.Duration { return reviewInterval/2 + rand.N(reviewInterval/2) }

func (v *review) stop() {
	if v.timer != nil {
		v.timer.Stop()
	}
}
