package probe

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var refresh = []Check{
	{ID: "T-A12 Refresh", RFC: "8656 §5", Says: "a Refresh without allocation gives 437 at once",
		Run: func(t *Trial) { atOnce(t, func(c *Client) Answer { return c.Refresh(600) }) }},
	{ID: "T-A12 CreatePermission", RFC: "8656 §5", Says: "a CreatePermission without allocation gives 437 at once",
		Run: func(t *Trial) {
			peer := t.Peer().addr
			atOnce(t, func(c *Client) Answer { return c.Permit(peer) })
		}},
	{ID: "T-A12 ChannelBind", RFC: "8656 §5", Says: "a ChannelBind without allocation gives 437 at once",
		Run: func(t *Trial) {
			peer := t.Peer().addr
			atOnce(t, func(c *Client) Answer { return c.Bind(0x4000, peer) })
		}},
	{ID: "T-A12 Send", RFC: "8656 §5", Says: "a Send indication without allocation is dropped",
		Run: func(t *Trial) {
			c, p := t.Client(), t.Peer()
			c.SendTo(p.addr, []byte("nobody"))
			p.Quiet("Send indication without allocation")
			c.Quiet("Send indication without allocation")
		}},
	{ID: "T-A12 ChannelData", RFC: "8656 §12.6", Says: "ChannelData without allocation is dropped",
		Run: func(t *Trial) {
			c := t.Client()
			c.Ignored(wire.ChannelData(0x4000, []byte("nobody"), true), "ChannelData without allocation")
		}},
	{ID: "T-A13 success", RFC: "8656 §8.2", Says: "a Refresh with LIFETIME 0 succeeds with LIFETIME 0",
		Run: func(t *Trial) { lasts(t, t.Allocated().Refresh(0), 0) }},
	{ID: "T-A13 port", RFC: "8656 §8.2", Says: "after a Refresh with LIFETIME 0 the relay port is closed at once",
		Run: func(t *Trial) {
			c := t.Allocated()
			relay := c.relay
			c.Refresh(0).OK()
			t.closed(relay, t.Silence)
		}},
	{ID: "T-A13 again", RFC: "8656 §8.3", Says: "a second Refresh with LIFETIME 0 succeeds or gives 437",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Refresh(0).OK()
			if a := c.Refresh(0); a.Class != wire.Success {
				a.Refused(437)
			}
		}},
	{ID: "T-A13 new allocation", RFC: "8656 §8.2",
		Says: "the 5-tuple takes a new allocation, and nothing of the old one is left", Run: newAllocation},
	{ID: "T-A6 Refresh default", RFC: "8656 §8.2", Says: "a Refresh without LIFETIME gives 600 s",
		Run: func(t *Trial) { lasts(t, t.Allocated().Do(wire.Refresh), 600) }},
	{ID: "T-A6 Refresh short", RFC: "8656 §8.2", Says: "a Refresh with LIFETIME below the default gives the default",
		Run: func(t *Trial) { lasts(t, t.Allocated().Refresh(10), 600) }},
	{ID: "T-A6 Refresh middle", RFC: "8656 §8.2", Says: "a Refresh with LIFETIME between default and maximum gives it",
		Run: func(t *Trial) { lasts(t, t.Allocated().Refresh(1800), 1800) }},
	{ID: "T-A6 Refresh long", RFC: "8656 §8.2",
		Says: "a Refresh with LIFETIME above the maximum gives the maximum, 3600 s",
		Run:  func(t *Trial) { lasts(t, t.Allocated().Refresh(1<<32-1), 3600) }},
	{ID: "T-A6 Refresh malformed", RFC: "8489 §6.3.1",
		Says: "a LIFETIME of the wrong length gives 400, and the allocation stays",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Do(wire.Refresh, wire.Attr{Type: wire.Lifetime, Value: []byte{0, 0}}).Refused(400)
			c.Refresh(600).OK()
		}},
	{ID: "T-A14 other family", RFC: "8656 §8.2",
		Says: "a Refresh for the other address family gives 443, and the allocation stays",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Do(
				wire.Refresh, wire.Uint32(wire.Lifetime, 0),
				wire.Byte(wire.RequestedAddressFamily, otherFamily(c.relay)),
			).Refused(443)
			c.Refresh(600).OK()
		}},
	{ID: "T-A14 same family", RFC: "8656 §8.2", Says: "a Refresh for the address family of the relay succeeds",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Do(wire.Refresh, wire.Byte(wire.RequestedAddressFamily, wire.IPv4+wire.IPv6-otherFamily(c.relay))).OK()
		}},
	{ID: "T-A15 Refresh", RFC: "8656 §5", Says: "another user's Refresh gives 441, and the allocation stays",
		Run: func(t *Trial) { hijack(t, func(c *Client, _ netip.AddrPort) Answer { return c.Refresh(0) }) }},
	{ID: "T-A15 Allocate", RFC: "8656 §7.2", Says: "another user's Allocate gives 437 or 441, and the allocation stays",
		Run: func(t *Trial) {
			thief := t.ephemeralUser(2 * time.Hour)
			c := t.Allocated()
			owner := c.login
			c.login = thief
			c.Allocate().Refused(437, 441)
			c.login = owner
			c.Refresh(600).OK()
		}},
	{ID: "T-A15 CreatePermission", RFC: "8656 §5", Says: "another user's CreatePermission gives 441",
		Run: func(t *Trial) { hijack(t, func(c *Client, peer netip.AddrPort) Answer { return c.Permit(peer) }) }},
	{ID: "T-A15 ChannelBind", RFC: "8656 §5", Says: "another user's ChannelBind gives 441",
		Run: func(t *Trial) { hijack(t, func(c *Client, peer netip.AddrPort) Answer { return c.Bind(0x4000, peer) }) }},
	{ID: "T-A15 wrong password", RFC: "8489 §9.2.4",
		Says: "a Refresh with a wrong password gives 401, and the allocation stays",
		Run: func(t *Trial) {
			c := t.Allocated()
			right := c.login
			c.login.password = "guessed"
			c.Refresh(0).Refused(401)
			c.login = right
			c.Refresh(600).OK()
		}},
}

