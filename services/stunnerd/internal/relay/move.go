package relay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

const (
	// checkTimes is how many times a check is sent again from the new address, and checkInterval is the time between
	// two attempts.
	checkTimes    = 3
	checkInterval = 50 * time.Millisecond
	// probeInterval is the time between two datagrams that are sent from both addresses, and probeDelay is the delay of
	// the second copy of the datagram.
	probeInterval = 500 * time.Millisecond
	probeDelay    = 2 * time.Millisecond
	// staysAfter is the number of datagrams to the former address after which the peer counts as still using that
	// address. The first datagrams may have left before the peer selected the new address.
	staysAfter = 3
	// lostInterval is the time between two checks after checkTimes attempts, if the former address is lost.
	lostInterval = 500 * time.Millisecond
	// takeTimeout is how long peers may need to accept the new address. After that, the move counts as failed.
	takeTimeout = 10 * time.Second
	// formerLinger is how long the former socket stays open after the last peer has accepted the new address.
	formerLinger = 2 * time.Second
	// peerIdle is the time after which a silent peer with ICE has lost its consent (RFC 7675 §5.1). After this time,
	// packets of the peer need not be forwarded.
	peerIdle = 30 * time.Second
	// setupTime is the time after the start of a session in which its call is set up. During this time, a peer that has
	// not answered may still answer.
	setupTime = 15 * time.Second
	// recheckMove is the interval at which the peers that have not accepted the new address within takeTimeout are
	// counted again.
	recheckMove = 5 * time.Second
	// maxQuestions is the maximum number of remembered checks of a peer. The answer to a remembered check is sent from
	// the socket at which the check has arrived.
	maxQuestions = 8
	// priceMovingPeer is the memory of a peer during a move, with its longest check and a repeated datagram.
	priceMovingPeer = 2 << 10
)

// transaction is the transaction ID of a STUN message.
type transaction [stun.TransactionIDSize]byte

// move makes the peers of a relay use its socket in place of a former one, which may be at another pod. The client is
// not involved: a connectivity check that it has sent to the peer is sent again unchanged from the new address. The
// check is authenticated with the password of the peer over its content, which does not include the source address (RFC
// 8445 §7.2.2). A peer that accepts it learns the new address as a peer-reflexive candidate, and selects it.
//
// Until a peer has answered a check and has sent data other than STUN to the new address, data for the peer is sent
// from the former socket, and checks of the client are sent from both sockets. The answer to a check is sent from the
// socket at which the check has arrived, because ICE agents drop other answers. So a peer that does not accept the new
// address loses nothing.
//
// A controlled agent of libwebrtc prefers the address of the latest data, if both are nominated. So a peer that has
// answered a check but goes on to use the former address also gets a few datagrams of data from the new address.
//
// If the former socket is lost with its pod, everything is sent from the new socket, and checks are sent until the peer
// answers.
type move struct {
	relay *Relay
	// former is nil if it is lost.
	former Socket
	begin  sync.Once
	// probeUntil is when the last datagram is sent from both addresses, as a time.Duration since the start of the
	// session.
	probeUntil atomic.Int64
	// changed gets a value when a peer has accepted the new address, and when the relay is closed.
	changed chan struct{}
	// peers are the peers of the move, and peers to which the client first sends during the move. It is copied on
	// write.
	peers  atomic.Pointer[[]*movingPeer]
	adding sync.Mutex
	// memory is the claim of the session for the memory of the peers.
	memory session.Claim
}

type movingPeer struct {
	addr netip.AddrPort
	// check is sent again from the new address. It is nil for a peer to which the client first sent during the move.
	check []byte
	// taken is set when the peer uses the new address.
	taken atomic.Bool
	// received is the arrival time of the latest datagram of the peer, as a time.Duration since the start of the
	// session.
	received atomic.Int64
	// answered is set when the peer has answered one of the asked transactions. A forged answer requires that its
	// sender can read the checks.
	answered atomic.Bool
	// stayed is the number of datagrams of data that the peer has sent to the former address after its answer to a
	// check from the new address.
	stayed atomic.Int32
	// probe is when the next datagram may be sent from both addresses, as a time.Duration since the start of the
	// session.
	probe atomic.Int64

	mu sync.Mutex
	// asked are the transaction IDs of two checks that were sent from the new socket: check, and the latest check of
	// the client.
	asked [2]transaction
	// questions are the latest checks of the peer that have arrived at the new socket.
	questions [maxQuestions]transaction
	next      int
	// repeating is set while the latest check of the client waits to be sent again by repeat.
	repeating bool
}

