package config_test

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// The address of an HTTP server needs no scheme and no port. The existing dataplane accepts such addresses.
func TestEndpointURL(t *testing.T) {
	valid := parse(t, `{"version":"v1","auth":{"type":"none"}}`)
	for value, want := range map[string]string{
		"": "", "http://:8086": "http://:8086", "0.0.0.0": "http://0.0.0.0", "127.0.0.1:8086": "http://127.0.0.1:8086",
		"0.0.0.0/health": "http://0.0.0.0/health", ":8080/metrics": "http://:8080/metrics", "::": "http://[::]",
		"::1/metrics": "http://[::1]/metrics", "[::1]:8080": "http://[::1]:8080",
	} {
		if got := config.EndpointURL(value); got != want {
			t.Errorf("%q means %q, want %q", value, got, want)
		}
		c := valid
		c.Admin.MetricsEndpoint, c.Admin.HealthcheckEndpoint = value, &value
		if err := c.Validate(); err != nil {
			t.Errorf("%q: %v", value, err)
		}
	}
	for _, value := range []string{
		"none", "8086", "localhost", "0.0.0.0:0", "0.0.0.0:65536", ":http", "a b:80", "https://:8086", "1.2.3", "$ADDR:80",
		"http://u:p@:80", ":", "[::1", "::1:99999",
	} {
		if got := config.EndpointURL(value); got != value {
			t.Errorf("%q means %q, want it unchanged", value, got)
		}
		c := valid
		c.Admin.MetricsEndpoint = value
		if err := c.Validate(); err == nil && value != "$ADDR:80" {
			t.Errorf("%q is valid", value)
		}
	}
}
