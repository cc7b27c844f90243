package forward

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

const (
	// MaxRecord is the size of the longest record of a session that is handed over.
	MaxRecord = 16 << 10
	// offerTimes is how many times a session is offered to a pod that does not answer. offerTimeout is how long the
	// offering pod waits for each answer.
	offerTimes   = 4
	offerTimeout = 250 * time.Millisecond
	// maxSuccessors is the number of pods to which a session is offered.
	maxSuccessors = 3
	// silentFor is how long no session is offered to a pod that has not answered an offer.
	silentFor = 10 * time.Second
	// maxTaking is the maximum number of queued offers of other pods, and maxTakingBytes the maximum size of their
	// records. The sender repeats an offer that does not fit.
	maxTaking      = 64
	maxTakingBytes = MaxRecord
)

// Errors of HandOver and Adopt.
var (
	// ErrNoSuccessor is the error if no other pod can continue a session.
	ErrNoSuccessor = errors.New("no other pod has room for the session")
	// ErrRecord is the error if the record of a session is longer than MaxRecord.
	ErrRecord = errors.New("the record of the session is too long")
)

// handovers are the sessions that are being handed over, from this pod and to this pod.
type handovers struct {
	mu sync.Mutex
	// waiting are the offers of this pod that wait for an answer.
	waiting map[clientKey]offer
	// silent contains the pods that have not answered an offer of a kind. Until the given time, no such offer is sent
	// to them. A pod of an earlier release answers take, but not adopt.
	silent []silentPod
	// queue contains the offers of other pods. queued is the number of bytes of their records.
	queue  chan taking
	queued atomic.Int64
}

type offer struct {
	to     *pod
	answer chan bool
}

type silentPod struct {
	pod   *pod
	offer kind
	until time.Duration
}

// taking is an offer of another pod, or the copy of a session of a lost pod.
type taking struct {
	client Client
	record []byte
	clock  time.Time
	from   *link
	// here is set if the offer says that the datagrams of the client arrive at this pod.
	here bool
	// copy is set for a session of a lost pod. All other fields but client are then unset.
	copy *saved
}

// HandOver offers the session of a client to the pods with the highest rendezvous hashes, one after the other, and
// returns the path to the successor. asked is the address to which the client sends. This pod then forwards datagrams
// of the client to the successor. The caller must end the session here and call ReturnPath.Confirm. A successor without
// a Confirm drops the session.
func (f *Forwarder) HandOver(c Client, record []byte, asked datagram.Source) (ReturnPath, error) {
	k, ok := keyOf(c)
	switch {
	case f == nil || !ok:
		return ReturnPath{}, ErrNoSuccessor
	case len(record) > MaxRecord:
		return ReturnPath{}, ErrRecord
	}
	for _, to := range f.successors(k) {
		if f.offer(k, c, to, take, record) {
			return f.handed(k, c, to, &asked)
		}
	}
	return ReturnPath{}, ErrNoSuccessor
}

// Adopt is HandOver to one pod: the front of the client. From then on the successor answers the client, so an authentic
// datagram must have arrived through the front.
func (f *Forwarder) Adopt(c Client, record []byte, asked datagram.Source, front ReturnPath) (ReturnPath, error) {
	k, ok := keyOf(c)
	switch {
	case !ok || !f.Adopts(front):
		return ReturnPath{}, ErrNoSuccessor
	case len(record) > MaxRecord:
		return ReturnPath{}, ErrRecord
	case !f.offer(k, c, front.pod, adopt, record):
		return ReturnPath{}, ErrNoSuccessor
	}
	return f.handed(k, c, front.pod, &asked)
}

// Adopts reports whether a session can be offered to a front: the front accepts sessions, and has answered the offers
// of the last silentFor.
func (f *Forwarder) Adopts(front ReturnPath) bool {
	return f != nil && front.pod.accepts() && !f.silent(front.pod, adopt)
}

// accepts reports whether a pod accepts sessions: it is in the list, does not drain and is not lost. p may be nil.
func (p *pod) accepts() bool {
	if p == nil {
		return false
	}
	l := p.link.Load()
	return l != nil && !l.peer.Draining && !p.lost()
}

// handed stores the successor of a session as the owner, in the front of this pod.
func (f *Forwarder) handed(k clientKey, c Client, to *pod, asked *datagram.Source) (ReturnPath, error) {
	f.front.mu.Lock()
	known := f.front.learn(k, to, asked, f.now())
	f.front.mu.Unlock()
	if known == nil {
		f.unlisted()
		return ReturnPath{}, ErrNoSuccessor
	}
	return ReturnPath{forwarder: f, pod: to, client: c}, nil
}

