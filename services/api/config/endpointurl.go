package config

import (
	"net"
	"net/netip"
	"strings"
)

// EndpointURL returns the URL of an HTTP server of a config: of MetricsEndpoint or HealthcheckEndpoint. They may be
// addresses without scheme: ADDRESS, ADDRESS:PORT or :PORT, each with an optional path. Any other value is returned
// unchanged.
func EndpointURL(value string) string {
	authority, _, _ := strings.Cut(value, "/")
	if a, err := netip.ParseAddr(authority); err == nil {
		if a.Is6() {
			return "http://[" + authority + "]" + value[len(authority):]
		}
		return "http://" + value
	}
	host, port, err := net.SplitHostPort(authority)
	if err != nil || parsePort(port) == 0 || host != "" && !isAddress(host) {
		return value
	}
	return "http://" + value
}
