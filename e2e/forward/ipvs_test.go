package forward

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// retire terminates pods as a cluster with kube-proxy in mode ipvs does: kube-proxy removes a terminating UDP endpoint
// at once, so the next datagram of each of its clients goes to one of the pods that stay.
func (w *world) retire(calls []*client, stay []*pod, pods ...*pod) {
	w.t.Helper()
	for _, p := range pods {
		if err := p.process.Signal(syscall.SIGTERM); err != nil {
			w.t.Fatal(err)
		}
	}
	moved := 0
	for _, c := range calls {
		if slices.Contains(pods, c.at) {
			w.send(c, stay[moved%len(stay)])
			moved++
		}
	}
}

// endAll ends calls that must have lost no datagram.
func endAll(t *testing.T, calls []*client) {
	t.Helper()
	sent := 0
	for i, c := range calls {
		s := c.End(patience)
		sent += s.Sent
		if s.Lost != 0 {
			t.Errorf("call %d: %s", i, s)
		}
	}
	t.Logf("%d calls, %d datagrams", len(calls), sent)
}

// awaitExit waits until terminated pods, whose last call has ended, have exited with code 0.
func awaitExit(t *testing.T, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		select {
		case <-p.process.Done():
			if err := p.process.Err(); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
		case <-time.After(patience):
			t.Errorf("%s drains, although its last call has ended", p.name)
		}
	}
}

// TestScaleInInModeIPVS: a scale-in from three pods to one ends no call and loses no datagram, although the clients
// of the terminating pods arrive at the third one.
func TestScaleInInModeIPVS(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	pods := []*pod{w.add(1), w.add(2), w.add(3)}
	var calls []*client
	for _, p := range pods {
		p.awaitPeers(len(pods) - 1)
		for range 10 {
			calls = append(calls, w.dial(p, voice, 200))
		}
	}
	awaitAll(t, calls, 100)
	w.retire(calls, pods[:1], pods[1:]...)
	awaitAll(t, calls, 600)
	endAll(t, calls)
	awaitExit(t, pods[1:]...)
}

// TestRollingUpdateInModeIPVS: an update replaces three pods one after the other, and no call loses a datagram.
func TestRollingUpdateInModeIPVS(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	old := []*pod{w.add(1), w.add(2), w.add(3)}
	ready := slices.Clone(old)
	var calls []*client
	for _, p := range old {
		p.awaitPeers(len(old) - 1)
		for range 10 {
			calls = append(calls, w.dial(p, voice, 200))
		}
	}
	awaitAll(t, calls, 100)
	for i, p := range old {
		ready = append(ready[1:], w.add(byte(len(old)+1+i)))
		ready[len(ready)-1].awaitPeers(len(old) + i)
		w.retire(calls, ready, p)
		awaitAll(t, calls, calls[0].Stats().Received+150)
	}
	endAll(t, calls)
	awaitExit(t, old...)
}
