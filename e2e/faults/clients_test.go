package faults

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// at returns the address of the listener for a transport.
func (d *dataplane) at(network call.Network) netip.AddrPort {
	i := slices.IndexFunc(d.config.Listeners, func(l config.Listener) bool { return l.Name == listenerName(network) })
	l := d.config.Listeners[i]
	return netip.AddrPortFrom(netip.MustParseAddr(l.Address), uint16(l.Port))
}

// options returns options of a call over a transport with the static credential.
func (d *dataplane) options(network call.Network) call.Options {
	return call.Options{
		Gateway: d.at(network), Network: network, Roots: d.roots, Username: user, Password: password, Peer: d.peer,
		Interval: interval,
	}
}

// call starts a call and waits until datagrams are echoed. The end of the test ends it.
func (d *dataplane) call(o call.Options) *call.Call {
	d.t.Helper()
	c, err := call.Start(d.t.Context(), o)
	if err != nil {
		d.t.Fatal(err)
	}
	d.awaitEchoes(c)
	return c
}

// calls starts a call over each transport, by default over all.
func (d *dataplane) calls(over ...call.Network) (all []*call.Call) {
	d.t.Helper()
	if len(over) == 0 {
		over = networks
	}
	for _, network := range over {
		all = append(all, d.call(d.options(network)))
	}
	return all
}

// awaitEchoes waits until each call has received more echoes.
func (d *dataplane) awaitEchoes(all ...*call.Call) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), timeout)
	defer cancel()
	want := make([]int, len(all))
	for i, c := range all {
		want[i] = c.Stats().Received + 3
	}
	for i, c := range all {
		if err := c.Await(ctx, want[i]); err != nil {
			d.t.Fatalf("call %d receives no more echoes: %v", i, err)
		}
	}
}

// undisturbed ends calls and checks that they lost nothing, and without stalls of the machine had no gap of a second.
func (d *dataplane) undisturbed(all []*call.Call) {
	d.t.Helper()
	d.awaitEchoes(all...)
	var lost int
	var gap time.Duration
	for _, s := range end(all) {
		lost, gap = lost+s.Lost, max(gap, s.LongestGap)
	}
	worst := d.stalls.Worst()
	if lost > 0 || gap-worst > silence {
		d.t.Errorf("%d datagrams lost, longest gap %s, stall of the machine %s; want 0, %s", lost, gap, worst, silence)
	}
}

// end ends calls at the same time.
func end(all []*call.Call) []call.Stats {
	stats := make([]call.Stats, len(all))
	var ending sync.WaitGroup
	for i, c := range all {
		ending.Go(func() { stats[i] = c.End(timeout) })
	}
	ending.Wait()
	return stats
}

// cutOff checks that calls receive no echo more than a few seconds after a moment, and that their permissions are
// refused. On an idle machine it takes at most a second.
func (d *dataplane) cutOff(all []*call.Call, since time.Time) {
	d.t.Helper()
	for i, c := range all {
		if late := c.LastEcho().Sub(since) - d.stalls.Worst(); late > 5*time.Second {
			d.t.Errorf("call %d receives an echo %s after its route was removed", i, late)
		}
		if err := c.Renew(); !errors.Is(err, call.ErrRefused) || !strings.Contains(err.Error(), "403") {
			d.t.Errorf("call %d: permission: %v, want 403", i, err)
		}
		c.End(0)
	}
}

// admits is the condition that a new call succeeds.
func admits(o call.Options) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := call.Start(ctx, o)
		if err == nil {
			c.End(0)
		}
		return err
	}
}

// clientAddr returns the i-th of many addresses of this host, because real users do not share one.
func clientAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}) }

// client returns a client of single requests at the i-th address, over UDP with the static credential.
func (d *dataplane) client(i int) *ask.Client {
	d.t.Helper()
	c, err := ask.Dial(clientAddr(i), d.at(call.UDP), user, password)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(c.Close)
	return c
}

