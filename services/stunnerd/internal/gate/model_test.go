package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

var modelSeed = flag.Uint64("model.seed", 0, "the seed of TestModel; 0 takes a random one")

const (
	modelSequences = 200
	modelSteps     = 500 // fewer than a second has milliseconds: see trial.run
)

// G-08: every error code that the gate may answer with is met in each run.
//
// F-03: whatever several clients and peers do, and however time passes and the config changes meanwhile, every answer and every datagram is
// what a model of RFC 8656 says, and the gate counts what the model counts.
func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed: -model.seed=%d", seed)
	halves := [2]map[string]int{{}, {}}
	t.Run("sequences", func(t *testing.T) {
		for half, seen := range halves {
			t.Run(fmt.Sprint("half ", half), func(t *testing.T) {
				t.Parallel()
				for i := half; i < modelSequences && !t.Failed(); i += 2 {
					synctest.Test(t, func(t *testing.T) { newTrial(t, rand.New(rand.NewPCG(seed, uint64(i))), seen).run() })
				}
			})
		}
	})
	seen := halves[0]
	for name, n := range halves[1] {
		seen[name] += n
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d × %s", seen[name], name)
	}
	for _, name := range []string{
		"Allocate success", "Allocate 400", "Allocate 401", "Allocate 420", "Allocate 437", "Allocate 438", "Allocate 440", "Allocate 442",
		"Allocate 486", "Allocate 508", "Allocate by token", "guesser locked", "Allocate once more", "Allocate silence", "Refresh success", "Refresh 401", "Refresh 437",
		"Refresh 441", "Refresh 443", "CreatePermission success", "CreatePermission 400", "CreatePermission 403", "CreatePermission 437",
		"CreatePermission 441", "CreatePermission 443", "ChannelBind success", "ChannelBind 400", "ChannelBind 403", "ChannelBind 437",
		"ChannelBind 441", "ChannelBind 443", "Binding success", "Send passes", "Send silence", "ChannelData passes", "ChannelData silence",
		"peer by channel", "peer by indication", "peer silence", "hang-up", "expiry",
	} {
		if seen[name] == 0 && !t.Failed() {
			t.Errorf("no step ended with: %s", name)
		}
	}
}

// trial is a gate with clients and peers, and what the model knows of them.
type trial struct {
	*virtual
	rng    *rand.Rand
	seen   map[string]int
	step   int
	story  [15]event
	last   *stun.Message // the request made last
	siege  siege
	actors []*actor

	password string // of ann
	former   []former
	grace    time.Duration
	routes   map[string]bool
	bounds   session.Bounds
	retired  bool
	reserved map[relay.Token]reservedPort
	sources  map[netip.Addr]*levels
}

// siege is a client that asks for nothing but challenges, or guesses passwords, so many times at once.
type siege struct {
	by    *actor
	flaw  flaw // or sound, to guess
	times int
}

// actor is a client: its transport, what it knows, and what the model knows of it.
type actor struct {
	name string
	addr netip.AddrPort
	// connected says that it came over a connection: nobody can have forged its address.
	connected bool
	mu        sync.Mutex
	got       [][]byte

	login login
	nonce stun.Nonce
	born  time.Time // of the nonce
	relay netip.AddrPort
	alloc *modelAllocation
	// challenges is what its address and port have used of their answers, as of at.
	challenges time.Duration
	at         time.Time
}

// Send is part of session.Client, as are Addr, Connected and Released.
func (a *actor) Send(frame []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, bytes.Clone(frame))
	return nil
}

func (a *actor) Addr() netip.AddrPort { return a.addr }
func (a *actor) Connected() bool      { return a.connected }
func (a *actor) Admitted() error      { return nil }
func (a *actor) Released()            {}

func (a *actor) take() [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.got
	a.got = nil
	return got
}

// login is a credential. Only a genuine one was made with the secret of the gateway.
type login struct {
	username, password, user string
	expires                  time.Time
	genuine                  bool
}

// The state of the model: what RFC 8656 keeps for an allocation (§2.2, §9, §12), with the time at which each thing ends.
type modelAllocation struct {
	username, user string
	source         netip.Addr
	wrong          int // wrong passwords on its 5-tuple in the name of its user
	relay          netip.AddrPort
	ends           time.Time
	granted        uint32
	permissions    map[netip.Addr]time.Time
	channels       map[uint16]binding
	// What made it.
	request *stun.Message
	login   login
	born    time.Time // of its nonce
}

type binding struct {
	peer netip.AddrPort
	ends time.Time
	// heard is until when ChannelData of the client let its peer be heard.
	heard time.Time
}

type former struct {
	password string
	until    time.Time
}

type reservedPort struct {
	at    netip.AddrPort
	ends  time.Time
	owner *modelAllocation // it ends with the allocation that asked for it
}

// levels are what a source has used of its answers, in time.
type levels struct {
	challenges, failures time.Duration
	// guesses are those of strangers, known those in the name of a user who signed in before, the last time at signedIn.
	guesses, known   time.Duration
	locked, signedIn time.Time
	at               time.Time
}

// take takes an answer of a price out of a level that drains with time, unless it would rise too high.
func take(level *time.Duration, price, most time.Duration) bool {
	if *level+price > most {
		return false
	}
	*level += price
	return true
}

// proven gives a challenge back: the client has read its nonce.
func (m *trial) proven(a *actor) {
	a.challenges = max(0, a.challenges-time.Second/10)
	if a.alloc == nil {
		l := m.sources[a.addr.Addr()]
		l.challenges = max(0, l.challenges-time.Second/10)
	}
}

// mayGuess tells whether the password of a guessable name is compared.
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

