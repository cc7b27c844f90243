package turncat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pion/logging"
	"github.com/pion/stun/v2"
	"github.com/pion/turn/v3"
)

const (
	// probeInterval is the time between two CreatePermission requests. They detect the loss of the allocation, measure
	// the RTT, and replace a stale nonce, which pion/turn does not do when it binds a channel.
	probeInterval = 15 * time.Second
	// bindTimeout bounds the wait for the answer to ChannelBind.
	bindTimeout = 8 * time.Second
	// staleNonces is the number of times that a request with a stale nonce is repeated.
	staleNonces = 3
)

// allocation is an allocation with a permission and a channel for one peer, or for any peers if receive is nil.
//
// The client of pion/turn makes the requests. Datagrams from the peer do not pass through it, because it drops them
// silently when its queue of 1,024 is full, and because it does not report the loss of the allocation.
type allocation struct {
	link   *link
	at     string // the transport address of the server
	client *turn.Client
	relay  net.PacketConn
	peer   *net.UDPAddr
	stats  *Stats

	allocated atomic.Bool   // allocate has succeeded
	bound     chan struct{} // closed when ChannelBind was answered
	bindOnce  sync.Once
	done      chan struct{} // closed when the allocation is lost
	lost      sync.Once
	closing   sync.Once
	err       error // the reason; written before done is closed
	stop      context.CancelFunc
	workers   sync.WaitGroup
}

// abortTimeout is how long allocate waits for the server after its context has ended. The server may have made the
// allocation already, and only an answer allows the client to delete it.
const abortTimeout = 2 * time.Second

// allocate connects to the server and makes an allocation with a permission for the peer. Without receive the
// permission and the probes are left out, and the client library uses the socket of the allocation. The library takes
// no context, so the connection is closed abortTimeout after the end of ctx.
func allocate(
	ctx context.Context,
	e Endpoint,
	family Family,
	peer netip.AddrPort,
	receive func([]byte),
	stats *Stats,
) (*allocation, error) {
	l, err := dial(ctx, e)
	if err != nil {
		return nil, err
	}
	l.addressFamily = family
	a := &allocation{
		link:  l,
		at:    e.at(),
		peer:  net.UDPAddrFromAddrPort(peer),
		stats: stats,
		bound: make(chan struct{}),
		done:  make(chan struct{}),
	}
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	a.client, err = turn.NewClient(&turn.ClientConfig{
		// The link ignores the address. The library resolves names and IPv6 addresses to IPv4 only.
		TURNServerAddr: "127.0.0.1:1",
		Username:       e.Credential.Username, Password: string(e.Credential.Password),
		Conn: l, LoggerFactory: quiet,
	})
	if err != nil {
		return nil, errors.Join(errors.New("set up TURN client"), l.Close()) // cannot happen
	}
	returned := make(chan struct{})
	defer close(returned)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-returned:
		case <-time.After(abortTimeout):
			l.Close()
		}
	})()
	a.workers.Go(func() { a.read(receive) })
	begun := time.Now()
	if a.relay, err = a.client.Allocate(); err != nil {
		err = a.explain("Allocate", begun)
	} else if receive != nil {
		if _, err = a.probe(); err != nil {
			err = fmt.Errorf("peer %s: %w", peer, err)
		}
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("request at %s: %w", a.at, context.Cause(ctx))
	}
	if err != nil {
		a.close()
		return nil, err
	}
	a.allocated.Store(true)
	var keeping context.Context
	keeping, a.stop = context.WithCancel(context.Background())
	if receive != nil {
		a.workers.Go(func() { a.keep(keeping) })
	}
	return a, nil
}

// read handles messages from the server until the connection ends.
func (a *allocation) read(receive func([]byte)) {
	buf := make([]byte, maxMessage+3)
	begun := time.Now()
	for {
		n, _, err := a.link.ReadFrom(buf)
		switch {
		// A connected UDP socket reports an ICMP error once, and can be used afterwards.
		case errors.Is(err, syscall.ECONNREFUSED) && a.allocated.Load():
			continue
		case err != nil:
			a.fail(inWords(err, a.at, begun))
			a.client.Close() // ends the running transactions
			return
		}
		a.handle(buf[:n], receive)
	}
}

