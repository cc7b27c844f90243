package offload

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// ChannelBind, CreatePermission and ChannelData in the kernel extend the lifetimes in the kernel. The kernel extends a
// permission only if its end changes by a second or more.
func refresh(t *testing.T, n *network) {
	g := n.start(t)
	p := g.path(v4)
	p.warm()
	const pause = 1200 * time.Millisecond
	for _, step := range []struct {
		name                string
		do                  func()
		channel, permission bool
		media               bool
	}{
		{name: "data of the peer", do: func() { p.down(160) }, media: true},
		{name: "ChannelData", do: func() { p.up(160) }, permission: true, media: true},
		{name: "CreatePermission", do: p.permit, permission: true},
		{name: "ChannelBind", do: p.bind, channel: true, permission: true},
	} {
		time.Sleep(pause) // each step then sets another time of expiry
		until, permitted := g.times()
		kernel := g.counters().kernel
		step.do()
		laterUntil, laterPermitted := g.times()
		// stunnerd answers a ChannelBind before it binds the channel.
		for late := time.Now().Add(timeout); step.channel && (laterUntil == until || laterPermitted == permitted) &&
			time.Now().Before(late); {
			laterUntil, laterPermitted = g.times()
		}
		moved := func(what string, by time.Duration, want bool) {
			if want != (by >= time.Second) || !want && by != 0 {
				t.Errorf("%s moves the end of the %s by %s", step.name, what, by)
			}
		}
		moved("channel", laterUntil-until, step.channel)
		moved("permission", laterPermitted-permitted, step.permission)
		if k := g.counters().kernel; step.media && k == kernel {
			t.Errorf("%s: the kernel did not forward it", step.name)
		}
	}
	p.inKernel()
}

// Refresh with lifetime 0 stops a channel in the kernel at once, in both directions.
func allocationEnd(t *testing.T, n *network) {
	g := n.start(t)
	p, other := g.path(v4), g.path(v4)
	p.inKernel()
	other.inKernel()
	if n := g.status().Offload.Bindings; n != 2 {
		t.Errorf("the kernel may forward %d bindings, want 2", n)
	}
	p.hangUp()
	kernel := g.counters().kernel
	dropped := g.dropped()
	for range 20 {
		harnesstest.NoError(t, p.Send(ask.ChannelData(p.channel, sequence(1))))
		_, _ = p.peer.WriteToUDPAddrPort(sequence(1), p.relay)
	}
	g.await("datagrams without an allocation are dropped", func(context.Context) error {
		if n := g.dropped() - dropped; n != 20 {
			return fmt.Errorf("%d are dropped, want 20", n)
		}
		return nil
	})
	if k := g.counters().kernel; k != kernel {
		t.Errorf("the kernel forwards after the end: %+v, before %+v", k, kernel)
	}
	if n := g.status().Offload.Bindings; n != 1 {
		t.Errorf("the kernel may forward %d bindings, want 1", n)
	}
	other.inKernel()
	harnesstest.NoError(t, g.Signal(syscall.SIGTERM))
	other.hangUp()
	<-g.Done()
	g.gone(g.objects)
}

// A draining stunnerd forwards its calls in the kernel. When it ends, no object is left in the kernel.
func drain(t *testing.T, n *network) {
	g := n.start(t)
	p := g.path(v4)
	p.inKernel()
	harnesstest.NoError(t, g.Signal(syscall.SIGTERM))
	g.await("drain", func(context.Context) error {
		if s := g.status().Status; s != "TERMINATING" {
			return fmt.Errorf("status %s", s)
		}
		return nil
	})
	p.inKernel()
	p.hangUp()
	select {
	case <-g.Done():
	case <-time.After(timeout):
		t.Fatal("stunnerd still runs after its last session")
	}
	if err := g.Err(); err != nil {
		t.Error(err)
	}
	g.gone(g.objects)
}
