package limit

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Limits on how many wrong passwords of guessable names (credential.Authority.Guessable) are compared. Beyond them the
// gate refuses a request without comparing its password, even if the password is right. Ephemeral credentials under a
// long shared secret are not limited: 2^128 of them cannot be tried.
//
//	a public source (an IPv4 address, a /64 of IPv6)     10 a minute, then none for 60 s
//	all sources of one /48 of IPv6                       1,000 a minute
//	a user that has authenticated there in the last hour 100 a minute of its own
//	a private source (PrivateOrLoopback)                 1,000 a minute
//	each port of a private source                        10 a minute, then none for 60 s
//	a session's own 5-tuple and user                     10 in all, independent of the source
//
// A list of 20,000 passwords takes half a second without limits. From one public address it takes 20,000 / 10 minutes,
// 33 hours. From one private address it takes 20 minutes, with any number of ports. Eight random letters (2·10^11) take
// 200 years on average. Therefore the operator warns about passwords shorter than 16 bytes.
//
// A private source may be a load balancer in front of all clients. One socket behind it that guesses uses up its port,
// which is 1 % of the limit of the source. A host that sends more than 17 guesses a second, each from a new port, uses
// up the source. New clients with a static name are then refused at that source until the host stops. Their first
// request cannot be distinguished from a guess, and with more comparisons the password would be found. Sessions, their
// refreshes, other sources and ephemeral names are not affected.
const (
	// SourceGuesses is how many wrong passwords of a public source, and of each port of a private source, are compared.
	SourceGuesses = 10 // a minute
	// UserGuesses is how many wrong passwords of a user are compared at a source where the user has authenticated
	// before.
	UserGuesses = 100 // a minute
	// PrivateGuesses is how many wrong passwords of a private source, and of a /48 of IPv6, are compared.
	PrivateGuesses = 1000 // a minute
	// SessionGuesses is how many wrong passwords of the 5-tuple and user of a session are compared in all.
	SessionGuesses = 10
	// sitePrefix is the length of the IPv6 prefix of a site, which has 65,536 sources (RFC 6177 §2).
	sitePrefix = 48
	guessLock  = time.Minute
	// authenticatedFor is how long UserGuesses wrong passwords a minute are allowed after a user has authenticated at a
	// source.
	authenticatedFor = time.Hour
	// maxGuessers bounds the number of entries of each table of wrong passwords. When a table is full, a new entry
	// replaces an entry that limits nothing any more, or else a random entry.
	maxGuessers = 4096
)

// Guesses counts the wrong passwords of a session. The zero Guesses is ready to use.
type Guesses struct{ wrong atomic.Int32 }

// guesser is the key for which wrong passwords are counted: a source, a port of a source, or a user at a source. Fields
// that do not apply are zero.
type guesser struct {
	source netip.Prefix
	port   uint16
	user   string
}

type allowance struct {
	guesser
	// perMinute is how many wrong passwords are compared in a minute.
	perMinute int
	// lock is set if no password is compared for guessLock after perMinute is reached.
	lock bool
}

// spent is the used part of an allowance of wrong passwords, stored as times since guesses.epoch.
type spent struct {
	// full is the time from which no earlier wrong password counts any more.
	full time.Duration
	// locked is when the lock ends.
	locked time.Duration
}

// guesses counts wrong passwords. Its times are durations since the field epoch.
type guesses struct {
	epoch time.Time

	mu            sync.Mutex
	spent         map[guesser]spent
	authenticated map[guesser]time.Duration // when a user last authenticated at a source
}

func newGuesses() *guesses {
	return &guesses{epoch: time.Now(), spent: map[guesser]spent{}, authenticated: map[guesser]time.Duration{}}
}

// ofSession reports whether wrong passwords of the request count only against the limit of its session.
func ofSession(r Request) bool { return r.Guesses != nil && r.Guesses.wrong.Load() < SessionGuesses }

// allowances returns the allowances against which a wrong password of the request counts. The caller holds mu.
func (g *guesses) allowances(r Request, now time.Duration) []allowance {
	source := session.Source(r.Client.Addr())
	if PrivateOrLoopback(r.Client.Addr()) {
		return []allowance{
			{guesser: guesser{source: source, port: r.Client.Port()}, perMinute: SourceGuesses, lock: true},
			{guesser: guesser{source: source}, perMinute: PrivateGuesses},
		}
	}
	user := guesser{source: source, user: string(r.Username)}
	if last, ok := g.authenticated[user]; ok && now-last < authenticatedFor {
		return []allowance{{guesser: user, perMinute: UserGuesses}}
	}
	list := []allowance{{guesser: guesser{source: source}, perMinute: SourceGuesses, lock: true}}
	if site, err := r.Client.Addr().WithZone("").Prefix(sitePrefix); err == nil && r.Client.Addr().Is6() {
		list = append(list, allowance{guesser: guesser{source: site}, perMinute: PrivateGuesses})
	}
	return list
}

func (g *guesses) mayCompare(r Request) bool {
	if ofSession(r) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Since(g.epoch)
	for _, a := range g.allowances(r, now) {
		s := g.spent[a.guesser]
		if now < s.locked || s.full-now+a.interval() > time.Minute {
			return false
		}
	}
	return true
}

func (g *guesses) wrong(r Request) {
	if ofSession(r) {
		r.Guesses.wrong.Add(1)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Since(g.epoch)
	for _, a := range g.allowances(r, now) {
		s := g.spent[a.guesser]
		s.full = max(s.full, now) + a.interval()
		if a.lock && s.full-now+a.interval() > time.Minute {
			s.locked = now + guessLock
		}
		makeRoom(g.spent, a.guesser, func(s spent) bool { return s.full <= now && s.locked <= now })
		g.spent[a.guesser] = s
	}
}

func (g *guesses) right(client netip.Addr, name string) {
	if PrivateOrLoopback(client) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now, user := time.Since(g.epoch), guesser{source: session.Source(client), user: name}
	makeRoom(g.authenticated, user, func(last time.Duration) bool { return now-last >= authenticatedFor })
	g.authenticated[user] = now
}

// interval returns the time after which one wrong password no longer counts against perMinute.
func (a allowance) interval() time.Duration { return time.Minute / time.Duration(a.perMinute) }

// makeRoom removes entries from a map that has maxGuessers entries, so that an entry with the key next can be added. It
// visits a few random entries only, so that its time does not depend on the size of the map. It removes the visited
// entries for which over returns true, or else one visited entry.
func makeRoom[V any](m map[guesser]V, next guesser, over func(V) bool) {
	const few = 16
	if _, ok := m[next]; ok || len(m) < maxGuessers {
		return
	}
	looked := 0
	var victim guesser
	for k, v := range m {
		if victim = k; over(v) {
			delete(m, k)
		}
		if looked++; looked == few {
			break
		}
	}
	if len(m) >= maxGuessers {
		delete(m, victim)
	}
}
