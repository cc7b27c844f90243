package probe

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var abuse = slices.Concat(forbiddenPeers(), disguisedPeers(), []Check{
	{ID: "T-03 listener", RFC: "8656 §21.1.7", Says: "a permission for the server's own listener is refused",
		Run: func(t *Trial) {
			if t.Server.Addr().Is4() != t.PeerAddr.Is4() {
				t.Pointless("listener and relay are of different families")
			}
			t.Allocated().Bind(0x4000, t.Server).Refused(403)
		}},
	{ID: "T-03 own relay", RFC: "8656 §21.1.7", Says: "a relayed address cannot be a peer of its own allocation",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Bind(0x4000, c.relay).Refused(403)
		}},
	{ID: "T-03 other relay", RFC: "8656 §21.1.7",
		Says: "a relayed address without a route cannot be a peer of another allocation",
		Run:  func(t *Trial) { t.Allocated().Bind(0x4000, t.Allocated().relay).Refused(403) }},
	{ID: "T-03 Send", RFC: "8656 §21.1.7", Says: "a Send indication to a relayed address without a route is dropped",
		Run: sendToRelay},
	{ID: "T-10 first request", RFC: "policy", On: onlyUDP,
		Says: "the response to an unauthenticated Allocate is at most 3.5 times as long",
		Run: func(t *Trial) {
			request := req(wire.Allocate, overUDP())
			factor(t, request, 3.5)
		}},
	{ID: "T-10 empty request", RFC: "policy", On: onlyUDP,
		Says: "the response to a request without attributes is at most 3.5 times as long",
		Run:  func(t *Trial) { factor(t, req(wire.Allocate), 3.5) }},
	{ID: "T-10 Binding", RFC: "policy", On: onlyUDP,
		Says: "the response to a Binding request is at most 3.5 times as long",
		Run:  func(t *Trial) { factor(t, req(wire.Binding), 3.5) }},
	{ID: "T-10 flood", RFC: "policy", On: onlyUDP, Pace: Measuring,
		Says: "at most 20 unauthenticated requests per second and source address are answered, and allocations keep working",
		Run:  flood},
	{ID: "T-11 success response", RFC: "8489 §6.3.3", Says: "an unsolicited success response is not answered",
		Run: func(t *Trial) {
			t.Client().Ignored(wire.New(wire.Success, wire.Binding).Bytes(), "Binding success response")
		}},
	{ID: "T-11 error response", RFC: "8489 §6.3.4", Says: "an unsolicited error response is not answered",
		Run: func(t *Trial) {
			t.Client().Ignored(wire.New(wire.Error, wire.Allocate, wire.Attr{
				Type: wire.ErrorCode, Value: []byte{0, 0, 4, 1},
			},
				wire.Text(wire.Realm, "loop"), wire.Text(wire.Nonce, "loop")).Bytes(), "Allocate error response")
		}},
	{ID: "T-11 Data indication", RFC: "8656 §11.4",
		Says: "a Data indication to the server is neither answered nor relayed",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			c.Indicate(wire.Data, wire.Address(wire.XORPeerAddress, p.addr), wire.Text(wire.DataAttr, "backwards"))
			p.Quiet("Data indication to the server")
			c.Quiet("Data indication to the server")
		}},
	{ID: "T-11 own answer", RFC: "8489 §6.3.4", Says: "the server's own 401, sent back, is not answered",
		Run: func(t *Trial) {
			a := t.Client().Ask(wire.Allocate, t.plain()...).Refused(401)
			t.Client().Ignored(a.Raw, "the server's own 401")
		}},
	{ID: "T-17 first bytes", RFC: "8489 §6.3", Pace: Measuring,
		Says: "messages with any first byte leave the server working", Run: everyFirstByte},
	{ID: "T-17 mutations", RFC: "8489 §6.3", Pace: Measuring,
		Says: "1,000 malformed requests leave the server working and the allocation in place", Run: mutations},
})

// forbidden are special-purpose addresses: of the host, its network, or multicast. They are refused even if a route
// contains them.
var forbidden = []string{
	"0.0.0.0", "0.1.2.3", "127.255.255.254", "169.254.169.254", "224.0.0.1", "239.255.255.250", "240.0.0.1",
	"255.255.255.255", "100.100.100.200",
	"::", "fe80::1", "ff02::1", "fd00:ec2::254",
}

func forbiddenPeers() (checks []Check) {
	for _, text := range forbidden {
		addr := netip.MustParseAddr(text)
		checks = append(checks, Check{
			ID: "T-01 " + text, RFC: "8656 §10.2",
			Says: "a permission for and a channel to " + text + " give 403",
			Run: func(t *Trial) {
				t.sameFamily(addr)
				peer := netip.AddrPortFrom(addr, 40000)
				c := t.Allocated()
				c.Permit(peer).Refused(403)
				c.Bind(0x4000, peer).Refused(403)
			},
		})
	}
	return checks
}

// sameFamily skips the check unless relays have the family of an address.
func (t *Trial) sameFamily(a netip.Addr) {
	if a.Is4() {
		t.on4()
	} else {
		t.on6()
	}
}

