package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// balanced is a TCP listener behind a load balancer that ends TLS.
const balanced = `{"version":"v1",
 "admin":{"name":"media/edge","loglevel":"all:INFO","healthcheck_endpoint":"http://:8086","offload_engine":"None"},
 "auth":{"type":"ephemeral","realm":"media.example","credentials":{"secret":"s3cret"}},
 "listeners":[{"name":"media/edge/tcp","protocol":"TURN-TCP","public_address":"turn.example.com","public_port":443,
 "tls_at_load_balancer":true,"proxy_protocol":["10.0.0.0/24","2001:db8::7/128"],"address":"10.1.0.1","port":3478}]}`

// The fields of a load balancer are optional. The prefixes are a set with one spelling.
func TestContractLoadBalancer(t *testing.T) {
	c := parse(t, balanced)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	sameJSON(t, balanced, string(c.Canonical()))
	c.Listeners[0].ProxyProtocol = []string{"2001:DB8:0::7", "10.0.0.77/24", "::ffff:10.0.0.0/120", "10.0.0.0/24"}
	sameJSON(t, balanced, string(c.Canonical()))
	if got := fmt.Sprint(c.Listeners[0].ProxyPrefixes()); got != "[2001:db8::7/128 10.0.0.0/24 10.0.0.0/24 10.0.0.0/24]" {
		t.Errorf("prefixes %s", got)
	}
}

// Clients of a listener whose TLS ends at a load balancer get turns: URIs, also from the config of an auth service.
func TestContractURIOfATLSListenerAtALoadBalancer(t *testing.T) {
	const want = "[turns:turn.example.com:443?transport=tcp]"
	c := parse(t, balanced)
	for name, l := range map[string]config.Listener{"dataplane": c.Listeners[0], "auth": c.ForAuth().Listeners[0]} {
		if got := fmt.Sprint(l.URIs()); got != want || l.ClientProtocol() != config.TURNTLS {
			t.Errorf("%s: %s by %s, want %s", name, got, l.ClientProtocol(), want)
		}
	}
	for _, p := range []config.Protocol{config.TURNUDP, config.TURNTLS, config.TURNDTLS} {
		if got := (config.Listener{Protocol: p, TLSAtBalancer: true}).ClientProtocol(); got != p {
			t.Errorf("clients of %s use %s", p, got)
		}
	}
}

func TestLoadBalancerFieldsAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(udp, tcp *config.Listener)
		want   string
	}{
		"TLS at a load balancer of a UDP listener": {
			func(udp, _ *config.Listener) { udp.TLSAtBalancer = true },
			"listeners[0].tls_at_load_balancer: is set for a listener of protocol TURN-UDP: use TURN-TCP, or leave it out",
		},
		"PROXY protocol of a UDP listener": {
			func(udp, _ *config.Listener) { udp.ProxyProtocol = []string{"10.0.0.1"} },
			"listeners[0].proxy_protocol: is set for a listener of protocol TURN-UDP: use TURN-TCP or TURN-TLS, or leave it out",
		},
		"no prefix": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{"10.0.0.1", "balancer.example.com"} },
			`listeners[1].proxy_protocol[1]: "balancer.example.com" is no prefix of IP addresses: write ADDRESS or ADDRESS/LENGTH`,
		},
		"a port": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{"10.0.0.1:80"} },
			`listeners[1].proxy_protocol[0]: "10.0.0.1:80" is no prefix of IP addresses`,
		},
		"a zone": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{"fe80::1%eth0"} }, "is no prefix of IP addresses",
		},
		"every IPv4 address": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{"0.0.0.0/0"} },
			`listeners[1].proxy_protocol[0]: "0.0.0.0/0" contains every address: write the addresses of the load balancer`,
		},
		"every IPv6 address": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{"::/0"} }, "contains every address",
		},
		"every IPv4 address in IPv6": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{"::ffff:0.0.0.0/96"} }, "contains every address",
		},
		"an empty entry": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{""} }, "is no prefix of IP addresses",
		},
		"too many": {
			func(_, tcp *config.Listener) { tcp.ProxyProtocol = slices.Repeat([]string{"10.0.0.1"}, 65) },
			"listeners[1].proxy_protocol: 65 entries are too many: the limit is 64",
		},
		"a placeholder": {func(_, tcp *config.Listener) { tcp.ProxyProtocol = []string{"$STUNNER_BALANCER"} }, ""},
		"both":          {func(_, tcp *config.Listener) { tcp.TLSAtBalancer, tcp.ProxyProtocol = true, []string{"10.0.0.1"} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			tc.change(&c.Listeners[0], &c.Listeners[1])
			err := c.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
