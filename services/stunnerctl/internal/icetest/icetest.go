// Package icetest tests with WebRTC whether the listeners of a Gateway relay.
//
// Each test opens a PeerConnection through a listener, sends numbered messages over an unreliable data channel, and
// counts the echoes. In asymmetric tests the other peer is a WebRTC peer that a route allows; in symmetric tests it is
// another client of the same listener, so that media passes through two relays.
//
// The clients make their TURN allocations with package turncat, and ICE uses the relayed address as a host candidate.
// Therefore every transport works as with turncat, and errors contain the STUN error code and the remedy.
//
// # Files
//
//	icetest.go  steps and report (schema: docs/icetest.schema.json)
//	call.go     one call
//	peer.go     echo peers
//	deploy.go   the echo peer in a cluster
//
// The command is in services/stunnerctl/internal/command/icetest.go, and its listeners are in
// services/stunnerctl/internal/command/listeners.go.
package icetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

// Mode is the kind of a test.
type Mode string

// The modes.
const (
	Asymmetric Mode = "asymmetric"
	Symmetric  Mode = "symmetric"
)

// Result is the result of a step or a test.
type Result string

// The results. A skipped test does not make the verdict "fail".
const (
	Pass Result = "pass"
	Fail Result = "fail"
	Skip Result = "skip"
)

// Version is the version of Report. docs/icetest.schema.json is its JSON schema.
const Version = "v1"

// Report is the result of all tests.
type Report struct {
	Version string    `json:"version"`
	Gateway string    `json:"gateway"`
	Started time.Time `json:"started"`
	Verdict Result    `json:"verdict"`
	Steps   []Step    `json:"steps"`
	Tests   []Test    `json:"tests"`
}

// Step is one step before the tests.
type Step struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	// Text is the result or the error.
	Text string `json:"text"`
	// Findings are causes with their remedies, for a failed step.
	Findings []diagnose.Finding `json:"findings,omitempty"`
}

// Test is one test of a listener.
type Test struct {
	Listener string `json:"listener"`
	URI      string `json:"uri"`
	Mode     Mode   `json:"mode"`
	Result   Result `json:"result"`
	// Reason says why the test failed or was skipped.
	Reason   string             `json:"reason,omitempty"`
	Findings []diagnose.Finding `json:"findings,omitempty"`
	// Relay is the relayed address of the client, and Peer the address to which it sends.
	Relay    string `json:"relay,omitempty"`
	Peer     string `json:"peer,omitempty"`
	Sent     int    `json:"sent"`
	Received int    `json:"received"`
	// Loss is the share of messages without an echo, from 0 to 1.
	Loss float64 `json:"loss"`
	// Gap is the longest time without an echo while messages are sent, in milliseconds. After an outage, the data channel
	// delivers messages that it has not sent before, so that an outage is no loss.
	Gap float64 `json:"gap"`
	// Rate is the number of echoes per second.
	Rate float64 `json:"rate"`
	RTT  RTT     `json:"rtt"`
}

// RTT are round-trip times in milliseconds.
type RTT struct {
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
}

// Listener is a listener to test.
type Listener struct {
	Name string
	URI  string // without a password
	turncat.Endpoint
}

// Peer answers SDP offers with an SDP answer. It echoes messages on data channels. It serves several calls, one after
// the other or at the same time. ctx ends with the call.
type Peer interface {
	Answer(ctx context.Context, offer string) (answer string, err error)
	Close() error
}

// Setup is a step that Run carries out.
type Setup struct {
	Name string
	Do   func(context.Context) (text string, err error)
}

