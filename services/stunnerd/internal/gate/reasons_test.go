package gate

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// unreachable is a client to which every send fails.
type unreachable struct {
	*client
	err error
}

func (u unreachable) Send([]byte) error { return u.err }

// asks makes a request with the credential of ann. asksWith makes one with another credential.
func (b fixture) asks(c *client, method stun.Method, attrs ...stun.Setter) {
	b.asksWith(c, username, password, method, attrs...)
}

func (b fixture) asksWith(c *client, user, pass string, method stun.Method, attrs ...stun.Setter) {
	b.t.Helper()
	b.send(c, b.signed(c, user, pass, method, attrs...))
}

// sends makes a Send indication.
func (b fixture) sends(c *client, attrs ...stun.Setter) {
	b.t.Helper()
	b.send(c, b.build(append([]stun.Setter{stun.NewType(stun.MethodSend, stun.ClassIndication)}, attrs...)...))
}

// bounded changes the bounds of sessions.
func bounded(bounds session.Bounds) func(b fixture, c *client) {
	return func(b fixture, c *client) {
		b.table.SetBounds(bounds)
		b.asks(newClient("192.0.2.1:999"), stun.MethodAllocate, udp)
		b.asks(c, stun.MethodAllocate, udp)
	}
}

// asking makes a request of a client without an allocation. asksMore makes one of a client with an allocation.
func asking(method stun.Method, attrs ...stun.Setter) func(b fixture, c *client) {
	return func(b fixture, c *client) { b.asks(c, method, attrs...) }
}

func asksMore(method stun.Method, attrs ...stun.Setter) func(b fixture, c *client) {
	return func(b fixture, c *client) {
		b.allocate(c)
		b.asks(c, method, attrs...)
	}
}

// allocatesWith requests allocations of several clients with caveats. c is the last client.
func allocatesWith(caveats ...string) func(b fixture, c *client) {
	return func(b fixture, c *client) {
		b.Update(ofGateway(), media([]string{"127.0.0.1"}, "127.0.0.2"))
		for i, text := range caveats {
			from := c
			if i < len(caveats)-1 {
				from = newClient(fmt.Sprint("192.0.2.1:", 2000+i))
			}
			b.with(from, named(text), stun.MethodAllocate, udp)
		}
	}
}