// The world: a relay address of each family, and peers of which a route allows the address, or address and port, or nothing.
var (
	relay4, relay6 = netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("2001:db8:f::200")
	modelRoutes    = map[string][]string{"a": {"192.0.2.10:<4000-4999>", relay4.String()}, "b": {"192.0.2.11"}, "c": {"2001:db8:1::5:<4000-4000>", relay6.String()}}
	modelPeers     = []peerFacts{
		{netip.MustParseAddrPort("192.0.2.10:4000"), "a", true}, {netip.MustParseAddrPort("192.0.2.10:4001"), "a", true},
		{netip.MustParseAddrPort("192.0.2.10:9"), "a", false}, {netip.MustParseAddrPort("192.0.2.11:4000"), "b", true},
		{netip.MustParseAddrPort("192.0.2.13:4000"), "", false}, {netip.MustParseAddrPort("[2001:db8:1::5]:4000"), "c", true},
		{netip.MustParseAddrPort("[2001:db8:1::5]:4001"), "c", false}, {netip.MustParseAddrPort("[2001:db8:2::5]:4000"), "", false},
	}
)

// peerFacts is a peer, the route that allows its address, and whether that allows its port too.
type peerFacts struct {
	at    netip.AddrPort
	route string
	port  bool
}

func (p peerFacts) String() string { return p.at.String() }

func (m *trial) allowsAddr(p peerFacts) bool { return m.routes[p.route] }
func (m *trial) allows(p peerFacts) bool     { return m.routes[p.route] && p.port }

func newTrial(t *testing.T, rng *rand.Rand, seen map[string]int) *trial {
	m := &trial{
		virtual: newVirtual(t), rng: rng, seen: seen, password: "password 0", routes: map[string]bool{"a": true, "b": true, "c": true},
		reserved: map[relay.Token]reservedPort{}, sources: map[netip.Addr]*levels{},
	}
	for i, addr := range []string{"198.51.100.1:1000", "198.51.100.1:1001", "198.51.100.2:1000", "[2001:db8:c::1]:1000", "198.51.100.3:1000"} {
		m.actors = append(m.actors, &actor{name: fmt.Sprint("client ", i), addr: netip.MustParseAddrPort(addr), connected: i == 4})
	}
	for m.sourcesCollide() {
		*m.limits = *limit.NewProcess()
		*m.Gate.answers = *m.limits.NewListener()
	}
	m.began = time.Now()
	for _, a := range m.actors {
		m.sources[a.addr.Addr()] = &levels{at: m.began}
		a.login = m.freshLogin()
	}
	m.configure()
	return m
}

// sourcesCollide reports whether two clients or two sources share a bucket of a limit, which the model leaves out. It uses up the limits, and waits
// until they are unused again.
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
		collide = collide || uses(func() bool { return m.Gate.answers.Allow(r, limit.Challenge) }) != limit.ChallengeBurst ||
			uses(func() bool { return m.limits.AllowFailure(r) }) != limit.FailureBurst
	}
	time.Sleep(time.Minute)
	return collide
}

func (m *trial) authority(password string) credential.Authority {
	return credential.Authority{Realm: realm, Username: "ann", Password: credential.Secret(password), SharedSecret: "shared, and long enough"}
}

// configure puts in force what the model takes to be the config.
func (m *trial) configure() {
	p := &Policy{Authority: m.authority(m.password), RelayAddrs: []netip.Addr{relay4, relay6}, SessionGrace: m.grace}
	for _, f := range m.former {
		p.Former = append(p.Former, Former{Authority: m.authority(f.password), Until: f.until})
	}
	var clusters []config.Cluster
	var names []string
	for name, endpoints := range modelRoutes {
		clusters = append(clusters, config.Cluster{Name: name, Type: config.Static, Endpoints: endpoints})
		if m.routes[name] {
			names = append(names, name)
		}
	}
	m.Update(p, cluster.NewView(clusters, names))
	m.table.SetBounds(m.bounds)
}

// run makes the steps, then lets every lifetime pass. Each step is a millisecond later than whole seconds after any other, so that nothing ends in
// the moment in which something is done, when either may come first.
func (m *trial) run() {
	for m.step = 1; m.step <= modelSteps; m.step++ {
		time.Sleep(time.Millisecond)
		m.expire()
		out := m.act(m.actors[m.rng.IntN(len(m.actors))])
		m.seen[out.name]++
		m.settle(out)
	}
	time.Sleep(time.Hour + time.Second)
	m.expire()
	m.settle(m.said(outcome{name: "the end"}, "all lifetimes pass"))
	if n := m.table.Len() + m.engine.Allocations() + m.net.Len() + m.Sessions(); n != 0 {
		m.fail("%d sessions, allocations, sockets and flows left", n)
	}
}

// outcome is what the model expects of a step.
type outcome struct {
	name string
	// to gets one frame, of which check says what is wrong; nobody else gets any.
	to    *actor
	check func(frame []byte) error
	// sent is what leaves the relays.
	sent []relaytest.Datagram
}

// event is a step of the story. It is put in words only when somebody reads them.
type event struct {
	step    int
	at      time.Duration
	outcome string
	format  string
	args    []any
}

func (e event) String() string {
	return fmt.Sprintf("\n\tstep %d, %s: %s → %s", e.step, e.at, fmt.Sprintf(e.format, e.args...), e.outcome)
}

// said notes a step and what the model expects of it.
func (m *trial) said(o outcome, format string, args ...any) outcome {
	m.story[m.step%len(m.story)] = event{m.step, time.Since(m.began), o.name, format, args}
	return o
}

func (m *trial) fail(format string, args ...any) {
	m.t.Helper()
	words := ""
	for i := range m.story {
		if e := m.story[(m.step+1+i)%len(m.story)]; e.format != "" {
			words += e.String()
		}
	}
	m.t.Fatalf("%s\nthe steps before, and what the model expected of them:%s", fmt.Sprintf(format, args...), words)
}

