package gate

import (
	"net/netip"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// A-07, T-A9: attributes after MESSAGE-INTEGRITY are ignored. They are counted if the request is authenticated.
func TestAttributesBehindIntegrity(t *testing.T) {
	const v4, v6 = "127.0.0.1", "::1"
	family := number(stun.AttrRequestedAddressFamily, stunmsg.FamilyIPv6<<24)
	even := stun.RawAttribute{Type: stun.AttrEvenPort, Value: []byte{0}}
	sha256 := stun.RawAttribute{Type: 0x001C, Value: make([]byte, 32)}
	for name, tc := range map[string]struct {
		password         string
		before, behind   []stun.Setter
		relay            string
		families, others uint64
	}{
		"nothing":          {password, nil, nil, v4, 0, 0},
		"family before":    {password, []stun.Setter{family}, nil, v6, 0, 0},
		"family":           {password, nil, []stun.Setter{family}, v4, 1, 0},
		"EVEN-PORT":        {password, nil, []stun.Setter{even, family}, v4, 1, 1},
		"allowed":          {password, []stun.Setter{family}, []stun.Setter{sha256}, v6, 0, 0},
		"unknown":          {password, nil, []stun.Setter{number(0x7777, 1)}, v4, 0, 1},
		"not authentic":    {"guessed", nil, []stun.Setter{family}, "", 0, 0},
		"family and again": {password, []stun.Setter{family}, []stun.Setter{family}, v6, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, c := newFixture(t), newClient("192.0.2.1:1000")
			p := policy()
			p.RelayAddrs = append(p.RelayAddrs, netip.IPv6Loopback())
			b.Update(p, routes(v4, v6))
			setters := append([]stun.Setter{request4(stun.MethodAllocate), udp}, tc.before...)
			setters = append(setters, stun.NewUsername(username), stun.NewRealm(realm), b.nonce(c),
				stun.NewLongTermIntegrity(username, realm, tc.password))
			setters = append(setters, tc.behind...)
			b.send(c, b.build(append(setters, stun.Fingerprint)...))
			relay := ""
			if f := b.flow(c.addr); f != nil {
				relay = f.Session.Relay.Addr().String()
			}
			if relay != tc.relay {
				t.Errorf("relay at %q, want %q", relay, tc.relay)
			}
			if f, o := b.meter.IgnoredFamilies.Load(), b.meter.IgnoredOthers.Load(); f != tc.families || o != tc.others {
				t.Errorf("%d families and %d others are counted, want %d and %d", f, o, tc.families, tc.others)
			}
		})
	}
}
