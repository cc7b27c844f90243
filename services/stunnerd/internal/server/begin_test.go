package server

import (
	"net"
	"strings"
	"testing"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
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

// for some time, a pod that drains admits new clients that it cannot pass to another pod, if there is one: over a
// connection, and over UDP if another pod has passed them here, or if pods do not see the addresses of clients.
func TestLateClientsOfAPodThatDrains(t *testing.T) {
	type where string
	const here, there, refused where = "here", "there", "508"
	for name, c := range map[string]struct {
		transport                string
		seesClients, late, alone bool
		bothDrain                bool // both pods drain, and no list says so yet
		want                     where
	}{
		"connection":                            {"dtls", true, true, false, false, here},
		"connection, addresses hidden":          {"dtls", false, true, false, false, here},
		"connection, too late":                  {"dtls", true, false, false, false, refused},
		"connection, no other pod":              {"dtls", true, true, true, false, refused},
		"datagrams":                             {"udp", true, true, false, false, there},
		"datagrams, too late":                   {"udp", true, false, false, false, there},
		"datagrams, addresses hidden":           {"udp", false, true, false, false, here},
		"datagrams, addresses hidden, too late": {"udp", false, false, false, false, there},
		"datagrams, both pods drain":            {"udp", true, true, false, true, there},
		"datagrams, no other pod":               {"udp", false, true, true, false, refused},
	} {
		t.Run(name, func(t *testing.T) {
			both := pods(t)
			draining, other := both[0], both[1]
			for _, b := range both {
				b.clientAddresses.Store(c.seesClients)
			}
			if c.alone {
				draining.SetPeers(forward.Peers{}, "")
			}
			if got := draining.Drain(c.late); got != (c.late && !c.alone) {
				t.Errorf("admits late clients: %t", got)
			}
			if c.bothDrain {
				other.Drain(true)
			}
			got := refused
			_, err := draining.dial(c.transport, "ann", "first")
			switch {
			case err != nil && !strings.Contains(err.Error(), "508"):
				t.Fatal(err)
			case err == nil && draining.table.Len() == 1:
				got = here
			case err == nil && other.table.Len() == 1:
				got = there
			}
			if got != c.want {
				t.Errorf("the session is %s, want %s: %v", got, c.want, err)
			}
		})
	}
}
