package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// Stream describes the datagrams of a call.
type Stream struct {
	Size  int // bytes of a datagram; 0 means the size of a voice call
	Every time.Duration
	// ICE selects a peer with an ICE agent. The client sends connectivity checks to it.
	ICE bool
	// Family is the index of the client's address family among the families of the shape.
	Family int
}

// Heavy is a stream of about 2 Mbit/s.
var Heavy = Stream{Size: 1200, Every: 5 * time.Millisecond}

// Neighbour is a client in the network of the pods, which reach it without a router.
type Neighbour struct {
	*topology.Neighbour
	env *Env
}

// NewNeighbour makes a neighbour of the pods of the first node.
func (e *Env) NewNeighbour() (*Neighbour, error) {
	n, err := e.Net.Nodes[0].AddNeighbour()
	if err != nil {
		return nil, err
	}
	return &Neighbour{n, e}, nil
}

// Addr returns the address of the neighbour.
func (n *Neighbour) Addr() netip.Addr { return n.env.families(n.Addrs)[0] }

// DialFrom starts a call over UDP whose datagrams are sent to the given dataplane. They are sent from a port of a
// neighbour, or of the client if the neighbour is nil.
func (e *Env) DialFrom(ctx context.Context, n *Neighbour, l *Listener, port uint16, to Dataplane, user string, s Stream) (*Call, error) {
	username, password, err := l.Gateway.Credential(ctx, user)
	if err != nil {
		return nil, err
	}
	return e.DialFromAs(ctx, n, l, port, to, username, password, s)
}

// DialFromAs is DialFrom with a credential.
func (e *Env) DialFromAs(
	ctx context.Context, n *Neighbour, l *Listener, port uint16, to Dataplane, username, password string, s Stream,
) (*Call, error) {
	if err := e.Move(n, l, port, to); err != nil {
		return nil, err
	}
	do, from := e.Net.Clients.Do, e.families(e.Net.Client)[s.Family]
	if n != nil {
		do, from = n.Do, n.Addr()
	}
	o := call.Options{
		Gateway: l.Addresses()[s.Family], Network: call.UDP, Username: username, Password: password, Peer: l.Peers()[0],
		Size: s.Size, Interval: s.Every, Local: netip.AddrPortFrom(from, port), Do: do,
	}
	if s.ICE {
		o.Peer, o.Checks = withICE(o.Peer), e.newICE()
	}
	c, err := call.Start(ctx, o)
	name := fmt.Sprintf("%s from port %d by %s", l, port, to.Name)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", name, err)
	}
	return &Call{c, name, call.UDP}, nil
}

// Move sends the datagrams from a port of a neighbour to a dataplane from now on. If the neighbour is nil, the port is
// one of the client.
func (e *Env) Move(n *Neighbour, l *Listener, port uint16, to Dataplane) error {
	if n != nil {
		return n.Send(netip.AddrPortFrom(n.Addr(), port), l.Addresses()[0], netip.AddrPortFrom(to.Addrs[0], l.Port()))
	}
	for family, from := range e.families(e.Net.Client) {
		if err := e.Net.Move(netip.AddrPortFrom(from, port), netip.AddrPortFrom(to.Addrs[family], l.Port())); err != nil {
			return err
		}
	}
	return nil
}

// Release ends the effect of Move on a port of the client. An existing flow keeps its dataplane as long as nodes send
// clients to that dataplane.
func (e *Env) Release(port uint16) (err error) {
	for _, from := range e.families(e.Net.Client) {
		err = errors.Join(err, e.Net.Release(netip.AddrPortFrom(from, port)))
	}
	return err
}

// Losses returns the share of lost datagrams of calls in percent, in a period that begins now.
func (cs Calls) Losses(ctx context.Context, during time.Duration) float64 {
	before := cs.total()
	select {
	case <-time.After(during):
	case <-ctx.Done():
	}
	after := cs.total()
	if after.Sent == before.Sent {
		return 100
	}
	return 100 - 100*float64(after.Received-before.Received)/float64(after.Sent-before.Sent)
}

func (cs Calls) total() (t call.Stats) {
	for _, c := range cs {
		s := c.Stats()
		t.Sent += s.Sent
		t.Received += s.Received
	}
	return t
}

// Flood sends datagrams from a media server to addresses until the returned function is called.
func (e *Env) Flood(from netip.AddrPort, s Stream, to ...netip.AddrPort) (stop func(), err error) {
	var conn *net.UDPConn
	e.Net.Peers.Do(func() { conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(from)) })
	if err != nil {
		return nil, fmt.Errorf("flood: %w", err)
	}
	payload := make([]byte, s.Size)
	return repeat(s.Every, func() {
		for _, a := range to {
			_, _ = conn.WriteToUDPAddrPort(payload, a) // losses do not matter
		}
	}, conn.Close), nil
}

// FloodRequests sends Allocate requests without a credential to an address until the returned function is called.
func (e *Env) FloodRequests(every time.Duration, to netip.AddrPort) (stop func(), err error) {
	var conn net.Conn
	e.Net.Clients.Do(func() { conn, err = net.Dial("udp", to.String()) })
	if err != nil {
		return nil, fmt.Errorf("flood %s: %w", to, err)
	}
	var sender ask.Client
	return repeat(every, func() {
		for range 10 {
			_, _ = conn.Write(sender.Request(stun.MethodAllocate, ask.UDP())) // losses do not matter
		}
	}, conn.Close), nil
}

// repeat calls a function at intervals until stop is called. stop then calls end.
func repeat(every time.Duration, do func(), end func() error) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
		_ = end()
	}
}
