package turncat

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// stdin is the network of the standard input and output.
const stdin = "stdin"

// Listener is where clients connect.
type Listener struct {
	// Network is udp, tcp, unix or stdin.
	Network string
	// Address is HOST:PORT, or the path of a Unix socket.
	Address string
}

// ParseListener parses udp://HOST:PORT, tcp://HOST:PORT, unix://PATH, file://stdin and "-".
func ParseListener(s string) (Listener, error) {
	scheme, address, ok := strings.Cut(s, "://")
	switch {
	case s == "-", s == "file://stdin", s == "stdin://":
		return Listener{Network: stdin}, nil
	case !ok:
	case scheme == "unix" && address != "":
		return Listener{"unix", address}, nil
	case scheme == "udp", scheme == "tcp":
		if _, port, err := net.SplitHostPort(address); err != nil || !isPort(port) {
			return Listener{}, fmt.Errorf("client address: unreadable %s: write %s://HOST:PORT", scheme, scheme)
		}
		return Listener{scheme, address}, nil
	}
	return Listener{}, errors.New(
		"client address: write udp://HOST:PORT, tcp://HOST:PORT, unix://PATH or - for the standard input",
	)
}

// ParsePeer parses udp://HOST:PORT and looks the host up.
func ParsePeer(s string) (netip.AddrPort, error) {
	address, ok := strings.CutPrefix(s, "udp://")
	_, port, err := net.SplitHostPort(address)
	if !ok || err != nil || !isPort(port) || port == "0" {
		return netip.AddrPort{}, errors.New("peer address: write udp://HOST:PORT, an IPv6 address in brackets")
	}
	a, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("peer address: %w", err)
	}
	peer := a.AddrPort()
	if !peer.Addr().IsValid() { // udp://:PORT
		return netip.AddrPort{}, errors.New("peer address: the host is missing: write udp://HOST:PORT")
	}
	return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()), nil
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

func portText(port int) string { return strconv.Itoa(port) }

// Target is a TURN server on the command line: a URI, or a listener of a Gateway.
type Target struct {
	// URI is the server, unless Gateway is set. Its Password is empty if SharedSecret is set.
	URI config.URI
	// SharedSecret is the key of ephemeral credentials.
	SharedSecret credential.Secret
	// Namespace may be empty, which means the namespace of the command line.
	Namespace, Gateway, Listener string
}

// gatewayTarget matches the part after k8s://. Names of Kubernetes are DNS labels or subdomains.
var gatewayTarget = regexp.MustCompile(
	`^([a-z0-9-]{0,63})/([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?):([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)$`,
)

// ParseTarget parses turn://USER:PASSWORD@HOST:PORT?transport=udp|tcp|tls|dtls, turns://…, and
// k8s://NAMESPACE/GATEWAY:LISTENER, where NAMESPACE may be empty. With turn://secret:KEY@… or turn://KEY@…, KEY is the
// shared secret of ephemeral credentials. Errors do not quote the input, which may contain a password.
func ParseTarget(s string) (Target, error) {
	if rest, ok := strings.CutPrefix(s, "k8s://"); ok {
		m := gatewayTarget.FindStringSubmatch(rest)
		if m == nil {
			return Target{}, errors.New("TURN server: unreadable gateway: write k8s://NAMESPACE/GATEWAY:LISTENER")
		}
		return Target{Namespace: m[1], Gateway: m[2], Listener: m[4]}, nil
	}
	// If the part before the host has no colon, it is a shared secret.
	if head, hostPort, ok := cutLast(s, "@"); ok && strings.Count(head, ":") == 1 {
		if scheme, key, ok := strings.Cut(head, "://"); ok {
			s = scheme + "://secret:" + key + "@" + hostPort
		}
	}
	u, err := config.ParseURI(s)
	if err != nil {
		return Target{}, fmt.Errorf("TURN server: %w", err)
	}
	t := Target{URI: u}
	if u.Username == "secret" {
		t.SharedSecret, t.URI.Username, t.URI.Password = u.Password, "", ""
	}
	return t, nil
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
