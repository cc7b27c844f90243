package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// The schemes of TURN URIs.
const (
	schemeTURN  = "turn"
	schemeTURNS = "turns"
)

// URI is a TURN URI, in the form of RFC 7065 or in the form turn://USER:PASSWORD@HOST:PORT of command lines.
type URI struct {
	// Scheme is turn or turns.
	Scheme string
	// Host is an IP address, without brackets, or a host name.
	Host string
	Port int
	// Transport is udp or tcp. With turns it means DTLS or TLS.
	Transport string
	Username  string
	Password  credential.Secret
}

// ParseURI parses a TURN URI in one of two forms. The form of RFC 7065 §3.1 is turn:HOST[:PORT][?transport=udp|tcp],
// and the same with turns. The form of command lines is
// turn://[USER:PASSWORD@]HOST[:PORT][?transport=udp|tcp|tls|dtls], with percent-encoded user and password. Errors do
// not quote the input, which may contain a password.
func ParseURI(s string) (URI, error) {
	scheme, rest, ok := strings.Cut(s, ":")
	u := URI{Scheme: strings.ToLower(scheme)}
	if !ok || u.Scheme != schemeTURN && u.Scheme != schemeTURNS {
		return URI{}, errors.New("parse TURN URI: unknown scheme: turn: or turns: must come first")
	}
	rest, query, hasQuery := strings.Cut(rest, "?")
	authority, commandLine := strings.CutPrefix(rest, "//")
	var err error
	if commandLine {
		authority, err = u.parseUser(authority)
	}
	if err == nil {
		err = u.parseTransport(query, hasQuery, commandLine)
	}
	if err == nil {
		err = u.parseHostPort(authority, commandLine)
	}
	if err != nil {
		return URI{}, fmt.Errorf("parse TURN URI: %w", err)
	}
	return u, nil
}

// parseUser parses USER:PASSWORD@ and returns the rest.
func (u *URI) parseUser(authority string) (hostPort string, err error) {
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return authority, nil
	}
	user, password, both := strings.Cut(authority[:at], ":")
	if u.Username, err = url.PathUnescape(user); err != nil || u.Username == "" {
		return "", errors.New("unreadable user name: percent-encode it")
	}
	plain, err := url.PathUnescape(password)
	if err != nil || !both || plain == "" {
		return "", errors.New("unreadable or missing password: write USER:PASSWORD@, percent-encoded")
	}
	u.Password = credential.Secret(plain)
	return authority[at+1:], nil
}

// parseTransport sets the transport, and the scheme if the transport implies it. Without a transport, turn means UDP
// and turns means TLS over TCP (RFC 5928 §3).
func (u *URI) parseTransport(query string, hasQuery, commandLine bool) error {
	if !hasQuery {
		u.Transport = "udp"
		if u.Scheme == schemeTURNS {
			u.Transport = "tcp"
		}
		return nil
	}
	key, value, _ := strings.Cut(query, "=")
	i := slices.IndexFunc(protocols, func(p properties) bool { return strings.EqualFold(value, p.short) })
	// RFC 7065 defines udp and tcp only. The other transports imply the scheme.
	if !strings.EqualFold(key, "transport") || i < 0 || protocols[i].secure && !commandLine {
		return errors.New("unknown query: write ?transport=udp or ?transport=tcp")
	}
	if protocols[i].secure {
		u.Scheme = protocols[i].scheme
	}
	u.Transport = protocols[i].network
	return nil
}

// parseHostPort sets host and port. The default port is the default port of the protocol, except that it is 443 for
// turns on command lines.
func (u *URI) parseHostPort(s string, commandLine bool) error {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, ']') {
		host, port = s[:i], s[i+1:]
	}
	if literal, ok := strings.CutPrefix(host, "["); ok {
		literal, closed := strings.CutSuffix(literal, "]")
		addr, err := netip.ParseAddr(literal)
		if !closed || err != nil || !addr.Is6() || addr.Zone() != "" {
			return errors.New("unreadable IPv6 address: write [ADDRESS]")
		}
		host = literal
	} else if !isHost(host) {
		return errors.New("unreadable host: write an IPv4 address, an IPv6 address in brackets, or a host name")
	}
	u.Host = host
	switch {
	case port != "":
		u.Port = int(parsePort(port))
		if u.Port == 0 {
			return errors.New("port is out of range: use 1 to 65535")
		}
	case commandLine && u.Scheme == schemeTURNS:
		u.Port = 443
	default:
		u.Port = u.Protocol().properties().port
	}
	return nil
}

// String returns the RFC 7065 form, which has no user and password.
func (u URI) String() string {
	return u.Scheme + ":" + net.JoinHostPort(u.Host, strconv.Itoa(u.Port)) + "?transport=" + u.Transport
}

// Protocol returns the protocol of the listener of the URI.
func (u URI) Protocol() Protocol {
	for _, p := range protocols {
		if p.scheme == u.Scheme && p.network == u.Transport {
			return p.protocol
		}
	}
	return ""
}

// URIs returns the URIs of the listener for clients, one for each of PublicHosts. It returns none for a listener
// without a public address, because clients cannot reach the address of a pod.
func (l Listener) URIs() (all []URI) {
	p := l.ClientProtocol().properties()
	for _, host := range l.PublicHosts() {
		if !holdsPlaceholder(host) {
			all = append(all, URI{Scheme: p.scheme, Host: host, Port: cmp.Or(l.PublicPort, l.Port), Transport: p.network})
		}
	}
	return all
}

// isHost reports whether s is an IPv4 address or a host name (RFC 1123 §2.1). Underscores are allowed too, because some
// host names have them.
func isHost(s string) bool {
	name := strings.TrimSuffix(s, ".")
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(label) {
			return false
		}
	}
	// A name whose last label is a number must be an IPv4 address.
	if last := name[strings.LastIndexByte(name, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		return isAddress(s)
	}
	return len(s) <= 253
}

func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}
