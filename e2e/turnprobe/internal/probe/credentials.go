package probe

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var credentials = []Check{
	{ID: "A-01 challenge", RFC: "8489 §9.2.4",
		Says: "a request without MESSAGE-INTEGRITY gives 401 with REALM and NONCE, without USERNAME and MESSAGE-INTEGRITY",
		Run:  func(t *Trial) { challenged(t.Client().Ask(wire.Allocate, t.plain()...).Refused(401)) }},
	{ID: "A-01 every method", RFC: "8656 §5", Says: "Refresh, CreatePermission and ChannelBind require credentials too",
		Run: func(t *Trial) {
			c := t.Allocated()
			peer := wire.Address(wire.XORPeerAddress, t.Peer().addr)
			challenged(c.Ask(wire.Refresh, wire.Uint32(wire.Lifetime, 0)).Refused(401))
			challenged(c.Ask(wire.CreatePermission, peer).Refused(401))
			challenged(c.Ask(wire.ChannelBind, wire.Channel(0x4000), peer).Refused(401))
			c.Refresh(600).OK()
		}},
	{ID: "A-01 no attributes", RFC: "8656 §7.2",
		Says: "credentials are checked before attributes: a request without attributes gives 401",
		Run: func(t *Trial) {
			for _, method := range []wire.Method{wire.Allocate, wire.Refresh, wire.CreatePermission, wire.ChannelBind} {
				challenged(t.Client().Ask(method).Refused(401))
			}
		}},
	{ID: "A-02 wrong password", RFC: "8489 §9.2.4", Says: "a wrong password gives 401 with REALM and NONCE",
		Run: func(t *Trial) {
			challenged(t.withLogin(t.Target.login(t.name()).user, "guessed").Allocate().Refused(401))
		}},
	{ID: "A-02 unknown user", RFC: "8489 §9.2.4", Says: "an unknown user gives 401 with REALM and NONCE",
		Run: func(t *Trial) { challenged(t.withLogin("nobody", "guessed").Allocate().Refused(401)) }},
	{ID: "A-02 no difference", RFC: "8489 §9.2.4",
		Says: "the responses to an unknown user and to a wrong password differ in the nonce only", Run: indistinct},
	{ID: "A-02 other realm", RFC: "8489 §9.2.4", Says: "MESSAGE-INTEGRITY for another realm gives 401",
		Run: func(t *Trial) {
			c := t.Client()
			c.challenge()
			c.realm = "elsewhere.example.org"
			c.once(wire.Allocate, t.plain()...).Denied()
		}},
	{ID: "A-02 second try", RFC: "8489 §9.2.5", Says: "after a 401 the same client succeeds with the right password",
		Run: func(t *Trial) {
			c := t.withLogin(t.Target.login(t.name()).user, "guessed")
			c.learn(c.Allocate().Refused(401))
			c.login = t.Target.login(t.name())
			c.Allocate().OK()
		}},
	{ID: "A-02 expired", RFC: "policy", Says: "an expired ephemeral credential gives 401",
		Run: func(t *Trial) {
			c := t.Client()
			c.login = t.ephemeralUser(-time.Hour)
			challenged(c.Allocate().Refused(401))
		}},
	{ID: "A-03 no USERNAME", RFC: "8489 §9.2.4", Says: "MESSAGE-INTEGRITY without USERNAME gives 400",
		Run: func(t *Trial) { incomplete(t, wire.Username) }},
	{ID: "A-03 no REALM", RFC: "8489 §9.2.4", Says: "MESSAGE-INTEGRITY without REALM gives 400",
		Run: func(t *Trial) { incomplete(t, wire.Realm) }},
	{ID: "A-03 no NONCE", RFC: "8489 §9.2.4", Says: "MESSAGE-INTEGRITY without NONCE gives 400",
		Run: func(t *Trial) { incomplete(t, wire.Nonce) }},
	{ID: "A-04 invented nonce", RFC: "8489 §9.2.4",
		Says: "a nonce that the server did not issue gives 438 with a valid one",
		Run:  func(t *Trial) { stale(t, func(string) string { return "0123456789abcdef" }) }},
	{ID: "A-04 tampered nonce", RFC: "8489 §9.2.4",
		Says: "a nonce with one changed character gives 438 with a valid one",
		Run:  func(t *Trial) { stale(t, func(nonce string) string { return changed(nonce) }) }},
	{ID: "A-04 cut nonce", RFC: "8489 §9.2.4", Says: "half a nonce gives 438 with a valid one",
		Run: func(t *Trial) { stale(t, func(nonce string) string { return nonce[:len(nonce)/2] }) }},
	{ID: "A-04 on an allocation", RFC: "8489 §9.2.4",
		Says: "a stale nonce in a Refresh costs one more round trip, and the allocation stays",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.nonce = changed(c.nonce)
			c.learn(c.once(wire.Refresh, wire.Uint32(wire.Lifetime, 0)).Refused(438))
			c.Refresh(600).OK()
		}},
	{ID: "A-06 other address", RFC: "8489 §9.2.1", Says: "a nonce is not valid for another source address",
		Run: func(t *Trial) {
			t.onLoopback4(t.Server.Addr())
			c := t.Client()
			c.challenge()
			thief := t.clientFrom(
				&source{addr: netip.AddrFrom4([4]byte{127, 62, 0, 1}), realm: c.realm, nonce: c.nonce},
			)
			thief.once(wire.Allocate, t.plain()...).Refused(438)
		}},
	{ID: "A-07 unknown attribute", RFC: "8489 §14.5",
		Says: "an unknown required attribute after MESSAGE-INTEGRITY is ignored",
		Run: func(t *Trial) {
			c := t.Client()
			c.challenge()
			request := c.sign(req(wire.Allocate, t.plain()...))
			c.note(c.answer(wire.Append(request, wire.Uint32(0x7777, 1))).OK())
		}},
	{ID: "A-07 known attribute", RFC: "8489 §14.5", Says: "a LIFETIME after MESSAGE-INTEGRITY is ignored",
		Run: func(t *Trial) {
			c := t.Allocated()
			request := c.sign(req(wire.Refresh))
			if n := c.answer(wire.Append(request, wire.Uint32(wire.Lifetime, 0))).OK().lifetime(); n == 0 {
				t.Failf("the response has LIFETIME 0")
			}
			c.Refresh(600).OK()
		}},
	{ID: "A-08 success", RFC: "8489 §9.2.4",
		Says: "every success response to an authenticated request has MESSAGE-INTEGRITY",
		Run: func(t *Trial) {
			c, p := t.Allocated(), t.Peer()
			c.Refresh(600).OK().Signed()
			c.Permit(p.addr).OK().Signed()
			c.Bind(0x4000, p.addr).OK().Signed()
			c.Refresh(0).OK().Signed()
		}},
	{ID: "A-08 400", RFC: "8489 §9.2.4", Says: "a 400 to an authenticated request has MESSAGE-INTEGRITY",
		Run: func(t *Trial) { t.Client().Do(wire.Allocate).Refused(400).Signed() }},
	{ID: "A-08 420", RFC: "8489 §9.2.4", Says: "a 420 to an authenticated request has MESSAGE-INTEGRITY",
		Run: func(t *Trial) { t.Client().Allocate(wire.Uint32(0x7777, 1)).Refused(420).Signed() }},
	{ID: "A-08 437", RFC: "8489 §9.2.4", Says: "a 437 to an authenticated request has MESSAGE-INTEGRITY",
		Run: func(t *Trial) { t.Client().Refresh(600).Refused(437).Signed() }},
	{ID: "A-08 442", RFC: "8489 §9.2.4", Says: "a 442 to an authenticated request has MESSAGE-INTEGRITY",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, wire.Byte(wire.RequestedTransport, 99)).Refused(442).Signed()
		}},
	{ID: "A-08 403", RFC: "8489 §9.2.4", Says: "a 403 to an authenticated request has MESSAGE-INTEGRITY",
		Run: func(t *Trial) { t.Allocated().Permit(t.denied()).Refused(403).Signed() }},
	{ID: "A-09 long", RFC: "8489 §14.3", Says: "a username of 508 bytes is treated as an unknown user",
		Run: func(t *Trial) { named(t, strings.Repeat("u", 508)) }},
	{ID: "A-09 too long", RFC: "8489 §14.3", Says: "a username of 763 bytes is refused",
		Run: func(t *Trial) { named(t, strings.Repeat("u", 763)) }},
	{ID: "A-09 odd bytes", RFC: "8489 §14.3", Says: "a username of control characters and broken UTF-8 is refused",
		Run: func(t *Trial) { named(t, "line\r\nlevel=INFO msg=forged\x00\x1b[31m\xff\xfe") }},
	{ID: "A-09 empty", RFC: "8489 §14.3", Says: "an empty username is refused", Run: func(t *Trial) { named(t, "") }},
	{ID: "A-09 short signature", RFC: "8489 §14.5",
		Says: "MESSAGE-INTEGRITY of another length than 20 bytes is refused",
		Run: func(t *Trial) {
			c := t.Client()
			c.challenge()
			request := req(wire.Allocate, t.plain(c.identity()...)...)
			c.answer(wire.Append(request, wire.Text(wire.MessageIntegrity, "sixteen bytes :)"))).Refused(400, 401)
		}},
	{ID: "A-10 announcement", RFC: "8489 §9.2.1",
		Says: "PASSWORD-ALGORITHMS is present exactly if the nonce announces the feature", Run: announced},
	{ID: "A-11 ACCESS-TOKEN", RFC: "7635 §6.1",
		Says: "a server without third-party authorization gives 420 for ACCESS-TOKEN",
		Run: func(t *Trial) {
			t.Client().Allocate(wire.Text(wire.AccessToken, "not a token")).Refused(420).Unknown(wire.AccessToken)
		}},
	{ID: "A-11 announcement", RFC: "7635 §6.1",
		Says: "a server without third-party authorization sends no THIRD-PARTY-AUTHORIZATION",
		Run: func(t *Trial) {
			if a := t.Client().Ask(wire.Allocate, t.plain()...).Refused(401); a.Has(wire.ThirdPartyAuthorization) {
				t.Failf("the 401 has THIRD-PARTY-AUTHORIZATION")
			}
		}},
	{ID: "T-08 time", RFC: "policy", Pace: Measuring, On: onlyUDP,
		Says: "an unknown user is refused as fast as a wrong password", Run: enumeration},
}

