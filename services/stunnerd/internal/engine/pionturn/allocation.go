package pionturn

import (
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// renewalInterval is how often the lifetime in pion/turn is prolonged, so that pion/turn never ends an allocation by
// its own timer. The timer runs in a goroutine of its own. If the read loop of pion/turn creates a permission of the
// same allocation at that moment, the timer's goroutine stops a timer that is still nil, and the process panics.
// Therefore pion/turn always gets the longest lifetime that it accepts, independent of the lifetime that the gate has
// granted, and about half an hour of it is always left. The gate ends an allocation by a Refresh with lifetime 0,
// which the read loop handles.
const renewalInterval = 30 * time.Minute

var (
	// longestLifetime is the longest LIFETIME that pion/turn accepts, in seconds. For 3600 or more it uses its default,
	// which is ten minutes.
	longestLifetime = stunmsg.Number{Type: stun.AttrLifetime, Value: 3599}
	noLifetime      = stunmsg.Number{Type: stun.AttrLifetime, Value: 0}
	transportUDP    = stunmsg.Number{Type: stun.AttrRequestedTransport, Value: 17 << 24}
)

// allocation implements engine.Allocation.
type allocation struct {
	conn   *pionConn
	handle *net.UDPAddr
	relay  *relay.Relay
	log    *slog.Logger
	// renewal runs renew. It is set by Start.
	renewal *time.Timer
}

// Start implements engine.Allocation.
func (a *allocation) Start() error {
	a.conn.allocations.Store(string(a.handle.IP), a)
	a.renewal = time.AfterFunc(renewalInterval, a.renew)
	err := a.request(stun.MethodAllocate, transportUDP, longestLifetime)
	if err != nil {
		a.forget()
	}
	return err
}

// renew prolongs the allocation in pion/turn.
func (a *allocation) renew() {
	defer a.relay.EndOnPanic("renew allocation")
	if err := a.request(stun.MethodRefresh, longestLifetime); err != nil {
		a.log.Debug("renew allocation", "error", err)
	}
	a.renewal.Reset(renewalInterval)
	if a.relay.Closed() { // forget may have stopped the timer before the Reset
		a.renewal.Stop()
	}
}

// Permit implements engine.Allocation.
func (a *allocation) Permit(peers []netip.AddrPort) error {
	attrs := make([]stun.Setter, 0, len(peers))
	for _, p := range peers {
		attrs = append(attrs, stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: p})
	}
	return a.request(stun.MethodCreatePermission, attrs...)
}

// Bind implements engine.Allocation.
func (a *allocation) Bind(number uint16, peer netip.AddrPort) error {
	return a.request(stun.MethodChannelBind,
		stunmsg.Number{Type: stun.AttrChannelNumber, Value: uint32(number) << 16},
		stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: peer})
}

// Send implements engine.Allocation.
func (a *allocation) Send(data []byte, peer netip.AddrPort) { a.conn.indicate(a, data, peer) }

// End implements engine.Allocation. It makes a Refresh with lifetime 0. pion/turn closes the relayConn before it
// answers that request.
func (a *allocation) End() error { return a.request(stun.MethodRefresh, noLifetime) }

// request makes a request to pion/turn for this allocation. An error response becomes an engine.Refusal. A missing
// answer becomes engine.ErrNoAllocation, because pion/turn does not answer requests for an allocation that does not
// exist.
func (a *allocation) request(method stun.Method, attrs ...stun.Setter) error {
	answer, err := a.conn.request(a, method, attrs...)
	switch {
	case err != nil:
		return err
	case answer.Type.Class == stun.ClassSuccessResponse:
		return nil
	}
	code := stun.ErrorCodeAttribute{Code: stun.CodeServerError}
	_ = code.GetFrom(answer) // pion/turn leaves the code out of some error responses
	return engine.Refusal{Code: code.Code}
}

// forget removes the allocation from its pionConn and stops the renewals.
func (a *allocation) forget() {
	a.conn.allocations.Delete(string(a.handle.IP))
	a.renewal.Stop()
}

// relayConn is the relay of an allocation in the form of a net.PacketConn. pion/turn reads from it in a goroutine of
// the allocation.
type relayConn struct {
	*allocation
	noDeadlines
}

// ReadFrom returns the address of a peer that has no channel, without the payload, because pion/turn would truncate a
// payload to the size of its buffer. If the peer has a permission, pion/turn writes a Data indication to the pionConn,
// and pionConn.WriteTo lets the relay deliver the datagram. Otherwise pion/turn calls ReadFrom again, and the relay
// drops the datagram. An error makes pion/turn end the allocation.
func (c relayConn) ReadFrom([]byte) (int, net.Addr, error) {
	peer, err := c.relay.Receive()
	if err != nil {
		return 0, nil, err
	}
	return 0, net.UDPAddrFromAddrPort(peer), nil
}

// WriteTo sends the data of a Send indication to a peer with a permission.
func (c relayConn) WriteTo(b []byte, to net.Addr) (int, error) {
	peer := to.(*net.UDPAddr).AddrPort()
	c.relay.Send(b, netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()))
	return len(b), nil
}

// Close closes the relay. pion/turn calls it when the allocation ends.
func (c relayConn) Close() error {
	err := c.relay.Close()
	c.forget() // after the relay is closed: see renew
	return err
}

// LocalAddr returns the relayed transport address.
func (c relayConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.relay.Session().Relay) }

// noDeadlines implements the deadline methods of net.PacketConn, which pion/turn calls neither on a pionConn nor on a
// relayConn.
type noDeadlines struct{}

func (noDeadlines) SetDeadline(time.Time) error      { return nil }
func (noDeadlines) SetReadDeadline(time.Time) error  { return nil }
func (noDeadlines) SetWriteDeadline(time.Time) error { return nil }
