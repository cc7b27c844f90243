package gate

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Machine is pion/turn used as what it is good at: the state machine of allocations, permissions and channels, with the timers of the last two.
// When an allocation ends is up to the gate.
//
// It owns no socket. Each lane is a net.PacketConn that pion reads requests from and writes answers to; a call on a lane hands
// pion one request and returns when pion asks for the next one, so the answer, or its absence, is known without waiting for
// a clock. pion authenticates nobody: the gate did, and signs what it passes on with a key of its own. Neither a changed
// credential nor a changed realm, nor a listener that comes or goes, is visible in here.
type Machine struct {
	server *turn.Server
	lanes  []*lane
	next   atomic.Uint32
	handle atomic.Uint64
}

// internalUser and internalRealm are the identity under which the gate talks to pion/turn.
const (
	internalUser  = "gate"
	internalRealm = "stunner"
)

// NewMachine starts pion/turn with a number of lanes, at least one: sessions are spread over them, and each is served by one
// goroutine.
func NewMachine(lanes int, log *slog.Logger) (*Machine, error) {
	key := make([]byte, 16)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make internal key: %w", err)
	}
	m := &Machine{}
	var configs []turn.PacketConnConfig
	for range max(lanes, 1) {
		l := newLane(key)
		m.lanes = append(m.lanes, l)
		configs = append(configs, turn.PacketConnConfig{PacketConn: l, RelayAddressGenerator: l})
	}
	server, err := turn.NewServer(turn.ServerConfig{
		PacketConnConfigs:  configs,
		Realm:              internalRealm,
		AuthHandler:        func(string, string, net.Addr) ([]byte, bool) { return key, true },
		ChannelBindTimeout: relay.ChannelLifetime,
		InboundMTU:         maxMessage + 1,
		LoggerFactory:      LoggerFactory{log},
	})
	if err != nil {
		return nil, fmt.Errorf("start pion/turn: %w", err)
	}
	m.server = server
	return m, nil
}

// Close ends all allocations.
func (m *Machine) Close() error { return m.server.Close() }

// Tasks are the lanes.
func (m *Machine) Tasks() (tasks []*watch.Task) {
	for _, l := range m.lanes {
		tasks = append(tasks, &l.task)
	}
	return tasks
}

// Allocations is the number of allocations that pion/turn holds.
func (m *Machine) Allocations() int { return m.server.AllocationCount() }

// place picks a lane for a new session and makes the handle under which pion knows it. Handles are addresses of a
// documentation prefix (RFC 3849): they never meet a socket.
func (m *Machine) place() (*lane, *net.UDPAddr) {
	ip := net.IP{0x20, 0x01, 0x0d, 0xb8, 15: 0}
	binary.BigEndian.PutUint64(ip[8:], m.handle.Add(1))
	return m.lanes[int(m.next.Add(1))%len(m.lanes)], &net.UDPAddr{IP: ip, Port: 1}
}

// lane is one read loop of pion/turn: a net.PacketConn without a network, and the generator of relay sockets for the requests that
// pass it.
type lane struct {
	key   []byte
	calls chan *call

	// current, nonce and fetched belong to whoever holds calling, and to pion's read loop during a call.
	calling sync.Mutex
	current *call
	nonce   stun.Nonce
	fetched time.Time

	// task is the call in progress.
	task watch.Task

	// owners finds the relay of a session when pion sends a Data indication.
	owners sync.Map // handle's IP as string → *relay.Relay

	closing sync.Once
	closed  chan struct{}
}

// call is one request to pion and what came of it.
type call struct {
	request []byte
	from    *net.UDPAddr
	relay   *relay.Relay
	answer  []byte
	done    chan struct{}
}

func newLane(key []byte) *lane {
	return &lane{key: key, calls: make(chan *call), closed: make(chan struct{})}
}

// nonceRenewal is well within the hour for which pion/turn accepts its nonces.
const nonceRenewal = 30 * time.Minute

// errNoAnswer says that pion/turn refused without a word, as it does for an allocation that has just expired.
var errNoAnswer = errors.New("no answer from pion/turn")

// request passes a request on to pion/turn in the name of a session and returns its answer. attrs are the attributes that
// pion has to see.
func (l *lane) request(method stun.Method, handle *net.UDPAddr, r *relay.Relay, attrs ...stun.Setter) (*stun.Message, error) {
	l.calling.Lock()
	defer l.calling.Unlock()
	answer, err := l.attempt(method, handle, r, attrs...)
	if err == nil && stale(answer) {
		l.nonce = nil
		answer, err = l.attempt(method, handle, r, attrs...)
	}
	return answer, err
}

func (l *lane) attempt(method stun.Method, handle *net.UDPAddr, r *relay.Relay, attrs ...stun.Setter) (*stun.Message, error) {
	if err := l.renewNonce(handle); err != nil {
		return nil, err
	}
	setters := append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attrs...)
	setters = append(setters, stun.NewUsername(internalUser), stun.NewRealm(internalRealm), l.nonce, stun.MessageIntegrity(l.key))
	return l.roundTrip(handle, r, setters...)
}

