package probe

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

// Transport is the transport between prober and server.
type Transport string

// The transports.
const (
	UDP  Transport = "udp"
	TCP  Transport = "tcp"
	TLS  Transport = "tls"
	DTLS Transport = "dtls"
)

// Transports are all transports.
var Transports = []Transport{UDP, TCP, TLS, DTLS}

var (
	streams   = []Transport{TCP, TLS}
	datagrams = []Transport{UDP, DTLS}
	secure    = []Transport{TLS, DTLS}
	onlyUDP   = []Transport{UDP}
	onlyTCP   = []Transport{TCP}
	onlyTLS   = []Transport{TLS}
	onlyDTLS  = []Transport{DTLS}
)

func (t Transport) isStream() bool { return t == TCP || t == TLS }

// Target is the server under test with its settings.
type Target struct {
	Server    netip.AddrPort
	Transport Transport
	// User and Password are a long-term credential.
	User, Password string
	// Secret is the shared secret of ephemeral credentials.
	Secret string
	// Realm is the expected realm. Empty accepts any.
	Realm string
	// PeerAddr is the local address of peers. The zero value means the loopback address of the relay's family.
	PeerAddr netip.Addr
	// FirstPeer and LastPeer limit the ports of peers, for servers whose routes restrict ports. Zero means any port.
	FirstPeer, LastPeer uint16
	// Own lists ports in this range that peers must not use, because the server refuses its own ports as peers.
	Own []uint16
	// Denied is an address that the server must refuse as a peer. The zero value means that there is none.
	Denied netip.Addr
	// Quota is the maximum number of allocations per user. 0 means unknown.
	Quota int
	// Long enables the checks that take minutes.
	Long bool
	// Silence is how long to wait before the absence of a response passes. Answer is the timeout of a response.
	Silence, Answer time.Duration
}

// Defaults of Target for a server on the local network.
const (
	DefaultSilence = 250 * time.Millisecond
	DefaultAnswer  = 2 * time.Second
)

// login is a user with a password.
type login struct{ user, password string }

// ephemeral derives a credential from the shared secret, as in the TURN REST API (draft-uberti-behave-turn-rest).
func (t Target) ephemeral(id string, expires time.Time) login {
	user := fmt.Sprintf("%d:%s", expires.Unix(), id)
	mac := hmac.New(sha1.New, []byte(t.Secret))
	mac.Write([]byte(user))
	return login{user, base64.StdEncoding.EncodeToString(mac.Sum(nil))}
}

// login returns the credential of a check.
func (t Target) login(id string) login {
	if t.User != "" {
		return login{t.User, t.Password}
	}
	return t.ephemeral(id, time.Now().Add(time.Hour))
}

// plain returns the attributes of a valid Allocate request.
func (t *Trial) plain(more ...wire.Attr) []wire.Attr {
	attrs := []wire.Attr{overUDP()}
	if t.asks6 {
		attrs = append(attrs, wire.Byte(wire.RequestedAddressFamily, wire.IPv6))
	}
	return append(attrs, more...)
}

// overUDP returns REQUESTED-TRANSPORT for UDP.
func overUDP() wire.Attr { return wire.Byte(wire.RequestedTransport, protocolUDP) }

// IANA protocol numbers for REQUESTED-TRANSPORT.
const (
	protocolTCP = 6
	protocolUDP = 17
)

// Known reports whether the transport is supported.
func (t Transport) Known() bool { return slices.Contains(Transports, t) }
