// Package listener opens the sockets of listeners and splits received data into frames.
//
// A listener distinguishes ChannelData from STUN by the first byte (RFC 7983). It passes ChannelData of a client with a
// session to the relay, in the goroutine that has read it, and drops ChannelData of other clients. All other frames go
// to the gate. Over TCP, TLS and DTLS, data that is neither STUN nor ChannelData ends the connection.
//
// # Files
//
//	udp.go tcp.go tls.go dtls.go   one file a transport; tls.go has the TLS settings
//	certificate.go                 certificates that are served
//	port.go                        the sockets of a UDP port
//	frame.go                       framing of streams
//	connection.go stream_linux.go  connections
//	proxyheader.go                 headers of the PROXY protocol
//	sendqueue.go                   the send queue of a stream
//	connlimit.go handshake.go      limits on connections and on handshakes
//	association.go hello.go        DTLS associations and their first message
//	cookie.go                      access to private state of pion/dtls
//	paths.go dtlspaths.go          paths to a client through other pods; those of an association
//	answers.go                     answers of other pods to their clients
//	checks.go                      connectivity checks, which decide between two paths
package listener

import (
	"crypto/x509"
	"fmt"
	"log/slog"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Listener is an open listener. Close closes its sockets and connections, and waits for its goroutines. Over TCP, TLS
// and DTLS this ends the sessions. Over UDP it does not: Gate.Close does.
type Listener interface {
	// Update replaces the certificates for new handshakes, and the prefixes of load balancers for new connections.
	// After an error the previous certificates stay.
	Update(c config.Listener) error
	// Certificates returns the leaf certificates in use; none over UDP and TCP. The first one is for clients without a
	// server name.
	Certificates() []*x509.Certificate
	// ReleasePort closes the listening socket, so that another listener can use the port, and keeps serving the open
	// connections. It reports false, and does nothing, if the clients have no sockets of their own (UDP, DTLS).
	ReleasePort() bool
	// Tasks returns a Task for each goroutine that reads the datagrams of many clients (UDP, DTLS), for the liveness
	// probe.
	Tasks() []*watch.Task
	Close() error
}

// Options are common to all listeners of a process.
type Options struct {
	// Sockets is the number of receiving sockets of a UDP or DTLS listener, each with a goroutine; at least 1.
	Sockets int
	// Saved are the sessions that a previous process had on the listener. Only a listener over UDP restores them.
	Saved  []gate.Saved
	Limits *Limits
	// Forwarder passes datagrams of clients without a session to other pods; nil means that they are dropped.
	Forwarder *forward.Forwarder
	// FrontSenders is the largest number of sockets of the listener for clients with a session in another pod; 0 means
	// maxFrontSenders.
	FrontSenders int
	Meter        *meter.Meter
	Log          *slog.Logger
}

// openers has one function for each protocol.
var openers = map[config.Protocol]func(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error){
	config.TURNUDP:  openUDP,
	config.TURNTCP:  openTCP,
	config.TURNTLS:  openTLS,
	config.TURNDTLS: openDTLS,
}

// Open opens a listener on all addresses of the host.
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

// isChannelData distinguishes ChannelData from STUN by the first byte (RFC 7983 §7; RFC 8656 §12 has the same range).
func isChannelData(first byte) bool { return first >= 64 && first <= 127 }
