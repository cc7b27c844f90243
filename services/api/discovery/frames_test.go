package discovery

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// costly is a frame that takes 10 ms to parse: the duration of watch.lookup, which is called for the port.
func costly(realm string) []byte {
	c := sample("media/a", realm)
	return []byte(strings.Replace(string(c.Canonical()), `"port":3478`, `"port":"$STUNNER_PORT"`, 1))
}

// However often a config changes, parsing it uses a small share of a core. The first change is parsed at once, and the
// last change soon.
func TestFrequentChangesOfAConfigAreReadRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const cost, seconds = 10 * time.Millisecond, 10
		w, pending, out := newWatch("test", "media/a"), newFrames(), make(chan Event)
		var read atomic.Int64
		w.lookup = func(string) string { read.Add(1); time.Sleep(cost); return "3478" }
		go w.readFrom(ctx, pending)
		go w.run(ctx, out)
		var received atomic.Value
		go func() {
			for e := range out {
				received.Store(e.Config.Auth.Realm)
			}
		}()
		begun := time.Now()
		pending.put(costly("first"))
		time.Sleep(cost + time.Millisecond)
		synctest.Wait()
		if received.Load() != "first" {
			t.Errorf("the first change is not read at once: %q", received.Load())
		}
		for time.Since(begun) < seconds*time.Second {
			pending.put(costly(time.Since(begun).String()))
			time.Sleep(50 * time.Millisecond)
		}
		if used := time.Duration(read.Load()) * cost; used > seconds*time.Second*26/1000 || read.Load() < 10 {
			t.Errorf("%d frames were read within %d s, which took %v", read.Load(), seconds, used)
		}
		pending.put(costly("last"))
		time.Sleep(Cooldown(cost, readShare) + 2*cost)
		synctest.Wait()
		if received.Load() != "last" {
			t.Errorf("the last change is not read: %q", received.Load())
		}
		cancel()
		synctest.Wait()
	})
}

// A valid frame is not lost if an invalid frame arrives before it was parsed. The invalid frame is reported.
func TestInvalidFrameDoesNotReplaceAValidOne(t *testing.T) {
	good := sample("media/a", "good")
	bad := good.Clone()
	bad.Listeners[0].Port = 0
	for _, arrive := range [][]config.Config{{good, bad, bad}, {bad, good, bad}, {bad, bad, good, bad}} {
		w, pending := newWatch("test", "media/a"), newFrames()
		for _, c := range arrive {
			pending.put(c.Canonical())
		}
		w.receiveNewest(pending.takeAll())
		if e, _ := w.events.pop(); e.Config.Auth.Realm != "good" {
			t.Errorf("first %+v", e)
		}
		if e, _ := w.events.pop(); e.Err == nil || !strings.Contains(e.Err.Error(), "listeners[0].port") {
			t.Errorf("then %+v", e)
		}
		if left := pending.takeAll(); left != nil {
			t.Error("frames are left")
		}
		w.receiveNewest(nil)
		if _, more := w.events.pop(); more {
			t.Error("an event of nothing")
		}
	}
	full := newFrames()
	for range 3 * maxPending {
		full.put(bad.Canonical())
	}
	if n := len(full.takeAll()); n != maxPending {
		t.Errorf("%d frames are kept, want %d", n, maxPending)
	}
}

func TestCooldown(t *testing.T) {
	for _, c := range []struct {
		took  time.Duration
		share float64
		want  time.Duration
	}{
		{0, 0.05, 0}, {time.Millisecond, 0.05, 19 * time.Millisecond},
		{10 * time.Millisecond, 0.025, 390 * time.Millisecond}, {time.Second, 0.05, time.Second},
	} {
		if got := Cooldown(c.took, c.share).Round(time.Microsecond); got != c.want {
			t.Errorf("%v of %v: %v, want %v", c.share, c.took, got, c.want)
		}
	}
}
