package config_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// rendered is the frame of a gateway with ephemeral credentials and a route with a port range.
const rendered = `{"version":"v1",
 "admin":{"name":"stunner/udp-gateway","loglevel":"all:INFO","metrics_endpoint":"http://:8080/metrics",
          "healthcheck_endpoint":"http://:8086","offload_engine":"None"},
 "auth":{"type":"ephemeral","realm":"stunner.l7mp.io","credentials":{"secret":"s3cret"}},
 "listeners":[{"name":"stunner/udp-gateway/udp-listener","protocol":"TURN-UDP","public_address":"203.0.113.7",
               "public_port":3478,"address":"$STUNNER_ADDR","port":3478,"routes":["stunner/media-plane"]}],
 "clusters":[{"name":"stunner/media-plane","type":"STATIC","protocol":"UDP",
              "endpoints":["10.244.1.9:<10000-20000>","10.96.4.20:<10000-20000>"]}]}`

// deletion is the frame that deletes the config of rendered.
const deletion = `{"version":"v1","admin":{"name":"stunner/udp-gateway","loglevel":"all:INFO",` +
	`"healthcheck_endpoint":"http://:8086","offload_engine":"None"},` +
	`"auth":{"type":"static","realm":"stunner.l7mp.io","credentials":{"password":"dummy-password","username":"dummy-username"}}}`

func TestContractRenderedConfigRoundTrips(t *testing.T) {
	c := parse(t, rendered)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	sameJSON(t, rendered, string(c.Canonical()))
}

// Service addresses are an optional field of the document, and their order has no meaning.
func TestContractServiceAddresses(t *testing.T) {
	with := strings.Replace(
		rendered, `"port":3478,"routes"`,
		`"port":3478,"service_addresses":["10.96.0.7:3478","[fd00::7]:3478"],"routes"`, 1,
	)
	c := parse(t, with)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	sameJSON(t, with, string(c.Canonical()))
	slices.Reverse(c.Listeners[0].ServiceAddresses)
	c.Listeners[0].ServiceAddresses = append(c.Listeners[0].ServiceAddresses, "10.96.0.7:3478")
	sameJSON(t, with, string(c.Canonical()))
}

// A listener has one or several public addresses, in either field. The order of several addresses is kept. Clients that
// read one address only get the first.
func TestContractPublicAddresses(t *testing.T) {
	for fields, want := range map[string]string{
		`"public_address":"203.0.113.7"`:                   "203.0.113.7 []",
		`"public_addresses":["203.0.113.7"]`:               "203.0.113.7 [203.0.113.7]",
		`"public_addresses":[]`:                            " []",
		`"public_addresses":[""]`:                          " []",
		`"public_addresses":["2001:db8::7","203.0.113.7"]`: "2001:db8::7 [2001:db8::7 203.0.113.7]",
		`"public_address":"203.0.113.7","public_addresses":["2001:db8::7","203.0.113.7"]`:       "203.0.113.7 [203.0.113.7 2001:db8::7]",
		`"public_address":"a.example","public_addresses":["a.example","192.0.2.1","a.example"]`: "a.example [a.example 192.0.2.1]",
	} {
		c := parse(t, `{"version":"v1","listeners":[{"name":"a/b/c","address":"10.0.0.1",`+fields+`}]}`)
		l := c.Listeners[0]
		if got := fmt.Sprint(l.PublicAddress, " ", l.PublicAddresses); got != want {
			t.Errorf("%s: %s, want %s", fields, got, want)
		}
		if again := parse(t, string(c.Canonical())); again.Revision() != c.Revision() {
			t.Errorf("%s: the canonical form reads differently: %s", fields, c.Canonical())
		}
	}
}

// Of a document of a release with several relay addresses, the first address is used.
func TestContractRelayAddresses(t *testing.T) {
	for fields, want := range map[string]string{
		`"addresses":["10.0.0.1","fd00::1"]`:            "10.0.0.1",
		`"addresses":["10.0.0.1,fd00::1"]`:              "10.0.0.1",
		`"address":"10.0.0.2","addresses":["10.0.0.1"]`: "10.0.0.2",
		`"addresses":[]`:                                config.DefaultAddress,
		`"addresses":["$STUNNER_ADDR","fd00::1"]`:       config.AddressPlaceholder,
	} {
		c, unknown, err := config.Parse([]byte(`{"version":"v1","listeners":[{"name":"a/b/c",` + fields + `}]}`))
		if err != nil || len(unknown) > 0 || c.Listeners[0].Address != want {
			t.Errorf("%s: address %q, unknown %q, error %v; want %s", fields, c.Listeners[0].Address, unknown, err, want)
		}
	}
}

