package gateway

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// oslo is a gateway with a listener of every kind, in no useful order, and a listener without public address.
func oslo() config.Config {
	c := config.Config{
		Version: config.Version,
		Admin:   config.Admin{Name: "media/oslo"},
		Auth: config.Auth{
			Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: "oslo-secret"},
		},
		Listeners: []config.Listener{
			{Name: "media/oslo/tls", Protocol: config.TURNTLS, PublicAddress: "turn.example.net", PublicPort: 443, Port: 5349},
			{Name: "media/oslo/tcp", Protocol: config.TURNTCP, PublicAddress: "198.51.100.7", Port: 3478},
			{Name: "media/oslo/b-udp", Protocol: config.TURNUDP, PublicAddress: "198.51.100.7", PublicPort: 3479, Port: 13479},
			{Name: "media/oslo/dtls", Protocol: config.TURNDTLS, PublicAddress: "2001:db8::7", PublicPort: 5350, Port: 5350},
			{Name: "media/oslo/a-udp", Protocol: config.TURNUDP, PublicAddress: "198.51.100.7", PublicPort: 3478, Port: 13478},
			{Name: "media/oslo/pending", Protocol: config.TURNUDP, Port: 3480},
		},
	}
	c.Default()
	return c
}

// dual returns a config with listeners at addresses of both families.
func dual(listeners int) config.Config {
	c := config.Config{Auth: oslo().Auth}
	for i := range listeners {
		c.Listeners = append(c.Listeners, config.Listener{
			Name: fmt.Sprintf("media/oslo/udp-%d", i), Protocol: config.TURNUDP, Port: i + 1,
			PublicAddresses: []string{"198.51.100.7", "2001:db8::7"},
		})
	}
	c.Default()
	return c
}

