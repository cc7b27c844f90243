package gate

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// sample is the request of RFC 5769 §2.1, with its padding of blanks.
const sample = "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74002400046e0001ff80290008932ff9b151263b36" +
	"000600096576746a3a68367659202020000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf"

// F-01: the parser takes what RFC 8489 calls a message and nothing else, and reads what a second reader reads, which knows nothing but the RFC.
// What pion/stun takes and the parser does not is one of the differences that are listed in stricter.
func FuzzParse(f *testing.F) {
	whole, err := hex.DecodeString(sample)
	if err != nil {
		f.Fatal(err)
	}
	request := func(method stun.Method, attrs ...stun.Setter) []byte {
		return stun.MustBuild(append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attrs...)...).Raw
	}
	plain, binding := request(stun.MethodBinding), request(stun.MethodBinding, stun.Fingerprint)
	for _, seed := range [][]byte{
		nil, whole, plain, binding,
		request(stun.MethodAllocate, udp, stun.NewUsername("ann"), stun.NewRealm(realm), stun.NewNonce("n"), stun.NewLongTermIntegrity("ann", realm, "pw"), stun.Fingerprint),
		request(stun.MethodCreatePermission, peerAt("127.0.0.1:4000"), peerAt("[2001:db8::1]:1"), disguised("127.0.0.1", 1)),
		request(stun.MethodCreatePermission, stun.RawAttribute{Type: stun.AttrXORPeerAddress, Value: []byte{0, 3, 0, 0, 0, 0, 0, 0}}),
		request(stun.MethodChannelBind, channel(0x4000), number{0x7777, 0}, number{0x8020, 1}, stun.NewLongTermIntegrity("a", "b", "c"), number{0x7778, 0}),
		append(slices.Clone(plain), 0), append(slices.Clone(plain), 0, 0, 0, 0), append(slices.Clone(binding), 0, 0, 0, 0), binding[:len(binding)-4], binding[:19],
		changed(plain, 0, 0x40), changed(plain, 0, 0x80), changed(plain, 4, 1), changed(plain, 3, 4), changed(binding, len(binding)-1, 1), changed(binding, 23, 3),
		request(stun.MethodBinding, stun.Fingerprint, number{0x8022, 0}), request(stun.MethodBinding, stun.RawAttribute{Type: stun.AttrFingerprint}),
		{0, 1, 0, 4, 0x21, 0x12, 0xA4, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 200},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		r, err := parse(b, newClient("192.0.2.1:1000"))
		if !bytes.Equal(b, before) {
			t.Fatal("the parser changed what it read")
		}
		attrs, ok := attributes(b)
		if ok != (err == nil) {
			t.Fatalf("a message of RFC 8489: %v; parsed: %v", ok, err)
		}
		taken := (&stun.Message{Raw: bytes.Clone(b)}).Decode() == nil
		if ok != (taken && !slices.ContainsFunc(stricter, func(refuses func([]byte) bool) bool { return refuses(b) })) {
			t.Fatalf("pion/stun takes it: %v, we do: %v, and that is on no list", taken, ok)
		}
		if ok {
			sameMessage(t, b, r, attrs)
		}
	})
}

func changed(b []byte, at int, bits byte) []byte {
	b = slices.Clone(b)
	b[at] ^= bits
	return b
}

// stricter is what pion/stun takes and the parser refuses.
var stricter = []func(b []byte) bool{
	func(b []byte) bool { return b[0] >= 0x40 },                                            // no STUN (RFC 8489 §5)
	func(b []byte) bool { return len(b)%4 != 0 },                                           // §5: attributes are padded
	func(b []byte) bool { return len(b) > stunHeader+int(binary.BigEndian.Uint16(b[2:])) }, // something behind the message
	func(b []byte) bool { // §14.7
		attrs := tlvs(b[stunHeader:])
		i := slices.IndexFunc(attrs, func(a tlv) bool { return a.kind == fingerprint })
		return i >= 0 && (i < len(attrs)-1 || !rightFingerprint(b, attrs[i].value))
	},
}

// tlv is an attribute as it stands on the wire.
type tlv struct {
	kind           uint16
	value, padding []byte
}