// settle compares what has happened with what the model expects, and what is counted with what the model holds (invariants 1 to 5).
func (m *trial) settle(o outcome) {
	m.t.Helper()
	synctest.Wait()
	m.forget()
	for _, a := range m.actors {
		got := a.take()
		switch {
		case a != o.to && len(got) > 0:
			m.fail("%s got %d frames, want none: % x", a.name, len(got), got[0])
		case a == o.to && len(got) != 1:
			m.fail("%s got %d frames, want one", a.name, len(got))
		case a == o.to:
			if err := o.check(got[0]); err != nil {
				m.fail("%s: %v", a.name, err)
			}
		}
	}
	if sent := m.net.Sent(); !slices.Equal(sent, o.sent) {
		m.fail("relays sent %v, want %v", sent, o.sent)
	}
	live := m.live()
	if a, b, c, d := m.table.Len(), m.engine.Allocations(), m.Sessions(), m.net.Len(); a != live || b != live || c != live || d != live+len(m.reserved) {
		m.fail("%d sessions, %d allocations, %d flows and %d sockets, want %d, and %d more sockets for reservations", a, b, c, d, live, len(m.reserved))
	}
}

// forget forgets reserved ports with the allocations that asked for them.
func (m *trial) forget() {
	maps.DeleteFunc(m.reserved, func(_ relay.Token, r reservedPort) bool {
		return !slices.ContainsFunc(m.actors, func(a *actor) bool { return a.alloc == r.owner })
	})
}

// live is the number of allocations that the model holds.
func (m *trial) live() (n int) {
	for _, a := range m.actors {
		if a.alloc != nil {
			n++
		}
	}
	return n
}

// expire forgets what has ended.
func (m *trial) expire() {
	now := time.Now()
	for _, a := range m.actors {
		if a.alloc == nil {
			continue
		}
		if !a.alloc.ends.After(now) {
			a.alloc = nil
			m.seen["expiry"]++
			continue
		}
		maps.DeleteFunc(a.alloc.permissions, func(_ netip.Addr, ends time.Time) bool { return !ends.After(now) })
		maps.DeleteFunc(a.alloc.channels, func(_ uint16, b binding) bool { return !b.ends.After(now) })
	}
	maps.DeleteFunc(m.reserved, func(_ relay.Token, r reservedPort) bool { return !r.ends.After(now) })
	m.forget()
	for _, l := range m.sources {
		passed := now.Sub(l.at)
		l.challenges, l.failures, l.at = max(0, l.challenges-passed), max(0, l.failures-passed), now
		l.guesses, l.known = max(0, l.guesses-passed), max(0, l.known-passed)
	}
	for _, a := range m.actors {
		a.challenges, a.at = max(0, a.challenges-now.Sub(a.at)), now
	}
}

// modelActs are the steps, and how often in a hundred each is made. The rest are Bindings.
var modelActs = []struct {
	share int
	do    func(*trial, *actor) outcome
}{
	{6, (*trial).allocate}, {2, (*trial).repeatAllocate}, {7, (*trial).refresh}, {13, (*trial).createPermission}, {13, (*trial).channelBind},
	{15, (*trial).sendIndication}, {15, (*trial).channelData}, {17, (*trial).peerSends}, {6, (*trial).timePasses}, {2, (*trial).configChanges},
	{1, (*trial).hangUp}, {1, (*trial).garbage},
}

// act makes one step.
func (m *trial) act(a *actor) outcome {
	if m.rng.IntN(250) == 0 {
		m.siege = siege{a, pick(m, unsigned, sound), 15}
	}
	if m.siege.times--; m.siege.times >= 0 {
		return m.request(m.siege.by, stun.MethodAllocate, words("at once"), []stun.Setter{udp}, nil)
	}
	if a.alloc == nil && m.often(60) {
		return m.allocate(a) // there is more to see with one
	}
	n := m.rng.IntN(100)
	for _, step := range modelActs {
		if n -= step.share; n < 0 {
			return step.do(m, a)
		}
	}
	return m.binding(a)
}

func pick[T any](m *trial, list ...T) T { return list[m.rng.IntN(len(list))] }

// often tells yes so many times in a hundred.
func (m *trial) often(percent int) bool { return m.rng.IntN(100) < percent }

// mostly picks the usual, and one of the others ten times in a hundred.
func (m *trial) mostly(usual int, others ...int) int {
	if m.often(10) {
		return pick(m, others...)
	}
	return usual
}

// flaw is what is wrong with a request before it counts what it asks for.
type flaw string

const (
	sound      flaw = ""
	bare       flaw = "without attributes"
	unsigned   flaw = "without MESSAGE-INTEGRITY"
	incomplete flaw = "without NONCE"
	forged     flaw = "with a nonce of its own"
	strange    flaw = "with an unknown attribute"
)

// freshLogin is what a web application would give to one of the three users.
func (m *trial) freshLogin() login {
	if user := pick(m, "ann", "bob", "eve"); user != "ann" {
		return m.mint(user, time.Duration(1+m.rng.IntN(3000))*time.Second)
	}
	return login{username: "ann", password: m.password, user: "ann"}
}

func (m *trial) mint(user string, ttl time.Duration) login {
	c, err := m.authority("").Mint(user, time.Hour, time.Now().Add(ttl-time.Hour))
	if err != nil {
		m.t.Fatal(err)
	}
	return login{username: c.Username, password: string(c.Password), user: user, expires: c.Expires, genuine: true}
}

// loginOf is the credential that a client uses: mostly the one that it has.
func (m *trial) loginOf(a *actor) login {
	switch m.rng.IntN(24) {
	case 0:
		l := a.login
		l.password, l.genuine = "wrong", false
		return l
	case 1:
		return login{username: "mallory", password: "guess"}
	case 2:
		return m.freshLogin()
	case 3:
		return m.mint("bob", -time.Duration(m.rng.IntN(100))*time.Second)
	case 4:
		a.login = m.freshLogin()
	}
	if a.alloc != nil && m.often(80) {
		return a.alloc.login
	}
	return a.login
}

// vouched tells whether a credential is good. A request of a live session may use one that has been replaced, or has expired, a while ago.
func (m *trial) vouched(l login, method stun.Method, live bool) bool {
	now, goesOn := time.Now(), live && method != stun.MethodAllocate
	if l.username == "ann" {
		return l.password == m.password ||
			goesOn && slices.ContainsFunc(m.former, func(f former) bool { return f.password == l.password && now.Before(f.until) })
	}
	return l.genuine && (!now.After(l.expires.Add(5*time.Second)) || goesOn && now.Before(l.expires.Add(m.grace)))
}