// HasSuccessors reports whether there is another pod that may take over sessions.
func (f *Forwarder) HasSuccessors() bool { return f != nil && len(f.successors(clientKey{})) > 0 }

// Delivered returns the number of datagrams of clients that other pods have forwarded to this owner. It is 0 if f is
// nil.
func (f *Forwarder) Delivered() uint64 {
	if f == nil {
		return 0
	}
	return f.counters.delivered.Load()
}

// Passed returns the number of datagrams of clients that this front has forwarded to owners.
func (f *Forwarder) Passed() uint64 { return f.counters.passed.Load() }

// successors returns the pods that may take over the session of a client, the highest rendezvous hash first. They do
// not drain, and have answered the offers of the last silentFor.
func (f *Forwarder) successors(k clientKey) (list []*pod) {
	v := f.view.Load()
	if !v.forwards() {
		return nil
	}
	for _, h := range v.homes {
		if l := v.links[h.pod.id]; l != nil && !l.peer.Draining && !f.silent(h.pod, take) {
			list = append(list, h.pod)
		}
	}
	client := k.hash()
	slices.SortFunc(list, func(a, b *pod) int { return cmp.Compare(mix(client^b.id), mix(client^a.id)) })
	return list[:min(len(list), maxSuccessors)]
}

// silent reports whether a pod has not answered an offer of a kind in the last silentFor.
func (f *Forwarder) silent(p *pod, kind kind) bool {
	h, now := &f.handovers, f.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = slices.DeleteFunc(h.silent, func(s silentPod) bool { return s.until <= now })
	return slices.ContainsFunc(h.silent, func(s silentPod) bool { return s.pod == p && s.offer == kind })
}

// Begin passes an Allocate request of a client, which this pod has authenticated, to a pod that accepts new sessions.
// It selects the pod that got an earlier request of the client, or else the one with the highest rendezvous hash. asked
// is the address to which the client sends. Begin reports false if no pod accepts new sessions.
func (o *Outbox) Begin(c Client, request []byte, asked datagram.Source) bool {
	if o == nil {
		return false
	}
	f := o.forwarder
	k, ok := keyOf(c)
	if !ok {
		return false
	}
	var to *pod
	if n := o.find(k); n != nil {
		to = n.owner.Load()
	}
	if list := f.successors(k); !to.accepts() {
		first := slices.IndexFunc(list, (*pod).accepts)
		if first < 0 {
			return false
		}
		to = list[first]
	}
	f.front.mu.Lock()
	n := f.front.learn(k, to, &asked, f.now())
	f.front.mu.Unlock()
	l := to.link.Load()
	if n == nil || l == nil {
		return false
	}
	to.need(f.now())
	o.cache(k, n)
	if !o.add(l, begin, c, request) {
		return false
	}
	f.counters.passed.Add(1)
	return true
}

// handleBegin handles an Allocate request that another pod has authenticated.
func (f *Forwarder) handleBegin(l *link, m message) {
	if !isSTUN(m.payload) {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	if !f.sessions.Begin(m.client, m.payload, f.returnPath(l, m.client)) {
		f.refuse(meter.OtherListener, l.peer.Address)
	}
}

// offer offers a session to a pod by a frame of a kind, and reports whether that pod continues it.
func (f *Forwarder) offer(k clientKey, c Client, to *pod, kind kind, record []byte) bool {
	answer := make(chan bool, 1)
	h := &f.handovers
	h.mu.Lock()
	h.waiting[k] = offer{to, answer}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting, k)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for range offerTimes {
		payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))
		path := ReturnPath{forwarder: f, pod: to, client: c}
		_ = path.send(kind, append(payload, record...))
		timer.Reset(offerTimeout)
		select {
		case ok := <-answer:
			return ok
		case <-timer.C:
		case <-f.closed:
			return false
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = append(h.silent, silentPod{to, kind, f.now() + silentFor})
	return false
}