// sendsMuch sends two datagrams to a peer. Together they are one byte over the limit.
func sendsMuch(b fixture, c *client, caveats string) {
	b.with(c, named(caveats), stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
	for range 2 {
		b.sends(c, peerAt("127.0.0.1:4000"), data(strings.Repeat("x", 1000)))
	}
}

// reasonCauses has a function for each reason, which makes the gate or the relay refuse or drop something for this
// reason.
var reasonCauses = map[meter.Reason]func(b fixture, c *client){
	meter.Malformed: func(b fixture, c *client) { b.send(c, []byte("GET / HTTP/1.1\r\n")) },
	meter.BadFingerprint: func(b fixture, c *client) {
		m := b.build(request4(stun.MethodBinding), stun.Fingerprint)
		m[len(m)-1] ^= 1
		b.send(c, m)
	},
	meter.UnknownAttribute: asking(stun.MethodAllocate, udp, number(0x7777, 0)),
	meter.UnknownMethod:    func(b fixture, c *client) { b.send(c, b.build(request4(0x0FF))) },
	meter.NoCredential:     func(b fixture, c *client) { b.send(c, b.build(request4(stun.MethodAllocate), udp)) },
	meter.IncompleteCredential: func(b fixture, c *client) {
		b.send(c, b.build(request4(stun.MethodAllocate), udp, stun.NewUsername(username),
			stun.NewLongTermIntegrity(username, realm, password)))
	},
	meter.StaleNonce: func(b fixture, c *client) {
		b.send(c, b.build(request4(stun.MethodAllocate), udp, stun.NewUsername(username), stun.NewRealm(realm),
			stun.NewNonce("stale"), stun.NewLongTermIntegrity(username, realm, password)))
	},
	meter.UnknownUser:   func(b fixture, c *client) { b.asksWith(c, "eve", password, stun.MethodAllocate, udp) },
	meter.WrongPassword: func(b fixture, c *client) { b.asksWith(c, username, "guess", stun.MethodAllocate, udp) },
	meter.ExpiredCredential: func(b fixture, c *client) {
		p := policy()
		p.Authority.SharedSecret = "shared"
		b.Update(p, routes())
		old, err := p.Authority.Mint("ann", time.Second, time.Now().Add(-time.Minute))
		if err != nil {
			b.t.Fatal(err)
		}
		b.asksWith(c, old.Username, string(old.Password), stun.MethodAllocate, udp)
	},
	meter.RevokedCredential: func(b fixture, c *client) {
		b.Update(revoking(revocationOf("ann")), routes())
		b.with(c, named(""), stun.MethodAllocate, udp)
	},
	meter.CaveatMalformed:   allocatesWith(":~1~A0"),
	meter.CaveatUnknown:     allocatesWith(":~1~X1"),
	meter.CaveatGateway:     allocatesWith(":~1~Gturn_other"),
	meter.CaveatNotBefore:   allocatesWith(":~1~N253402300799"),
	meter.CaveatAllocations: allocatesWith(":~1~A1", ":~1~A1"),
	meter.CaveatRoute: func(b fixture, c *client) {
		allocatesWith(":~1~Rmedia_b")(b, c)
		b.with(c, named(":~1~Rmedia_b"), stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
	},
	meter.CaveatRate: func(b fixture, c *client) {
		allocatesWith(":~1~S1")(b, c)
		sendsMuch(b, c, ":~1~S1")
	},
	meter.CaveatBytes: func(b fixture, c *client) {
		allocatesWith(":~1~B1")(b, c)
		sendsMuch(b, c, ":~1~B1")
	},
	meter.NoAllocation:         asking(stun.MethodRefresh),
	meter.AllocationExists:     asksMore(stun.MethodAllocate, udp),
	meter.BadRequest:           asking(stun.MethodAllocate),
	meter.TransportUnsupported: asking(stun.MethodAllocate, number(stun.AttrRequestedTransport, 6<<24)),
	meter.FamilyUnsupported:    asking(stun.MethodAllocate, udp, number(stun.AttrRequestedAddressFamily, 2<<24)),
	meter.FamilyMismatch:       asksMore(stun.MethodCreatePermission, peerAt("[2001:db8::1]:4000")),
	meter.PeerDenied:           asksMore(stun.MethodCreatePermission, peerAt("10.0.0.1:4000")),
	meter.PortDenied:           asksMore(stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:9")),
	meter.OtherUser: func(b fixture, c *client) {
		b.allocate(c)
		b.flow(c.addr).Username = "bob"
		b.asks(c, stun.MethodRefresh)
	},
	meter.ChannelConflict: func(b fixture, c *client) {
		b.allocate(c)
		b.asks(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		b.asks(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4001"))
	},
	meter.ChannelUnbound: func(b fixture, c *client) {
		b.allocate(c)
		b.Relay(c.addr).FromClient([]byte{0x40, 0, 0, 1, 'x', 0, 0, 0})
	},
	meter.ChannelLimit: func(b fixture, c *client) {
		b.allocate(c)
		for i := range uint32(relay.MaxChannels + 1) {
			b.asks(c, stun.MethodChannelBind, channel(0x4000+i), peerAt(fmt.Sprint("127.0.0.1:", 4000+i)))
		}
	},
	meter.PermissionLimit: func(b fixture, c *client) {
		b.Update(policy(), routes("10.0.0.0/8"))
		b.allocate(c)
		var peers []stun.Setter
		for i := range MaxPermissions + 1 {
			peers = append(peers, peerAt(fmt.Sprintf("10.0.%d.%d:1", i/256, i%256)))
		}
		b.asks(c, stun.MethodCreatePermission, peers...)
	},
	meter.NoPermission: func(b fixture, c *client) {
		b.allocate(c)
		b.sends(c, peerAt("127.0.0.1:4000"), data("x"))
	},
	meter.Quota:       bounded(session.Bounds{UserSessions: 1}),
	meter.SourceQuota: bounded(session.Bounds{SourceSessions: 1}),
	meter.Capacity:    bounded(session.Bounds{Capacity: session.Amounts{session.RelayPorts: 1}}),
	meter.ByteRate: func(b fixture, c *client) {
		b.table.SetBounds(session.Bounds{SessionRate: 1})
		b.allocate(c)
		b.asks(c, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
		for range 2000 {
			b.sends(c, peerAt("127.0.0.1:4000"), data(strings.Repeat("x", 1000)))
		}
	},
	meter.Draining: func(b fixture, c *client) {
		b.Retire()
		b.asks(c, stun.MethodAllocate, udp)
	},
	meter.STUNOnly: func(b fixture, c *client) {
		b.Update(&Policy{}, routes())
		b.send(c, b.build(request4(stun.MethodAllocate), udp))
	},
	meter.NoRelay: asking(stun.MethodAllocate, udp, token),
	meter.RateLimited: func(b fixture, c *client) {
		for range 100 {
			b.send(c, b.build(request4(stun.MethodAllocate), udp))
		}
	},
	meter.SendFailed: func(b fixture, c *client) {
		b.Receive(b.build(request4(stun.MethodBinding)), unreachable{c, errors.New("no route to host")})
	},
	meter.Congested: func(b fixture, c *client) {
		b.Receive(b.build(request4(stun.MethodBinding)), unreachable{c, datagram.ErrCongested})
	},
	meter.Internal: func(b fixture, c *client) { b.Gate.send(c, nil, errors.New("no such attribute")) },
	meter.Expired: func(b fixture, c *client) {
		b.restore(&Saved{Socket: opened(b)}, c)
	},
	meter.Revoked: func(b fixture, c *client) {
		b.Update(revoking(revocationOf("ann")), routes())
		b.restore(revokedEntry(b), c)
	},
}

// opened returns a relay socket.
func opened(b fixture) relay.Socket {
	s, err := b.network.Open(netip.MustParseAddr("127.0.0.1"), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// Each reason is counted in the metric and logged at the default level. The log line has neither password nor client.
func TestEveryReasonIsCountedAndLogged(t *testing.T) {
	for reason, cause := range reasonCauses {
		t.Run(reason.String(), func(t *testing.T) {
			b, c := newFixture(t), newClient("192.0.2.1:1000")
			var log bytes.Buffer
			b.meter.LogRefusals(slog.New(slog.NewTextHandler(&log, nil)))
			cause(b, c)
			counted := b.meter.Refusals()[reason.String()] + b.meter.Drops()[reason.String()] +
				b.meter.Declined(meter.Restored)[reason.String()]
			if counted == 0 {
				t.Errorf("refusals %v, drops %v", b.meter.Refusals(), b.meter.Drops())
			}
			lines := 0
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, " reason="+reason.String()+" ") && strings.Contains(line, " listener=test ") {
					lines++
				}
				if strings.Contains(line, password) || strings.Contains(line, c.addr.Addr().String()) {
					t.Errorf("line with a password or a client: %s", line)
				}
			}
			if want := 1; lines != want && reason != meter.NoCredential {
				t.Errorf("%d lines, want %d:\n%s", lines, want, log.String())
			}
		})
	}
}