// request makes a request. judge is asked when the client is known: for the code, and for what else is expected of a success.
func (m *trial) request(a *actor, method stun.Method, what fmt.Stringer, attrs []stun.Setter, judge func(l login) (stun.ErrorCode, func(*stun.Message) error)) outcome {
	f := sound
	switch {
	case a.nonce == nil, a.nonceAtItsEnd():
		f = unsigned
	case m.often(8):
		f = pick(m, bare, unsigned, incomplete, forged, strange)
	}
	l := m.loginOf(a)
	if m.siege.times >= 0 {
		l = login{username: "ann", password: "guess"}
		if a.nonce != nil {
			f = m.siege.flaw
		}
	}
	req := m.compose(a, l, method, f, attrs)
	code, key := m.meet(a, l, method, f)
	var success func(*stun.Message) error
	if code == 0 {
		code, success = judge(l)
	}
	if code == 401 && f == sound && l == a.login && m.often(70) {
		a.login = m.freshLogin()
	}
	m.last = req
	m.Receive(req.Raw, a)
	return m.said(m.answered(a, method, req, code, key, success), "%s as %s: %s %s %s", a.name, l.username, method, what, f)
}

// nonceAtItsEnd tells whether it is a matter of less than a second if the nonce is still good: it holds the second of its birth.
func (a *actor) nonceAtItsEnd() bool {
	age := time.Since(a.born)
	return age > time.Hour-time.Second && age < time.Hour+time.Second
}

// compose builds a request.
func (m *trial) compose(a *actor, l login, method stun.Method, f flaw, attrs []stun.Setter) *stun.Message {
	setters := []stun.Setter{stun.TransactionID, request4(method)}
	if f != bare {
		setters = append(setters, attrs...)
	}
	if f != bare && len(attrs) == 0 {
		setters = append(setters, number(0xC057, 0)) // comprehension-optional
	}
	if f == strange {
		setters = append(setters, number(0x7777, 0))
	}
	if f != bare && f != unsigned {
		setters = append(setters, stun.NewUsername(l.username), stun.NewRealm(realm))
		switch f {
		case incomplete:
		case forged:
			setters = append(setters, stun.NewNonce("abcdefghijklmnopqrstuvwx"))
		default:
			setters = append(setters, a.nonce)
		}
		setters = append(setters, stun.NewLongTermIntegrity(l.username, realm, l.password))
		if m.often(50) {
			setters = append(setters, stun.Fingerprint)
		}
	}
	req, err := stun.Build(setters...)
	if err != nil {
		m.t.Fatal(err)
	}
	return req
}

const silence stun.ErrorCode = -1

// answers tells whether somebody who is not known gets an answer of a price.
func (m *trial) answers(a *actor, price time.Duration) bool {
	return a.connected || take(&a.challenges, price, time.Second) && (a.alloc != nil || take(&m.sources[a.addr.Addr()].challenges, price, time.Second))
}

// meet is the answer that a request gets before what it asks for counts (RFC 8489 §9.2.4), with the key that signs the answer once the client is
// known.
func (m *trial) meet(a *actor, l login, method stun.Method, f flaw) (stun.ErrorCode, stun.MessageIntegrity) {
	source := m.sources[a.addr.Addr()]
	code := stun.ErrorCode(0)
	switch {
	case f == bare, f == incomplete:
		code = 400
	case f == unsigned:
		code = 401
	case f == forged, time.Since(a.born) > time.Hour:
		code = 438
	}
	if code != 0 {
		if !m.answers(a, time.Second/10) {
			code = silence
		}
		return code, nil
	}
	if !a.connected {
		m.proven(a)
	}
	guessable := l.username == "ann" || l.username == "mallory"
	if guessable && !m.mayGuess(a, l) {
		return silence, nil
	}
	good := m.vouched(l, method, a.alloc != nil)
	switch {
	case good && guessable:
		source.signedIn = time.Now()
	case guessable:
		m.guessed(a, l)
	}
	switch {
	case good:
	case !take(&source.failures, time.Minute/10, time.Minute):
		return silence, nil
	default:
		return 401, nil
	}
	if f == strange {
		code = 420
	}
	return code, stun.NewLongTermIntegrity(l.username, realm, l.password)
}

// answered is the outcome of a request.
func (m *trial) answered(a *actor, method stun.Method, req *stun.Message, code stun.ErrorCode, key stun.MessageIntegrity,
	success func(*stun.Message) error,
) outcome {
	name := method.String()
	switch code {
	case silence:
		return outcome{name: name + " silence"}
	case 0:
		name += " success"
	default:
		name = fmt.Sprint(name, " ", int(code))
	}
	check := func(frame []byte) error {
		answer := &stun.Message{Raw: frame}
		if err := answer.Decode(); err != nil {
			return err
		}
		_, prints := req.Attributes.Get(stun.AttrFingerprint)
		switch {
		case codeOf(answer) != code:
			return fmt.Errorf("answered %d, want %d", codeOf(answer), code)
		case answer.TransactionID != req.TransactionID, answer.Type.Method != method:
			return fmt.Errorf("answered another request: %s", answer)
		case key == nil && answer.Contains(stun.AttrMessageIntegrity), key != nil && key.Check(answer) != nil:
			return fmt.Errorf("wrong MESSAGE-INTEGRITY, or one for somebody who is not known: %s", answer)
		case prints != (stun.Fingerprint.Check(answer) == nil):
			return fmt.Errorf("FINGERPRINT where there was none, or none where there was one: %s", answer)
		case code == 420:
			if v, err := answer.Get(stun.AttrUnknownAttributes); err != nil || string(v) != "\x77\x77" {
				return fmt.Errorf("unknown attributes: % x, %w", v, err)
			}
		case code == 401, code == 438:
			nonce, err := answer.Get(stun.AttrNonce)
			if err != nil || !answer.Contains(stun.AttrRealm) {
				return fmt.Errorf("a challenge without NONCE and REALM: %s", answer)
			}
			a.nonce, a.born = bytes.Clone(nonce), time.Now()
		case code == 0 && success != nil:
			return success(answer)
		}
		return nil
	}
	return outcome{name: name, to: a, check: check}
}

