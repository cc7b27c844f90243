package gate

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

var modelSeed = flag.Uint64("model.seed", 0, "the seed of TestModel; 0 takes a random one")

const (
	modelSequences = 200
	modelSteps     = 500 // less than 1,000: trial.run adds a millisecond in each step
)

// G-08: each run has every error code of the gate.
//
// F-03: several clients and peers act at random, time passes and the config changes. Every answer, every datagram and
// the counters of the gate must equal those of a model of RFC 8656.
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
					synctest.Test(
						t, func(t *testing.T) { newTrial(t, rand.New(rand.NewPCG(seed, uint64(i))), seen).run() },
					)
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
		"Allocate success", "Allocate 400", "Allocate 401", "Allocate 420", "Allocate 437", "Allocate 438",
		"Allocate 440", "Allocate 442",
		"Allocate 486", "Allocate 508", "Allocate by token", "guesser locked", "Allocate once more", "Allocate silence",
		"Refresh success", "Refresh 401", "Refresh 437",
		"Refresh 441", "Refresh 443", "CreatePermission success", "CreatePermission 400", "CreatePermission 403",
		"CreatePermission 437",
		"CreatePermission 441", "CreatePermission 443", "ChannelBind success", "ChannelBind 400", "ChannelBind 403",
		"ChannelBind 437",
		"ChannelBind 441", "ChannelBind 443", "Binding success", "Send passes", "Send silence", "ChannelData passes",
		"ChannelData silence",
		"peer by channel", "peer by indication", "peer silence", "hang-up", "expiry",
	} {
		if seen[name] == 0 && !t.Failed() {
			t.Errorf("no step ended with: %s", name)
		}
	}
}

// trial is a gate with clients and peers, and the state of the model.
type trial struct {
	*virtual
	rng    *rand.Rand
	seen   map[string]int
	step   int
	story  [15]event
	last   *stun.Message // the latest request
	siege  siege
	actors []*actor

	password string // the password of ann
	former   []former
	grace    time.Duration
	routes   map[string]bool
	bounds   session.Bounds
	retired  bool
	reserved map[relay.Token]reservedPort
	sources  map[netip.Addr]*levels
}

// actor is a client: its transport, its own state, and its state in the model.
type actor struct {
	name string
	addr netip.AddrPort
	// connected reports whether the client uses a connection, whose address cannot be forged.
	connected bool
	mu        sync.Mutex
	got       [][]byte

	login login
	nonce stun.Nonce
	born  time.Time // the creation of the nonce
	relay netip.AddrPort
	alloc *modelAllocation
	// challenges is the used part of the limit of its address and port at the time at.
	challenges time.Duration
	at         time.Time
}

// Send implements session.Client, like SendAll, Addr, Connected and Released.
func (a *actor) Send(frame []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, bytes.Clone(frame))
	return nil
}

func (a *actor) Addr() netip.AddrPort  { return a.addr }
func (a *actor) Connected() bool       { return a.connected }
func (a *actor) Local() netip.AddrPort { return netip.AddrPort{} }
func (a *actor) Released()             {}

func (a *actor) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = a.Send(packets[i].Payload)
	}
}

func (a *actor) take() [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.got
	a.got = nil
	return got
}

// login is a credential. A genuine one was made with the secret of the gateway.
type login struct {
	username, password, user string
	expires                  time.Time
	genuine                  bool
}

// modelAllocation is the state of an allocation in RFC 8656 (§2.2, §9, §12), with the ends of all lifetimes.
type modelAllocation struct {
	username, user string
	source         netip.Addr
	wrong          int // wrong passwords on its 5-tuple for its user
	relay          netip.AddrPort
	ends           time.Time
	granted        uint32
	permissions    map[netip.Addr]time.Time
	channels       map[uint16]binding
	// request created the allocation.
	request *stun.Message
	login   login
	born    time.Time // the creation of the nonce of request
}

type binding struct {
	peer netip.AddrPort
	ends time.Time
	// maySendUntil is the end of the time in which the peer may send because of ChannelData of the client.
	maySendUntil time.Time
}

type former struct {
	password string
	until    time.Time
}

type reservedPort struct {
	at    netip.AddrPort
	ends  time.Time
	owner *modelAllocation // the allocation that has reserved the port; the port is released with it
}