// From makes the peers of checks use the former socket of the session until Move. It must be called before Start. The
// relay closes the former socket when no peer needs it any more. If former is nil, the socket is lost, and Reached
// takes the place of Move.
func (r *Relay) From(former Socket, checks []session.Check) {
	m := &move{relay: r, former: former, changed: make(chan struct{}, 1), memory: r.session.Claim(session.Memory)}
	m.memory.Force(int64(len(checks)+maxUnbound) * priceMovingPeer)
	peers := make([]*movingPeer, 0, len(checks))
	for _, c := range checks {
		p := &movingPeer{addr: c.Peer, check: c.Message}
		p.asked[0], _ = bindingTransaction(c.Message, stun.ClassRequest)
		p.received.Store(int64(r.now()))
		peers = append(peers, p)
	}
	m.peers.Store(&peers)
	r.moving.Store(m)
}

// Move begins to move the peers from the former socket to the socket of the relay. Later calls do nothing.
func (r *Relay) Move() {
	if m := r.moving.Load(); m != nil {
		m.begin.Do(func() { go m.run() })
	}
}

// Reached is called when the path to the client is known. If the former socket is lost, the peers begin to move then:
// their answers must not be sent to the client earlier.
func (r *Relay) Reached() {
	if m := r.moving.Load(); m != nil && m.former == nil {
		r.Move()
	}
}

// Former returns the former socket while it is in use, or nil.
func (r *Relay) Former() Socket {
	if m := r.moving.Load(); m != nil {
		return m.former
	}
	return nil
}

// ReceiveFormer is ReceiveBatch for datagrams at the former socket.
func (r *Relay) ReceiveFormer(batch []Datagram, now time.Time) {
	m := r.moving.Load()
	if m == nil {
		return
	}
	for i := range batch {
		if p := m.find(batch[i].peer); p != nil {
			p.received.Store(int64(r.since(now)))
			isData := batch[i].icmp == (ICMP{}) && !isMessage(batch[i].Payload())
			if isData && p.answered.Load() && p.probe.Load() <= int64(r.since(now)) {
				p.stayed.Add(1)
			}
		}
	}
	r.receive(batch, now)
}

// run moves the peers, and closes the former socket.
func (m *move) run() {
	r := m.relay
	defer r.EndOnPanic("move peers")
	for _, p := range *m.peers.Load() { // until then, a check may make a peer select the new address
		p.probe.Store(int64(r.now() + checkTimes*checkInterval))
	}
	m.probeUntil.Store(int64(r.now() + takeTimeout))
	for range checkTimes {
		m.sendChecks()
		if !m.wait(checkInterval) {
			return
		}
	}
	for until := time.Now().Add(takeTimeout); m.waiting() > 0 && time.Now().Before(until); {
		interval := time.Until(until)
		if m.former == nil { // the former socket is lost, so a peer accepts no data before a check
			interval = min(interval, lostInterval)
			m.sendChecks()
		}
		if !m.wait(interval) {
			return
		}
	}
	failed := m.waiting()
	r.meter.PeersMoved.Add(uint64(len(*m.peers.Load()) - failed))
	r.meter.PeersNotMoved.Add(uint64(failed))
	for m.waiting() > 0 && m.former != nil {
		if !m.wait(recheckMove) {
			return
		}
	}
	for until := time.Now().Add(formerLinger); time.Now().Before(until); {
		if !m.wait(time.Until(until)) {
			return
		}
	}
	r.moving.Store(nil)
	m.close()
}

// wait waits for a change, but not longer than most. It reports false if the relay is closed.
func (m *move) wait(most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.changed:
	}
	return !m.relay.Closed()
}

func (m *move) signal() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// close closes the former socket at the end of the move or of the session. A nil *move is valid.
func (m *move) close() {
	if m != nil {
		m.signal()
		if m.former != nil {
			_ = m.former.Close()
		}
		m.memory.Release()
	}
}

