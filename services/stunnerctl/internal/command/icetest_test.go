package command

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// A Gateway may have addresses of a family that this host does not have. The tests of the others decide.
func TestIcetestLeavesOutAddressesWithoutARoute(t *testing.T) {
	at := func(host string, unroutable bool) gatewayListener {
		l := config.Listener{Protocol: config.TURNUDP, Port: 3478, PublicAddress: host}
		return gatewayListener{name: "udp", uri: l.URIs()[0], unroutable: unroutable}
	}
	for _, c := range []struct {
		found []gatewayListener
		kept  string
		left  bool
	}{
		{[]gatewayListener{at("192.0.2.1", false), at("2001:db8::1", false)}, "[192.0.2.1 2001:db8::1]", false},
		{[]gatewayListener{at("192.0.2.1", false), at("2001:db8::1", true)}, "[192.0.2.1]", true},
		{[]gatewayListener{at("192.0.2.1", true), at("2001:db8::1", true)}, "[192.0.2.1 2001:db8::1]", false},
	} {
		kept, text := leaveUnroutable(c.found)
		var hosts []string
		for _, l := range kept {
			hosts = append(hosts, l.uri.Host)
		}
		if fmt.Sprint(hosts) != c.kept || strings.Contains(text, "left out") != c.left {
			t.Errorf("kept %q, want %s: %s", hosts, c.kept, text)
		}
		for _, l := range c.found {
			if !strings.Contains(text, l.uri.String()) {
				t.Errorf("%s is not named: %s", l.uri, text)
			}
		}
	}
}
