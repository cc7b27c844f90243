package file

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// status.txt contains the URLs of the listener as clients receive them.
func TestReportOfAListener(t *testing.T) {
	tcp := config.Listener{
		Name: "n/g/web", Protocol: config.TURNTCP, Port: 3478, PublicPort: 443, PublicAddress: "turn.example.com",
		Routes: []string{"n/media"},
	}
	balanced := tcp
	balanced.TLSAtBalancer = true
	for want, l := range map[string]config.Listener{
		"    listener web: TURN-TCP at turn:turn.example.com:443?transport=tcp, routes n/media\n": tcp,
		"    listener web: TURN-TCP behind a load balancer that ends TLS at turns:turn.example.com:443?transport=tcp, " +
			"routes n/media\n": balanced,
	} {
		var got text
		if reportListener(&got, l); got.String() != want {
			t.Errorf("%q, want %q", got.String(), want)
		}
	}
}