// Options are the parameters of Run.
type Options struct {
	Gateway string
	// Setup is carried out before the tests. A failed step ends the run.
	Setup []Setup
	// Listeners returns the listeners, after Setup.
	Listeners func() []Listener
	// Peer returns the peer of asymmetric tests, after Setup. Without a peer these tests are skipped, with the error as
	// reason.
	Peer func() (Peer, error)
	// Rate is the number of messages per second and Duration the time for which each test sends.
	Rate     int
	Duration time.Duration
	// MaxLoss is the highest Test.Loss with which a test passes.
	MaxLoss float64
	// MaxGap is the longest Test.Gap, beyond the time between two messages, with which a test passes.
	MaxGap time.Duration
	// Denied returns why clients of a listener may not exchange media with a peer, or "" if they may, or if that is
	// unknown. It may be nil.
	Denied func(ctx context.Context, listener string, peer netip.AddrPort) string
	// Why diagnoses a failure. peer is the peer of a failed test, if it is known. It may be nil.
	Why func(ctx context.Context, peer netip.AddrPort) []diagnose.Finding
	// Progress is called after each step and test. It may be nil.
	Progress func(any)
}

// Run carries out all tests and returns the report. The report is complete even if ctx ends.
func Run(ctx context.Context, o Options) Report {
	if o.Progress == nil {
		o.Progress = func(any) {}
	}
	r := Report{
		Version: Version,
		Gateway: o.Gateway,
		Started: time.Now().UTC(),
		Verdict: Fail,
		Steps:   []Step{},
		Tests:   []Test{},
	}
	for _, s := range o.Setup {
		step := Step{Name: s.Name, Result: Pass}
		text, err := s.Do(ctx)
		step.Text = text
		if err != nil {
			step.Result, step.Text = Fail, err.Error()
			step.Findings = o.why(ctx, netip.AddrPort{})
		}
		r.Steps = append(r.Steps, step)
		o.Progress(step)
		if err != nil {
			return r
		}
	}
	for _, l := range o.Listeners() {
		for _, mode := range []Mode{Asymmetric, Symmetric} {
			t := o.test(ctx, l, mode)
			r.Tests = append(r.Tests, t)
			o.Progress(t)
		}
	}
	failed := slices.ContainsFunc(r.Tests, func(t Test) bool { return t.Result == Fail })
	passed := slices.ContainsFunc(r.Tests, func(t Test) bool { return t.Result == Pass })
	if passed && !failed && ctx.Err() == nil {
		r.Verdict = Pass
	}
	return r
}

func (o Options) why(ctx context.Context, peer netip.AddrPort) []diagnose.Finding {
	if o.Why == nil || ctx.Err() != nil {
		return nil
	}
	return o.Why(ctx, peer)
}

func (o Options) denied(ctx context.Context, listener string, peer netip.AddrPort) string {
	if o.Denied == nil {
		return ""
	}
	return o.Denied(ctx, listener, peer)
}

// errNotAllowed is returned if no route allows the peer of a symmetric test, which is usual: routes name media servers,
// and not the relayed addresses of the gateway itself.
var errNotAllowed = errors.New(
	"no route allows the relayed addresses of the gateway itself, which a call between two clients needs",
)

// test carries out one test.
func (o Options) test(ctx context.Context, l Listener, mode Mode) Test {
	t := Test{Listener: l.Name, URI: l.URI, Mode: mode, Result: Skip}
	limit := testTimeout + o.Duration
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the test was ended after %s", limit))
	defer cancel()
	var remote Peer
	if mode == Asymmetric {
		var err error
		if remote, err = o.Peer(); err != nil {
			t.Reason = err.Error()
			return t
		}
	}
	err := o.measure(ctx, l, remote, &t)
	switch {
	case errors.Is(err, errNotAllowed):
		t.Reason = err.Error()
	case err != nil:
		t.Result, t.Reason = Fail, err.Error()
	case t.Loss > o.MaxLoss:
		t.Result = Fail
		t.Reason = fmt.Sprintf("%.1f %% of the messages were lost, more than %.1f %%", 100*t.Loss, 100*o.MaxLoss)
	case t.Gap > milliseconds(o.MaxGap+time.Second/time.Duration(o.Rate)):
		t.Result = Fail
		t.Reason = fmt.Sprintf("no message was returned for %.1f s, longer than %s", t.Gap/1000, o.MaxGap)
	default:
		t.Result = Pass
	}
	if t.Result == Fail {
		peer, _ := netip.ParseAddrPort(t.Peer)
		t.Findings = o.why(ctx, peer)
	}
	return t
}
