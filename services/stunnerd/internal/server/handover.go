package server

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// handOverInterval is the minimum time between the handovers of two sessions: 5,000 a second.
	handOverInterval = 200 * time.Microsecond
	// handingOver is the number of concurrent handovers.
	handingOver = 16
	// handOverAgain is the time after which the handover of a session that has stayed is tried again.
	handOverAgain = 15 * time.Second
	// confirmAgain is the interval at which a successor is notified that it is the owner, while it uses the relay
	// socket of this pod.
	confirmAgain = time.Second
)

// handedOver are the sessions that other pods have taken over from this pod.
type handedOver struct {
	mu sync.Mutex
	// sockets are the relay sockets that the successors still use.
	sockets map[forward.Client]handedSocket
	// next is the earliest time of the next handover. Only one goroutine uses it.
	next time.Time
	// full is the number of sessions that were refused by all other pods in the latest attempt.
	full atomic.Int64
}

// handedSocket is a relay socket of this pod that a session at another pod uses.
type handedSocket struct {
	to     forward.ReturnPath
	socket relay.Socket
	// adopted is set if the session was handed over by adoptDue.
	adopted bool
}

// HandOver hands the sessions over UDP to the other pods of the Gateway. It returns when this pod has no session, and
// no relay socket that a successor uses, or when ctx ends. Data is forwarded meanwhile. Sessions that cannot move yet
// are tried again. If pods do not see the addresses of clients, no session is handed over: the next pod of a client
// could not find its session.
func (s *Server) HandOver(ctx context.Context) {
	again := time.NewTicker(handOverAgain)
	defer again.Stop()
	confirm := time.NewTicker(confirmAgain)
	defer confirm.Stop()
	s.handOverAll(ctx)
	for s.table.Len() > 0 || s.HandedSockets() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			s.handOverAll(ctx)
		case <-confirm.C:
			s.confirmAll()
		}
	}
}

// handOverAll tries each session once.
func (s *Server) handOverAll(ctx context.Context) {
	if !s.forwarder.HasSuccessors() || !s.clientAddresses.Load() {
		return
	}
	clients, excluded := make(chan forward.Client), s.gatewayAddresses()
	var full atomic.Int64
	var workers sync.WaitGroup
	for range handingOver {
		workers.Go(func() {
			for c := range clients {
				s.handOver(c, excluded, &full)
			}
		})
	}
	for port := range *s.forwardPorts.Load() {
		l := s.movable(port)
		if l == nil {
			continue
		}
		for addr := range l.Gate().Clients() {
			if s.pace(ctx); ctx.Err() == nil {
				clients <- forward.Client{Addr: addr, Port: port}
			}
		}
	}
	close(clients)
	workers.Wait()
	s.handedOver.full.Store(full.Load())
	if st := s.Draining(); st != nil {
		s.opt.Log.Info("draining: " + st.String())
	}
	s.table.Touch()
}

