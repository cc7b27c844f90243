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

// Transport is what carries messages between prober and server.
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

// Target is the server, and what the prober is told about it.
type Target struct {
	Server    netip.AddrPort
	Transport Transport
	// User and Password are a long-term credential.
	User, Password string
	// Secret makes ephemeral credentials, as many as are needed.
	Secret string
	// Realm is what the server must say; empty takes what it says.
	Realm string
	// PeerAddr is where the prober opens the peers that the server may relay to; the zero value is the loopback address of the family
	// that the server relays from.
	PeerAddr netip.Addr
	// FirstPeer and LastPeer bound the ports of these peers, for a server whose routes name ports; zero leaves them to the kernel.
	FirstPeer, LastPeer uint16
	// Own are ports between them that a peer must not have, because the server refuses them as its own.
	Own []uint16
	// Denied is a peer that the server must refuse; the zero value means that there is none.
	Denied netip.Addr
	// Quota is how many allocations a user may have; 0 means that it is not known.
	Quota int
	// Long asks for the checks that take minutes.
	Long bool
	// Silence is how long no answer is awaited, Answer how long an answer is.
	Silence, Answer time.Duration
}

// The waits that suit a server nearby.
const (
	DefaultSilence = 250 * time.Millisecond
	DefaultAnswer  = 2 * time.Second
)

// login is a user with a password.
type login struct{ user, password string }

// ephemeral makes a credential from the shared secret, as a REST service for TURN does.
func (t Target) ephemeral(id string, expires time.Time) login {
	user := fmt.Sprintf("%d:%s", expires.Unix(), id)
	mac := hmac.New(sha1.New, []byte(t.Secret))
	mac.Write([]byte(user))
	return login{user, base64.StdEncoding.EncodeToString(mac.Sum(nil))}
}

// login is the credential of a check.
func (t Target) login(id string) login {
	if t.User != "" {
		return login{t.User, t.Password}
	}
	return t.ephemeral(id, time.Now().Add(time.Hour))
}

// plain are the attributes of an Allocate request that ought to succeed.
func (t *Trial) plain(more ...wire.Attr) []wire.Attr {
	attrs := []wire.Attr{overUDP()}
	if t.asks6 {
		attrs = append(attrs, wire.Byte(wire.RequestedAddressFamily, wire.IPv6))
	}
	return append(attrs, more...)
}

// overUDP asks for a relay of datagrams.
func overUDP() wire.Attr { return wire.Byte(wire.RequestedTransport, protocolUDP) }

// Protocol numbers of IANA, for REQUESTED-TRANSPORT.
const (
	protocolTCP = 6
	protocolUDP = 17
)

// Known tells whether there is such a transport.
func (t Transport) Known() bool { return slices.Contains(Transports, t) }
