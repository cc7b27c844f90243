package abuse

import (
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// TestGoodClient: a client that behaves is served over every transport.
func TestGoodClient(t *testing.T) {
	d := start(t)
	for _, n := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		t.Logf("%s: first echo after %s", n, d.good(t, n))
	}
	t.Logf("rss %d kB, cpu %s, %d goroutines, %d threads", d.rss(t)>>10, d.cpu(t), d.goroutines(t), d.threads(t))
}