// challenged checks that a 401 is well-formed.
func challenged(a Answer) {
	t := a.client.trial
	if !a.Has(wire.Realm) || !a.Has(wire.Nonce) {
		t.Failf("%s has no REALM or no NONCE", a)
	}
	if a.Has(wire.Username) || a.Has(wire.MessageIntegrity) {
		t.Failf("%s has USERNAME or MESSAGE-INTEGRITY", a)
	}
	if realm, _ := a.Get(wire.Realm); t.Realm != "" && string(realm) != t.Realm {
		t.Failf("REALM is %q, want %q", realm, t.Realm)
	}
}

// withLogin opens a client with a user name and a password.
func (t *Trial) withLogin(user, password string) *Client {
	c := t.Client()
	c.login = login{user, password}
	return c
}

// ephemeralUser derives a user with a time to live from the shared secret.
func (t *Trial) ephemeralUser(ttl time.Duration) login {
	if t.Secret == "" {
		t.Skipf("needs a shared secret: give -secret")
	}
	return t.ephemeral(t.name(), time.Now().Add(ttl))
}

// denied returns a peer that the server must refuse.
func (t *Trial) denied() (peer netip.AddrPort) {
	if !t.Denied.IsValid() {
		t.Skipf("needs a peer that the server refuses: give -denied-peer")
	}
	if t.Denied.Is4() != t.PeerAddr.Is4() {
		t.Pointless("relayed address and refused peer have different families")
	}
	return netip.AddrPortFrom(t.Denied, 40000)
}

