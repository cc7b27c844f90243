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
	Undecided:       {http.StatusServiceUnavailable, 2, slog.LevelWarn, "The token cannot be checked now"},
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
	grant, why, err := s.judge(s.options.Authorize, r, want)
	switch {
	case why != "":
		s.refuse(w, r, why, "wants", string(want), "error", err)
	case grant.redacted:
		s.count(Withheld)
	}
	return grant, why == ""
}

// judge says what somebody may read who wants that, or why nothing, as authorize knows the caller.
func (s *Server) judge(authorize func(*http.Request) (Grant, error), r *http.Request, want selector) (grant Grant, why Refusal, err error) {
	if authorize == nil {
		return Grant{All: true}, "", nil
	}
	grant, err = authorize(r)
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

// review asks again now and then whether a reader may read, and ends its stream when it may not. It is a timer and no goroutine. The zero review does nothing.
type review struct {
	timer *time.Timer
	judge func()
	// asking is held while the question is asked: one at a time.
	asking sync.Mutex
}

// review begins the review of a stream. Readers are asked for at different times: after a restart all of them come at once.
func (s *Server) review(stream *stream, r *http.Request, want selector, grant Grant) *review {
	v := &review{}
	if s.options.Confirm == nil {
		return v
	}
	v.judge = func() {
		v.asking.Lock()
		defer v.asking.Unlock()
		if stream.ctx.Err() != nil {
			return
		}
		if now, why, err := s.judge(s.options.Confirm, r, want); why != Undecided && now != grant {
			stream.cancel(fmt.Errorf("%w: %w", errRevoked, errors.Join(err, errors.New(string(why)))))
			return
		}
		v.timer.Reset(reviewPause())
	}
	v.asking.Lock()
	v.timer = time.AfterFunc(reviewPause(), v.judge)
	v.asking.Unlock()
	return v
}

func reviewPause() time.Duration { return reviewEvery/2 + rand.N(reviewEvery/2) }

// stop ends the review.
func (v *review) stop() {
	if v.timer != nil {
		v.timer.Stop()
	}
}

// Reconsider asks at once whether the streams of a pod may go on, which reads the config ID: something about the pod has changed.
func (s *Server) Reconsider(id, pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers[selector(id)] {
		if w.pod == pod && w.review.judge != nil {
			go w.review.judge()
		}
	}
}
