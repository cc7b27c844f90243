package server

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// dialBehind makes an allocation over TCP, on a connection that begins with a header of the PROXY protocol.
func (b *fixture) dialBehind(client string, port int) (*turn.Client, error) {
	b.t.Helper()
	conn, err := net.Dial("tcp4", fmt.Sprint("127.0.0.1:", b.port("tcp")))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, fmt.Sprintf("PROXY TCP4 %s 192.0.2.1 %d 443\r\n", client, port)); err != nil {
		b.t.Fatal(err)
	}
	c, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: conn.RemoteAddr().String(), TURNServerAddr: conn.RemoteAddr().String(), Conn: turn.NewSTUNConn(conn),
		Username: "ann", Password: "first", LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err == nil {
		err = c.Listen()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	relay, err := c.Allocate()
	if err == nil {
		b.t.Cleanup(func() { _ = relay.Close() })
	}
	return c, err
}

// R-10, T-12: a config sets the prefixes of load balancers without ending a call. Behind a load balancer, the quota of
// an address counts for the address of the client, and sessions show this address.
func TestQuotaBehindALoadBalancerIsThatOfTheClient(t *testing.T) {
	b := newFixture(t)
	direct := b.mustDial("tcp", "ann", "first")
	plan := b.apply(b.changed(func(c *config.Config) {
		c.Admin.SourceQuota = 1
		c.Listeners[1].ProxyProtocol = []string{"127.0.0.0/8"}
	}))
	if got := plan.String(); got != "update 2 fields" {
		t.Errorf("plan %q, want an update", got)
	}
	if _, err := b.dialBehind("203.0.113.7", 40000); err != nil {
		t.Errorf("the first call of a client: %v", err)
	}
	if _, err := b.dialBehind("203.0.113.7", 40001); err == nil || !strings.Contains(err.Error(), "486") {
		t.Errorf("the second call of a client: %v, want 486", err)
	}
	if _, err := b.dialBehind("203.0.113.8", 40000); err != nil {
		t.Errorf("a call of another client: %v", err)
	}
	clients := map[string]int{}
	for _, s := range b.table.List() {
		clients[s.Client.Addr().Addr().String()]++
	}
	if got := fmt.Sprint(clients); got != "map[127.0.0.1:1 203.0.113.7:1 203.0.113.8:1]" {
		t.Errorf("clients of sessions %s", got)
	}
	if err := direct.echo("still there"); err != nil {
		t.Errorf("the call from before: %v", err)
	}
	b.apply(b.config)
	if _, err := b.dialBehind("203.0.113.9", 40000); err == nil {
		t.Error("a header is read without a prefix")
	}
	if err := direct.echo("still there"); err != nil {
		t.Errorf("the call from before: %v", err)
	}
}
