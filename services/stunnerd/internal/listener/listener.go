// Package listener opens the sockets that clients connect to, and frames what comes in on them.
//
// A listener knows transports, not TURN: it tells ChannelData from STUN by the first byte (RFC 7983), hands ChannelData of a client
// that has a session straight to its relay, in the goroutine that read it, and everything else to the gate.
package listener

import (
	"fmt"
	"log/slog"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Listener is an open listener. Close stops it at once: its sockets are closed, and its goroutines have ended when Close returns. The
// sessions are the gate's.
type Listener interface {
	// Update takes over what can change while the sockets stay: the certificates of new handshakes. With an error the old one stays.
	Update(c config.Listener) error
	// Yield gives up the port, and serves the connections that there are for as long as they last. It reports false, and does nothing, where
	// all clients are served by the socket that holds the port.
	Yield() bool
	// Tasks are the goroutines on which all clients of the listener depend.
	Tasks() []*watch.Task
	Close() error
}

// Options are what all listeners of a process have in common.
type Options struct {
	// Sockets is the number of sockets of a UDP or DTLS listener, each with a reading goroutine of its own; at least 1.
	Sockets int
	Limits  *Limits
	Meter   *meter.Meter
	Log     *slog.Logger
}

// openers lists the transports.
var openers = map[config.Protocol]func(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error){
	config.TURNUDP:  openUDP,
	config.TURNTCP:  openTCP,
	config.TURNTLS:  openTLS,
	config.TURNDTLS: openDTLS,
}

// Open opens the listener that a config describes, on all addresses of the host.
func Open(c config.Listener, g *gate.Gate, o Options) (Listener, error) {
	open, ok := openers[c.Protocol]
	if !ok {
		return nil, fmt.Errorf("open listener %s: unknown protocol %s", c.Name, c.Protocol)
	}
	o.Log = o.Log.With("listener", c.Name)
	l, err := open(c, g, o.Meter.Listener(c.Name), o)
	if err != nil {
		return nil, fmt.Errorf("open listener %s: %w", c.Name, err)
	}
	return l, nil
}

// isChannelData tells ChannelData from STUN by the first byte (RFC 7983 §7; RFC 8656 §12 has the same range).
func isChannelData(first byte) bool { return first >= 64 && first <= 127 }