// pace waits until the next handover may begin.
func (s *Server) pace(ctx context.Context) {
	h := &s.handedOver
	now := time.Now()
	if h.next.Before(now) {
		h.next = now
	}
	wait := h.next.Sub(now)
	h.next = h.next.Add(handOverInterval)
	if wait < time.Millisecond { // a timer takes about a millisecond at least
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// handOver hands over a session if the session can move and another pod accepts it. It counts a session that no pod
// accepts.
func (s *Server) handOver(c forward.Client, excluded map[netip.Addr]bool, full *atomic.Int64) {
	defer s.meter.RecoverPanic("hand over a session")
	l := s.movable(c.Port)
	if l == nil {
		return
	}
	switch offered, err := s.move(c, l, excluded, false, s.forwarder.HandOver); {
	case err == nil:
		s.meter.SessionsHanded.Add(1)
	case offered:
		full.Add(1)
	}
}

// move hands over a session by offer, which gets the client, the record and the address to which the client sends.
// offered reports whether the session could leave this pod.
func (s *Server) move(
	c forward.Client, l listener.Movable, excluded map[netip.Addr]bool, adopted bool,
	offer func(c forward.Client, record []byte, asked datagram.Source) (forward.ReturnPath, error),
) (offered bool, err error) {
	defer func() {
		if err != nil {
			s.opt.Log.Debug("session stays", "client", c.Addr, "error", err)
		}
	}()
	d, err := l.Gate().Depart(c.Addr, func(peer netip.Addr) bool { return excluded[peer] })
	if err != nil {
		return false, err
	}
	var to forward.ReturnPath
	b, err := d.Record.MarshalBinary()
	if err == nil {
		asked, _ := datagram.ParseSource(d.Record.Source) // after an error the kernel selects the address
		to, err = offer(c, b, asked)
	}
	if err != nil {
		d.Stay()
		return true, err
	}
	if err = d.Ended(); err != nil { // the other pod drops the session, because nothing confirms it
		return false, err
	}
	h := &s.handedOver
	h.mu.Lock()
	if earlier, ok := h.sockets[c]; ok { // the session was handed over, came back and is handed over again
		s.closeHanded(c, earlier)
	}
	h.sockets[c] = handedSocket{to, d.Socket(), adopted}
	h.mu.Unlock()
	d.Go(func(batch []relay.Datagram) {
		for i := range batch {
			if batch[i].IsData() {
				to.FromPeer(batch[i].Peer(), batch[i].Payload())
			}
		}
	})
	to.Confirm()
	return true, nil
}

// gatewayAddresses returns the IP addresses of the pods of this Gateway. A session stays if its peer is a relay at one
// of them, because the permission of the other client is for the IP address of this pod.
func (s *Server) gatewayAddresses() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, a := range slices.Concat(s.opt.HostAddresses, *s.local.Load()) {
		all[a] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range s.pods {
		all[pod.Address.Addr()], all[pod.Other] = true, true
	}
	return all
}

// movable returns the listener on a port if its sessions can move, or nil.
func (s *Server) movable(port uint16) listener.Movable {
	l, _ := (*s.forwardPorts.Load())[port].(listener.Movable)
	return l
}

// HandedSockets returns the number of relay sockets of this process that sessions of other pods use.
func (s *Server) HandedSockets() int {
	all, _ := s.handedSockets()
	return all
}

// handedSockets returns the number of relay sockets of this process that sessions of other pods use, and how many of
// these sessions adoptDue has handed over.
func (s *Server) handedSockets() (all, adopted int) {
	s.handedOver.mu.Lock()
	defer s.handedOver.mu.Unlock()
	for _, one := range s.handedOver.sockets {
		if one.adopted {
			adopted++
		}
	}
	return len(s.handedOver.sockets), adopted
}

// Drain makes gates refuse new sessions. late means that nodes still send new clients to this pod, because they do not
// know yet that it ends. If late is set and another pod accepts sessions, gates admit the clients that cannot be passed
// to the other pod, until the next call of Drain: clients over connections, clients that another pod has passed here,
// and all clients if pods do not see the addresses of clients. Drain reports whether gates admit such clients.
func (s *Server) Drain(late bool) bool {
	late = late && s.forwarder.HasSuccessors()
	s.table.AdmitLate(late && !s.clientAddresses.Load(), late)
	s.table.Drain()
	return late
}

// PassedOn returns the number of datagrams of clients that this pod has forwarded to the pods with their sessions.
func (s *Server) PassedOn() uint64 {
	if s.forwarder == nil {
		return 0
	}
	return s.forwarder.Passed()
}

// confirmAll notifies the successors that they are the owners. A successor that no longer needs the socket answers. If
// the pod of a successor is gone, its socket is closed.
func (s *Server) confirmAll() {
	h := &s.handedOver
	h.mu.Lock()
	defer h.mu.Unlock()
	for c, one := range h.sockets {
		if one.to.Front().IsValid() {
			one.to.Confirm()
		} else {
			s.closeHanded(c, one)
		}
	}
}

// closeHanded closes a socket. The caller holds mu of handedOver.
func (s *Server) closeHanded(c forward.Client, one handedSocket) {
	delete(s.handedOver.sockets, c)
	if err := one.socket.Close(); err != nil {
		s.opt.Log.Debug("close the relay socket of a session at another pod", "error", err)
	}
	s.table.Touch()
}

// closeAllHanded closes the sockets when the process ends.
func (s *Server) closeAllHanded() {
	h := &s.handedOver
	h.mu.Lock()
	defer h.mu.Unlock()
	for c, one := range h.sockets {
		s.closeHanded(c, one)
	}
}

// handed returns the relay socket of a client whose session was handed over to the pod of a ReturnPath. Otherwise it
// returns the zero handedSocket.
func (s *Server) handed(c forward.Client, to forward.ReturnPath) handedSocket {
	s.handedOver.mu.Lock()
	defer s.handedOver.mu.Unlock()
	if one := s.handedOver.sockets[c]; one.to == to {
		return one
	}
	return handedSocket{}
}

// Draining returns the numbers of sessions that were handed over and that stay, for the status. It is nil before the
// process drains.
func (s *Server) Draining() *inspection.DrainStatus {
	if !s.table.Draining() {
		return nil
	}
	st := &inspection.DrainStatus{Moved: int(s.meter.SessionsHanded.Load()), Stay: map[string]int{}}
	for _, one := range s.table.All() {
		st.Stay[staysBecause(one.Protocol)]++
	}
	if full := min(int(s.handedOver.full.Load()), st.Stay[inspection.StaysForPeer]); full > 0 {
		st.Stay[inspection.StaysForPod] = full
		st.Stay[inspection.StaysForPeer] -= full
	}
	if n, adopted := s.handedSockets(); n > 0 { // peers of these sessions may not have accepted the new address yet
		st.Stay[inspection.StaysForPeer] += n
		st.Moved -= n - adopted
	}
	maps.DeleteFunc(st.Stay, func(_ string, n int) bool { return n == 0 })
	return st
}

// staysBecause returns why a session cannot be handed over, by the protocol of its listener.
func staysBecause(p config.Protocol) string {
	if p == config.TURNUDP {
		return inspection.StaysForPeer
	}
	return strings.TrimPrefix(string(p), "TURN-")
}

// Take implements forward.Sessions.
func (s forwarding) Take(
	c forward.Client, record []byte, clock time.Time, from forward.ReturnPath, here *datagram.Source,
) bool {
	l := s.movable(c.Port)
	if l == nil {
		return false
	}
	former := &formerSocket{path: from}
	if l.Gate().Taken(c.Addr, former.same) != nil {
		return true // the offer is repeated
	}
	var r session.Record
	err := r.UnmarshalBinary(record)
	if err == nil && r.Client != c.Addr {
		err = errors.New("the record is of another client")
	}
	if err == nil {
		shift(&r, time.Since(clock))
		s.learnFormer(r.Former)
		err = l.Take(&r, from, here, former)
	}
	if err != nil {
		s.opt.Log.Debug("session of another pod is not taken", "client", c.Addr, "pod", from.Pod(), "error", err)
	}
	return err == nil
}

// shift adds the difference between two clocks to the times of a record.
func shift(r *session.Record, by time.Duration) {
	r.Started, r.Until = r.Started.Add(by), r.Until.Add(by)
	for i := range r.Permissions {
		r.Permissions[i].Until = r.Permissions[i].Until.Add(by)
	}
	for i := range r.Channels {
		c := &r.Channels[i]
		c.Until, c.Installed = c.Until.Add(by), c.Installed.Add(by)
	}
	for i := range r.Former {
		f := &r.Former[i]
		f.Replaced, f.Until = f.Replaced.Add(by), f.Until.Add(by)
	}
}

// FromPeer implements forward.Sessions.
func (s forwarding) FromPeer(
	c forward.Client, from forward.ReturnPath, peer netip.AddrPort, payload []byte, now time.Time,
) bool {
	l := s.movable(c.Port)
	if l == nil {
		return false
	}
	r := l.Gate().Taken(c.Addr, (&formerSocket{path: from}).same)
	if r == nil {
		return false
	}
	l.Gate().Confirm(c.Addr)
	if peer.IsValid() {
		r.ReceiveFormer([]relay.Datagram{relay.NewDatagram(payload, peer)}, now)
	}
	return true
}

// ToPeer implements forward.Sessions.
func (s forwarding) ToPeer(c forward.Client, to forward.ReturnPath, peer netip.AddrPort, payload []byte) {
	if one := s.handed(c, to); one.socket != nil {
		one.socket.Send([]datagram.Packet{{Payload: payload, To: peer}})
	}
}

// Part implements forward.Sessions.
func (s forwarding) Part(c forward.Client, to forward.ReturnPath) {
	if one := s.handed(c, to); one.socket != nil {
		s.handedOver.mu.Lock()
		defer s.handedOver.mu.Unlock()
		s.closeHanded(c, one)
	}
}

// formerSocket is the relay socket that a session had at another pod.
type formerSocket struct {
	path   forward.ReturnPath
	closed atomic.Bool
}

var _ relay.Socket = (*formerSocket)(nil)

// same reports whether another socket is for the same client at the same pod.
func (f *formerSocket) same(other relay.Socket) bool {
	o, ok := other.(*formerSocket)
	return ok && o.path == f.path
}

// Port implements relay.Socket.
func (*formerSocket) Port() uint16 { return 0 }

// Bound implements relay.Socket.
func (*formerSocket) Bound() netip.AddrPort { return netip.AddrPort{} }

// Start implements relay.Socket. Datagrams arrive by forwarding.FromPeer.
func (*formerSocket) Start(relay.Receiver) error { return nil }

// Send implements relay.Socket.
func (f *formerSocket) Send(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = f.path.ToPeer(packets[i].To, packets[i].Payload)
	}
}

// Drops implements relay.Socket.
func (*formerSocket) Drops() uint64 { return 0 }

// Close implements relay.Socket.
func (f *formerSocket) Close() error {
	if !f.closed.Swap(true) {
		f.path.Part()
	}
	return nil
}