// another returns a client with a socket of its own that shares the nonce of a client at the same address.
func (d *dataplane) another(first *ask.Client) *ask.Client {
	d.t.Helper()
	other, err := ask.Dial(first.Addr().Addr(), d.at(call.UDP), user, password)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(other.Close)
	c := *first
	c.Conn = other.Conn
	return &c
}

// do sends a request until it is answered, and returns the error code and the number of challenges.
func (d *dataplane) do(c *ask.Client, method stun.Method, attrs ...stun.Setter) (stun.ErrorCode, int) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), timeout)
	defer cancel()
	answer, challenges, err := c.Do(ctx, method, attrs...)
	if err != nil {
		d.t.Fatalf("%s: %v", method, err)
	}
	return ask.Code(answer), challenges
}

// must sends a request until it is answered, with success.
func (d *dataplane) must(c *ask.Client, method stun.Method, attrs ...stun.Setter) {
	d.t.Helper()
	if code, _ := d.do(c, method, attrs...); code != 0 {
		d.t.Fatalf("%s: %d", method, code)
	}
}

// once sends a request without retransmission.
func (d *dataplane) once(c *ask.Client, raw []byte) *stun.Message {
	d.t.Helper()
	answer, err := c.Once(raw, timeout)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer
}

// learn makes a client learn a nonce, by a request that fails.
func (d *dataplane) learn(c *ask.Client) *ask.Client {
	d.t.Helper()
	d.do(c, stun.MethodRefresh, ask.Lifetime(600))
	return c
}

// channel is the channel number that clients bind to the peer.
const channel = 0x4001

type request struct {
	method stun.Method
	attrs  []stun.Setter
}

// ofAllocation returns requests that need an allocation.
func (d *dataplane) ofAllocation() []request {
	return []request{
		{stun.MethodRefresh, []stun.Setter{ask.Lifetime(600)}},
		{stun.MethodCreatePermission, []stun.Setter{ask.Peer(d.peer)}},
		{stun.MethodChannelBind, []stun.Setter{ask.Channel(channel), ask.Peer(d.peer)}},
	}
}

// bind binds a channel to the peer.
func (d *dataplane) bind(c *ask.Client) {
	d.t.Helper()
	d.must(c, stun.MethodChannelBind, ask.Channel(channel), ask.Peer(d.peer))
}

// allocated returns a client with an allocation and a channel to the peer.
func (d *dataplane) allocated(i int) *ask.Client {
	d.t.Helper()
	c := d.client(i)
	d.must(c, stun.MethodAllocate, ask.UDP())
	d.bind(c)
	return c
}

// echo sends one datagram over the channel and expects its echo.
func (d *dataplane) echo(c *ask.Client) {
	d.t.Helper()
	frame := ask.ChannelData(channel, []byte("ping"))
	if err := c.Send(frame); err != nil {
		d.t.Fatal(err)
	}
	got, err := c.Receive(timeout)
	if err != nil || string(got[:min(len(got), len(frame))]) != string(frame) {
		d.t.Fatalf("echo: % x, %v", got, err)
	}
}

// unknown checks that each request for an allocation that no longer exists gets 437, at the first attempt.
func (d *dataplane) unknown(c *ask.Client) {
	d.t.Helper()
	for _, r := range d.ofAllocation() {
		answer := d.once(c, c.Request(r.method, r.attrs...))
		if ask.Code(answer) == stun.CodeStaleNonce && c.Learn(answer) {
			answer = d.once(c, c.Request(r.method, r.attrs...))
		}
		if code := ask.Code(answer); code != stun.CodeAllocMismatch {
			d.t.Errorf("%s for a lost allocation: %d, want 437", r.method, code)
		}
	}
}

// overload are the error codes for a client that should use another server.
var overload = []stun.ErrorCode{stun.CodeAllocQuotaReached, stun.CodeInsufficientCapacity}

func mustRefuse(t testing.TB, what string, code stun.ErrorCode, want ...stun.ErrorCode) {
	t.Helper()
	if !slices.Contains(want, code) {
		t.Errorf("%s: code %d, want one of %v", what, code, want)
	}
}
