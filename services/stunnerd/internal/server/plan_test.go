package server

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestPlanListsChangesOfSockets(t *testing.T) {
	base := config.Config{Version: config.Version, Admin: config.Admin{
		Name: "media/edge",
	}, Listeners: []config.Listener{
		{Name: "media/edge/a", Protocol: config.TURNUDP, Port: 3478},
		{Name: "media/edge/b", Protocol: config.TURNTCP, Port: 3478, Routes: []string{"media/sfu"}},
	}}
	base.Default()
	cases := map[string]struct {
		change func(*config.Config)
		want   string
	}{
		"nothing": {func(*config.Config) {}, "nothing changes"},
		"new listener": {func(c *config.Config) {
			c.Listeners = append(c.Listeners, config.Listener{Name: "media/edge/c", Protocol: config.TURNUDP, Port: 9})
		}, "start media/edge/c (TURN-UDP 9); update 1 fields"},
		"gone listener": {func(
			c *config.Config,
		) {
			c.Listeners = c.Listeners[:1]
		}, "stop media/edge/b; update 1 fields"},
		"other port": {func(
			c *config.Config,
		) {
			c.Listeners[0].Port = 5000
		}, "replace media/edge/a (TURN-UDP 5000); update 1 fields"},
		"other protocol": {func(
			c *config.Config,
		) {
			c.Listeners[0].Protocol = config.TURNTCP
		}, "replace media/edge/a (TURN-TCP 3478); update 1 fields"},
		"new name": {func(c *config.Config) { c.Listeners[1].Name = "media/edge/z" }, "start media/edge/z (TURN-TCP 3478); stop media/edge/b; close first media/edge/b; update 2 fields"},
		"other network and port": {func(
			c *config.Config,
		) {
			c.Listeners[0].Protocol = config.TURNTLS
			c.Listeners[0].Port = 443
		},
			"replace media/edge/a (TURN-TLS 443); update 2 fields"},
		"other routes": {func(c *config.Config) { c.Listeners[1].Routes = nil }, "update 1 fields"},
		"other realm":  {func(c *config.Config) { c.Auth.Realm = "x.example" }, "update 1 fields"},
		"addresses of Services": {
			func(c *config.Config) { c.Listeners[0].ServiceAddresses = []string{"10.96.0.7:3478"} }, "update 1 fields",
		},
		"load balancers": {
			func(c *config.Config) {
				c.Listeners[1].TLSAtBalancer, c.Listeners[1].ProxyProtocol = true, []string{"10.0.0.1"}
			}, "update 2 fields",
		},
		"other address": {func(c *config.Config) { c.Listeners[0].Address = "192.0.2.1" }, "update 1 fields"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			next := base.Clone()
			tc.change(&next)
			if got := PlanFor(base, next).String(); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
