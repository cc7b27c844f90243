package pionturn

import (
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

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
	// ended reports whether pion/turn has closed the relayConn.
	ended atomic.Bool
}

// Start implements engine.Allocation.
func (a *allocation) Start() error {
	a.renewal = time.AfterFunc(renewalInterval, a.renew)
	err := a.conn.request(a, stun.MethodAllocate, transportUDP, longestLifetime)
	if err != nil {
		a.renewal.Stop()
	}
	return err
}

// renew prolongs the allocation in pion/turn.
func (a *allocation) renew() {
	defer a.relay.EndOnPanic("renew allocation")
	if err := a.conn.request(a, stun.MethodRefresh, longestLifetime); err != nil {
		a.log.Debug("renew allocation", "error", err)
	}
	a.renewal.Reset(renewalInterval)
	if a.relay.Closed() { // relayConn.Close may have stopped the timer before the Reset
		a.renewal.Stop()
	}
}

// Permit implements engine.Allocation.
func (a *allocation) Permit(peers []netip.AddrPort) error {
	attrs := make([]stun.Setter, 0, len(peers))
	for _, p := range peers {
		attrs = append(attrs, stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: p})
	}
	return a.conn.request(a, stun.MethodCreatePermission, attrs...)
}

// Permitted implements engine.Allocation.
func (a *allocation) Permitted(peer netip.AddrPort) bool { return a.conn.permitted(a, peer) }

// Send implements engine.Allocation.
func (a *allocation) Send(data []byte, peer netip.AddrPort) bool {
	return a.conn.indicate(a, data, peer)
}

// End implements engine.Allocation. It makes a Refresh with lifetime 0. pion/turn closes the relayConn before it
// answers that request.
func (a *allocation) End() error { return a.conn.request(a, stun.MethodRefresh, noLifetime) }

// RelayClosed implements engine.Allocation. It does not wait, because its caller may be pion/turn.
func (a *allocation) RelayClosed() {
	if !a.ended.Load() {
		go func() {
			if err := a.End(); err != nil {
				a.log.Debug("end allocation of a closed relay", "error", err)
			}
		}()
	}
}

// relayConn is the relay of an allocation in the form of a net.PacketConn.
type relayConn struct {
	*allocation
	noDeadlines
}

// ReadFrom ends the goroutine in which pion/turn reads from a relay, because its stack and its buffer would be a third
// of the memory of an idle allocation. The relay itself handles the datagrams of peers, and calls allocation.Permitted.
//
// For a closed relay, ReadFrom returns an error, which makes pion/turn delete the allocation: RelayClosed may have been
// called before pion/turn created the allocation.
func (c relayConn) ReadFrom([]byte) (int, net.Addr, error) {
	if !c.relay.Closed() {
		runtime.Goexit()
	}
	return 0, nil, net.ErrClosed
}

// WriteTo sends the data of a Send indication to a peer with a permission, or records the result of pionConn.permitted.
// It is called during the exchange of the indication.
func (c relayConn) WriteTo(b []byte, to net.Addr) (int, error) {
	x := c.conn.current
	if x.permitted = true; x.question {
		return len(b), nil
	}
	peer := to.(*net.UDPAddr).AddrPort()
	c.relay.Send(b, netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()), false)
	return len(b), nil
}

// Close closes the relay. pion/turn calls it when the allocation ends.
func (c relayConn) Close() error {
	c.ended.Store(true)
	c.conn.live.Add(-1)
	err := c.relay.Close()
	c.renewal.Stop() // after the relay is closed: see renew
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