// waiting returns the number of peers that have not accepted the new address. Silent peers and peers without a check do
// not count.
func (m *move) waiting() (n int) {
	now := m.relay.now()
	for _, p := range *m.peers.Load() {
		if p.check != nil && !p.taken.Load() && now-time.Duration(p.received.Load()) < peerIdle {
			n++
		}
	}
	return n
}

// sendChecks sends the checks from the new address to the peers that have not accepted it, if the routes and a
// permission allow it.
func (m *move) sendChecks() {
	r := m.relay
	for _, p := range *m.peers.Load() {
		if p.check == nil || p.taken.Load() {
			continue
		}
		now := time.Now()
		_, reached := r.View().Match(p.addr)
		c := r.byPeer(p.addr, r.since(now))
		permitted := c != nil && r.permittedAt(c, now) || r.Permitted(p.addr) || r.permitted(p.addr)
		if reached != cluster.Allowed || !permitted || !r.admits(session.ToPeer, len(p.check), p.addr, now) {
			continue
		}
		r.socket.Send([]datagram.Packet{{Payload: p.check, To: p.addr}})
		r.session.Traffic.Tx.Add(len(p.check))
	}
}

// find returns a peer, or nil.
func (m *move) find(addr netip.AddrPort) *movingPeer {
	for _, p := range *m.peers.Load() {
		if p.addr == addr {
			return p
		}
	}
	return nil
}

// peer returns the state of a peer to which the client sends. It returns nil if there are too many peers.
func (m *move) peer(addr netip.AddrPort) *movingPeer {
	if p := m.find(addr); p != nil {
		return p
	}
	m.adding.Lock()
	defer m.adding.Unlock()
	old := *m.peers.Load()
	more := 0
	for _, p := range old {
		if p.check == nil {
			more++
		}
	}
	if p := m.find(addr); p != nil || more >= maxUnbound {
		return p
	}
	p := &movingPeer{addr: addr}
	peers := append(slices.Clone(old), p)
	m.peers.Store(&peers)
	return p
}

// send sends each datagram of the client from the socket that its peer expects.
func (m *move) send(packets []datagram.Packet) {
	for i := range packets {
		one := packets[i : i+1]
		switch byFormer, byNew := m.sockets(&one[0]); {
		case byFormer && byNew:
			second := []datagram.Packet{one[0]}
			m.former.Send(second)
			m.relay.socket.Send(one)
		case byFormer:
			m.former.Send(one)
		default:
			m.relay.socket.Send(one)
		}
	}
}

// sockets returns the sockets from which a datagram is sent.
func (m *move) sockets(packet *datagram.Packet) (byFormer, byNew bool) {
	p := m.peer(packet.To)
	if p == nil {
		return m.former != nil, m.former == nil
	}
	taken := p.taken.Load()
	if id, ok := bindingTransaction(packet.Payload, stun.ClassRequest); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked[1] = id
		if m.former == nil {
			return false, true
		}
		if !taken && !p.repeating {
			p.repeating = true
			message := bytes.Clone(packet.Payload)
			time.AfterFunc(checkInterval, func() {
				p.mu.Lock()
				p.repeating = false
				p.mu.Unlock()
				m.repeat(p, message)
			})
		}
		return !taken, true
	}
	if m.former == nil {
		return false, true
	}
	id, ok := bindingTransaction(packet.Payload, stun.ClassSuccessResponse)
	if !ok {
		id, ok = bindingTransaction(packet.Payload, stun.ClassErrorResponse)
	}
	if ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		atNew := slices.Contains(p.questions[:], id)
		return !atNew, atNew
	}
	if !taken && m.probes(p) {
		data := bytes.Clone(packet.Payload)
		time.AfterFunc(probeDelay, func() { m.repeat(p, data) })
	}
	return !taken, taken
}

// probes reports whether the next datagram of data for a peer is sent from both addresses.
func (m *move) probes(p *movingPeer) bool {
	if p.stayed.Load() < staysAfter {
		return false
	}
	now, next := int64(m.relay.now()), p.probe.Load()
	return next <= now && now < m.probeUntil.Load() && p.probe.CompareAndSwap(next, now+int64(probeInterval))
}

