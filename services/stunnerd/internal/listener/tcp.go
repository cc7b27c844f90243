package listener

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

func openTCP(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	return openStream(c, transport{}, g, m, o)
}

// openStream accepts TCP connections on the port of a listener.
func openStream(c config.Listener, t transport, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":"+strconv.Itoa(c.Port))
	if err != nil {
		return nil, fmt.Errorf("listen on TCP port %d: %w", c.Port, err)
	}
	t.stream = true
	l := newConnections(ln, t, g, m, o)
	l.setBalancers(c)
	l.serving.Go(func() { l.accept(ln) })
	return l, nil
}
