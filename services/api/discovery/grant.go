package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"
)

// Grant is what a caller may read, everything or one config, and what is known of the caller.
type Grant struct {
	All bool
	ID  string
	// Pod and Node are the caller's own and the one that it runs on; "" when it is not known to be a pod.
	Pod, Node string
	// ForAuth says that the caller hands out credentials: it reads config.Config.ForAuth of what it may read, and reports nothing.
	ForAuth bool

	// redacted leaves the secrets out.
	redacted bool
}

// allows tells whether all that want means may be read.
func (g Grant) allows(want selector) bool {
	return g.All || want.one() && string(want) == g.ID
}

// vouches tells whether the caller may say that of itself.
func (g Grant) vouches(r Report) bool {
	return !g.redacted && !g.ForAuth && (g.Pod == "" || r.Pod == g.Pod && r.ID == g.ID)
}

// sight is what the caller gets to see. The node of a pod is known better than what the pod says.
func (g Grant) sight(r *http.Request) sight {
	node := g.Node
	if g.Pod == "" {
		node = r.URL.Query().Get("node")
	}
	return sight{node: node, redacted: g.redacted, forAuth: g.ForAuth}
}

// ErrUndecided says that it cannot be found out now what a caller may read. It opens nothing, and it ends nothing.
var ErrUndecided = errors.New("who asks cannot be found out now")

// Refusal is why somebody was refused something.
type Refusal string

// The refusals.
const (
	Unauthenticated Refusal = "unauthenticated"
	Forbidden       Refusal = "forbidden"
	Undecided       Refusal = "undecided"
	Hasty           Refusal = "hasty"       // too many requests from one address
	Crowded         Refusal = "crowded"     // too many streams
	Misreported     Refusal = "misreported" // a report about somebody else
	Withheld        Refusal = "withheld"    // only the secrets: see ServerOptions.Permissive
)

// refusals are the answers; retry is in seconds, 0 where it is of no use to try again.
var refusals = map[Refusal]struct {
	code    int
	retry   int
	level   slog.Level
	message string
}{
	Unauthenticated: {http.StatusUnauthorized, 0, slog.LevelInfo, "A valid bearer token is needed"},
	Forbidden:       {http.StatusForbidden, 0, slog.LevelInfo, "This token does not grant these configs"},
	Undecided:       {http.StatusServiceUnavailable, 5, slog.LevelWarn, "The token cannot be checked now"},
	Hasty:           {http.StatusTooManyRequests, 1, slog.LevelDebug, "Too many requests from this address"},
	Crowded:         {http.StatusServiceUnavailable, 5, slog.LevelDebug, "Too many streams are open"},
}

// refuse answers with a refusal.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, why Refusal, details ...any) {
	s.count(why)
	as := refusals[why]
	s.options.Log.Log(r.Context(), as.level, "config reader is refused", append([]any{"remote", r.RemoteAddr, "reason", why}, details...)...)
	if as.retry > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(as.retry))
	}
	if why == Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	fail(w, as.code, as.message)
}

func (s *Server) count(why Refusal) {
	if s.options.OnRefusal != nil {
		s.options.OnRefusal(why)
	}
}

// authorized answers those who may not read what they want.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request, want selector) (Grant, bool) {
	grant, why, err := s.judge(r, want)
	switch {
	case why != "":
		s.refuse(w, r, why, "wants", string(want), "error", err)
	case grant.redacted:
		s.count(Withheld)
	}
	return grant, why == ""
}

// judge says what somebody may read who wants that, or why nothing.
func (s *Server) judge(r *http.Request, want selector) (grant Grant, why Refusal, err error) {
	if s.options.Authorize == nil {
		return Grant{All: true}, "", nil
	}
	grant, err = s.options.Authorize(r)
	switch {
	case errors.Is(err, ErrUndecided):
		// A reader that gets nothing keeps what it has. One that got a config without secrets might use it.
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

// reviewEvery is the longest time for which a stream goes on with a token that is no longer good.
const reviewEvery = 10 * time.Minute

var errRevoked = errors.New("the reader may no longer read what it reads")

// reconsider asks again now and then whether the reader may read, and returns when it may not. Readers are asked for at different times:
// after a restart all of them come at once.
func (s *Server) reconsider(stream *stream, r *http.Request, want selector, grant Grant) error {
	for {
		select {
		case <-stream.ctx.Done():
			return context.Cause(stream.ctx)
		case <-time.After(reviewEvery/2 + rand.N(reviewEvery/2)):
		}
		if now, why, err := s.judge(r, want); why != Undecided && now != grant {
			return fmt.Errorf("%w: %w", errRevoked, errors.Join(err, errors.New(string(why))))
		}
	}
}
