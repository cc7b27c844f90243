package boards

import (
	"context"
	"net"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// Day makes a call that goes on, and keeps up what happens at a gateway all day until it is told to end: people who call and hang up, people
// with a wrong password, noise, web apps that ask for credentials.
func Day(ctx context.Context, good call.Options, auth string) (end func(), err error) {
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
			_, _ = call.Start(ctx, wrong) // it is refused
			_, _ = noise.Write([]byte("noise"))
			_, _, _ = bed.Get(ctx, auth+"/ice?service=turn")
		}
	}()
	return func() { close(stop); <-stopped; long.End(0); noise.Close() }, nil
}
