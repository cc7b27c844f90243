package media

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// connect opens a connection for each client, binds its channel, and counts the messages that arrive.
func (g *generator) connect(t *testing.T, s *stage) {
	t.Helper()
	for _, c := range g.all {
		conn, err := s.dial(c, g.load.network)
		harnesstest.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		in := bufio.NewReaderSize(conn, 64<<10)
		if err := converse(c, in, conn); err != nil {
			t.Fatalf("client %d over %s: %v", c.number, g.load.network, err)
		}
		go g.arrivals(c, in)
	}
}

func (s *stage) dial(c *client, network string) (conn net.Conn, err error) {
	server := turnServer
	if network == "tls" {
		server = netip.AddrPortFrom(server.Addr(), tlsPort)
	}
	s.clients.Do(func() {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: c.ip[:]}, Timeout: timeout}
		conn, err = d.Dial("tcp4", server.String())
	})
	if err == nil && network == "tls" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	return conn, err
}

// converse sets up a client over a stream.
func converse(c *client, in io.Reader, out io.Writer) error {
	var answer *stun.Message
	for {
		request, err := setUp(c, answer)
		if err != nil || request == nil {
			return err
		}
		if _, err := out.Write(request); err != nil {
			return err
		}
		head := make([]byte, 20)
		if _, err := io.ReadFull(in, head); err != nil {
			return err
		}
		raw := append(head, make([]byte, binary.BigEndian.Uint16(head[2:]))...)
		if _, err := io.ReadFull(in, raw[20:]); err != nil {
			return err
		}
		answer = &stun.Message{Raw: raw}
		if err := answer.Decode(); err != nil {
			return fmt.Errorf("decode answer: %w", err)
		}
	}
}

// arrivals counts the messages of one client until its connection ends. Messages are padded to four bytes.
func (g *generator) arrivals(c *client, in io.Reader) {
	data := make([]byte, (header+g.load.size+3)&^3)
	for {
		if _, err := io.ReadFull(in, data); err != nil {
			return
		}
		if to, _, ok := g.check(data[:header+g.load.size], header); ok && to == c {
			g.arrived.Add(1)
		} else {
			g.spoilt.Add(1)
		}
	}
}

// await returns the number of messages that have arrived over streams since the last call. It sleeps if there are none,
// because the readers use the same core.
func (g *generator) await() int {
	right, wrong := g.arrived.Swap(0), g.spoilt.Swap(0)
	if right+wrong == 0 {
		time.Sleep(20 * time.Microsecond)
	}
	g.received, g.wrong = g.received+right, g.wrong+wrong
	return int(right + wrong)
}
