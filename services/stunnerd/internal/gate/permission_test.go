package gate

import (
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
)

// C-02: a channel number that is bound to another peer gets 400. A peer that is bound to another number gets 400.
// Binding the same pair again succeeds.
func TestChannelsAreOneToOne(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	b.allocate(c)
	bind := func(n uint32, peer string) stun.ErrorCode {
		return codeOf(b.send(c, b.signed(c, username, password, stun.MethodChannelBind, channel(n), peerAt(peer))))
	}
	for _, step := range []struct {
		n    uint32
		peer string
		want stun.ErrorCode
	}{
		{0x4000, "127.0.0.1:4000", 0}, {0x4000, "127.0.0.1:4000", 0},
		{0x4000, "127.0.0.1:4001", 400}, {0x4001, "127.0.0.1:4000", 400}, {0x4001, "127.0.0.1:4001", 0},
	} {
		if got := bind(step.n, step.peer); got != step.want {
			t.Errorf("bind %#x to %s: %d, want %d", step.n, step.peer, got, step.want)
		}
	}
}

// T-12: an allocation has at most MaxPermissions permissions.
func TestPermissionsAreBounded(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	b.Update(policy(), routes("10.0.0.0/8"))
	b.allocate(c)
	permit := func(i int) stun.ErrorCode {
		return codeOf(
			b.send(c, b.signed(c, username, password, stun.MethodCreatePermission, peerAt(tenNet(i).String()))),
		)
	}
	for i := range MaxPermissions {
		if got := permit(i); got != 0 {
			t.Fatalf("permission %d: %d", i, got)
		}
	}
	if got := permit(MaxPermissions); got != 508 {
		t.Errorf("one more: %d, want 508", got)
	}
	if got := permit(7); got != 0 {
		t.Errorf("refresh of a permission: %d", got)
	}
}

func tenNet(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1)
}

// T-12: an expired permission does not count against MaxPermissions.
func TestExpiredPermissionsAreNotCounted(t *testing.T) {
	var p permissions
	now := time.Now()
	for i := range MaxPermissions {
		p.grant([]netip.AddrPort{tenNet(i)}, now)
	}
	more := []netip.AddrPort{tenNet(MaxPermissions)}
	if p.reserve(more, 0, false, now.Add(permissionLifetime)) == nil {
		t.Error("a permission made room before it expired")
	}
	if p.reserve(more, 0, false, now.Add(permissionLifetime+1)) != nil {
		t.Error("an expired permission makes no room")
	}
}

// T-12, D-20: an allocation has at most 64 channels. One more gives 508, and a bound channel can still be refreshed.
func TestChannelsAreBounded(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	b.Update(policy(), routes("10.0.0.0/8"))
	b.allocate(c)
	bind := func(i int) stun.ErrorCode {
		return codeOf(b.send(c, b.signed(
			c, username, password, stun.MethodChannelBind, channel(uint32(0x4000+i)), peerAt(tenNet(i).String()),
		)))
	}
	for i := range relay.MaxChannels {
		if got := bind(i); got != 0 {
			t.Fatalf("channel %d: %d", i, got)
		}
	}
	if got := bind(relay.MaxChannels); got != 508 {
		t.Errorf("one more: %d, want 508", got)
	}
	if got := bind(7); got != 0 {
		t.Errorf("refresh of a channel: %d", got)
	}
}