// lifetime is a LIFETIME attribute, or none, and what it is granted (RFC 8656 §7.2); nothing is granted to one that is not 32 bits.
func (m *trial) lifetime() (attrs []stun.Setter, granted uint32) {
	switch asked := pick[uint32](m, 0, 0, 0, 0, 1, 600, 1800, 3000, 3599, 3600, 1<<31); {
	case m.often(2):
		return []stun.Setter{stun.RawAttribute{Type: stun.AttrLifetime, Value: []byte{14, 16}}}, 0
	case asked == 0:
		return nil, 600
	default:
		return []stun.Setter{lifetime(asked)}, min(max(asked, 600), 3600)
	}
}

// wish is what an Allocate asks for.
type wish struct {
	granted   uint32
	transport uint32 // 0 for none
	even, two bool   // EVEN-PORT, and with the next one
	token     *relay.Token
	family    byte // 0 for any
	also      byte // ADDITIONAL-ADDRESS-FAMILY
}

func (m *trial) wish() (w wish, attrs []stun.Setter) {
	attrs, w.granted = m.lifetime()
	if w.transport = uint32(m.mostly(17, 0, 6)); w.transport != 0 {
		attrs = append(attrs, number(stun.AttrRequestedTransport, w.transport<<24))
	}
	if m.often(15) {
		token := m.token()
		w.token = &token
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrReservationToken, Value: token[:]})
	}
	alone := w.token != nil && m.often(80) // with little else a token may be good
	if w.even = !alone && m.often(20); w.even {
		bit := byte(0)
		if w.two = m.often(60); w.two {
			bit = 0x80
		}
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrEvenPort, Value: []byte{bit}})
	}
	if !alone && m.often(25) {
		w.family = pick[byte](m, 1, 2, 2, 2, 2, 2, 7)
		attrs = append(attrs, number(stun.AttrRequestedAddressFamily, uint32(w.family)<<24))
	}
	if !alone && m.often(5) {
		w.also = pick[byte](m, 2, 2, 2, 1)
		attrs = append(attrs, number(stunmsg.AttrAdditionalFamily, uint32(w.also)<<24))
	}
	return w, attrs
}

// token is one that was given, the one of the lowest port, or one that was not.
func (m *trial) token() (token relay.Token) {
	binary.BigEndian.PutUint64(token[:], m.rng.Uint64())
	lowest := uint16(0)
	for given, r := range m.reserved {
		if lowest == 0 || r.at.Port() < lowest {
			token, lowest = given, r.at.Port()
		}
	}
	return token
}

func (m *trial) allocate(a *actor) outcome {
	w, attrs := m.wish()
	o := m.request(a, stun.MethodAllocate, w, attrs, func(l login) (stun.ErrorCode, func(*stun.Message) error) {
		want := netip.AddrPortFrom(relay4, 0)
		if w.family == stunmsg.FamilyIPv6 {
			want = netip.AddrPortFrom(relay6, 0)
		}
		switch {
		case a.alloc != nil:
			return 437, nil
		case w.transport == 0:
			return 400, nil
		case w.transport != 17:
			return 442, nil
		case w.granted == 0,
			w.token != nil && (w.even || w.family != 0 || w.also != 0), w.also != 0 && (w.two || w.family != 0), w.also == stunmsg.FamilyIPv4:
			return 400, nil
		case w.family == 7:
			return 440, nil
		case m.retired:
			return 508, nil
		case w.token != nil:
			held, good := m.reserved[*w.token]
			if !good || held.owner.user != l.user {
				return 508, nil
			}
			m.seen["Allocate by token"]++
			want = held.at
			delete(m.reserved, *w.token)
		case m.overQuota(a, l, 0):
			return 486, nil
		case m.full(0):
			return 508, nil
		case w.two && m.overQuota(a, l, 1):
			return 486, nil
		case w.two && m.full(1):
			return 508, nil
		}
		a.alloc = &modelAllocation{username: l.username, user: l.user, source: a.addr.Addr(), login: l, permissions: map[netip.Addr]time.Time{}, channels: map[uint16]binding{}}
		a.alloc.grant(w.granted)
		return 0, func(answer *stun.Message) error { return m.allocated(a, w, answer, want) }
	})
	if o.name == "Allocate success" {
		a.alloc.request, a.alloc.born = m.last, a.born
	}
	return o
}

func (w wish) String() string {
	return fmt.Sprintf("(%d s, transport %d, family %d+%d, even %t, two %t, token %t)", w.granted, w.transport, w.family, w.also, w.even, w.two, w.token != nil)
}

func (al *modelAllocation) grant(seconds uint32) {
	al.granted, al.ends = seconds, time.Now().Add(time.Duration(seconds)*time.Second)
}

// full tells whether there is no place beside so many more.
func (m *trial) full(more int) bool {
	return m.bounds.Capacity > 0 && m.live()+len(m.reserved)+more >= m.bounds.Capacity
}

// overQuota counts what the user and the source have, beside so many more.
func (m *trial) overQuota(a *actor, l login, more int) bool {
	users, sources := more, more
	for _, r := range m.reserved {
		if r.owner.user == l.user {
			users++
		}
		if r.owner.source == a.addr.Addr() {
			sources++
		}
	}
	for _, other := range m.actors {
		if other.alloc == nil {
			continue
		}
		if other.alloc.user == l.user {
			users++
		}
		if other.addr.Addr() == a.addr.Addr() {
			sources++
		}
	}
	return m.bounds.UserSessions > 0 && users >= m.bounds.UserSessions || m.bounds.SourceSessions > 0 && sources >= m.bounds.SourceSessions
}