// repeat sends a datagram of the client again from the new address. Some peers select the address of the latest check
// or data. Without the repetition, such a peer would stay at the former address if the same datagram arrives there
// later.
func (m *move) repeat(p *movingPeer, payload []byte) {
	if r := m.relay; !p.taken.Load() && !r.Closed() {
		r.socket.Send([]datagram.Packet{{Payload: payload, To: p.addr}})
		r.session.Traffic.Tx.Add(len(payload))
	}
}

// receivedBatch handles the datagrams of peers that arrive at the new socket.
func (m *move) receivedBatch(batch []Datagram, now time.Time) {
	for i := range batch {
		if p := m.find(batch[i].peer); p != nil && batch[i].icmp == (ICMP{}) {
			p.received.Store(int64(m.relay.since(now)))
			if p.receivedData(batch[i].Payload()) {
				m.signal()
			}
		}
	}
}

// receivedData handles a datagram at the new socket. It reports whether the datagram shows that the peer has accepted
// the new address.
func (p *movingPeer) receivedData(payload []byte) (taken bool) {
	question, isQuestion := bindingTransaction(payload, stun.ClassRequest)
	answer, isAnswer := bindingTransaction(payload, stun.ClassSuccessResponse)
	if p.taken.Load() && !isQuestion {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case isQuestion:
		p.questions[p.next%maxQuestions] = question
		p.next++
	case isAnswer:
		if slices.Contains(p.asked[:], answer) {
			p.answered.Store(true)
		}
	case p.answered.Load() && !isMessage(payload):
		return !p.taken.Swap(true)
	}
	return false
}

// isMessage reports whether a datagram is a STUN message.
func isMessage(b []byte) bool {
	return len(b) >= stunmsg.HeaderSize && b[0] < 4 && binary.BigEndian.Uint32(b[4:]) == magicCookie
}

// bindingTransaction returns the transaction ID of a Binding message of the given class.
func bindingTransaction(b []byte, class stun.MessageClass) (id transaction, ok bool) {
	if !isMessage(b) || binary.BigEndian.Uint16(b) != stun.NewType(stun.MethodBinding, class).Value() {
		return id, false
	}
	return transaction(b[8:]), true
}

// Depart prepares the relay for a handover to another pod. It ends the forwarding in the kernel, and returns the checks
// to the active peers, which the other pod sends again. ok is false if an active peer may not use ICE, or if excluded
// reports true for the address of an active peer. It is also false if an earlier move is not complete, because the end
// of the relay would close the former socket, which a peer may still use. The relay forwards in user space until Stay
// or Hand is called.
func (r *Relay) Depart(excluded func(netip.Addr) bool) (checks []session.Check, ok bool) {
	if r.moving.Load() != nil {
		return nil, false
	}
	r.departing.Store(true)
	r.Disarm()
	now, all := r.now(), r.nominations.Load().copies()
	inUse := map[netip.AddrPort]bool{}
	count := func(p *peerCount, bound bool) bool {
		received, active := time.Duration(p.lastReceived.Load()), time.Duration(p.lastActive())
		known := slices.ContainsFunc(all, func(c session.Check) bool { return c.Peer == p.addr })
		switch recent := p.received.Load() > 0 && now-received < peerIdle; {
		case known && recent:
			inUse[p.addr] = true
			return !excluded(p.addr.Addr())
		case known: // the move of the peer is in progress, or its consent has expired
			return now >= setupTime
		}
		return !bound && now-active >= PermissionLifetime
	}
	ok = true
	for _, c := range *r.channels.Load() {
		ok = ok && (!r.live(c, now) || count(c.count, true))
	}
	if counts := r.unbound.counts.Load(); counts != nil {
		for _, p := range *counts {
			ok = ok && count(p, false)
		}
	}
	return slices.DeleteFunc(all, func(c session.Check) bool { return !inUse[c.Peer] }), ok
}

// Stay reverts Depart.
func (r *Relay) Stay() { r.departing.Store(false) }

// Socket returns the socket.
func (r *Relay) Socket() Socket { return r.socket }

// Hand makes the relay pass all datagrams of peers to the function pass from now on, because another pod has taken over
// the session. Close then leaves the socket open.
func (r *Relay) Hand(pass func(batch []Datagram)) { r.passing.Store(&pass) }
