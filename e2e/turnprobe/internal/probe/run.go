package probe

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/stunner-gateway/stunner/e2e/internal/stall"
	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

// width is the number of brisk checks that run concurrently.
const width = 8

// Run runs the checks and returns their results in the order of the checks.
func Run(target Target, checks []Check) ([]Result, error) {
	r := runner{
		target: target, tag: rand.Text(), sources: newSources(target.Server.Addr()),
		pulse: stall.Start(), results: make([]Result, len(checks)),
	}
	defer r.pulse.Stop()
	if err := r.survey(); err != nil {
		return nil, err
	}
	var waiting sync.WaitGroup
	for i, c := range checks {
		if c.Pace == Waiting || c.Pace == Long {
			waiting.Go(func() { r.check(i, c) })
		}
	}
	r.sideBySide(checks)
	for i, c := range checks {
		if c.Pace == Measuring {
			r.check(i, c)
		}
	}
	waiting.Wait()
	return r.results, nil
}

type runner struct {
	target  Target
	tag     string
	asks6   bool
	sources *sources
	pulse   *stall.Monitor
	results []Result
}

func (r *runner) sideBySide(checks []Check) {
	slots := make(chan struct{}, width)
	var all sync.WaitGroup
	for i, c := range checks {
		if c.Pace != Brisk {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			r.check(i, c)
			<-slots
		})
	}
	all.Wait()
}

func (r *runner) check(i int, c Check) { r.results[i] = r.judge(c) }

func (r *runner) judge(c Check) Result {
	switch {
	case !c.applies(r.target.Transport):
		return Result{Check: c, Verdict: NotApplicable, Reason: "does not apply to " + string(r.target.Transport)}
	case c.Pace == Long && !r.target.Long:
		return Result{Check: c, Verdict: Skipped, Reason: "takes minutes: give -long"}
	}
	return r.trial(c.ID).run(c)
}

func (r *runner) trial(id string) *Trial {
	return &Trial{Target: r.target, id: id, tag: r.tag, source: r.sources.take(), pulse: r.pulse, asks6: r.asks6}
}

// survey verifies the credential and determines the address family of relays.
func (r *runner) survey() error {
	if peer := r.target.PeerAddr; peer.IsValid() {
		r.asks6 = peer.Is6()
	}
	relay, code, reason := r.try()
	if code == 440 && !r.target.PeerAddr.IsValid() {
		r.asks6 = true
		relay, _, reason = r.try()
	}
	if !relay.IsValid() {
		return fmt.Errorf(
			"make an allocation at %s over %s: %w", r.target.Server, r.target.Transport, errors.New(reason),
		)
	}
	if !r.target.PeerAddr.IsValid() {
		r.target.PeerAddr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if relay.Addr().Is6() {
			r.target.PeerAddr = netip.IPv6Loopback()
		}
	}
	return nil
}

// try makes an allocation and deletes it.
func (r *runner) try() (relay netip.AddrPort, code int, reason string) {
	result := r.trial("survey").run(Check{Run: func(t *Trial) {
		a := t.Client().Allocate()
		code = a.Code()
		relay = a.OK().address(wire.XORRelayedAddress)
	}})
	return relay, code, result.Reason
}