// disguises are IPv6 forms of IPv4 addresses (RFC 4291 §2.5.5, RFC 6052 §2.1, RFC 3056 §2).
var disguises = []struct{ name, pattern string }{
	{"mapped", "::ffff:%d.%d.%d.%d"},
	{"compatible", "::%d.%d.%d.%d"},
	{"NAT64", "64:ff9b::%d.%d.%d.%d"},
	{"6to4", "2002:%02x%02x:%02x%02x::1"},
}

func disguisedPeers() (checks []Check) {
	for _, d := range disguises {
		checks = append(checks, Check{
			ID: "T-02 " + d.name, RFC: "8656 §10.2",
			Says: "an IPv4 address that is refused is also refused as " + d.name + " IPv6 address",
			Run:  func(t *Trial) { disguised(t, d.pattern) },
		})
	}
	return checks
}

// disguised requests permissions for the IPv6 forms of forbidden IPv4 addresses. An IPv4 relay refuses them because of
// the family, an IPv6 relay because of the embedded address.
func disguised(t *Trial, pattern string) {
	code := 443
	if t.PeerAddr.Is6() {
		code = 403
	}
	c := t.Allocated()
	for _, b := range [][4]byte{{169, 254, 169, 254}, {224, 0, 0, 1}, {0, 1, 2, 3}} {
		addr := netip.MustParseAddr(fmt.Sprintf(pattern, b[0], b[1], b[2], b[3]))
		peer := netip.AddrPortFrom(addr, 40000)
		codes := []int{code}
		if addr.Is4In6() {
			codes = append(codes, 443) // the embedded address has the other family
		}
		c.Permit(peer).Refused(codes...)
		c.Bind(0x4000, peer).Refused(codes...)
	}
}

// sendToRelay requests permissions between two allocations. A datagram from one to the other must not arrive as a Data
// indication.
func sendToRelay(t *Trial) {
	a, b := t.Allocated(), t.Allocated()
	if a.Permit(b.relay).Class != wire.Success || b.Permit(a.relay).Class != wire.Success {
		return // the permission is refused
	}
	a.SendTo(b.relay, []byte("round and round"))
	b.Quiet("Send indication to a relay address")
	a.SendTo(t.Server, req(wire.Binding))
	a.Quiet("Binding request to the listener through a relay")
}

// factor compares the sizes of a request and its response.
func factor(t *Trial, request []byte, limit float64) {
	m, ok := t.Client().exchange(request)
	if !ok {
		return // no response, no amplification
	}
	if got := float64(len(m.Raw)) / float64(len(request)); got > limit {
		t.Failf(
			"response of %d bytes to a request of %d: factor %.2f, want at most %.2f", len(m.Raw), len(request), got,
			limit,
		)
	}
}

// flood sends unauthenticated requests for a second from the address of a client with an allocation. The client's own
// messages are sent in between, which gives the server time to process them.
func flood(t *Trial) {
	const each, limit = 50, 20
	t.onLoopback4(t.Server.Addr())
	good, p, bad := t.Allocated(), t.Peer(), t.Client()
	good.Bind(0x4000, p.addr).OK()
	for started := time.Now(); time.Since(started) < time.Second; {
		for range each {
			bad.transmit(req(wire.Allocate, t.plain()...))
		}
		echoes(good, p, 0x4000, []byte("in the flood"))
	}
	good.Refresh(600).OK()
	if n := bad.count(); n > limit {
		t.Failf("%d responses within a second", n)
	}
}

func everyFirstByte(t *Trial) {
	c := t.Allocated()
	body := req(wire.Binding, wire.Text(wire.Software, "whatever"))[1:]
	sender := t.Client()
	for b := 4; b < 256; b++ { // lower values are valid STUN requests
		if t.Transport.isStream() {
			sender = t.Client()
		}
		sender.transmit(slices.Concat([]byte{byte(b)}, body))
		if t.Transport.isStream() {
			sender.close()
		}
	}
	c.Refresh(600).OK()
	t.alive("all first bytes")
}

// mutations sends requests with some bytes changed, from a fixed seed. If the server closes a stream, the client
// reconnects.
func mutations(t *Trial) {
	const total, each = 1000, 50
	random := rand.New(rand.NewPCG(8489, 8656))
	c, p := t.Allocated(), t.Peer()
	templates := [][]byte{
		req(wire.Refresh, wire.Uint32(wire.Lifetime, 0)),
		req(wire.ChannelBind, wire.Channel(0x4001), wire.Address(wire.XORPeerAddress, p.addr)),
		req(wire.Allocate, t.plain(wire.Even(true))...),
	}
	for range total / each {
		damaged := t.Client()
		for range each {
			b := wire.Fingerprint(c.sign(slices.Clone(templates[random.IntN(len(templates))])))
			for range 1 + random.IntN(4) {
				b[random.IntN(len(b))] ^= byte(1 + random.IntN(255))
			}
			damaged.transmit(b)
		}
		damaged.close()
	}
	c.Refresh(600).OK()
	t.alive("damaged requests")
}
