package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/ice"
)

// peers are the media servers. At mediaPort they return every datagram, and at icePort every datagram of clients that
// they have checked by ICE.
type peers struct{ conns []*net.UDPConn }

// servePeers starts the media servers.
func (e *Env) servePeers() error {
	for number := range peerCount {
		for _, at := range e.peersOf(number) {
			if err := e.servePeer(at, echo); err != nil {
				return err
			}
			if err := e.servePeer(withICE(at), ice.Serve); err != nil {
				return err
			}
		}
	}
	return nil
}

// withICE returns the address of the ICE agent of a media server.
func withICE(peer netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(peer.Addr(), icePort) }

// peerBuffer is the size of the receive buffer of a peer. It is enough for the datagrams of all clients of a test while
// a busy machine does not run the peer.
const peerBuffer = 4 << 20

// servePeer starts a media server, whose datagrams a function handles until the socket is closed.
func (e *Env) servePeer(at netip.AddrPort, serve func(*net.UDPConn)) (err error) {
	var conn *net.UDPConn
	e.Net.Peers.Do(func() { conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
	if err != nil {
		return fmt.Errorf("start media server: %w", err)
	}
	e.peers.conns = append(e.peers.conns, conn)
	if err := conn.SetReadBuffer(peerBuffer); err != nil {
		return err
	}
	go serve(conn)
	return nil
}

func echo(conn *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil { // an ICMP error belongs to an ended relay
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from) // clients count losses
		}
	}
}

func (p peers) close() {
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// Call is a call of a client.
type Call struct {
	*call.Call
	// Name describes the call: LISTENER by ADDRESS to PEER.
	Name    string
	Network call.Network
}

// Dial starts a call at an address of a listener to a peer, with a credential of a user.
func (e *Env) Dial(ctx context.Context, l *Listener, at, peer netip.AddrPort, user string) (*Call, error) {
	username, password, err := l.Gateway.Credential(ctx, user)
	if err != nil {
		return nil, err
	}
	return e.DialAs(ctx, l, at, peer, username, password)
}

// DialICE is Dial to the ICE agent of the first media server of the listener. A call to an ICE agent continues when its
// relayed address changes.
func (e *Env) DialICE(ctx context.Context, l *Listener, at netip.AddrPort, user string) (*Call, error) {
	username, password, err := l.Gateway.Credential(ctx, user)
	if err != nil {
		return nil, err
	}
	return e.dial(ctx, l, at, withICE(l.Peers()[0]), username, password, e.newICE())
}

// newICE returns a new ICE session for a call.
func (e *Env) newICE() *ice.Session { return ice.NewSession(int(e.sessions.Add(1))) }

// DialAs is Dial with a credential.
func (e *Env) DialAs(ctx context.Context, l *Listener, at, peer netip.AddrPort, username, password string) (*Call, error) {
	return e.dial(ctx, l, at, peer, username, password, nil)
}

func (e *Env) dial(
	ctx context.Context, l *Listener, at, peer netip.AddrPort, username, password string, checks *ice.Session,
) (*Call, error) {
	c, err := call.Start(ctx, call.Options{
		Gateway: at, Network: l.Network, Username: username, Password: password, Peer: peer, Roots: l.roots(),
		Local: e.nextClient(at), Do: e.Net.Clients.Do, Checks: checks,
	})
	name := fmt.Sprintf("%s by %s to %s", l, at, peer)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", name, err)
	}
	return &Call{c, name, l.Network}, nil
}

// sharing is the number of hosts that share a public address.
const sharing = 8

// nextClient returns the local address of the next call to an address. If hosts share a public address, it returns
// their addresses in turn. Otherwise it returns the invalid address, so that the kernel selects one.
func (e *Env) nextClient(to netip.AddrPort) netip.AddrPort {
	if len(e.clients) == 0 {
		return netip.AddrPort{}
	}
	both := e.clients[e.dialed.Add(1)%sharing]
	if to.Addr().Is6() {
		return netip.AddrPortFrom(both[1], 0)
	}
	return netip.AddrPortFrom(both[0], 0)
}

// Login returns the credential of a call through a listener.
type Login func(context.Context, *Listener) (username, password string, err error)