func TestAddressesThatLeadToAListener(t *testing.T) {
	for want, l := range map[string]config.Listener{
		"[203.0.113.7:443 10.96.0.7:3478 [fd00::7]:3478]": {
			Port: 3478, PublicAddress: "203.0.113.7", PublicPort: 443,
			ServiceAddresses: []string{"[::ffff:10.96.0.7]:3478", "[fd00::7]:3478", "nonsense"},
		},
		"[203.0.113.7:3478]": {Port: 3478, PublicAddress: "::ffff:203.0.113.7"},
		"[]":                 {Port: 3478, PublicAddress: "unknown.example.com", PublicPort: 3478},
		"[192.0.2.1:3478 [2001:db8::1]:3478 203.0.113.7:3478]": {
			Port: 3478, PublicAddress: "turn.example.com", PublicAddresses: []string{"turn.example.com", "203.0.113.7"},
		},
		"[203.0.113.7:443 192.0.2.1:443 [2001:db8::1]:443]": {
			Port: 3478, PublicAddress: "203.0.113.7", PublicHost: "turn.example.com", PublicPort: 443,
		},
	} {
		resolve := func(name string) []netip.Addr {
			if name != "turn.example.com" {
				return nil
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		}
		if got := fmt.Sprint(l.ReachedAt(resolve)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestContractDeletion(t *testing.T) {
	zero := config.Zero("stunner/udp-gateway")
	if got := string(zero.Canonical()); got != deletion {
		t.Errorf("zero config is\n%s\nwant\n%s", got, deletion)
	}
	if err := zero.Validate(); err != nil {
		t.Error(err)
	}
	if !parse(t, deletion).IsZero() {
		t.Error("the deletion frame is not recognised")
	}
	loud := parse(t, deletion)
	loud.Admin.LogLevel = "all:TRACE"
	if !loud.IsZero() {
		t.Error("the log level must not matter")
	}
	if parse(t, rendered).IsZero() {
		t.Error("a config with listeners is no deletion")
	}
	other := parse(t, deletion)
	other.Auth.Credentials[config.KeyPassword] = "real"
	if other.IsZero() {
		t.Error("a config with a real password is no deletion")
	}
}

func TestContractDefaults(t *testing.T) {
	c := parse(
		t,
		`{"version":"v1","auth":{"credentials":{"username":"u","password":"p"}},"listeners":[{"name":"l"}],"clusters":[{"name":"c"}]}`,
	)
	sameJSON(t, `{"version":"v1",
		"admin":{"name":"default-stunnerd","loglevel":"all:INFO","healthcheck_endpoint":"http://:8086","offload_engine":"None"},
		"auth":{"type":"static","realm":"stunner.l7mp.io","credentials":{"username":"u","password":"p"}},
		"listeners":[{"name":"l","protocol":"TURN-UDP","address":"0.0.0.0","port":3478}],
		"clusters":[{"name":"c","type":"STATIC","protocol":"UDP"}]}`, string(c.Canonical()))
}

func TestContractHealthcheckAbsentAndEmptyDiffer(t *testing.T) {
	absent := parse(t, `{"version":"v1"}`)
	if absent.Admin.HealthcheckEndpoint == nil || *absent.Admin.HealthcheckEndpoint != "http://:8086" {
		t.Errorf("absent: %v", absent.Admin.HealthcheckEndpoint)
	}
	empty := parse(t, `{"version":"v1","admin":{"healthcheck_endpoint":""}}`)
	if empty.Admin.HealthcheckEndpoint == nil || *empty.Admin.HealthcheckEndpoint != "" {
		t.Errorf("empty: %v", empty.Admin.HealthcheckEndpoint)
	}
	again := parse(t, string(empty.Canonical()))
	if *again.Admin.HealthcheckEndpoint != "" {
		t.Error("empty does not survive the canonical form")
	}
}

func parse(t *testing.T, text string) config.Config {
	t.Helper()
	c, unknown, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(unknown) > 0 {
		t.Fatalf("unknown fields %q", unknown)
	}
	return c
}

func sameJSON(t *testing.T, want, got string) {
	t.Helper()
	var w, g any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("document differs (-want +got):\n%s", diff)
	}
}
