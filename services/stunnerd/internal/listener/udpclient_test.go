package listener

import (
	"net"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// client returns the session.Client of a client with an allocation.
func (b *batchFixture) client(c *batchedClient) *udpClient {
	b.t.Helper()
	return b.gate.Relay(c.addr()).Session().Client.(*udpClient)
}

// A client gets a socket for sending with the first data from a peer, and not with its allocation.
func TestSocketOfAClientIsOpenedByData(t *testing.T) {
	b := newBatchFixture(t)
	peer, c := newPeer(t), b.dial()
	c.allocate(peer)
	client := b.client(c)
	if client.sender.Load() != nil {
		t.Error("a client without data has a socket")
	}
	relayed := net.UDPAddrFromAddrPort(b.gate.Relay(c.addr()).Session().Relay)
	if _, err := peer.WriteTo([]byte("data"), relayed); err != nil {
		t.Fatal(err)
	}
	if got := c.read(); string(got[4:]) != "data" {
		t.Errorf("got %q", got)
	}
	if client.sender.Load() == nil || client.shared {
		t.Error("a client with data has no socket")
	}
	c.send(c.request(stun.MethodRefresh))
	b.batch(1)
	c.answer(stun.ClassSuccessResponse)
}

// A client that sends many requests does not use the common sockets for more than commonAnswers answers.
func TestSocketOfAClientIsOpenedByManyAnswers(t *testing.T) {
	b := newBatchFixture(t)
	c := b.dial()
	c.allocate(newPeer(t)) // two answers
	client := b.client(c)
	for n := 3; n <= commonAnswers+1; n++ {
		if client.sender.Load() != nil {
			t.Fatalf("after %d answers the client has a socket", n-1)
		}
		c.send(c.request(stun.MethodRefresh))
		b.batch(1)
		c.answer(stun.ClassSuccessResponse)
	}
	if client.sender.Load() == nil {
		t.Errorf("after %d answers the client has no socket", commonAnswers+1)
	}
}

// A client whose session has ended opens no socket, and neither does a client of a closed port.
func TestNoSocketOfAClientIsOpenedAfterTheEnd(t *testing.T) {
	b := newBatchFixture(t)
	ended, live := b.dial(), b.dial()
	for _, c := range []*batchedClient{ended, live} {
		c.allocate(newPeer(t))
	}
	client, other := b.client(ended), b.client(live)
	ended.send(ended.request(stun.MethodRefresh, stunmsg.Number{Type: stun.AttrLifetime}))
	b.batch(1)
	if client.own() != nil {
		t.Error("a client without a session has a socket")
	}
	if err := b.port.Close(); err != nil {
		t.Fatal(err)
	}
	if other.own(); !other.shared {
		t.Error("a client of a closed port has a socket")
	}
}
