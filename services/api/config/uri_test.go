package config_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

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

func TestURIKeepsCredentialsToItself(t *testing.T) {
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

func TestContractURIOfAListener(t *testing.T) {
	for name, c := range map[string]struct {
		listener config.Listener
		want     string
	}{
		"public address and port": {config.Listener{Protocol: config.TURNUDP, Port: 1, PublicAddress: "203.0.113.7", PublicPort: 3478}, "turn:203.0.113.7:3478?transport=udp"},
		"port itself":             {config.Listener{Protocol: config.TURNTCP, Port: 3479, PublicAddress: "203.0.113.7"}, "turn:203.0.113.7:3479?transport=tcp"},
		"TLS at a host name":      {config.Listener{Protocol: config.TURNTLS, Port: 443, PublicAddress: "turn.example.com"}, "turns:turn.example.com:443?transport=tcp"},
		"DTLS on IPv6":            {config.Listener{Protocol: config.TURNDTLS, Port: 443, PublicAddress: "2001:db8::7"}, "turns:[2001:db8::7]:443?transport=udp"},
		"no public address":       {config.Listener{Protocol: config.TURNUDP, Port: 1, Address: "10.0.0.1"}, ""},
		"placeholder":             {config.Listener{Protocol: config.TURNUDP, Port: 1, PublicAddress: "$STUNNER_PUBLIC_ADDR"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			u, ok := c.listener.URI()
			if ok != (c.want != "") || ok && u.String() != c.want {
				t.Errorf("URI %s, %v; want %s", u, ok, c.want)
			}
			if ok && u.Protocol() != c.listener.Protocol {
				t.Errorf("protocol %s", u.Protocol())
			}
		})
	}
}

// F-07: what is read is in the grammar of RFC 7065 (or of the command line), and what is printed reads the same.
func FuzzParseURI(f *testing.F) {
	for _, seed := range []string{
		"turn:example.org", "turns:[2001:db8::7]:443?transport=tcp", "turn://u:p@203.0.113.7?transport=dtls", "turn:[::1", "turn:a:b:c", "TURNS:A?TRANSPORT=UDP",
		"turn://@h", "turn://u:%40@h", "turn:h:", "turn:h:00080", "turn:1.2.3", "turn:[::ffff:1.2.3.4]", "turn:\x00",
	} {
		f.Add(seed)
	}
	grammar := regexp.MustCompile(`^(?i:turns?:)(//([^@?]*(\?)?.*@)?)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]*)?((?i:\?transport=)(?i:udp|tcp|tls|dtls))?$`)
	f.Fuzz(func(t *testing.T, text string) {
		u, err := config.ParseURI(text)
		if err != nil {
			return
		}
		if !grammar.MatchString(text) {
			t.Errorf("%q is accepted", text)
		}
		again, err := config.ParseURI(u.String())
		if err != nil || again.String() != u.String() || again.Protocol() != u.Protocol() || u.Protocol() == "" {
			t.Errorf("%q is printed as %q, which reads as %q: %v", text, u, again, err)
		}
	})
}
