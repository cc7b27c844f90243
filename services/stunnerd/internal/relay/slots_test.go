package relay

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
)

// T-12: one user with many sessions, each with many channels, does not use all slots of the kernel path: channels of
// another user are still forwarded in the kernel. The slots of an ended session are free again.
func TestOneUserDoesNotTakeAllSlots(t *testing.T) {
	testroot.Need(t, "BPF programs")
	const slots, each = 100, 20
	f := offload.Open(offload.Options{Engine: offload.EngineTC, Interfaces: []string{"none0"}, MaxBindings: slots})
	t.Cleanup(func() { _ = f.Close() })
	table := session.NewTable()
	table.SetBounds(session.Bounds{Capacity: session.Amounts{session.RelayPorts: 50, session.Slots: slots}})
	number := uint16(0x4000)
	var all []*fixture
	// arm sends one packet in each of a number of new channels of a new session. It returns how many of these channels
	// the kernel forwards.
	arm := func(user, source string, channels int) int {
		client := &datagramClient{}
		b := newFixture(t, &client.sink)
		all = append(all, b)
		s := b.session
		s.Client, s.UserID, s.Source = client, user, session.Source(netip.MustParseAddr(source))
		s.Shared = true
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
		table.Add(s)
		b.routes.Offload(f)
		before := f.Status().Bindings
		for range channels {
			number++
			b.Bind(number, netip.AddrPortFrom(loopback, number))()
			b.FromClient(frame(number, []byte("media")))
		}
		return f.Status().Bindings - before
	}
	greedy := 0
	for range 2 * slots / each {
		greedy += arm("greedy", "10.0.0.1", each)
	}
	if greedy < slots*3/4 || greedy > slots*9/10+1 {
		t.Errorf("one user has %d of %d slots", greedy, slots)
	}
	if f.Status().Exhausted == 0 {
		t.Error("no refusal is counted")
	}
	for i := range 3 {
		if n := arm(fmt.Sprint("user ", i), fmt.Sprint("192.0.2.", i), 2); n != 2 {
			t.Errorf("another user has %d slots for 2 channels", n)
		}
	}
	if held := table.Held()[session.Slots]; held != int64(f.Status().Bindings) {
		t.Errorf("%d slots are counted, and %d are in use", held, f.Status().Bindings)
	}
	b := all[0]
	was := table.Held()[session.Slots]
	b.Disarm()
	if held := table.Held()[session.Slots]; held != was-each {
		t.Errorf("%d of %d slots are counted after %d channels were disarmed", held, was, each)
	}
	for _, b := range all {
		_ = b.Close()
		table.Remove(b.session)
	}
	if held := table.Held(); held != (session.Amounts{}) {
		t.Errorf("after the end of all sessions the ledger has %v", held)
	}
}