// allocated checks the answer to an Allocate and learns the relay address from it. Of the one that is wanted the port counts only for a token.
func (m *trial) allocated(a *actor, w wish, answer *stun.Message, want netip.AddrPort) error {
	at, err := m.relayOf(a, answer)
	if err != nil {
		return err
	}
	port := at.Port()
	given, tokenErr := answer.Get(stun.AttrReservationToken)
	switch {
	case at.Addr() != want.Addr(), w.token != nil && at != want:
		return fmt.Errorf("relay %s, want %s", at, want)
	case w.even && port%2 != 0:
		return fmt.Errorf("port %d is not even", port)
	case w.two != (tokenErr == nil && len(given) == 8):
		return fmt.Errorf("reservation token % x, want one: %t", given, w.two)
	case answer.Contains(stunmsg.AttrAddressErrorCode) != (w.also != 0):
		return fmt.Errorf("ADDRESS-ERROR-CODE in the answer to additional family %d: %t", w.also, w.also == 0)
	}
	if m.taken(at) {
		return fmt.Errorf("relay %s is somebody else's", at)
	}
	if w.two {
		next := netip.AddrPortFrom(at.Addr(), port+1)
		if m.taken(next) {
			return fmt.Errorf("reserved port %s is somebody else's", next)
		}
		m.reserved[relay.Token(given)] = reservedPort{next, time.Now().Add(30 * time.Second), a.alloc}
	}
	a.alloc.relay, a.relay = at, at
	return nil
}

// relayOf reads what an Allocate is answered: the relay address is returned, the rest is compared.
func (m *trial) relayOf(a *actor, answer *stun.Message) (netip.AddrPort, error) {
	var relayed, mapped stun.XORMappedAddress
	if err := errors.Join(relayed.GetFromAs(answer, stun.AttrXORRelayedAddress), mapped.GetFrom(answer)); err != nil {
		return netip.AddrPort{}, err
	}
	if mapped.String() != a.addr.String() {
		return netip.AddrPort{}, fmt.Errorf("mapped address %s", mapped)
	}
	ip, _ := netip.AddrFromSlice(relayed.IP)
	return netip.AddrPortFrom(ip.Unmap(), uint16(relayed.Port)), grants(answer, a.alloc.granted)
}

func grants(answer *stun.Message, want uint32) error {
	if v, err := answer.Get(stun.AttrLifetime); err != nil || binary.BigEndian.Uint32(v) != want {
		return fmt.Errorf("lifetime % x, %w, want %d", v, err, want)
	}
	return nil
}

func (m *trial) taken(at netip.AddrPort) bool {
	for _, r := range m.reserved {
		if r.at == at {
			return true
		}
	}
	return m.holder(at) != nil
}

// holder is the client that has a relay address, or nil.
func (m *trial) holder(relay netip.AddrPort) *actor {
	for _, a := range m.actors {
		if a.alloc != nil && a.alloc.relay == relay {
			return a
		}
	}
	return nil
}

// repeatAllocate sends the request again that made an allocation. It must be good still, and changes nothing (RFC 8656 §7.2).
func (m *trial) repeatAllocate(a *actor) outcome {
	if a.alloc == nil {
		return m.allocate(a)
	}
	al := a.alloc
	if !al.born.Equal(a.born) || a.nonceAtItsEnd() {
		return m.allocate(a) // the answer is a matter of the nonce, which the other steps try
	}
	code, key := m.meet(a, al.login, stun.MethodAllocate, sound)
	m.seen["Allocate once more"]++
	m.Receive(al.request.Raw, a)
	return m.said(m.answered(a, stun.MethodAllocate, al.request, code, key, func(answer *stun.Message) error {
		at, err := m.relayOf(a, answer)
		if err == nil && at != al.relay {
			err = fmt.Errorf("relay %s, was %s", at, al.relay)
		}
		return err
	}), "%s repeats its Allocate", a.name)
}

func (m *trial) refresh(a *actor) outcome {
	attrs, granted := m.lifetime()
	unreadable, end := granted == 0, m.often(25)
	if end {
		attrs, granted, unreadable = []stun.Setter{lifetime(0)}, 0, false
	}
	family := byte(0)
	if m.often(15) {
		family = pick[byte](m, 1, 2)
		attrs = append(attrs, number(stun.AttrRequestedAddressFamily, uint32(family)<<24))
	}
	return m.request(a, stun.MethodRefresh, wish{granted: granted, family: family}, attrs, func(l login) (stun.ErrorCode, func(*stun.Message) error) {
		switch code := a.owned(l); {
		case code != 0:
			return code, nil
		case unreadable:
			return 400, nil
		case family != 0 && family != stunmsg.Family(a.alloc.relay.Addr()):
			return 443, nil
		case end:
			a.alloc = nil
			return 0, func(answer *stun.Message) error { return grants(answer, 0) }
		}
		a.alloc.grant(granted)
		return 0, func(answer *stun.Message) error { return grants(answer, granted) }
	})
}

// owned is what a request for an allocation meets that is not there, or somebody else's.
func (a *actor) owned(l login) stun.ErrorCode {
	switch {
	case a.alloc == nil:
		return 437
	case a.alloc.username != l.username:
		return 441
	}
	return 0
}

// somePeers are so many, mostly ones that may be in question for the client's relay.
func (m *trial) somePeers(a *actor, n int) (peers []peerFacts, attrs []stun.Setter) {
	for len(peers) < n {
		p := m.somePeer(a)
		peers = append(peers, p)
		attrs = append(attrs, addressAttr(stun.AttrXORPeerAddress, p.at))
	}
	return peers, attrs
}

func (m *trial) somePeer(a *actor) peerFacts {
	for range 4 {
		if p := pick(m, modelPeers...); a.alloc == nil || a.otherFamily(p) == m.often(5) && m.allowsAddr(p) == m.often(90) {
			return p
		}
	}
	return pick(m, modelPeers...)
}

// knownPeer is one that the client has to do with, if there is any and by chance.
func (m *trial) knownPeer(a *actor) peerFacts {
	for range 4 {
		if p := pick(m, modelPeers...); a.alloc != nil && (a.alloc.permits(p) || a.alloc.channelOf(p.at) != 0) {
			return p
		}
	}
	return m.somePeer(a)
}

// target is what a permission or a channel is for, in words.
type target struct {
	channel uint32
	peers   []peerFacts
}

func (t target) String() string { return fmt.Sprintf("%#x to %v", t.channel, t.peers) }

