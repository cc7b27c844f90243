package gate

import (
	"net/netip"
	"sync"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Limits on how many wrong passwords of guessable names (credential.Authority.Guessable) the gate compares. Beyond them the gate drops the
// request without comparing its password, also when it is the right one. Ephemeral credentials under a long shared secret are not limited:
// 2^128 of them cannot be tried.
//
//	a public source (an IPv4 address, a /64 of IPv6)     10 a minute, then none for 60 s
//	all sources of one /48 of IPv6                       1,000 a minute
//	a user name that has signed in there this hour       100 a minute of its own
//	a private source (MayHide, loopback)                 1,000 a minute
//	each port of a private source                        10 a minute, then none for 60 s
//	a session's own 5-tuple, with the session's name     10 in all, whatever the source has used up
//
// Arithmetic. A list of 20,000 passwords takes half a second without limits. From one public address it takes 20,000 / 10 minutes,
// 33 hours. From one private address it takes 20 minutes, however many ports the host uses; eight random letters (2·10^11) take 200
// years on average. A password that stands on such a list is not safe; the operator warns of passwords that are shorter than 16 bytes.
//
// A private source may be a load balancer in front of all clients. One socket behind it that guesses uses up its port, which is 1 % of
// what the source has. A host that sends more than 17 guesses a second, from new ports all the time, uses up the source. New clients
// with a static name then wait at that source until the host stops: nothing in a first request tells them from the guesser, and
// comparing more passwords would find the right one. Sessions, their refreshes, other sources and ephemeral names do not wait.
const (
	strangerGuesses = 10   // a minute
	knownGuesses    = 100  // a minute
	hiddenGuesses   = 1000 // a minute
	// sitePrefix is what one site has of IPv6: 65,536 sources (RFC 6177 §2).
	sitePrefix     = 48
	sessionGuesses = 10 // in the life of a session
	guessLock      = time.Minute
	// signedIn is for how long a user name that has signed in is known at a source.
	signedIn = time.Hour
	// maxGuessers bounds the sources and ports, and the signed-in names, that are remembered. Beyond it, entries that are over make room
	// first, then a random one.
	maxGuessers = 4096
)

// guesser is the key of a limit: a source, a port of a source, or a user name at a source. The other fields are zero.
type guesser struct {
	source netip.Prefix
	port   uint16
	name   string
}

// allowance is how many wrong passwords a guesser has a minute. With lock it has none for guessLock after the last of them.
type allowance struct {
	guesser
	minute int
	lock   bool
}

// spent is what a guesser has used: full is when it will have its whole allowance again, locked until when it has none.
type spent struct{ full, locked time.Duration }

// guesses counts wrong passwords. Its times are those since epoch.
type guesses struct {
	epoch time.Time

	mu    sync.Mutex
	spent map[guesser]spent
	known map[guesser]time.Duration // when a user name has signed in last
}

func newGuesses() *guesses {
	return &guesses{epoch: time.Now(), spent: map[guesser]spent{}, known: map[guesser]time.Duration{}}
}

// own tells whether a request comes from a session's own 5-tuple in the name of its user, with less than sessionGuesses wrong passwords
// there so far.
func own(r *request, name string) bool {
	return r.flow != nil && r.flow.Username == name && r.flow.wrong.Load() < sessionGuesses
}

// allowances are the ones that a request uses. They need the lock.
func (g *guesses) allowances(r *request, name string, now time.Duration) []allowance {
	client := r.client.Addr()
	source := session.Source(client.Addr())
	if hides(client.Addr()) {
		return []allowance{
			{guesser: guesser{source: source, port: client.Port()}, minute: strangerGuesses, lock: true},
			{guesser: guesser{source: source}, minute: hiddenGuesses},
		}
	}
	user := guesser{source: source, name: name}
	if last, ok := g.known[user]; ok && now-last < signedIn {
		return []allowance{{guesser: user, minute: knownGuesses}}
	}
	list := []allowance{{guesser: guesser{source: source}, minute: strangerGuesses, lock: true}}
	if site, err := client.Addr().WithZone("").Prefix(sitePrefix); err == nil && client.Addr().Is6() {
		list = append(list, allowance{guesser: guesser{source: site}, minute: hiddenGuesses})
	}
	return list
}

// open tells whether the password of a request may be compared.
func (g *guesses) open(r *request) bool {
	raw, _ := r.value(stun.AttrUsername)
	name := string(raw)
	if own(r, name) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Since(g.epoch)
	for _, a := range g.allowances(r, name, now) {
		s := g.spent[a.guesser]
		if now < s.locked || s.full-now+a.price() > time.Minute {
			return false
		}
	}
	return true
}

// wrong counts a wrong password.
func (g *guesses) wrong(r *request) {
	raw, _ := r.value(stun.AttrUsername)
	name := string(raw)
	if own(r, name) {
		r.flow.wrong.Add(1)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Since(g.epoch)
	for _, a := range g.allowances(r, name, now) {
		s := g.spent[a.guesser]
		s.full = max(s.full, now) + a.price()
		if a.lock && s.full-now+a.price() > time.Minute {
			s.locked = now + guessLock
		}
		makeRoom(g.spent, a.guesser, func(s spent) bool { return s.full <= now && s.locked <= now })
		g.spent[a.guesser] = s
	}
}

// right notes that a user has signed in.
func (g *guesses) right(r *request, name string) {
	client := r.client.Addr().Addr()
	if hides(client) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now, user := time.Since(g.epoch), guesser{source: session.Source(client), name: name}
	makeRoom(g.known, user, func(last time.Duration) bool { return now-last >= signedIn })
	g.known[user] = now
}

// price is the time in which a guesser gets one wrong password back.
func (a allowance) price() time.Duration { return time.Minute / time.Duration(a.minute) }

// makeRoom keeps a map at maxGuessers entries. It looks at a few random entries and deletes those that are over, or else one of them, so
// that it takes the same time however many there are.
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

// hides tells whether an address may be shared by many clients: that of a load balancer, or of the host itself.
func hides(a netip.Addr) bool { return MayHide(a) || a.IsLoopback() }