// The environment: a relay address of each family, and peers. A route allows the address, or the address and port, or
// neither.
var (
	relay4, relay6 = netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("2001:db8:f::200")
	modelRoutes    = map[string][]string{
		"a": {"192.0.2.10:<4000-4999>", relay4.String()}, "b": {"192.0.2.11"},
		"c": {"2001:db8:1::5:<4000-4000>", relay6.String()},
	}
	modelPeers = []peerFacts{
		{netip.MustParseAddrPort("192.0.2.10:4000"), "a", true},
		{netip.MustParseAddrPort("192.0.2.10:4001"), "a", true},
		{netip.MustParseAddrPort("192.0.2.10:9"), "a", false}, {netip.MustParseAddrPort("192.0.2.11:4000"), "b", true},
		{netip.MustParseAddrPort("192.0.2.13:4000"), "", false},
		{netip.MustParseAddrPort("[2001:db8:1::5]:4000"), "c", true},
		{netip.MustParseAddrPort("[2001:db8:1::5]:4001"), "c", false},
		{netip.MustParseAddrPort("[2001:db8:2::5]:4000"), "", false},
	}
)

// peerFacts is a peer, the route that allows its address, and whether this route allows its port too.
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
		virtual: newVirtual(t), rng: rng, seen: seen, password: "password 0",
		routes:   map[string]bool{"a": true, "b": true, "c": true},
		reserved: map[relay.Token]reservedPort{}, sources: map[netip.Addr]*levels{},
	}
	for i, addr := range []string{
		"198.51.100.1:1000", "198.51.100.1:1001", "198.51.100.2:1000", "[2001:db8:c::1]:1000", "198.51.100.3:1000",
	} {
		m.actors = append(
			m.actors, &actor{name: fmt.Sprint("client ", i), addr: netip.MustParseAddrPort(addr), connected: i == 4},
		)
	}
	for m.sourcesCollide() {
		*m.limits = *limit.NewProcess()
		*m.Gate.answers = *m.limits.NewListener()
	}
	m.began, m.net.Fragments = time.Now(), m.often(20)
	for _, a := range m.actors {
		m.sources[a.addr.Addr()] = &levels{at: m.began}
		a.login = m.freshLogin()
	}
	m.configure()
	return m
}

func (m *trial) authority(password string) credential.Authority {
	return credential.Authority{
		Realm: realm, Username: "ann", Password: credential.Secret(password), SharedSecret: "shared, and long enough",
	}
}

// configure applies the config of the model to the gate.
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

// run executes the steps, and then waits until all lifetimes are over. The time from any earlier step to a step is a
// whole number of seconds plus some milliseconds, so that no lifetime ends at the time of a step.
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

// outcome is the expected result of a step.
type outcome struct {
	name string
	// to is the client that gets one frame, which check checks. Other clients get no frame.
	to    *actor
	check func(frame []byte) error
	// sent are the datagrams from relays.
	sent []relaytest.Datagram
}

// event is a step for the log. It is formatted only after a failure.
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

// said records a step with its expected outcome.
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

// settle compares the datagrams and the counters with the model (invariants 1 to 5).
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
	if a, b, c, d := m.table.Len(), m.engine.Allocations(), m.Sessions(), m.net.Len(); a != live || b != live ||
		c != live || d != live+len(m.reserved) {
		m.fail(
			"%d sessions, %d allocations, %d flows and %d sockets, want %d, and %d more sockets for reservations", a, b,
			c, d, live, len(m.reserved),
		)
	}
}

// forget removes reserved ports whose allocations have ended.
func (m *trial) forget() {
	maps.DeleteFunc(m.reserved, func(_ relay.Token, r reservedPort) bool {
		return !slices.ContainsFunc(m.actors, func(a *actor) bool { return a.alloc == r.owner })
	})
}

// live returns the number of allocations of the model.
func (m *trial) live() (n int) {
	for _, a := range m.actors {
		if a.alloc != nil {
			n++
		}
	}
	return n
}

// expire removes expired items.
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

// modelActs are the steps with their share in percent. The remaining steps are Binding requests.
var modelActs = []struct {
	share int
	do    func(*trial, *actor) outcome
}{
	{6, (*trial).allocate}, {2, (*trial).repeatAllocate}, {7, (*trial).refresh}, {13, (*trial).createPermission},
	{13, (*trial).channelBind},
	{15, (*trial).sendIndication}, {15, (*trial).channelData}, {17, (*trial).peerSends}, {6, (*trial).timePasses},
	{2, (*trial).configChanges},
	{1, (*trial).hangUp}, {1, (*trial).garbage},
}

// act executes one step.
func (m *trial) act(a *actor) outcome {
	if m.rng.IntN(250) == 0 {
		m.siege = siege{a, pick(m, unsigned, sound), 15}
	}
	if m.siege.times--; m.siege.times >= 0 {
		return m.request(m.siege.by, stun.MethodAllocate, words("at once"), []stun.Setter{udp}, nil)
	}
	if a.alloc == nil && m.often(60) {
		return m.allocate(a) // most steps need an allocation
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

// often returns true in this percentage of the calls.
func (m *trial) often(percent int) bool { return m.rng.IntN(100) < percent }

// mostly returns the usual value, and in ten percent of the calls one of the others.
func (m *trial) mostly(usual int, others ...int) int {
	if m.often(10) {
		return pick(m, others...)
	}
	return usual
}