const (
	magicCookie = 0x2112A442
	integrity   = 0x0008
	peerAddress = 0x0012
	fingerprint = 0x8028
)

// attributes reads a message as RFC 8489 §5 and §14 describe it. ok is false for what is none, or has a wrong FINGERPRINT (§14.7).
func attributes(b []byte) (attrs []tlv, ok bool) {
	if len(b) < stunHeader || b[0] >= 0x40 || len(b)%4 != 0 || int(binary.BigEndian.Uint16(b[2:])) != len(b)-stunHeader || binary.BigEndian.Uint32(b[4:]) != magicCookie {
		return nil, false
	}
	attrs = tlvs(b[stunHeader:])
	size := 0
	for i, a := range attrs {
		size += 4 + len(a.value) + len(a.padding)
		if a.kind == fingerprint && (i < len(attrs)-1 || !rightFingerprint(b, a.value)) {
			return nil, false
		}
	}
	return attrs, size == len(b)-stunHeader
}

// tlvs reads attributes up to the first that is not whole.
func tlvs(b []byte) (attrs []tlv) {
	for len(b) >= 4 {
		n := int(binary.BigEndian.Uint16(b[2:]))
		end := 4 + (n+3)/4*4
		if end > len(b) {
			break
		}
		attrs = append(attrs, tlv{binary.BigEndian.Uint16(b), b[4 : 4+n], b[4+n : end]})
		b = b[end:]
	}
	return attrs
}

func rightFingerprint(b, value []byte) bool {
	return len(value) == 4 && binary.BigEndian.Uint32(value) == crc32.ChecksumIEEE(b[:len(b)-8])^0x5354554E
}

// sameMessage wants a request to be what its bytes say, and to become these bytes again when it is encoded.
func sameMessage(t *testing.T, b []byte, r *request, attrs []tlv) {
	t.Helper()
	want := bytes.Clone(b)
	at := stunHeader
	encoded := &stun.Message{Type: r.Type, TransactionID: r.TransactionID}
	encoded.WriteHeader()
	for i, a := range attrs {
		// Padding may be anything (§14), and pion/stun reads the XOR-MAPPED-ADDRESS of old drafts as today's.
		if a.kind == 0x8020 {
			binary.BigEndian.PutUint16(want[at:], uint16(stun.AttrXORMappedAddress))
		}
		at += 4 + len(a.value)
		clear(want[at : at+len(a.padding)])
		at += len(a.padding)
		encoded.Add(r.Attributes[i].Type, r.Attributes[i].Value)
	}
	if len(r.Attributes) != len(attrs) || !bytes.Equal(encoded.Raw, want) {
		t.Fatalf("read\n% x, encoded\n% x", want, encoded.Raw)
	}
	signed := slices.IndexFunc(attrs, func(a tlv) bool { return a.kind == integrity })
	if r.signed != (signed >= 0) {
		t.Errorf("signed %v", r.signed)
	}
	if signed >= 0 {
		attrs = attrs[:signed] // what follows does not count (§14.5)
	}
	if len(r.attrs) != len(attrs) {
		t.Errorf("%d attributes count, want %d", len(r.attrs), len(attrs))
	}
	samePeers(t, b, r, attrs)
	var unknown unknownList
	for _, a := range attrs {
		if a.kind < 0x8000 && !understood[stun.AttrType(a.kind)] {
			unknown = binary.BigEndian.AppendUint16(unknown, a.kind)
		}
	}
	if !bytes.Equal(r.unknown(), unknown) {
		t.Errorf("unknown % x, want % x", r.unknown(), unknown)
	}
}

// samePeers wants the addresses of all XOR-PEER-ADDRESSes (§14.2), or none when one of them is no address.
func samePeers(t *testing.T, b []byte, r *request, attrs []tlv) {
	t.Helper()
	var want []netip.AddrPort
	wantOK := true
	for _, a := range attrs {
		if a.kind != peerAddress {
			continue
		}
		family := byte(0)
		if len(a.value) > 1 {
			family = a.value[1]
		}
		if len(a.value) != map[byte]int{familyIPv4: 8, familyIPv6: 20}[family] || family == 0 {
			wantOK = false
			break
		}
		plain := bytes.Clone(a.value[2:])
		for i := range plain {
			plain[i] ^= append([]byte{b[4], b[5]}, b[4:20]...)[i]
		}
		addr, _ := netip.AddrFromSlice(plain[2:])
		want = append(want, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(plain)))
	}
	got, ok := r.peers()
	if ok != wantOK || ok && !slices.Equal(got, want) {
		t.Errorf("peers %v, %v; want %v, %v", got, ok, want, wantOK)
	}
}

