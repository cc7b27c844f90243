// Package turncat relays the datagrams and bytes of local clients through a TURN server to a UDP peer (RFC 8656).
//
// Every client has an allocation of its own: each connection of a TCP or Unix listener, each source address of a UDP
// listener, and the standard input. The TURN client comes from pion/turn; type allocation avoids its limitations.
//
// # Files
//
//	address.go        addresses of command lines
//	link.go           connections to the TURN server
//	allocation.go     the TURN client
//	udp.go stream.go  local clients
//	relay.go          allocations for package icetest
//	errors.go         texts of errors, with their remedies
//
// The command is in services/stunnerctl/internal/command/turncat.go.
package turncat

import (
	"context"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Endpoint is a TURN server and a credential for it.
type Endpoint struct {
	// Host is an IP address, without brackets, or a host name.
	Host     string
	Port     int
	Protocol config.Protocol
	// ServerName is the SNI and the name in the certificate; empty means Host.
	ServerName string
	// Roots verify the certificate; nil means the certificates of the system.
	Roots *x509.CertPool
	// Insecure accepts every certificate.
	Insecure   bool
	Credential credential.Credential
}

// Server returns the TURN server. It is called before each allocation, so that no expired credential is used.
type Server func(context.Context) (Endpoint, error)

// Pace selects the limit of the bytes in flight of a client without message boundaries.
type Pace string

// The paces.
const (
	// PaceServer lets at most Options.Window bytes be in flight to the TURN server.
	PaceServer Pace = "server"
	// PaceEcho lets at most Options.Window bytes be in flight to a peer that returns every byte.
	PaceEcho Pace = "echo"
	// PaceNone sends as fast as the client writes.
	PaceNone Pace = "none"
)

// Options are the parameters of Run. All sizes and durations must be positive.
type Options struct {
	Client Listener
	Server Server
	Peer   netip.AddrPort
	// Idle ends the allocation of a UDP client that neither sends nor receives.
	Idle time.Duration
	// Linger is how long the peer must be silent before Run ends a client that has sent everything.
	Linger time.Duration
	// MaxClients bounds the clients at one time.
	MaxClients int
	Pace       Pace
	Window     int
	In         io.Reader
	Out        io.Writer
	Log        *slog.Logger
	Stats      *Stats
}

// Run serves clients until ctx ends or the standard input has ended. It returns an error if a listener fails, or if the
// data of the standard input was not relayed completely.
func Run(ctx context.Context, o Options) error {
	r := &runner{Options: o, clientSlots: make(chan struct{}, o.MaxClients)}
	switch o.Client.Network {
	case stdin:
		return r.stdin(ctx)
	case "udp":
		return r.datagrams(ctx)
	}
	return r.connections(ctx)
}

// runner serves the clients.
type runner struct {
	Options
	clientSlots chan struct{} // contains one element for each client
}

// open makes an allocation. receive is called for each datagram of the peer, from one goroutine.
func (r *runner) open(ctx context.Context, receive func([]byte)) (*allocation, error) {
	e, err := r.Server(ctx)
	if err != nil {
		return nil, err
	}
	family := AnyFamily // IPv4 only, for a server that does not support the attribute
	if r.Peer.Addr().Is6() {
		family = IPv6
	}
	a, err := allocate(ctx, e, family, r.Peer, receive, r.Stats)
	if err != nil {
		return nil, err
	}
	r.Stats.Allocations.Add(1)
	r.Log.Info("allocated", "relay", a.relay.LocalAddr(), "server", net.JoinHostPort(e.Host, portText(e.Port)),
		"protocol", e.Protocol)
	return a, nil
}
