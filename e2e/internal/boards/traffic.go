package boards

import (
	"context"
	"net"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Traffic makes typical traffic at a gateway until end is called: one long call, short calls, calls with a wrong
// password, packets that are not STUN, and requests for credentials.
func Traffic(ctx context.Context, good call.Options, auth string) (end func(), err error) {
	long, err := call.Start(ctx, good)
	if err != nil {
		return nil, err
	}
	noise, err := net.Dial("udp", good.Gateway.String())
	if err != nil {
		long.End(0)
		return nil, err
	}
	wrong := good
	wrong.Password = "guessed"
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if c, err := call.Start(ctx, good); err == nil {
				c.End(0)
			}
			_, _ = call.Start(ctx, wrong) // the gateway refuses the wrong password
			_, _ = noise.Write([]byte("noise"))
			_, _, _ = harness.Get(ctx, auth+"/ice?service=turn")
		}
	}()
	return func() { close(stop); <-stopped; long.End(0); noise.Close() }, nil
}