// J-17, N-05: listeners without a public address have no URL. Other listeners have a URL for their protocol.
func TestURLs(t *testing.T) {
	stun := oslo()
	stun.Auth = config.Auth{Type: config.AuthNone}
	hidden := oslo()
	for i := range hidden.Listeners {
		hidden.Listeners[i].PublicAddress = config.AddressPlaceholder
	}
	balanced, balancedSTUN := oslo(), oslo()
	for _, c := range []*config.Config{&balanced, &balancedSTUN} {
		// in the config, the TCP listener is before the TLS listener
		c.Listeners[1].TLSAtBalancer, c.Listeners[1].PublicAddress = true, "calls.example.net"
	}
	balancedSTUN.Auth = config.Auth{Type: config.AuthNone}
	// the certificates of both secure listeners have a name and none of their addresses
	named, namedSTUN := oslo(), oslo()
	for _, c := range []*config.Config{&named, &namedSTUN} {
		c.Listeners[0].PublicAddresses = []string{"198.51.100.7", "2001:db8::7", "198.51.100.8"}
		c.Listeners[0].PublicHost, c.Listeners[3].PublicHost = "turn.example.com", "turn.example.com"
	}
	namedSTUN.Auth = config.Auth{Type: config.AuthNone}
	tests := map[string]struct {
		config config.Config
		view   URLOptions
		want   []string
	}{
		"UDP comes before TCP and TLS, DTLS waits to be asked for": {oslo(), URLOptions{}, []string{
			"turn:198.51.100.7:3478?transport=udp",
			"turn:198.51.100.7:3479?transport=udp",
			"turn:198.51.100.7:3478?transport=tcp",
			"turns:turn.example.net:443?transport=tcp",
		}},
		"DTLS stands between UDP and TCP": {oslo(), URLOptions{DTLS: true}, []string{
			"turn:198.51.100.7:3478?transport=udp",
			"turn:198.51.100.7:3479?transport=udp",
			"turns:[2001:db8::7]:5350?transport=udp",
			"turn:198.51.100.7:3478?transport=tcp",
			"turns:turn.example.net:443?transport=tcp",
		}},
		"a host of the caller's choice replaces all, also where there was none": {oslo(), URLOptions{
			Host: "192.0.2.1",
		}, []string{
			"turn:192.0.2.1:3478?transport=udp",
			"turn:192.0.2.1:3479?transport=udp",
			"turn:192.0.2.1:3480?transport=udp",
			"turn:192.0.2.1:3478?transport=tcp",
			"turns:192.0.2.1:443?transport=tcp",
		}},
		"a gateway without credentials serves STUN": {stun, URLOptions{DTLS: true}, []string{
			"stun:198.51.100.7:3478",
			"stun:198.51.100.7:3479",
			"stuns:turn.example.net:443",
		}},
		"TLS that ends at a load balancer": {balanced.ForAuth(), URLOptions{}, []string{
			"turn:198.51.100.7:3478?transport=udp",
			"turn:198.51.100.7:3479?transport=udp",
			"turns:calls.example.net:3478?transport=tcp",
			"turns:turn.example.net:443?transport=tcp",
		}},
		"TLS that ends at a load balancer, without credentials": {balancedSTUN.ForAuth(), URLOptions{}, []string{
			"stun:198.51.100.7:3478",
			"stun:198.51.100.7:3479",
			"stuns:calls.example.net:3478",
			"stuns:turn.example.net:443",
		}},
		"the name of the certificate, once": {named.ForAuth(), URLOptions{DTLS: true, Max: 7}, []string{
			"turn:198.51.100.7:3478?transport=udp",
			"turn:198.51.100.7:3479?transport=udp",
			"turns:turn.example.com:5350?transport=udp",
			"turn:198.51.100.7:3478?transport=tcp",
			"turns:turn.example.com:443?transport=tcp",
		}},
		"the name of the certificate, without credentials": {namedSTUN.ForAuth(), URLOptions{}, []string{
			"stun:198.51.100.7:3478",
			"stun:198.51.100.7:3479",
			"stuns:turn.example.com:443",
		}},
		"a host of the caller's choice replaces the name of the certificate": {named, URLOptions{
			Host: "192.0.2.1",
		}, []string{
			"turn:192.0.2.1:3478?transport=udp",
			"turn:192.0.2.1:3479?transport=udp",
			"turn:192.0.2.1:3480?transport=udp",
			"turn:192.0.2.1:3478?transport=tcp",
			"turns:192.0.2.1:443?transport=tcp",
		}},
		"a listener with two addresses": {dual(1), URLOptions{Max: 5}, []string{
			"turn:198.51.100.7:1?transport=udp",
			"turn:[2001:db8::7]:1?transport=udp",
		}},
		"the first address of each listener comes first": {dual(4), URLOptions{Max: 5}, []string{
			"turn:198.51.100.7:1?transport=udp",
			"turn:198.51.100.7:2?transport=udp",
			"turn:198.51.100.7:3?transport=udp",
			"turn:198.51.100.7:4?transport=udp",
			"turn:[2001:db8::7]:1?transport=udp",
		}},
		"each listener has a URL": {dual(3), URLOptions{Max: 2}, []string{
			"turn:198.51.100.7:1?transport=udp",
			"turn:198.51.100.7:2?transport=udp",
			"turn:198.51.100.7:3?transport=udp",
		}},
		"without a maximum, each address of each listener has a URL": {dual(3), URLOptions{}, []string{
			"turn:198.51.100.7:1?transport=udp",
			"turn:198.51.100.7:2?transport=udp",
			"turn:198.51.100.7:3?transport=udp",
			"turn:[2001:db8::7]:1?transport=udp",
			"turn:[2001:db8::7]:2?transport=udp",
			"turn:[2001:db8::7]:3?transport=udp",
		}},
		"a host instead of two addresses": {dual(1), URLOptions{Host: "192.0.2.1"}, []string{
			"turn:192.0.2.1:1?transport=udp",
		}},
		"J-17 the placeholder of a pod address is no public address": {hidden, URLOptions{DTLS: true}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, newGateway(tt.config).URLs(tt.view)); diff != "" {
				t.Errorf("URLs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFilter(t *testing.T) {
	g := newGateway(oslo())
	tests := map[string]struct {
		filter Filter
		want   int // URLs, -1 for no match
	}{
		"everything":           {Filter{}, 4},
		"its namespace":        {Filter{Namespace: "media"}, 4},
		"another namespace":    {Filter{Namespace: "medi"}, -1},
		"its name":             {Filter{Namespace: "media", Name: "oslo"}, 4},
		"another name":         {Filter{Namespace: "media", Name: "osl"}, -1},
		"one listener":         {Filter{Namespace: "media", Name: "oslo", Listener: "tcp"}, 1},
		"a pending listener":   {Filter{Namespace: "media", Name: "oslo", Listener: "pending"}, 0},
		"no listener of those": {Filter{Namespace: "media", Name: "oslo", Listener: "sctp"}, -1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := tt.filter.pick(g)
			if (got != nil) != (tt.want >= 0) {
				t.Fatalf("match %t, want %d URLs", got != nil, tt.want)
			}
			if got != nil && len(got.URLs(URLOptions{})) != tt.want {
				t.Errorf("URLs %q, want %d", got.URLs(URLOptions{}), tt.want)
			}
		})
	}
}