// stale tells whether pion/turn wants another nonce. It tells their age by the wall clock, which jumps where nonceRenewal does not.
func stale(answer *stun.Message) bool {
	var code stun.ErrorCodeAttribute
	return code.GetFrom(answer) == nil && code.Code == stun.CodeStaleNonce
}

// indicate passes an indication on; there is no answer to it.
func (l *lane) indicate(raw []byte, handle *net.UDPAddr) {
	l.calling.Lock()
	defer l.calling.Unlock()
	l.do(&call{request: raw, from: handle})
}

// renewNonce fetches a nonce the way every client does: from the challenge to a request without credentials.
func (l *lane) renewNonce(handle *net.UDPAddr) error {
	if l.nonce != nil && time.Since(l.fetched) < nonceRenewal {
		return nil
	}
	challenge, err := l.roundTrip(handle, nil, stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest))
	if err != nil {
		return fmt.Errorf("fetch internal nonce: %w", err)
	}
	nonce, err := challenge.Get(stun.AttrNonce)
	if err != nil {
		return fmt.Errorf("fetch internal nonce: %w", err)
	}
	l.nonce, l.fetched = append(stun.Nonce{}, nonce...), time.Now()
	return nil
}

func (l *lane) roundTrip(handle *net.UDPAddr, r *relay.Relay, setters ...stun.Setter) (*stun.Message, error) {
	req, err := stun.Build(setters...)
	if err != nil {
		return nil, fmt.Errorf("build request to pion/turn: %w", err)
	}
	c := &call{request: req.Raw, from: handle, relay: r}
	l.do(c)
	if c.answer == nil {
		return nil, errNoAnswer
	}
	m := &stun.Message{Raw: c.answer}
	if err := m.Decode(); err != nil {
		return nil, fmt.Errorf("read answer of pion/turn: %w", err)
	}
	return m, nil
}

// do returns when pion/turn has handled the call, or is closed.
func (l *lane) do(c *call) {
	l.task.Begin()
	defer l.task.End()
	c.done = make(chan struct{})
	select {
	case l.calls <- c:
	case <-l.closed:
		return
	}
	select {
	case <-c.done:
	case <-l.closed:
	}
}

// own registers the relay of a session, disown forgets it.
func (l *lane) own(s *session.Session, r *relay.Relay) { l.owners.Store(string(s.Handle.IP), r) }

func (l *lane) disown(s *session.Session) { l.owners.Delete(string(s.Handle.IP)) }

// ReadFrom is pion/turn asking for the next request, which means that it is done with the one before.
func (l *lane) ReadFrom(b []byte) (int, net.Addr, error) {
	if l.current != nil {
		close(l.current.done)
		l.current = nil
	}
	select {
	case c := <-l.calls:
		l.current = c
		return copy(b, c.request), c.from, nil
	case <-l.closed:
		return 0, nil, net.ErrClosed
	}
}

// WriteTo is pion/turn speaking: an answer belongs to the call in progress; an indication says that the peer
// about which the relay asked has a permission, and comes from the allocation's own goroutine.
func (l *lane) WriteTo(b []byte, to net.Addr) (int, error) {
	if isResponse(b) {
		l.current.answer = append([]byte(nil), b...)
		return len(b), nil
	}
	if r, ok := l.owners.Load(string(to.(*net.UDPAddr).IP)); ok {
		return len(b), r.(*relay.Relay).Deliver()
	}
	return len(b), nil
}

// AllocatePacketConn hands pion/turn the relay that the gate has opened for the request in progress.
func (l *lane) AllocatePacketConn(string, int) (net.PacketConn, net.Addr, error) {
	if l.current == nil || l.current.relay == nil {
		return nil, nil, errors.New("no relay for this request")
	}
	r := l.current.relay
	return r, net.UDPAddrFromAddrPort(r.Session().Relay), nil
}

// AllocateConn refuses: TCP relays (RFC 6062) are not offered.
func (l *lane) AllocateConn(string, int) (net.Conn, net.Addr, error) {
	return nil, nil, errors.New("TCP relays are not offered")
}

// Validate is part of turn.RelayAddressGenerator.
func (l *lane) Validate() error { return nil }

// Close makes pion/turn's read loop end.
func (l *lane) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

// LocalAddr is the same for every session, so that the handle alone identifies it to pion/turn.
func (l *lane) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv6loopback, Port: 1} }

// The deadlines of a net.PacketConn; pion/turn sets none.
func (l *lane) SetDeadline(time.Time) error      { return nil }
func (l *lane) SetReadDeadline(time.Time) error  { return nil }
func (l *lane) SetWriteDeadline(time.Time) error { return nil }