func indistinct(t *Trial) {
	user := t.Target.login(t.name()).user
	known := t.withLogin(user, "guessed").Allocate().Refused(401)
	unknown := t.withLogin(strings.Repeat("x", len(user)), "guessed").Allocate().Refused(401)
	if a, b := shape(known), shape(unknown); a != b {
		t.Failf("wrong password gives %s, unknown user %s", a, b)
	}
}

// shape formats a response without transaction id and nonce, for comparison.
func shape(a Answer) string {
	s := fmt.Sprintf("%d bytes", len(a.Raw))
	for _, attr := range a.Attrs {
		if attr.Type == wire.Nonce {
			attr.Value = make([]byte, len(attr.Value))
		}
		s += fmt.Sprintf(", %s % x", attr.Type, attr.Value)
	}
	return s
}

// incomplete sends a request with MESSAGE-INTEGRITY but without one of the attributes that it requires.
func incomplete(t *Trial, without wire.AttrType) {
	c := t.Client()
	c.challenge()
	attrs := t.plain()
	for _, a := range c.identity() {
		if a.Type != without {
			attrs = append(attrs, a)
		}
	}
	c.answer(wire.Sign(req(wire.Allocate, attrs...), c.key())).Refused(400)
}

// stale sends a request with a changed nonce, and repeats it with the nonce of the response.
func stale(t *Trial, change func(string) string) {
	c := t.Client()
	c.challenge()
	c.nonce = change(c.nonce)
	a := c.once(wire.Allocate, t.plain()...).Refused(438)
	challenged(a)
	c.learn(a)
	c.once(wire.Allocate, t.plain()...).OK()
}

// changed replaces a character in the middle of a nonce.
func changed(nonce string) string {
	b := []byte(nonce)
	if b[len(b)/2]++; b[len(b)/2] > '~' {
		b[len(b)/2] = '0'
	}
	return string(b)
}

func named(t *Trial, user string) {
	t.withLogin(user, "guessed").Allocate().Refused(400, 401)
	t.alive("username")
}

// announced checks that the security features in the nonce (RFC 8489 §9.2) and PASSWORD-ALGORITHMS agree.
func announced(t *Trial) {
	a := t.Client().Ask(wire.Allocate, t.plain()...).Refused(401)
	nonce, _ := a.Get(wire.Nonce)
	if cookie := bytes.HasPrefix(nonce, []byte("obMatJos2")); cookie != a.Has(wire.PasswordAlgorithms) {
		t.Failf("nonce cookie: %v, PASSWORD-ALGORITHMS: %v", cookie, a.Has(wire.PasswordAlgorithms))
	}
}