// wire is a client whose address is proven, so that the limits on answers to strangers hide nothing.
type wire struct{ *client }

func (wire) Connected() bool { return true }

// F-03: whatever several clients send, in whatever order, some of it signed and some of it not: nobody gets more than one answer, which is a
// message, to what was asked and signed if it says yes; only who has shown the password has a session; nothing leaves the routes; and at the end nothing
// is left. What the answers have to be is the model's matter: see TestModel.
func FuzzReceive(f *testing.F) {
	log := slog.New(slog.DiscardHandler)
	machine, err := NewMachine(1, log)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = machine.Close() })
	nonces, err := NewNonces()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		"", "b0", "a1 a1 s1 p1 s1 c1 r1", "a1 A1 s1 S1 r1 R1", "a0 a2 a3 r1 p1 c1", "a1 p1 p2 p3 c1 c2 c0 s0 b1 b3", "a1 r1\x04\x00\x0d\x00\x04\x00\x00\x00\x00 s1",
		"a1\x08\x00\x18\x00\x01\x80\x00\x00\x00 A1 a1", "p1 c1 s1 r1 a1 p1 c1 s1", "x0\x14\x00\x01\x00\x00\x21\x12\xa4\x42............", "a1 p1\x08\x77\x77\x00\x04....",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		network, held, table := &relaytest.Network{}, relay.NewReservations(), session.NewTable()
		g := New("test", config.TURNTCP, Shared{
			Machine: machine, Nonces: nonces, Network: network, Held: held, Limits: NewLimits(), Table: table, Meter: meter.New(), Log: log,
		})
		g.Update(policy(), routes("127.0.0.1:<4000-4999>"))
		s := &sequence{t: t, g: g, network: network, table: table}
		for _, addr := range []string{"192.0.2.1:1000", "192.0.2.1:1001", "198.51.100.7:1000"} {
			s.clients = append(s.clients, wire{newClient(addr)})
		}
		for len(script) > 0 && s.steps < 64 {
			script = s.step(script)
		}
		for _, c := range s.clients {
			g.Hangup(c)
		}
		if err := held.Close(); err != nil || g.Sessions() != 0 || table.Len() != 0 || network.Len() != 0 {
			t.Errorf("left behind: %d sessions, %d in the table, %d sockets, %v", g.Sessions(), table.Len(), network.Len(), err)
		}
	})
}

// sequence is what clients send to a gate, as a script of bytes says.
type sequence struct {
	t       *testing.T
	g       *Gate
	network *relaytest.Network
	table   *session.Table
	clients []wire
	steps   int
}

// What a step sends: a letter, and the method, class and attributes of a message that means something. Capitals send likewise, for the
// second client.
var sends = map[byte]struct {
	method stun.Method
	class  stun.MessageClass
	attrs  []stun.Setter
}{
	'b': {stun.MethodBinding, stun.ClassRequest, nil},
	'a': {stun.MethodAllocate, stun.ClassRequest, []stun.Setter{udp}},
	'r': {stun.MethodRefresh, stun.ClassRequest, nil},
	'p': {stun.MethodCreatePermission, stun.ClassRequest, []stun.Setter{peerAt("127.0.0.1:4000")}},
	'c': {stun.MethodChannelBind, stun.ClassRequest, []stun.Setter{peerAt("127.0.0.1:4000"), channel(0x4000)}},
	's': {stun.MethodSend, stun.ClassIndication, []stun.Setter{peerAt("127.0.0.1:4000"), stun.RawAttribute{Type: stun.AttrData, Value: []byte("data")}}},
}

