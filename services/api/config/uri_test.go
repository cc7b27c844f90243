package config_test

import (
	"fmt"
	"math/big"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// N-05: valid TURN URIs are parsed and printed in full form.
func TestContractTURNURIs(t *testing.T) {
	for text, want := range map[string]struct{ printed, protocol string }{
		"turn:example.org":                                {"turn:example.org:3478?transport=udp", "TURN-UDP"},
		"turns:example.org":                               {"turns:example.org:5349?transport=tcp", "TURN-TLS"},
		"turn:example.org:8000":                           {"turn:example.org:8000?transport=udp", "TURN-UDP"},
		"turn:example.org:":                               {"turn:example.org:3478?transport=udp", "TURN-UDP"},
		"turn:example.org?transport=udp":                  {"turn:example.org:3478?transport=udp", "TURN-UDP"},
		"turn:example.org?transport=tcp":                  {"turn:example.org:3478?transport=tcp", "TURN-TCP"},
		"turns:example.org?transport=tcp":                 {"turns:example.org:5349?transport=tcp", "TURN-TLS"},
		"turns:example.org?transport=udp":                 {"turns:example.org:5349?transport=udp", "TURN-DTLS"},
		"TURN:Example.ORG?Transport=UDP":                  {"turn:Example.ORG:3478?transport=udp", "TURN-UDP"},
		"turn:203.0.113.7:3478?transport=udp":             {"turn:203.0.113.7:3478?transport=udp", "TURN-UDP"},
		"turn:[2001:db8::7]":                              {"turn:[2001:db8::7]:3478?transport=udp", "TURN-UDP"},
		"turns:[2001:db8::7]:443?transport=tcp":           {"turns:[2001:db8::7]:443?transport=tcp", "TURN-TLS"},
		"turn:[::ffff:192.0.2.1]:1":                       {"turn:[::ffff:192.0.2.1]:1?transport=udp", "TURN-UDP"},
		"turn:a":                                          {"turn:a:3478?transport=udp", "TURN-UDP"},
		"turn:a-b_c.example.":                             {"turn:a-b_c.example.:3478?transport=udp", "TURN-UDP"},
		"turn:1st.example:65535":                          {"turn:1st.example:65535?transport=udp", "TURN-UDP"},
		"turn://alice:secret@203.0.113.7:3478":            {"turn:203.0.113.7:3478?transport=udp", "TURN-UDP"},
		"turn://203.0.113.7":                              {"turn:203.0.113.7:3478?transport=udp", "TURN-UDP"},
		"turn://alice:secret@example.org?transport=tcp":   {"turn:example.org:3478?transport=tcp", "TURN-TCP"},
		"turn://alice:secret@example.org?transport=tls":   {"turns:example.org:443?transport=tcp", "TURN-TLS"},
		"turn://alice:secret@example.org?transport=dtls":  {"turns:example.org:443?transport=udp", "TURN-DTLS"},
		"turns://alice:secret@example.org?transport=udp":  {"turns:example.org:443?transport=udp", "TURN-DTLS"},
		"turn://alice:secret@[2001:db8::7]?transport=udp": {"turn:[2001:db8::7]:3478?transport=udp", "TURN-UDP"},
	} {
		t.Run(text, func(t *testing.T) {
			u, err := config.ParseURI(text)
			if err != nil {
				t.Fatal(err)
			}
			if u.String() != want.printed || string(u.Protocol()) != want.protocol {
				t.Errorf("read as %s for %s, want %s for %s", u, u.Protocol(), want.printed, want.protocol)
			}
		})
	}
}

// N-05: invalid TURN URIs are refused with an error without the password.
func TestBadTURNURIs(t *testing.T) {
	for text, problem := range map[string]string{
		"":                               "unknown scheme",
		"turn":                           "unknown scheme",
		"example.org":                    "unknown scheme",
		"stun:example.org":               "unknown scheme",
		" turn:example.org":              "unknown scheme",
		"turn:":                          "unreadable host",
		"turn::3478":                     "unreadable host",
		"turn:alice@example.org":         "unreadable host",
		"turn:/example.org":              "unreadable host",
		"turn:example.org/path":          "unreadable host",
		"turn:example.org#fragment":      "unreadable host",
		"turn:exa mple.org":              "unreadable host",
		"turn:exa%6dple.org":             "unreadable host",
		"turn:-example.org":              "unreadable host",
		"turn:example..org":              "unreadable host",
		"turn:999.0.0.1":                 "unreadable host",
		"turn:2001:db8::7":               "unreadable host",
		"turn:[2001:db8::7":              "unreadable IPv6",
		"turn:[203.0.113.7]":             "unreadable IPv6",
		"turn:[fe80::1%25eth0]":          "unreadable IPv6",
		"turn:[v1.x]":                    "unreadable IPv6",
		"turn:[2001:db8::7]x":            "unreadable IPv6",
		"turn:example.org:0":             "port is out of range",
		"turn:example.org:65536":         "port is out of range",
		"turn:example.org:-1":            "port is out of range",
		"turn:example.org:3478x":         "port is out of range",
		"turn:example.org?":              "unknown query",
		"turn:example.org?transport":     "unknown query",
		"turn:example.org?transport=":    "unknown query",
		"turn:example.org?transport=tls": "unknown query",
		"turn:example.org?ttl=1":         "unknown query",
		"turn:example.org?transport=udp&transport=tcp": "unknown query",
		"turn:example.org?transport=udp#f":             "unknown query",
		"turn://alice@example.org":                     "missing password",
		"turn://alice:@example.org":                    "missing password",
		"turn://:hunter2@example.org":                  "unreadable user name",
		"turn://alice:%zzhunter2@example.org":          "unreadable or missing password",
		"turn://alice:hunter2@example.org/path":        "unreadable host",
	} {
		t.Run(text, func(t *testing.T) {
			u, err := config.ParseURI(text)
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("read as %s, error %v, want %q", u, err, problem)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

func TestURIContainsNoCredentials(t *testing.T) {
	u, err := config.ParseURI("turn://al%3Aice:p%40ss%2Fw:o@rd@203.0.113.7")
	if err != nil {
		t.Fatal(err)
	}
	if u.Username != "al:ice" || string(u.Password) != "p@ss/w:o@rd" {
		t.Errorf("user %q, password %q", u.Username, string(u.Password))
	}
	if text := fmt.Sprintf("%v %+v %s %#v", u, u, u, u.Password); strings.Contains(text, "ss/w") {
		t.Errorf("printed as %s", text)
	}
}

// N-05: a listener with a public address has a URI of its protocol.
func TestContractURIOfAListener(t *testing.T) {
	for name, c := range map[string]struct {
		listener config.Listener
		want     string
	}{
		"public address and port": {
			config.Listener{Protocol: config.TURNUDP, Port: 1, PublicAddress: "203.0.113.7", PublicPort: 3478},
			"turn:203.0.113.7:3478?transport=udp",
		},
		"port itself": {
			config.Listener{Protocol: config.TURNTCP, Port: 3479, PublicAddress: "203.0.113.7"},
			"turn:203.0.113.7:3479?transport=tcp",
		},
		"TLS at a host name": {
			config.Listener{Protocol: config.TURNTLS, Port: 443, PublicAddress: "turn.example.com"},
			"turns:turn.example.com:443?transport=tcp",
		},
		"DTLS on IPv6": {
			config.Listener{Protocol: config.TURNDTLS, Port: 443, PublicAddress: "2001:db8::7"},
			"turns:[2001:db8::7]:443?transport=udp",
		},
		"several public addresses": {
			config.Listener{
				Protocol: config.TURNUDP, Port: 1, PublicAddress: "203.0.113.7", PublicPort: 3478,
				PublicAddresses: []string{"203.0.113.7", "2001:db8::7"},
			},
			"turn:203.0.113.7:3478?transport=udp turn:[2001:db8::7]:3478?transport=udp",
		},
		"host name of the certificate, once": {
			config.Listener{
				Protocol: config.TURNTLS, Port: 1, PublicAddresses: []string{"203.0.113.7", "2001:db8::7"}, PublicPort: 443,
				PublicHost: "turn.example.com",
			},
			"turns:turn.example.com:443?transport=tcp",
		},
		"no public address": {config.Listener{Protocol: config.TURNUDP, Port: 1, Address: "10.0.0.1"}, ""},
		"placeholder": {
			config.Listener{Protocol: config.TURNUDP, Port: 1, PublicAddress: "$STUNNER_PUBLIC_ADDR"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, u := range c.listener.URIs() {
				got = append(got, u.String())
				if u.Protocol() != c.listener.Protocol {
					t.Errorf("protocol %s", u.Protocol())
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("URIs %q, want %s", got, c.want)
			}
		})
	}
}

// F-07: without "//", exactly the URIs of the grammar in RFC 7065 are parsed, except those in unwanted. Printed URIs
// match the grammar and can be parsed again.
func FuzzParseURI(f *testing.F) {
	for _, seed := range []string{
		"turn:example.org", "turns:[2001:db8::7]:443?transport=tcp", "turn://u:p@203.0.113.7?transport=dtls",
		"turn:[::1", "turn:a:b:c", "TURNS:A?TRANSPORT=UDP",
		"turn://@h", "turn://u:%40@h", "turn:h:", "turn:h:00080", "turn:1.2.3", "turn:[::ffff:1.2.3.4]", "turn:\x00",
		"turn:[v1.a]", "turn:[203.0.113.7]", "turn:a%41", "turn:a!b",
		"turn:[1:2:3:4:5:6:7::]", "turn:[::1.2.3.4]", "turn:[1:2:3:4:5:6:1.2.3.4]", "turn:[::01.2.3.4]",
		"turn:[12345::]", "turn:[fe80::1%25a]", "turn:256.1.1.1",
		"turn:1.2.3.4.", "turn:a..b", "turn:-a", "turn:a?transport=sctp", "turn:a?transport=udp&x", "turn:a:65536",
		"turn:a:0", "turn:?transport=udp", "turn:",
		"turn:" + strings.Repeat("a", 64), "turn:" + strings.Repeat("a.", 126) + "a",
		"turn:" + strings.Repeat("a.", 127) + "a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := config.ParseURI(text)
		if !commandLineURI.MatchString(text) {
			if want := turnURI.MatchString(text) && !unwanted(text); want != (err == nil) {
				t.Fatalf(
					"%q: in the grammar %v, unwanted %v; read as %s, %v", text, turnURI.MatchString(text),
					unwanted(text), u, err,
				)
			}
		}
		if err != nil {
			return
		}
		if !turnURI.MatchString(u.String()) {
			t.Errorf("%q is printed as %q, which is not in the grammar", text, u)
		}
		again, err := config.ParseURI(u.String())
		if err != nil || again.String() != u.String() || again.Protocol() != u.Protocol() || u.Protocol() == "" {
			t.Errorf("%q is printed as %q, which reads as %q: %v", text, u, again, err)
		}
	})
}

// The form of command lines is not in RFC 7065.
var commandLineURI = regexp.MustCompile(`^(?i:turns?)://`)

// turnURI is the grammar of RFC 7065 §3.1, with the host of RFC 3986 §3.2.2. Literals are in any case (RFC 5234 §2.3).
var turnURI = func() *regexp.Regexp {
	const (
		octet      = `(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])`
		ipv4       = octet + `(?:\.` + octet + `){3}`
		unreserved = `A-Za-z0-9._~\-`
		subDelims  = `!$&'()*+,;=`
		h16        = `[0-9A-Fa-f]{1,4}`
		ls32       = `(?:` + h16 + `:` + h16 + `|` + ipv4 + `)`
	)
	groups := func(n string) string { return `(?:` + h16 + `:){` + n + `}` }
	before := func(n string) string { return `(?:` + groups("0,"+n) + h16 + `)?::` }
	ipv6 := strings.Join([]string{
		groups("6") + ls32, `::` + groups("5") + ls32, before("0") + groups("4") + ls32,
		before("1") + groups("3") + ls32, before("2") + groups("2") + ls32,
		before("3") + groups("1") + ls32, before("4") + ls32, before("5") + h16, before("6"),
	}, "|")
	future := `v[0-9A-Fa-f]+\.[` + unreserved + subDelims + `:]+`
	name := `(?:[` + unreserved + subDelims + `]|%[0-9A-Fa-f]{2})*`
	host := `(?:\[(?:` + ipv6 + `|` + future + `)\]|` + ipv4 + `|` + name + `)`
	return regexp.MustCompile(`^(?i:turns?):` + host + `(?::[0-9]*)?(?:(?i:\?transport=)[` + unreserved + `]+)?$`)
}()

// unwanted reports whether a URI matches the grammar but is refused: transports other than UDP and TCP, IPvFuture
// addresses, invalid host names, and invalid ports.
func unwanted(text string) bool {
	_, rest, _ := strings.Cut(text, ":")
	rest, query, hasQuery := strings.Cut(rest, "?")
	_, transport, _ := strings.Cut(strings.ToLower(query), "=")
	if hasQuery && transport != "udp" && transport != "tcp" {
		return true
	}
	host, port := rest, ""
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, ']') {
		host, port = rest[:i], rest[i+1:]
	}
	if port != "" {
		n, _ := new(big.Int).SetString(port, 10)
		if n == nil || n.Sign() == 0 || n.BitLen() > 16 {
			return true
		}
	}
	if strings.HasPrefix(host, "[") {
		return strings.HasPrefix(strings.ToLower(host), "[v")
	}
	return numeric.MatchString(host) && (!quad.MatchString(host) || net.ParseIP(host) == nil) || len(host) > 253 ||
		!hostName.MatchString(host)
}

// The texts are a host name (RFC 1123 §2.1, with underscores), a name that ends in a number and is thus an invalid
// address, and a name of four numbers.
var (
	hostName = regexp.MustCompile(strings.ReplaceAll(
		`^(?:LABEL\.)*LABEL\.?$`, "LABEL", `(?:[A-Za-z0-9_]|[A-Za-z0-9_][A-Za-z0-9_-]{0,61}[A-Za-z0-9_])`,
	))
	numeric = regexp.MustCompile(`(?:^|\.)[0-9]+\.?$`)
	quad    = regexp.MustCompile(`^[0-9]+(?:\.[0-9]+){3}$`)
)
