package offload

import (
	"testing"
	"time"
)

// A binding that another Offload has forwarded can be armed again, although both groups have the same index. The end of
// its permission remains. Each packet is counted once.
func TestReplacedOffload(t *testing.T) {
	for _, closed := range []bool{true, false} {
		f, next := opened(t, 10), opened(t, 10)
		g, later := f.NewGroup(), next.NewGroup()
		if g.index != later.index {
			t.Fatalf("groups %d and %d", g.index, later.index)
		}
		var total uint64
		e := entry()
		e.Count = func(c Counters) { total += c.Up.Packets }
		var b Binding
		g.Generation().Arm(&b, e)
		s := b.record.Load().slot
		s.upPackets = 3
		s.permitted += uint64(time.Minute)
		permitted := b.Permitted()
		if closed {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			b.Fold()
			if got := b.Permitted(); !got.Equal(permitted) {
				t.Errorf("after Close the permission ends %s, want %s", got, permitted)
			}
		}
		now := later.Generation()
		if b.Live(now) || !now.Arm(&b, e) || !b.Live(now) || f.Status().Bindings != 0 || next.Status().Bindings != 1 {
			t.Errorf("closed %t: not armed again: %+v, %+v", closed, f.Status(), next.Status())
		}
		b.Fold()
		if total != 3 {
			t.Errorf("closed %t: %d packets are counted, want 3", closed, total)
		}
	}
}
