package gate

import (
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
)

// siege is a client that only requests challenges or guesses passwords, several at a time.
type siege struct {
	by    *actor
	flaw  flaw // sound means that the client guesses
	times int
}

// levels are the used parts of the limits of a source, as durations.
type levels struct {
	challenges, failures time.Duration
	// guesses are the counters of SourceGuesses, and known the counters of UserGuesses. signedIn is when the user was
	// last authenticated.
	guesses, known   time.Duration
	locked, signedIn time.Time
	at               time.Time
}

// take adds a price to a level, unless the sum exceeds most.
func take(level *time.Duration, price, most time.Duration) bool {
	if *level+price > most {
		return false
	}
	*level += price
	return true
}

// proven returns the tokens of a challenge whose nonce the client has used.
func (m *trial) proven(a *actor) {
	a.challenges = max(0, a.challenges-time.Second/10)
	if a.alloc == nil {
		l := m.sources[a.addr.Addr()]
		l.challenges = max(0, l.challenges-time.Second/10)
	}
}

// mayGuess reports whether a password is compared.
func (m *trial) mayGuess(a *actor, l login) bool {
	s, now := m.sources[a.addr.Addr()], time.Now()
	switch {
	case a.alloc != nil && a.alloc.username == l.username && a.alloc.wrong < limit.SessionGuesses:
		return true
	case m.isKnown(s, l):
		return s.known+time.Minute/limit.UserGuesses <= time.Minute
	}
	return !now.Before(s.locked) && s.guesses+time.Minute/limit.SourceGuesses <= time.Minute
}

func (m *trial) isKnown(s *levels, l login) bool {
	return l.username == "ann" && !s.signedIn.IsZero() && time.Since(s.signedIn) < time.Hour
}

// guessed counts a wrong password.
func (m *trial) guessed(a *actor, l login) {
	s, now := m.sources[a.addr.Addr()], time.Now()
	switch {
	case slices.ContainsFunc(m.former, func(f former) bool { return l.username == "ann" && f.password == l.password }):
	case a.alloc != nil && a.alloc.username == l.username && a.alloc.wrong < limit.SessionGuesses:
		a.alloc.wrong++
	case m.isKnown(s, l):
		s.known += time.Minute / limit.UserGuesses
	default:
		if s.guesses += time.Minute / limit.SourceGuesses; s.guesses+time.Minute/limit.SourceGuesses > time.Minute {
			s.locked = now.Add(time.Minute)
			m.seen["guesser locked"]++
		}
	}
}

// sourcesCollide reports whether two clients or two sources share a bucket of a limit, which the model does not
// include. It uses up the limits, and waits until they are full again.
func (m *trial) sourcesCollide() (collide bool) {
	uses := func(allow func() bool) (n int) {
		for allow() {
			n++
		}
		return n
	}
	for _, a := range m.actors {
		r := limit.Request{Client: a.addr, Session: true}
		collide = collide || uses(func() bool { return m.Gate.answers.Allow(r, limit.Challenge) }) != limit.TupleBurst
	}
	time.Sleep(time.Minute)
	seen := map[netip.Addr]bool{}
	for _, a := range m.actors {
		if seen[a.addr.Addr()] {
			continue
		}
		seen[a.addr.Addr()] = true
		r := limit.Request{Client: a.addr}
		collide = collide || uses(
			func() bool { return m.Gate.answers.Allow(r, limit.Challenge) },
		) != limit.ChallengeBurst ||
			uses(func() bool { return m.limits.AllowFailure(r) }) != limit.FailureBurst
	}
	time.Sleep(time.Minute)
	return collide
}

// answers reports whether an unauthenticated request gets an answer of a price.
func (m *trial) answers(a *actor, price time.Duration) bool {
	return a.connected || take(&a.challenges, price, time.Second) &&
		(a.alloc != nil || take(&m.sources[a.addr.Addr()].challenges, price, time.Second))
}