// atOnce checks that an authenticated request without allocation gets 437 without delay.
func atOnce(t *Trial, ask func(*Client) Answer) {
	c := t.Client()
	c.challenge()
	started := time.Now()
	ask(c).Refused(437)
	if took := t.pulse.Since(started); took > t.Silence {
		t.Failf("437 after %s", took)
	}
}

// closed waits until a datagram to the relayed address causes an ICMP port unreachable error.
func (t *Trial) closed(relay netip.AddrPort, wait time.Duration) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(relay))
	t.must(err, "open a peer")
	defer conn.Close()
	buf := make([]byte, 1)
	for started := time.Now(); t.pulse.Since(started) < wait; {
		conn.Write([]byte("anybody?"))
		conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := conn.Read(buf); errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
	}
	t.Failf("relay port %d is still open after %s", relay.Port(), wait)
}

func newAllocation(t *Trial) {
	c, p := t.Bound()
	c.Refresh(0).OK()
	c.Allocate().OK()
	c.SendOn(0x4000, []byte("old channel"))
	c.SendTo(p.addr, []byte("old permission"))
	p.Quiet("channel and permission of a deleted allocation")
}

func otherFamily(relay netip.AddrPort) byte {
	if relay.Addr().Is4() {
		return wire.IPv6
	}
	return wire.IPv4
}

// hijack sends a request of another user on the 5-tuple of an allocation.
func hijack(t *Trial, ask func(*Client, netip.AddrPort) Answer) {
	thief := t.ephemeralUser(2 * time.Hour)
	c, p := t.Allocated(), t.Peer()
	owner := c.login
	c.login = thief
	ask(c, p.addr).Refused(441)
	c.login = owner
	c.Refresh(600).OK()
	c.SendTo(p.addr, []byte("by another user's permission"))
	p.Quiet("request of another user")
}
