package offload

import (
	"testing"
	"time"
)

// Bindings without a slot stay in user space. A slot is used again after it has rested.
func TestExhaustedSlots(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	one := binding(false)
	two := one
	two.Channel, two.Peer, two.Relay = testChannel+1, at("10.77.2.2:50001"), at("10.77.2.1:30001")
	r := w.start(t, relayConfig{Engine: EngineTC, MaxBindings: 1, Bindings: []relayBinding{one, two}})
	p := w.path(t, one)
	q := &path{relayBinding: two, client: p.client, peer: w.peer.socket(t, two.Peer)}
	p.warm(t, r)
	before := r.do(t, "state")
	for range 5 {
		if q.up([]byte("up"), timeout) == nil || q.down([]byte("down"), timeout) == nil {
			t.Error("a packet is lost")
		}
	}
	after := r.do(t, "state")
	if after.Kernel != before.Kernel || after.Status.Bindings != 1 || after.Status.Exhausted == 0 {
		t.Errorf("%+v", after)
	}
	r.do(t, "end")
	ended := time.Now()
	if q.up([]byte("up"), timeout) == nil {
		t.Error("a packet is lost")
	}
	if s := r.do(t, "state"); s.Status.Bindings != 0 {
		t.Errorf("the slot is used again after %v", time.Since(ended))
	}
	time.Sleep(rest + sweepInterval + 100*time.Millisecond - time.Since(ended))
	q.warm(t, r)
}

// With any number of bindings, reading all counters and ending all bindings costs little compared with arming them.
func TestManyBindings(t *testing.T) {
	w := newTopology(t)
	b := binding(false)
	r := w.start(t, relayConfig{Engine: EngineTC, Bindings: []relayBinding{b}})
	const n = 60000
	s := r.do(t, "fill %d", n)
	p := w.path(t, b)
	p.warm(t, r)
	t.Logf("%d bindings armed in %v of CPU time, %v each", n, s.CPU, s.CPU/n)
	armed := s.CPU
	s = r.do(t, "fold")
	t.Logf("counters of %d bindings read in %v of CPU time", n, s.CPU)
	if s.Status.Bindings != n+1 || s.CPU > armed/8 {
		t.Errorf("%+v", s)
	}
	if s := r.do(t, "invalidate"); s.CPU > armed/80 {
		t.Errorf("ended all in %v of CPU time", s.CPU)
	}
	p.warm(t, r)
}
