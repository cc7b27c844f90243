package faults

import (
	"context"
	"errors"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// told to end under load, a process keeps every call that it has, sends new ones elsewhere, and ends with the last one.
func TestR08DrainUnderLoad(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.crowd(25)
	b.signal(syscall.SIGTERM)
	b.await("draining", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && st.Status != "TERMINATING" {
			err = errors.New("status " + st.Status)
		}
		return err
	})
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(pace) {
		for _, path := range []string{"/ready", "/live"} {
			if err := bed.Answers(b.health()+path, http.StatusOK)(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	code, _ := b.do(b.client(1), stun.MethodAllocate, ask.UDP())
	mustRefuse(t, "new allocation", code, overload...)
	for _, network := range []call.Network{call.TCP, call.TLS, call.DTLS} {
		if c, err := call.Start(t.Context(), b.options(network)); err == nil {
			c.End(0)
			t.Errorf("a new call over %s while draining", network)
		} else if !errors.Is(err, call.ErrRefused) {
			t.Errorf("a new call over %s: %v, want a refusal", network, err)
		}
	}
	b.unharmed(live, silence)
	last := time.Now()
	if took := b.ended(patience).Sub(last); took > time.Second {
		t.Errorf("ended %s after the last session", took)
	}
}

// a second SIGTERM does not wait for anybody.
func TestR08SecondSignalUnderLoad(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.crowd(5)
	b.signal(syscall.SIGTERM)
	b.await("draining", func(context.Context) error {
		if got := b.metric("stunner_allocations_draining"); got != float64(len(live)) {
			return errors.New("not all drain")
		}
		return nil
	})
	again := time.Now()
	b.signal(syscall.SIGTERM)
	if took := b.ended(patience).Sub(again); took > 2*time.Second {
		t.Errorf("ended %s after the second signal", took)
	}
}

// after SIGKILL a new process serves from the last good config while discovery is away, and tells clients of the old one at once that
// their allocations are gone.
func TestR09Killed(t *testing.T) {
	const clients = 20
	b := newBench(t)
	h, _ := serving(t, b.config)
	state := t.TempDir()
	b.start(h.url(), "--state-dir", state)
	b.inForce(b.config)
	var old []*ask.Client
	for i := range clients {
		old = append(old, b.allocated(i))
	}
	h.down()
	if err := b.process.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.start(h.url(), "--state-dir", state)
	b.await("ready", bed.Answers(b.health()+"/ready", http.StatusOK))
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("serves %s after the start", took)
	} else {
		t.Logf("serves %s after the start", took)
	}
	for i, c := range old {
		for method, attrs := range b.three() {
			b.mismatch(c, method, attrs)
		}
		if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			t.Errorf("client %d allocates again: %d", i, code)
		}
	}
}

// mismatch sends a request for an allocation that is gone. A retransmission would be silence to a client.
func (b *bench) mismatch(c *ask.Client, method stun.Method, attrs []stun.Setter) {
	b.t.Helper()
	for challenges := 0; ; challenges++ {
		answer, err := c.Once(c.Request(method, attrs...), silence)
		if err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		if ask.Code(answer) == stun.CodeStaleNonce && challenges == 0 && c.Learn(answer) {
			continue
		}
		if code := ask.Code(answer); code != stun.CodeAllocMismatch {
			b.t.Errorf("%s for an allocation that is gone: %d, want 437", method, code)
		}
		return
	}
}

func (b *bench) signal(s syscall.Signal) {
	b.t.Helper()
	if err := b.process.Signal(s); err != nil {
		b.t.Fatal(err)
	}
}
