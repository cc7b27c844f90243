package gate

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine/pionturn"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// wire is a client without limits on its answers, usually over a connection.
type wire struct {
	*client
	connected bool
}

func (w wire) Connected() bool { return w.connected }

// F-03: several clients send any messages, signed and unsigned, in any order. A message has at most one answer. The
// answer matches the request, and is signed if it is a success. Only an authenticated client has a session, no datagram
// is sent to peers outside the routes, and nothing remains at the end. TestModel checks the content of answers.
func FuzzReceive(f *testing.F) {
	log := slog.New(slog.DiscardHandler)
	engine, err := pionturn.New(1, log)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = engine.Close() })
	nonces, err := nonce.New(nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		"", "b0", "a1 a1 s1 p1 s1 c1 r1", "a1 A1 s1 S1 r1 R1", "a0 a2 a3 r1 p1 c1", "a1 p1 p2 p3 c1 c2 c0 s0 b1 b3",
		"a1 r1\x04\x00\x0d\x00\x04\x00\x00\x00\x00 s1",
		"a1\x08\x00\x18\x00\x01\x80\x00\x00\x00 A1 a1", "p1 c1 s1 r1 a1 p1 c1 s1",
		"x0\x14\x00\x01\x00\x00\x21\x12\xa4\x42............", "a1 p1\x08\x77\x77\x00\x04....",
		"xP\x14\x00\x01\x00\x00................", "xP\x1c\x00\x01\x00\x08................\x00\x03\x00\x04\x00\x00\x00\x06",
		"x0\x14\x00\x01\x00\x00................", "aQ xP\x14\x00\x03\x00\x00................",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		network, held, table := &relaytest.Network{}, relay.NewReservations(), session.NewTable()
		g := New("test", config.TURNTCP, Shared{
			Engine: engine, Nonces: nonces, Network: network, Reservations: held, Limits: limit.NewProcess(),
			Table: table, Meter: meter.New(), Log: log,
		})
		g.Update(policy(), routes("127.0.0.1:<4000-4999>"))
		s := &sequence{t: t, g: g, network: network, table: table}
		for _, addr := range []string{"192.0.2.1:1000", "192.0.2.1:1001", "198.51.100.7:1000"} {
			s.clients = append(s.clients, wire{newClient(addr), len(s.clients) < 2})
		}
		for len(script) > 0 && s.steps < 64 {
			script = s.step(script)
		}
		for _, c := range s.clients {
			g.Disconnected(c)
		}
		if err := held.Close(); err != nil || g.Sessions() != 0 || table.Len() != 0 || network.Len() != 0 {
			t.Errorf(
				"left behind: %d sessions, %d in the table, %d sockets, %v", g.Sessions(), table.Len(), network.Len(),
				err,
			)
		}
	})
}

// sequence sends the messages of a script to a gate.
type sequence struct {
	t       *testing.T
	g       *Gate
	network *relaytest.Network
	table   *session.Table
	clients []wire
	steps   int
}

// The messages of a step by letter. A capital letter sends the message from the second client.
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
	's': {
		stun.MethodSend, stun.ClassIndication,
		[]stun.Setter{peerAt("127.0.0.1:4000"), stun.RawAttribute{Type: stun.AttrData, Value: []byte("data")}},
	},
}

// step sends the message for the first bytes of a script: a letter of sends, a byte for client and signature, a length,
// and further attributes of this length. Any other letter sends the bytes themselves.
func (s *sequence) step(script []byte) (rest []byte) {
	s.steps++
	script = append(script, 0, 0, 0)[:max(3, len(script))]
	letter, how, extra := script[0], script[1], min(int(script[2]), len(script)-3)
	if script[2] == ' ' { // seeds have a space in place of the length 0
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
		for _, a := range []stun.Setter{
			stun.NewUsername(username), stun.NewRealm(realm), stun.NewNonce(string(nonce)),
		} {
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

// The ways in which a step signs its message, by the digits in scripts.
const (
	notSigned = iota
	wellSigned
	guessed
	damaged
)

// check sends a message, and checks the answer and the state of the gate.
func (s *sequence) check(c wire, b []byte, good bool) {
	s.t.Helper()
	before := s.g.Sessions()
	s.g.Receive(b, c)
	for _, other := range s.clients {
		if other != c && len(other.frames) > 0 {
			s.t.Fatalf("% x is answered to another client", b)
		}
	}
	if !good && s.g.Sessions() != before {
		s.t.Fatalf("an unauthenticated client has created or ended a session with % x", b)
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
		answer := <-c.frames
		if binary.BigEndian.Uint32(b[4:]) != 0x2112A442 { // RFC 3489
			if c.connected || b[1] != 1 || !bytes.Equal(b[4:8], answer[4:8]) {
				s.t.Fatalf("% x is answered with % x", b, answer)
			}
			b = bytes.Clone(b)
			binary.BigEndian.PutUint32(b[4:], 0x2112A442)
			binary.BigEndian.PutUint32(answer[4:], 0x2112A442)
		}
		s.answered(b, answer, good)
	}
}

// answered checks that an answer matches a message.
func (s *sequence) answered(b, answer []byte, good bool) {
	s.t.Helper()
	if err := new(stunmsg.Message).Parse(answer); err != nil {
		s.t.Fatalf("% x is answered with no message: % x", b, answer)
	}
	m := &stun.Message{Raw: answer}
	if err := m.Decode(); err != nil {
		s.t.Fatal(err)
	}
	asked := &stun.Message{Raw: bytes.Clone(b)}
	if err := asked.Decode(); err != nil || asked.Type.Class != stun.ClassRequest ||
		m.Type.Method != asked.Type.Method || m.TransactionID != asked.TransactionID {
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
		s.t.Fatalf("% x gets a success, with a valid credential: %v: %s", b, good, m)
	}
}