// handleTake queues an offer, because the reader must not wait until the session is restored.
func (f *Forwarder) handleTake(l *link, m message) {
	if len(m.payload) < 8 || len(m.payload) > 8+MaxRecord {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	clock, record := time.UnixMilli(int64(binary.BigEndian.Uint64(m.payload))), m.payload[8:]
	h := &f.handovers
	if h.queued.Load()+int64(len(record)) > maxTakingBytes {
		return // the other pod repeats its offer
	}
	select {
	case h.queue <- taking{client: m.client, record: slices.Clone(record), clock: clock, from: l, here: m.kind == adopt}:
		h.queued.Add(int64(len(record)))
	default:
	}
}

// takeAll continues sessions of other pods until Close.
func (f *Forwarder) takeAll() {
	for {
		select {
		case t := <-f.handovers.queue:
			f.take(t)
			f.handovers.queued.Add(-int64(len(t.record)))
		case <-f.closed:
			return
		}
	}
}

func (f *Forwarder) take(t taking) {
	defer f.meter.RecoverPanic("take over a session")
	if t.copy != nil {
		f.takeOver(t.client, t.copy)
		return
	}
	path := f.returnPath(t.from, t.client)
	verdict := byte(0)
	var here *datagram.Source
	if t.here {
		here = f.askedOf(t.client, t.from.pod)
	}
	if t.here == (here != nil) && f.sessions.Take(t.client, t.record, t.clock, path, here) {
		verdict = 1
	}
	_ = path.send(taken, []byte{verdict})
}

// askedOf returns the address to which a client sends if this front forwards its datagrams to the given owner. It is
// nil if there is no such client, or if datagrams of the client arrive at two addresses, of which one may be forged.
func (f *Forwarder) askedOf(c Client, owner *pod) *datagram.Source {
	k, _ := keyOf(c) // a client in a frame never has a zone
	n := f.front.find(k)
	if n == nil || n.owner.Load() != owner || n.other.Load() != nil {
		return nil
	}
	return n.asked.Load()
}

func (f *Forwarder) handleTaken(l *link, k clientKey, m message) {
	if len(m.payload) != 1 {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	f.handovers.mu.Lock()
	o, ok := f.handovers.waiting[k]
	f.handovers.mu.Unlock()
	if !ok || o.to != l.pod {
		f.refuse(meter.Unasked, l.peer.Address)
		return
	}
	select {
	case o.answer <- m.payload[0] == 1:
	default: // the answer to a repeated offer, which was handled before
	}
}

func (f *Forwarder) handleFromPeer(l *link, m message, now time.Time) {
	peer, payload, ok := peerOf(m)
	if !ok {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	if path := f.returnPath(l, m.client); !f.sessions.FromPeer(m.client, path, peer, payload, now) {
		f.replies.add(l, part, m.client, nil)
	}
}

func (f *Forwarder) handleToPeer(l *link, m message) {
	peer, payload, ok := peerOf(m)
	if !ok || !peer.IsValid() {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	f.sessions.ToPeer(m.client, f.returnPath(l, m.client), peer, payload)
}

// returnPath returns the return path to a client through a pod.
func (f *Forwarder) returnPath(l *link, c Client) ReturnPath {
	return ReturnPath{forwarder: f, pod: l.pod, client: c}
}

// peerOf splits the payload of a fromPeer or toPeer frame. Its first byte is the size of the address.
func peerOf(m message) (peer netip.AddrPort, datagram []byte, ok bool) {
	if len(m.payload) == 0 {
		return peer, nil, true
	}
	size := int(m.payload[0])
	if size != record4 && size != record6 {
		return peer, nil, false
	}
	c, rest, ok := record(m.payload[1:], size)
	return c.Addr, rest, ok
}

// FromPeer sends a datagram of a peer to the successor. The peer has sent it to the former relayed address of the
// session.
func (w *ReturnPath) FromPeer(peer netip.AddrPort, datagram []byte) {
	_ = w.send(fromPeer, peerPayload(peer, datagram))
}

// ToPeer sends a datagram to the former owner, which sends it to a peer.
func (w *ReturnPath) ToPeer(peer netip.AddrPort, datagram []byte) error {
	return w.send(toPeer, peerPayload(peer, datagram))
}

// Confirm notifies the successor that it is the owner now.
func (w *ReturnPath) Confirm() { _ = w.send(fromPeer, nil) }

// Part notifies the former owner that its relayed address is no longer in use.
func (w *ReturnPath) Part() { _ = w.send(part, nil) }

func peerPayload(peer netip.AddrPort, datagram []byte) []byte {
	size := recordSize(peer.Addr())
	b := make([]byte, 0, 1+record6+len(datagram))
	b = putRecord(append(b, byte(size)), Client{Addr: peer})
	return append(b, datagram...)
}