// step sends what the first bytes of a script stand for: a letter of sends, who signs it and how, a length, and so many bytes of attributes more.
// Any other letter sends the bytes themselves.
func (s *sequence) step(script []byte) (rest []byte) {
	s.steps++
	script = append(script, 0, 0, 0)[:max(3, len(script))]
	letter, how, extra := script[0], script[1], min(int(script[2]), len(script)-3)
	if script[2] == ' ' { // for scripts that people write
		extra = 0
	}
	more, rest := script[3:3+extra], script[3+extra:]
	who := int(how>>4) % len(s.clients)
	if letter >= 'A' && letter <= 'Z' {
		letter, who = letter+'a'-'A', 1
	}
	c := s.clients[who]
	what, known := sends[letter]
	if !known {
		s.check(c, more, false)
		return rest
	}
	m := stun.MustBuild(stun.TransactionID, stun.NewType(what.method, what.class))
	for _, a := range what.attrs {
		_ = a.AddTo(m)
	}
	signing := how % 4
	if signing != notSigned {
		nonce := s.g.nonces.Make(c.addr.Addr(), time.Now())
		for _, a := range []stun.Setter{stun.NewUsername(username), stun.NewRealm(realm), stun.NewNonce(string(nonce))} {
			_ = a.AddTo(m)
		}
	}
	m.Raw = append(m.Raw, more...)
	m.Length += uint32(len(more))
	m.WriteLength()
	switch signing {
	case wellSigned, damaged:
		_ = stun.NewLongTermIntegrity(username, realm, password).AddTo(m)
	case guessed:
		_ = stun.NewLongTermIntegrity(username, realm, "guess").AddTo(m)
	}
	if signing == damaged {
		m.Raw[len(m.Raw)-1] ^= 1
	}
	s.check(c, m.Raw, signing == wellSigned)
	return rest
}

// How a step signs what it sends. The digits of scripts stand for them.
const (
	notSigned = iota
	wellSigned
	guessed
	damaged
)

// check sends a message and looks at what comes back, and at what there is now.
func (s *sequence) check(c wire, b []byte, good bool) {
	s.t.Helper()
	before := s.g.Sessions()
	s.g.Receive(b, c)
	for _, other := range s.clients {
		if other != c && len(other.frames) > 0 {
			s.t.Fatalf("% x is answered to somebody else", b)
		}
	}
	if !good && s.g.Sessions() != before {
		s.t.Fatalf("who is not known has made or ended a session with % x", b)
	}
	if s.g.Sessions() != s.table.Len() || s.g.Sessions() > s.network.Len() {
		s.t.Fatalf("%d sessions, %d in the table, %d sockets", s.g.Sessions(), s.table.Len(), s.network.Len())
	}
	for _, d := range s.network.Sent() {
		if _, verdict := s.g.routes.Load().Match(d.To); verdict != cluster.Allowed {
			s.t.Fatalf("% x makes a relay send to %s", b, d.To)
		}
	}
	if len(c.frames) > 1 {
		s.t.Fatalf("%d answers", len(c.frames))
	}
	if len(c.frames) == 1 {
		s.answered(b, <-c.frames, good)
	}
}

// answered wants an answer to be one to the message.
func (s *sequence) answered(b, answer []byte, good bool) {
	s.t.Helper()
	if _, ok := attributes(answer); !ok {
		s.t.Fatalf("% x is answered with no message: % x", b, answer)
	}
	m := &stun.Message{Raw: answer}
	if err := m.Decode(); err != nil {
		s.t.Fatal(err)
	}
	asked := &stun.Message{Raw: bytes.Clone(b)}
	if err := asked.Decode(); err != nil || asked.Type.Class != stun.ClassRequest || m.Type.Method != asked.Type.Method || m.TransactionID != asked.TransactionID {
		s.t.Fatalf("% x is answered with %s", b, m)
	}
	success := m.Type.Class == stun.ClassSuccessResponse
	if !success && m.Type.Class != stun.ClassErrorResponse || (codeOf(m) == 0) != success {
		s.t.Fatalf("% x is answered with %s", b, m)
	}
	if m.Type.Method == stun.MethodBinding || !success {
		return
	}
	if !good || stun.NewLongTermIntegrity(username, realm, password).Check(m) != nil {
		s.t.Fatalf("% x is granted, to somebody known: %v: %s", b, good, m)
	}
}