type words string

func (w words) String() string { return string(w) }

func (m *trial) createPermission(a *actor) outcome {
	peers, attrs := m.somePeers(a, pick(m, 1, 1, 1, 1, 2, 2, 3, 0))
	return m.request(a, stun.MethodCreatePermission, target{0, peers}, attrs, func(l login) (stun.ErrorCode, func(*stun.Message) error) {
		switch code := a.owned(l); {
		case code != 0:
			return code, nil
		case len(peers) == 0:
			return 400, nil
		case slices.ContainsFunc(peers, a.otherFamily):
			return 443, nil
		case slices.ContainsFunc(peers, func(p peerFacts) bool { return !m.allowsAddr(p) }):
			return 403, nil
		}
		for _, p := range peers {
			a.alloc.permit(p)
		}
		return 0, nil
	})
}

func (a *actor) otherFamily(p peerFacts) bool { return p.at.Addr().Is4() != a.alloc.relay.Addr().Is4() }

func (al *modelAllocation) permit(p peerFacts) {
	al.permissions[p.at.Addr()] = time.Now().Add(300 * time.Second)
}

func (m *trial) channelBind(a *actor) outcome {
	peers, attrs := m.somePeers(a, m.mostly(1, 0, 2))
	if a.alloc != nil && m.often(4) {
		peers = []peerFacts{{at: a.alloc.relay}} // itself
		attrs = []stun.Setter{addressAttr(stun.AttrXORPeerAddress, a.alloc.relay)}
	}
	n := pick[uint32](m, 0x4000, 0x4000, 0x4001, 0x4001, 0x4002, 0x4FFF, 0x7FFF, 0x7FFF, 0x3FFF, 0x8000, 0)
	if n != 0 {
		attrs = append(attrs, channel(n))
	}
	return m.request(a, stun.MethodChannelBind, target{n, peers}, attrs, func(l login) (stun.ErrorCode, func(*stun.Message) error) {
		code := a.owned(l)
		if code != 0 {
			return code, nil
		}
		if n < 0x4000 || n > 0x7FFF || len(peers) != 1 {
			return 400, nil
		}
		bound, is := a.alloc.channels[uint16(n)]
		switch {
		case a.otherFamily(peers[0]):
			return 443, nil
		case is && bound.peer != peers[0].at, a.alloc.channelOf(peers[0].at) != 0 && a.alloc.channelOf(peers[0].at) != uint16(n):
			return 400, nil
		case !m.allows(peers[0]):
			return 403, nil
		}
		a.alloc.channels[uint16(n)] = binding{peers[0].at, time.Now().Add(600 * time.Second), a.alloc.channels[uint16(n)].heard}
		a.alloc.permit(peers[0])
		return 0, nil
	})
}

// channelOf is the number that a peer is bound to, 0 for none.
func (al *modelAllocation) channelOf(peer netip.AddrPort) uint16 {
	for n, b := range al.channels {
		if b.peer == peer {
			return n
		}
	}
	return 0
}

// payload differs with each step.
func (m *trial) payload() string {
	return fmt.Sprint("step ", m.step, strings.Repeat(".", m.rng.IntN(5)))
}

func (m *trial) sendIndication(a *actor) outcome {
	var attrs []stun.Setter
	peers := slices.Repeat([]peerFacts{m.knownPeer(a)}, m.mostly(1, 0, 2))
	for _, p := range peers {
		attrs = append(attrs, addressAttr(stun.AttrXORPeerAddress, p.at))
	}
	payload, odd := m.payload(), m.often(4)
	hasData := !m.often(3)
	if odd {
		attrs = append(attrs, number(0x7777, 0))
	}
	if hasData {
		attrs = append(attrs, data(payload))
	}
	m.Receive(m.build(append(attrs, stun.NewType(stun.MethodSend, stun.ClassIndication))...), a)
	o := outcome{name: "Send silence"}
	if a.alloc != nil && len(peers) == 1 && hasData && !odd && m.allows(peers[0]) && a.alloc.permits(peers[0]) {
		o = outcome{name: "Send passes", sent: []relaytest.Datagram{{From: a.alloc.relay, To: peers[0].at, Payload: payload}}}
	}
	return m.said(o, "%s sends %q to %v", a.name, payload, peers)
}

func (al *modelAllocation) permits(p peerFacts) bool {
	_, is := al.permissions[p.at.Addr()]
	return is
}

func (m *trial) channelData(a *actor) outcome {
	n, payload := m.knownChannel(a), m.payload()
	claimed, behind := len(payload), strings.Repeat("\x00", m.rng.IntN(3))
	if m.often(4) {
		claimed += 5 // longer than it is
	}
	if r := m.Relay(a.addr); r != nil {
		r.FromClient(fmt.Appendf(channelHeader(n, claimed), "%s%s", payload, behind))
	}
	o := outcome{name: "ChannelData silence"}
	if a.alloc != nil && claimed == len(payload) {
		if b, is := a.alloc.channels[n]; is && m.allows(factsOf(b.peer)) {
			b.heard = time.Now().Add(300 * time.Second)
			a.alloc.channels[n] = b
			o = outcome{name: "ChannelData passes", sent: []relaytest.Datagram{{From: a.alloc.relay, To: b.peer, Payload: payload}}}
		}
	}
	return m.said(o, "%s sends %q on channel %#x", a.name, payload, n)
}

// knownChannel is the number of a channel that the client has bound, if there is any and by chance.
func (m *trial) knownChannel(a *actor) uint16 {
	for range 4 {
		if n := pick[uint16](m, 0x4000, 0x4001, 0x4002, 0x7FFF); a.alloc != nil && a.alloc.channels[n].peer.IsValid() {
			return n
		}
	}
	return 0x4001
}

func channelHeader(n uint16, length int) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, n), uint16(length))
}

func factsOf(peer netip.AddrPort) peerFacts {
	return modelPeers[slices.IndexFunc(modelPeers, func(p peerFacts) bool { return p.at == peer })]
}

