package server

import (
	"net"
	"strings"
	"testing"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"
)

// a new client of a draining pod gets a session at another pod, which stays there. A request with a wrong
// password is not forwarded, so only authenticated clients cause frames to other pods.
func TestNewSessionsOfAPodThatDrains(t *testing.T) {
	both := pods(t)
	draining, other := both[0], both[1]
	draining.table.Drain()
	c := dialMobile(t, draining, "udp")
	if here, there := draining.table.Len(), other.table.Len(); here != 0 || there != 1 {
		t.Fatalf("%d sessions at the pod that drains, %d at the other one", here, there)
	}
	for range 3 {
		if err := c.next(); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := turn.NewClient(&turn.ClientConfig{
		TURNServerAddr: c.conn.seen.String(), Conn: conn, Username: "ann", Password: "wrong",
		LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err == nil {
		err = client.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	passed := draining.Forwarding().Passed
	if _, err := client.Allocate(); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a wrong password: %v", err)
	}
	if n := draining.Forwarding().Passed; n != passed {
		t.Errorf("%d requests with a wrong password were passed on", n-passed)
	}
	other.table.Drain()
	if _, err := draining.dial("udp", "ann", "first"); err == nil || !strings.Contains(err.Error(), "508") {
		t.Errorf("both pods drain: %v", err)
	}
}
