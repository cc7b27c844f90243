package faults

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// overload are the error codes for a client that should use another server.
var overload = []stun.ErrorCode{stun.CodeAllocQuotaReached, stun.CodeInsufficientCapacity}

// silence is the longest permitted gap of a call on a busy machine.
const silence = time.Second

// source returns the i-th of many addresses of this host, because real users do not share one.
func source(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}) }

// client returns a raw UDP client at the i-th address with the static credential.
func (b *bench) client(i int) *ask.Client {
	b.t.Helper()
	return b.clientTo(b.at(call.UDP), i)
}

// user returns an ephemeral credential of the i-th user.
func (b *bench) user(i int) (name, password string) {
	b.t.Helper()
	c, err := b.config.Auth.Authority().Mint(fmt.Sprint("user-", i), time.Hour, time.Now())
	if err != nil {
		b.t.Fatal(err)
	}
	return c.Username, string(c.Password)
}

// clientTo returns a raw client of a proxy in front of the listener.
func (b *bench) clientTo(to netip.AddrPort, i int) *ask.Client {
	b.t.Helper()
	c, err := ask.Dial(source(i), to, user, password)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	return c
}

// do sends a request until it is answered, and returns the error code and the number of challenges.
func (b *bench) do(c *ask.Client, method stun.Method, attrs ...stun.Setter) (code stun.ErrorCode, challenges int) {
	b.t.Helper()
	answer, challenges := b.answer(c, method, attrs...)
	return ask.Code(answer), challenges
}

func (b *bench) answer(c *ask.Client, method stun.Method, attrs ...stun.Setter) (answer *stun.Message, challenges int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	answer, challenges, err := c.Do(ctx, method, attrs...)
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	return answer, challenges
}

// channel is the channel number that raw clients bind to the peer.
const channel = 0x4001

// three returns requests that need an allocation, by method.
func (b *bench) three() map[stun.Method][]stun.Setter {
	return map[stun.Method][]stun.Setter{
		stun.MethodRefresh:          {ask.Lifetime(600)},
		stun.MethodCreatePermission: {ask.Peer(b.peer)},
		stun.MethodChannelBind:      {ask.Channel(channel), ask.Peer(b.peer)},
	}
}

// allocated returns a raw client with an allocation and a channel to the peer.
func (b *bench) allocated(i int) *ask.Client {
	b.t.Helper()
	c := b.client(i)
	if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
		b.t.Fatalf("allocate: %d", code)
	}
	if code, _ := b.do(c, stun.MethodChannelBind, b.three()[stun.MethodChannelBind]...); code != 0 {
		b.t.Fatalf("bind channel: %d", code)
	}
	return c
}

// echoes sends one datagram over the channel and expects its echo.
func (b *bench) echoes(c *ask.Client) {
	b.t.Helper()
	frame := ask.ChannelData(channel, []byte("ping"))
	if err := c.Send(frame); err != nil {
		b.t.Fatal(err)
	}
	got, err := c.Receive(patience)
	if err != nil || string(got[:min(len(got), len(frame))]) != string(frame) {
		b.t.Fatalf("echo: % x, %v", got, err)
	}
}

// crowd starts n calls over each transport with a low rate. All of them share the one socket of the peer, whose buffer
// must not overflow on a busy machine.
func (b *bench) crowd(n int) (all calls) {
	b.t.Helper()
	for range n {
		for _, network := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
			o := b.options(network)
			o.Interval = 25 * pace
			c, err := call.Start(b.t.Context(), o)
			if err != nil {
				b.t.Fatal(err)
			}
			all = append(all, c)
		}
	}
	b.goOn(all)
	return all
}

// processor returns the CPU time of the process.
func (b *bench) processor() time.Duration {
	b.t.Helper()
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that Go supports
	stat := b.proc("stat")
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // the name may contain spaces
	ticks := 0
	for _, f := range fields[11:13] { // utime and stime, proc_pid_stat(5)
		n, err := strconv.Atoi(f)
		if err != nil {
			b.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

func (b *bench) proc(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.process.PID(), name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

// ended waits until the process exits with code 0 within a limit. Stalls of the machine do not count.
func (b *bench) ended(limit time.Duration) {
	b.t.Helper()
	began := time.Now()
	select {
	case <-b.process.Done():
	case <-time.After(patience):
		b.t.Fatalf("the process does not exit within %s", patience)
	}
	took := time.Since(began)
	if stall := b.pulse.Stalled(began, began.Add(took)); took-stall > limit {
		b.t.Errorf("the process exits after %s, including stalls of the machine of %s; want %s", took, stall, limit)
	}
	if err := b.process.Err(); err != nil {
		b.t.Errorf("the process failed: %v", err)
	}
}

func mustRefuse(t *testing.T, what string, code stun.ErrorCode, want ...stun.ErrorCode) {
	t.Helper()
	for _, w := range want {
		if code == w {
			return
		}
	}
	t.Errorf("%s: code %d, want one of %v", what, code, want)
}
