package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// series are the names and labels of the product's metrics, as a scrape has them.
func series(t *testing.T, url string) map[string]bool {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all := map[string]bool{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if name, _, ok := strings.Cut(lines.Text(), " "); ok && strings.HasPrefix(name, "stunner_") {
			all[name] = true
		}
	}
	return all
}

// guesser is a client that requests allocations with wrong passwords.
type guesser struct {
	*testing.T
	net.Conn
	nonce stun.Nonce
}

// send sends a request with a user name.
func (g *guesser) send(user string) {
	g.Helper()
	attrs := []stun.Setter{stun.NewType(stun.MethodAllocate, stun.ClassRequest), stun.TransactionID, stun.RawAttribute{
		Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0},
	}}
	if len(g.nonce) > 0 {
		attrs = append(
			attrs, stun.NewUsername(user), stun.NewRealm(authority.Realm), g.nonce,
			stun.NewLongTermIntegrity(user, authority.Realm, "a guess"),
		)
	}
	m, err := stun.Build(attrs...)
	if err != nil {
		g.Fatal(err)
	}
	if _, err := g.Write(m.Raw); err != nil {
		g.Fatal(err)
	}
}

// challenge gets a nonce.
func (g *guesser) challenge() {
	g.Helper()
	g.send("")
	_ = g.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 1500)
	n, err := g.Read(buf)
	if err != nil {
		g.Fatal(err)
	}
	answer := &stun.Message{Raw: buf[:n]}
	if err := errors.Join(answer.Decode(), g.nonce.GetFrom(answer)); err != nil {
		g.Fatal(err)
	}
}

// guess sends requests with each of n user names, no faster than the server reads them.
func (g *guesser) guess(p *process, name string, users int) {
	g.Helper()
	const batch = 200
	for n := 0; n < users; n += batch {
		before := p.received("media/edge/udp")
		for user := range batch {
			g.send(fmt.Sprintf("%d:%s-%d", time.Now().Add(time.Hour).Unix(), name, n+user))
		}
		p.within("requests are read", func() bool { return p.received("media/edge/udp") >= before+batch })
	}
}

// T-20: user names and addresses of clients do not create metric series.
func TestUserNamesMakeNoSeries(t *testing.T) {
	const names = 10_000
	port := testport.Free(t)
	p := startWith(
		t, func(c *config.Config) { c.Admin.MetricsEndpoint = fmt.Sprintf("http://127.0.0.1:%d/metrics", port) },
	)
	scrape := fmt.Sprintf("http://127.0.0.1:%d/metrics", port)
	conn, err := net.Dial("udp4", p.turn["udp"])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	g := &guesser{T: t, Conn: conn}
	g.challenge()
	g.guess(p, "one", 2000) // until each limit is reached, which has its own reason
	before := series(t, scrape)
	g.guess(p, "another", names)
	after := series(t, scrape)
	if len(before) == 0 {
		t.Fatal("the scrape has no series")
	}
	for name := range after {
		if !before[name] {
			t.Errorf("series %s came with the user names", name)
		}
		if strings.Contains(name, "another-") || strings.Contains(name, "127.0.0.1") {
			t.Errorf("series %s names a client", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d series before, %d after", len(before), len(after))
	}
}