// handle passes data of the peer to receive, and other messages to the client library.
func (a *allocation) handle(p []byte, receive func([]byte)) {
	if receive == nil {
		a.noteRefusal(p)
		_, _ = a.client.HandleInbound(p, a.link.RemoteAddr()) // an error affects only one message
		return
	}
	if data, ok := channelData(p); ok {
		receive(data) // an allocation has one peer, so each channel is bound to it
		return
	}
	m := a.noteRefusal(p)
	if m == nil {
		return
	}
	if m.Type == stun.NewType(stun.MethodData, stun.ClassIndication) {
		var from stun.XORMappedAddress
		if data, err := m.Get(stun.AttrData); err == nil && from.GetFromAs(m, stun.AttrXORPeerAddress) == nil &&
			from.IP.Equal(a.peer.IP) && from.Port == a.peer.Port {
			receive(data)
		}
		return
	}
	if m.Type.Method == stun.MethodChannelBind && m.Type.Class != stun.ClassRequest {
		// The library reads the answer after this function returns. A datagram that is sent before that is a Send
		// indication, which the server also relays.
		defer a.bindOnce.Do(func() { close(a.bound) })
		// The library only logs that the server refuses the channel. A permission is for an address, and a channel for a
		// port, so that a route may allow the first and not the second.
		var code stun.ErrorCodeAttribute
		if code.GetFrom(m) == nil && code.Code == stun.CodeForbidden {
			a.fail(fmt.Errorf("bind channel to peer %s: %w", a.peer, ErrForbidden))
		}
	}
	_, _ = a.client.HandleInbound(p, a.link.RemoteAddr()) // an error affects only one message
}

// noteRefusal decodes a STUN message, and keeps the code of an error response for explain. It returns nil for other
// messages.
func (a *allocation) noteRefusal(p []byte) *stun.Message {
	m := &stun.Message{Raw: p}
	if !stun.IsMessage(p) || m.Decode() != nil {
		return nil
	}
	if m.Type.Class == stun.ClassErrorResponse || m.Type.Class == stun.ClassSuccessResponse {
		a.link.answered.Store(true)
	}
	var code stun.ErrorCodeAttribute
	if m.Type.Class == stun.ClassErrorResponse && code.GetFrom(m) == nil {
		a.link.refusal.Store(int32(code.Code))
	}
	return m
}

// channelData returns the data of a ChannelData message.
func channelData(p []byte) (data []byte, ok bool) {
	if len(p) < 4 || p[0]>>6 != 1 {
		return nil, false
	}
	n := int(p[2])<<8 | int(p[3])
	if n > len(p)-4 {
		return nil, false
	}
	return p[4 : 4+n], true
}

// send sends a datagram to the peer. The first call also binds the channel.
func (a *allocation) send(p []byte) error {
	begun := time.Now()
	if _, err := a.relay.WriteTo(p, a.peer); err != nil {
		return a.explain("CreatePermission", begun)
	}
	return nil
}

// bind waits until the answer to ChannelBind has arrived. After that, all datagrams to the peer take the same path.
// Before it they are Send indications, which a server may handle more slowly than ChannelData.
func (a *allocation) bind() {
	select {
	case <-a.bound:
	case <-a.done:
	case <-time.After(bindTimeout):
	}
}

// probe sends a CreatePermission request, which renews the permission, and waits for the answer. The server has then
// read everything that was sent before.
func (a *allocation) probe() (time.Duration, error) {
	begun := time.Now()
	if err := a.permit(a.peer); err != nil {
		return 0, err
	}
	rtt := time.Since(begun)
	a.stats.rtt(rtt)
	return rtt, nil
}

// permit creates a permission, with a new nonce if the nonce is stale.
func (a *allocation) permit(peer net.Addr) error {
	for range staleNonces {
		begun := time.Now()
		err := a.client.CreatePermission(peer)
		if err == nil {
			return nil
		}
		if a.link.refusal.Load() != int32(stun.CodeStaleNonce) {
			return a.explain("CreatePermission", begun)
		}
	}
	return fmt.Errorf("CreatePermission at %s: the server repeats error 438 (Stale Nonce)", a.at)
}

// keep probes until ctx ends or the allocation is lost.
func (a *allocation) keep(ctx context.Context) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.done:
			return
		case <-tick.C:
			if _, err := a.probe(); err != nil {
				a.fail(err)
			}
		}
	}
}

// fail marks the allocation as lost.
func (a *allocation) fail(err error) {
	a.lost.Do(func() {
		a.err = err
		close(a.done)
	})
}

// close deletes the allocation (Refresh with lifetime 0) and ends the connection. Concurrent calls wait for the first
// call: a reader that closes the socket on errors, as the UDP mux of pion/ice does, would otherwise end the connection
// before the request is sent.
func (a *allocation) close() {
	a.closing.Do(func() {
		a.fail(net.ErrClosed)
		if a.stop != nil {
			a.stop()
		}
		if a.relay != nil {
			a.relay.Close()
		}
		a.client.Close()
		a.link.Close()
		a.workers.Wait()
	})
}
