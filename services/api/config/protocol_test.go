package config_test

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestProtocols(t *testing.T) {
	for _, c := range []struct {
		spellings      []string
		want           config.Protocol
		network        string
		stream, secure bool
		uri            string
	}{
		{[]string{"TURN-UDP", "udp", "Turn-Udp"}, config.TURNUDP, "udp", false, false, "turn:relay.example.net"},
		{[]string{"TURN-TCP", "TCP"}, config.TURNTCP, "tcp", true, false, "turn:relay.example.net?transport=tcp"},
		{[]string{"turn-tls", "Tls"}, config.TURNTLS, "tcp", true, true, "turns:relay.example.net"},
		{[]string{"TURN-DTLS", "dtls"}, config.TURNDTLS, "udp", false, true, "turns:relay.example.net?transport=udp"},
	} {
		for _, s := range c.spellings {
			if got, ok := config.ParseProtocol(s); !ok || got != c.want {
				t.Errorf("%q is read as %q, %t, want %s", s, got, ok, c.want)
			}
		}
		if p := c.want; p.Network() != c.network || p.Stream() != c.stream || p.Secure() != c.secure {
			t.Errorf("%s: network %s, stream %t, secure %t", p, p.Network(), p.Stream(), p.Secure())
		}
		if u, err := config.ParseURI(c.uri); err != nil || u.Protocol() != c.want {
			t.Errorf("%s leads to %s, %v, want %s", c.uri, u.Protocol(), err, c.want)
		}
	}
	for _, s := range []string{"", "TURN", "TURN-TPC", "QUIC", "turn-", "tcp "} {
		if got, ok := config.ParseProtocol(s); ok || got != "" {
			t.Errorf("%q is read as %q", s, got)
		}
	}
	if got := config.ProtocolNames(); got != "TURN-UDP, TURN-TCP, TURN-TLS or TURN-DTLS" {
		t.Errorf("the protocols are called %s", got)
	}
}