// peerSends has a peer send to the relay that a client has, or had. The peer of a channel is heard while it has a permission, or has been sent ChannelData
// within its lifetime: see TestPeerOfChannelIsHeard300Seconds.
func (m *trial) peerSends(a *actor) outcome {
	p, payload, to := m.knownPeer(a), m.payload(), a.relay
	m.net.Peer(p.at).Send(to, payload)
	o := outcome{name: "peer silence"}
	if holder := m.holder(to); holder != nil {
		a = holder // a port that one client has left may be another's by now
	}
	if a.alloc != nil && m.allows(p) {
		n := a.alloc.channelOf(p.at)
		switch {
		case n != 0 && !a.alloc.permits(p) && !a.alloc.channels[n].heard.After(time.Now()):
		case n != 0:
			o = outcome{name: "peer by channel", to: a, check: func(frame []byte) error {
				want := append(channelHeader(n, len(payload)), payload...)
				for a.connected && len(want)%4 != 0 { // RFC 8656 §12.5
					want = append(want, 0)
				}
				if !bytes.Equal(frame, want) {
					return fmt.Errorf("got % x, want % x", frame, want)
				}
				return nil
			}}
		case a.alloc.permits(p):
			o = outcome{name: "peer by indication", to: a, check: func(frame []byte) error { return isData(frame, p.at, payload) }}
		}
	}
	return m.said(o, "peer %s sends %q to %s, the relay of %s", p.at, payload, to, a.name)
}

// isData says what is wrong with a Data indication.
func isData(frame []byte, peer netip.AddrPort, payload string) error {
	got := &stun.Message{Raw: frame}
	var from stun.XORMappedAddress
	if err := got.Decode(); err != nil {
		return fmt.Errorf("got % x, want a Data indication: %w", frame, err)
	}
	content, err := got.Get(stun.AttrData)
	if err = errors.Join(err, from.GetFromAs(got, stun.AttrXORPeerAddress)); err != nil {
		return err
	}
	if got.Type != stun.NewType(stun.MethodData, stun.ClassIndication) || from.String() != peer.String() || string(content) != payload {
		return fmt.Errorf("got %s from %s with %q, want %q from %s", got.Type, from, content, payload, peer)
	}
	return nil
}

// timePasses lets whole seconds pass, often up to about when something ends.
func (m *trial) timePasses(*actor) outcome {
	seconds := 1 + m.rng.IntN(pick(m, 10, 100, 400))
	if m.often(40) {
		rest := int(time.Until(m.deadline()) / time.Second)
		if rest > 0 && rest <= 400 {
			seconds = rest + m.rng.IntN(2)
		}
	}
	time.Sleep(time.Duration(seconds) * time.Second)
	m.expire()
	return m.said(outcome{name: "time"}, "%d s pass", seconds)
}

// deadline is when one of the things ends that the model holds.
func (m *trial) deadline() time.Time {
	var all []time.Time
	for _, a := range m.actors {
		if a.alloc == nil {
			continue
		}
		all = append(all, a.alloc.ends)
		for _, ends := range a.alloc.permissions {
			all = append(all, ends)
		}
		for _, b := range a.alloc.channels {
			all = append(all, b.ends)
		}
	}
	for _, r := range m.reserved {
		all = append(all, r.ends)
	}
	if len(all) == 0 {
		return time.Time{}
	}
	slices.SortFunc(all, time.Time.Compare) // the order of maps is not the seed's
	return pick(m, all...)
}

func (m *trial) configChanges(*actor) outcome {
	what := ""
	switch m.rng.IntN(6) {
	case 0:
		m.former = append(m.former, former{m.password, time.Now().Add(600 * time.Second)})
		m.password = fmt.Sprint("password ", len(m.former))
		what = "the password"
	case 1:
		m.grace = pick[time.Duration](m, 0, 0, 300*time.Second)
		what = fmt.Sprint("grace to ", m.grace)
	case 2:
		m.bounds.UserSessions, m.bounds.SourceSessions = pick(m, 0, 0, 1, 2), pick(m, 0, 0, 1, 2)
		what = fmt.Sprintf("bounds to %+v", m.bounds)
	case 3:
		m.bounds.Capacity = pick(m, 0, 0, 0, 3)
		what = fmt.Sprint("capacity to ", m.bounds.Capacity)
	case 4:
		if m.retired = m.often(15); m.retired {
			m.Retire()
		} else {
			m.Resume()
		}
		what = fmt.Sprint("retired to ", m.retired)
	default:
		route := pick(m, "a", "b", "c")
		m.routes[route] = !m.routes[route]
		what = fmt.Sprintf("route %s to %t", route, m.routes[route])
	}
	m.configure()
	return m.said(outcome{name: "config"}, "config changes %s", what)
}

func (m *trial) hangUp(a *actor) outcome {
	m.Disconnected(a)
	a.alloc = nil
	return m.said(outcome{name: "hang-up"}, "%s hangs up", a.name)
}

// garbage is what nobody answers: noise, and responses to nothing.
func (m *trial) garbage(a *actor) outcome {
	raw := binary.BigEndian.AppendUint64(make([]byte, 12+4*m.rng.IntN(10)), m.rng.Uint64())
	if m.often(50) {
		raw = m.build(stun.NewType(stun.MethodAllocate, stun.ClassSuccessResponse))
	}
	m.Receive(raw, a)
	return m.said(outcome{name: "noise"}, "%s sends noise", a.name)
}

func (m *trial) binding(a *actor) outcome {
	req, err := stun.Build(stun.TransactionID, stun.BindingRequest)
	if err != nil {
		m.t.Fatal(err)
	}
	code := stun.ErrorCode(0)
	if !m.answers(a, time.Second/100) {
		code = silence
	}
	m.Receive(req.Raw, a)
	return m.said(m.answered(a, stun.MethodBinding, req, code, nil, func(answer *stun.Message) error {
		var mapped stun.XORMappedAddress
		if err := mapped.GetFrom(answer); err != nil || mapped.String() != a.addr.String() {
			return fmt.Errorf("mapped address %s, %w", mapped, err)
		}
		return nil
	}), "%s asks for its address", a.name)
}
