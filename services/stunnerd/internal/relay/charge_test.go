package relay

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// charged returns a session in a table with the given memory, and a function that returns its charge beyond its price.
func charged(t *testing.T, more int64) (*session.Session, func() int64) {
	t.Helper()
	table := session.NewTable()
	s := &session.Session{UserID: "ann"}
	if err := table.Reserve(s); err != nil {
		t.Fatal(err)
	}
	base := table.Held()[session.Memory]
	table.SetBounds(session.Bounds{Capacity: session.Amounts{session.Memory: base + more}})
	return s, func() int64 { return table.Held()[session.Memory] - base }
}

// datagrams that wait for the engine are charged, except the first. A datagram for which there is no memory is
// dropped. When the queue is empty, and after the end of the relay, nothing is charged.
func TestQueueForTheEngineIsCharged(t *testing.T) {
	s, memory := charged(t, 2*undecidedStep)
	u := &undecided{memory: s.Claim(session.Memory)}
	d := NewDatagram(make([]byte, 1400), netip.MustParseAddrPort("192.0.2.1:1000"))
	add := func() bool {
		ok, _ := u.add(&d)
		return ok
	}
	if !add() || memory() != 0 {
		t.Errorf("one datagram is charged %d", memory())
	}
	for add() {
	}
	if n := waiting(u); n > 2*undecidedStep/1400 || memory() != 2*undecidedStep {
		t.Errorf("%d datagrams wait, charged %d of %d", n, memory(), 2*undecidedStep)
	}
	for ok := true; ok; {
		_, _, ok = u.next()
	}
	if memory() != 0 {
		t.Errorf("the empty queue is charged %d", memory())
	}
	add()
	add()
	if u.close(); memory() != 0 {
		t.Errorf("the closed queue is charged %d", memory())
	}
}

// nominating checks are charged, except the first. If there is no memory for a check, it is not reported. Checks
// that are still in the journal are charged although the relay has removed them.
func TestNominationsAreCharged(t *testing.T) {
	const fit = 10
	s, memory := charged(t, session.PriceOfChecks(fit))
	n := &nominations{memory: s.Claim(session.Memory)}
	known := 0
	nomination := func(peer string, port int) check {
		at := netip.AddrPortFrom(netip.MustParseAddr(peer), uint16(port))
		return check{Check: session.Check{Peer: at}, username: 1, nominates: true}
	}
	for i := range session.MaxChecks {
		if n.add(nomination("192.0.2.1", i+1)) {
			known++
		}
		if i == 0 && memory() != 0 {
			t.Errorf("one check is charged %d", memory())
		}
	}
	before := session.PriceOfChecks(known) // one session may use four fifths of the memory
	if known < 2 || known > fit || memory() != before {
		t.Errorf("%d checks are known, want at most %d; charged %d", known, fit, memory())
	}
	n.checks = n.checks[:1]
	if n.add(nomination("192.0.2.1", 2)); memory() != before {
		t.Errorf("charged %d while the journal has %d checks", memory(), known)
	}
	if n.close(); memory() != 0 || n.add(nomination("192.0.2.2", 1)) {
		t.Errorf("after the end: charged %d", memory())
	}
	restored := &Relay{session: s}
	if restored.RestoreNominations(make([]session.Check, 3)); memory() != session.PriceOfChecks(3) {
		t.Errorf("three restored checks are charged %d", memory())
	}
	restored.nominations.Load().close()
}

// A reader of the listener may keep a closed relay. The closed relay holds neither channels nor counters of peers, and
// reports how many channels it had.
func TestClosedRelayHoldsNoChannels(t *testing.T) {
	b := newFixture(t, &sink{})
	for i := range MaxChannels {
		peer := netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", 2000+i))
		b.Bind(uint16(0x4000+i), peer)()
		b.unbound.get(netip.AddrPortFrom(peer.Addr(), peer.Port()+1000), 0)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if n := b.Channels(); n != MaxChannels || len(*b.channels.Load()) != 0 || b.unbound.counts.Load() != nil {
		t.Errorf("a closed relay tells %d channels, and has %d, and counters %v", n, len(*b.channels.Load()), b.unbound.counts.Load())
	}
}