// DialAll starts a call through each listener, at each of its addresses. The caller must hang them up.
//
// A client that requests no address family gets a relay of IPv4, unless the pods have none (RFC 8656 §7.2), so the call
// goes to the first peer at each address.
func (e *Env) DialAll(ctx context.Context, user string) (Calls, error) {
	return e.DialAllAs(ctx, func(ctx context.Context, l *Listener) (username, password string, err error) {
		return l.Gateway.Credential(ctx, user)
	})
}

// DialAllAs is DialAll with other credentials.
func (e *Env) DialAllAs(ctx context.Context, login Login) (calls Calls, err error) {
	for _, l := range e.Listeners() {
		username, password, loginErr := login(ctx, l)
		if loginErr != nil {
			return calls, loginErr
		}
		for _, at := range l.Addresses() {
			c, dialErr := e.DialAs(ctx, l, at, l.Peers()[0], username, password)
			if dialErr != nil {
				err = errors.Join(err, dialErr)
				continue
			}
			calls = append(calls, c)
		}
	}
	if err == nil {
		err = calls.AwaitEchoes(ctx)
	}
	return calls, err
}

// ErrForbidden reports that the gateway does not allow a peer: error 403.
var ErrForbidden = errors.New("forbidden")

// TryPeer requests a permission for a peer, with a new allocation. It returns ErrForbidden if the gateway refuses it.
func (l *Listener) TryPeer(ctx context.Context, peer netip.AddrPort) error {
	c, err := l.Gateway.env.Dial(ctx, l, l.Addresses()[0], peer, "tries-peers")
	switch {
	case errors.Is(err, call.ErrRefused) && strings.Contains(err.Error(), "403"):
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	case err != nil:
		return err
	}
	c.End(0)
	return nil
}

// Calls are running calls.
type Calls []*Call

// All returns the calls.
func (cs Calls) All() Calls { return cs }

// OverUDP returns the calls over UDP.
func (cs Calls) OverUDP() (list Calls) {
	for _, c := range cs {
		if c.Network == call.UDP {
			list = append(list, c)
		}
	}
	return list
}

// Owner returns the dataplane that has the relay address which the client got at the start of the call.
func (c *Call) Owner(list []Dataplane) (Dataplane, error) {
	relay, err := netip.ParseAddrPort(c.Relay().String())
	if err != nil {
		return Dataplane{}, err
	}
	for _, d := range list {
		if slices.Contains(d.Addrs, relay.Addr()) {
			return d, nil
		}
	}
	return Dataplane{}, fmt.Errorf("call %s: no dataplane has its relay %s", c.Name, relay)
}

// AwaitAll pauses each call until all its datagrams have come back, and then resumes the calls.
func (cs Calls) AwaitAll(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("not within %s", wait))
	defer cancel()
	for _, c := range cs {
		if lostErr := c.Pause(ctx); lostErr != nil {
			err = errors.Join(err, fmt.Errorf("call %s: %w", c.Name, lostErr))
		}
		c.Resume()
	}
	return err
}

// Laps returns the longest time without an echo of a call since the last call of Laps.
func (cs Calls) Laps() (longest time.Duration) {
	for _, c := range cs {
		longest = max(longest, c.Lap())
	}
	return longest
}

// flowing is the number of echoes after which a call works.
const flowing = 5

// AwaitEchoes waits until each call has received more echoes.
func (cs Calls) AwaitEchoes(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Limit, fmt.Errorf("not within %s", Limit))
	defer cancel()
	for _, c := range cs {
		if flowErr := c.AwaitMore(ctx, flowing); flowErr != nil {
			err = errors.Join(err, fmt.Errorf("call %s: %w", c.Name, flowErr))
		}
	}
	return err
}

// HangUp ends the calls at once, and returns their statistics.
func (cs Calls) HangUp() []call.Stats { return cs.End(0) }

// End is HangUp that waits up to grace for outstanding echoes.
func (cs Calls) End(grace time.Duration) []call.Stats {
	all := make([]call.Stats, len(cs))
	var ending sync.WaitGroup
	for i, c := range cs {
		ending.Go(func() { all[i] = c.End(grace) })
	}
	ending.Wait()
	return all
}
