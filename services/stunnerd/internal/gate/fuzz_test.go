package gate

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// FuzzParse: the parser takes one whole message and nothing else, and what it takes another parser takes too (F-01).
func FuzzParse(f *testing.F) {
	f.Add(stun.MustBuild(stun.TransactionID, stun.BindingRequest, stun.Fingerprint).Raw)
	f.Add(stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest), udp,
		stun.NewUsername("ann"), stun.NewRealm(realm), stun.NewNonce("n"), stun.NewLongTermIntegrity("ann", realm, "pw"), stun.Fingerprint).Raw)
	f.Add(stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodCreatePermission, stun.ClassRequest), peerAt("127.0.0.1:4000"), peerAt("[::1]:1")).Raw)
	f.Add([]byte{0, 1, 0, 4, 0x21, 0x12, 0xA4, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		r, err := parse(b, newClient("192.0.2.1:1000"))
		if !bytes.Equal(b, before) {
			t.Fatal("the parser changed what it read")
		}
		if err != nil {
			return
		}
		if b[0]&0xC0 != 0 || len(b)%4 != 0 || int(binary.BigEndian.Uint16(b[2:])) != len(b)-stunHeader {
			t.Fatalf("took % x", b)
		}
		second := &stun.Message{Raw: bytes.Clone(b)}
		if err := second.Decode(); err != nil {
			t.Fatalf("pion/stun refuses it: %v", err)
		}
		_, _ = r.peers()
		_, _ = r.channel()
		_ = r.unknown()
	})
}

// FuzzReceive: whatever a stranger sends is answered with at most one message, which parses and carries the transaction of the request, and
// never makes a session.
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
	table := session.NewTable()
	g := New("test", "TURN-UDP", Shared{
		Machine: machine, Nonces: nonces, Network: relay.Kernel{}, Held: relay.NewReservations(), Limits: NewLimits(0), Table: table, Meter: meter.New(), Log: log,
	})
	g.Update(policy(), routes("127.0.0.1"))
	f.Add(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw)
	f.Add(stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest), udp).Raw)
	f.Add(stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodSend, stun.ClassIndication), peerAt("127.0.0.1:1")).Raw)
	f.Add(stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodRefresh, stun.ClassRequest), stun.NewUsername("ann"),
		stun.NewRealm(realm), stun.NewNonce("n"), stun.NewLongTermIntegrity("ann", realm, "pw")).Raw)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newClient("10.0.0.1:1000") // a private source, which has a large share of answers
		g.Receive(b, c)
		if n := len(c.frames); n > 1 {
			t.Fatalf("%d answers", n)
		}
		if table.Len() != 0 {
			t.Fatal("a stranger has a session")
		}
		if len(c.frames) == 0 {
			return
		}
		answer := &stun.Message{Raw: <-c.frames}
		if err := answer.Decode(); err != nil {
			t.Fatalf("answer does not parse: %v", err)
		}
		if !bytes.Equal(answer.TransactionID[:], b[8:20]) || answer.Type.Class != stun.ClassSuccessResponse && answer.Type.Class != stun.ClassErrorResponse {
			t.Fatalf("answer %s to % x", answer, b)
		}
	})
}
