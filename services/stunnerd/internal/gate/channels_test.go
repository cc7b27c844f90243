package gate

import (
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
)

// T-12, D-20: an allocation holds at most 64 channels. One more gives 508, and a channel that is bound can still be refreshed.
func TestChannelsAreBounded(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	b.Update(policy(), routes("10.0.0.0/8"))
	b.allocate(c)
	bind := func(i int) stun.ErrorCode {
		return codeOf(b.send(c, b.signed(c, username, password, stun.MethodChannelBind, channel(uint32(0x4000+i)), peerAt(tenNet(i).String()))))
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
