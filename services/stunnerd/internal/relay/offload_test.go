package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
)

// datagramClient is a client over UDP with a local address, whose channels can be armed.
type datagramClient struct{ sink }

func (*datagramClient) Local() netip.AddrPort { return netip.AddrPortFrom(loopback, 3478) }

// openOffload returns an in-kernel path without interfaces.
func openOffload(t *testing.T) *offload.Offload {
	t.Helper()
	testroot.Need(t, "BPF programs")
	f := offload.Open(offload.Options{Engine: offload.EngineTC, Interfaces: []string{"none0"}, MaxBindings: 10})
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// A channel whose routes were checked before a config change is not armed. This also holds if the change replaces the
// in-kernel path, whose generations have the same numbers.
func TestReplacedOffload(t *testing.T) {
	client := &datagramClient{}
	b := newFixture(t, &client.sink)
	b.session.Client = client
	before, after := openOffload(t), openOffload(t)
	b.routes.Offload(before)
	b.Bind(0x4000, b.peerAddr())()
	media, now := frame(0x4000, []byte("media")), time.Now()

	var o Outbox
	o.Add(b.Relay, media, now)
	b.routes.Store(allow("127.0.0.2"))
	b.routes.Offload(after)
	o.Flush(now)
	if n := before.Status().Bindings + after.Status().Bindings; n != 0 {
		t.Errorf("%d bindings are armed by the former routes", n)
	}

	b.routes.Store(allow("127.0.0.1"))
	b.FromClient(media)
	if n := after.Status().Bindings; n != 1 {
		t.Errorf("%d bindings are armed by the present routes, want 1", n)
	}
}
