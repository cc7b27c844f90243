package icetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pion/logging"
	"github.com/pion/webrtc/v4"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

const (
	testTimeout    = 30 * time.Second
	connectTimeout = 15 * time.Second
	// lastEchoes is how long a call waits for outstanding echoes after its last message.
	lastEchoes  = time.Second
	messageSize = 160 // bytes, as 20 ms of G.711
	maxBacklog  = 1 << 20
)

// measure makes a call through the listener and fills in the figures. Without remote it calls another client of the
// listener. The server chooses the family of the relayed address. If the peer has another family, the call requests the
// family of the peer, which is known only from its answer.
func (o Options) measure(ctx context.Context, l Listener, remote Peer, t *Test) error {
	if remote == nil {
		return o.symmetric(ctx, l, t)
	}
	relay, err := turncat.NewRelay(ctx, l.Endpoint, turncat.AnyFamily)
	if err != nil {
		return err
	}
	err = o.call(ctx, l, relay, remote, t)
	var other otherFamilyError
	if !errors.As(err, &other) {
		return err
	}
	if relay, err = turncat.NewRelay(ctx, l.Endpoint, turncat.FamilyOf(other.peer.Addr())); err != nil {
		return fmt.Errorf("peer %s: %w", other.peer, err)
	}
	return o.call(ctx, l, relay, remote, t)
}

// symmetric is measure with another client of the listener as the peer.
func (o Options) symmetric(ctx context.Context, l Listener, t *Test) error {
	relay, err := turncat.NewRelay(ctx, l.Endpoint, turncat.AnyFamily)
	if err != nil {
		return err
	}
	defer relay.Close()
	other, err := turncat.NewRelay(ctx, l.Endpoint, turncat.AnyFamily)
	if err != nil {
		return fmt.Errorf("second client: %w", err)
	}
	t.Relay, t.Peer = relay.Address().String(), other.Address().String()
	local := NewLocalPeer(other)
	defer local.Close()
	if err := errors.Join(relay.Permit(other.Address()), other.Permit(relay.Address())); err != nil {
		if errors.Is(err, turncat.ErrForbidden) {
			return errNotAllowed
		}
		return fmt.Errorf("peer %s: %w", t.Peer, err)
	}
	// Permissions are for IP addresses. The port may nevertheless be denied.
	if o.denied(ctx, l.Name, other.Address()) != "" || o.denied(ctx, l.Name, relay.Address()) != "" {
		return errNotAllowed
	}
	return o.call(ctx, l, relay, local, t)
}

// call makes a call from a relayed address, and closes the relay. It returns an otherFamilyError if the peer has no
// address of the family of the relay.
func (o Options) call(ctx context.Context, l Listener, relay *turncat.Relay, remote Peer, t *Test) error {
	defer relay.Close()
	t.Relay = relay.Address().String()
	c, err := open(ctx, relay)
	if err != nil {
		return err
	}
	defer c.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer, err := remote.Answer(ctx, c.offer)
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	peer, err := candidate(answer, turncat.FamilyOf(relay.Address().Addr()))
	if err != nil {
		return err
	}
	t.Peer = peer.String()
	if turncat.FamilyOf(peer.Addr()) != turncat.FamilyOf(relay.Address().Addr()) {
		return otherFamilyError{relay.Address(), peer}
	}
	if err := relay.Permit(peer); err != nil {
		return fmt.Errorf("peer %s: %w", peer, err)
	}
	if reason := o.denied(ctx, l.Name, peer); reason != "" {
		return fmt.Errorf("peer %s: %s", peer, reason)
	}
	if err := c.connect(ctx, answer); err != nil {
		return fmt.Errorf("peer %s: %w", peer, err)
	}
	c.send(ctx, o)
	c.figures(t)
	return nil
}

// otherFamilyError means that a peer has no address of the family of a relay.
type otherFamilyError struct{ relay, peer netip.AddrPort }

func (e otherFamilyError) Error() string {
	return fmt.Sprintf("peer %s: its address is of another family than the relayed address %s", e.peer, e.relay)
}

// RelayTo makes an allocation through which a peer can be reached, and returns the address of the peer: one of the
// family that the server chooses, or else the first.
func (l Listener) RelayTo(ctx context.Context, peer []netip.AddrPort) (*turncat.Relay, netip.AddrPort, error) {
	relay, err := turncat.NewRelay(ctx, l.Endpoint, turncat.AnyFamily)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	for _, address := range peer {
		if turncat.FamilyOf(address.Addr()) == turncat.FamilyOf(relay.Address().Addr()) {
			return relay, address, nil
		}
	}
	_ = relay.Close()
	relay, err = turncat.NewRelay(ctx, l.Endpoint, turncat.FamilyOf(peer[0].Addr()))
	return relay, peer[0], err
}

// candidate returns the address of a UDP candidate of an SDP, preferably of a family. A loopback address is returned
// only if there is no other: a peer in a pod may offer both, and the Gateway cannot reach the loopback address of
// another pod.
func candidate(sdp string, family turncat.Family) (found netip.AddrPort, err error) {
	best := -1
	for line := range strings.Lines(sdp) {
		// candidate:FOUNDATION COMPONENT TRANSPORT PRIORITY ADDRESS PORT typ TYPE (RFC 8839 §5.1)
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "a=candidate:")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 8 || !strings.EqualFold(fields[2], "udp") {
			continue
		}
		addr, err := netip.ParseAddrPort(net.JoinHostPort(fields[4], fields[5]))
		if err != nil {
			continue
		}
		rank := 0
		if !addr.Addr().IsLoopback() {
			rank = 2
		}
		if turncat.FamilyOf(addr.Addr()) == family {
			rank++
		}
		if rank > best {
			best, found = rank, addr
		}
	}
	if !found.IsValid() {
		return found, errors.New("the SDP answer of the peer contains no UDP candidate with an IP address")
	}
	return found, nil
}

// newAPI returns a constructor of PeerConnections whose only candidate is the address of conn. It is called once for a
// socket, because it starts the only reader of the socket, which distributes datagrams to the PeerConnections.
func newAPI(conn net.PacketConn) *webrtc.API {
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	engine := webrtc.SettingEngine{LoggerFactory: quiet}
	engine.SetICEUDPMux(webrtc.NewICEUDPMux(quiet.NewLogger("mux"), conn))
	engine.SetIncludeLoopbackCandidate(true)
	engine.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4, webrtc.NetworkTypeUDP6})
	engine.SetICETimeouts(5*time.Second, connectTimeout, time.Second)
	return webrtc.NewAPI(webrtc.WithSettingEngine(engine))
}

// localDescription sets the description and returns it with all candidates.
func localDescription(ctx context.Context, c *webrtc.PeerConnection, d webrtc.SessionDescription) (string, error) {
	gathered := webrtc.GatheringCompletePromise(c)
	if err := c.SetLocalDescription(d); err != nil {
		return "", err
	}
	select {
	case <-gathered:
		return c.LocalDescription().SDP, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// call is the side of a call that sends and counts.
type call struct {
	offer   string
	conn    *webrtc.PeerConnection
	channel *webrtc.DataChannel
	opened  chan struct{}
	ended   chan error // why the connection has failed or was closed

	mu      sync.Mutex
	sent    []time.Time // by number of the message
	rtts    []time.Duration
	started time.Time
	until   time.Time     // when the last message was sent
	last    time.Time     // of the last echo
	gap     time.Duration // the longest time without an echo before last
}

func open(ctx context.Context, socket net.PacketConn) (*call, error) {
	conn, err := newAPI(socket).NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return nil, errors.New("make PeerConnection: the WebRTC library of this program refuses its settings")
	}
	c := &call{conn: conn, opened: make(chan struct{}), ended: make(chan error, 1)}
	unordered, once := false, uint16(0)
	c.channel, err = conn.CreateDataChannel(
		"icetest",
		&webrtc.DataChannelInit{Ordered: &unordered, MaxRetransmits: &once},
	)
	if err == nil {
		c.channel.OnOpen(func() { close(c.opened) })
		c.channel.OnMessage(c.receive)
		conn.OnConnectionStateChange(func(s webrtc.PeerConnectionState) {
			if s == webrtc.PeerConnectionStateFailed || s == webrtc.PeerConnectionStateClosed {
				select {
				case c.ended <- c.incomplete():
				default:
				}
			}
		})
		var offer webrtc.SessionDescription
		if offer, err = conn.CreateOffer(nil); err == nil {
			c.offer, err = localDescription(ctx, conn, offer)
		}
	}
	if err != nil {
		c.close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("make SDP offer: %w", context.Cause(ctx))
		}
		return nil, errors.New("make SDP offer: the WebRTC library of this program has no candidate: the allocation has ended")
	}
	return c, nil
}

// connect waits until the data channel is open.
func (c *call) connect(ctx context.Context, answer string) error {
	err := c.conn.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: answer})
	if err != nil {
		return errors.New("the SDP answer is not valid: see the log of the peer")
	}
	timer := time.NewTimer(connectTimeout)
	defer timer.Stop()
	select {
	case <-c.opened:
		return nil
	case err := <-c.ended:
		return fmt.Errorf("no connection: %w", err)
	case <-timer.C:
		return fmt.Errorf("no connection after %s: %w", connectTimeout, c.incomplete())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// incomplete returns an error that names the current stage of the connection.
func (c *call) incomplete() error {
	return incomplete(c.conn.ICEConnectionState(), c.conn.SCTP().Transport().State())
}

// incomplete distinguishes a path that loses packets from a peer that does not complete the call.
func incomplete(ice webrtc.ICEConnectionState, dtls webrtc.DTLSTransportState) error {
	switch ice {
	case webrtc.ICEConnectionStateConnected, webrtc.ICEConnectionStateCompleted,
		webrtc.ICEConnectionStateClosed: // an alert of the DTLS handshake closes the connection
	default:
		return fmt.Errorf("ICE is %s: the peer does not answer through the gateway: a firewall is between the pods and the peer, or "+
			"the peer is not there; next: stunnerctl why GATEWAY --peer PEER", ice)
	}
	if dtls != webrtc.DTLSTransportStateConnected {
		return fmt.Errorf("ICE is %s, DTLS is %s: the peer answers connectivity checks through the gateway, but does not "+
			"complete the DTLS handshake: see the log of the peer", ice, dtls)
	}
	return fmt.Errorf("ICE is %s, DTLS is connected: the peer does not open the data channel: see the log of the peer", ice)
}

// send sends messages at the rate, and waits for the last echoes.
func (c *call) send(ctx context.Context, o Options) {
	tick := time.NewTicker(time.Second / time.Duration(o.Rate))
	defer tick.Stop()
	buf := make([]byte, messageSize)
	c.mu.Lock()
	c.started = time.Now()
	c.last = c.started
	c.mu.Unlock()
	for i := range max(1, int(o.Duration.Seconds()*float64(o.Rate))) {
		binary.BigEndian.PutUint64(buf, uint64(i))
		c.mu.Lock()
		c.until = time.Now()
		c.sent = append(c.sent, c.until)
		c.mu.Unlock()
		_ = c.channel.Send(buf) // a message that is not sent counts as lost
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	for deadline := time.Now().Add(lastEchoes); time.Now().Before(deadline) && ctx.Err() == nil; {
		c.mu.Lock()
		complete := len(c.rtts) == len(c.sent)
		c.mu.Unlock()
		if complete {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// receive counts an echo. The time of a message is cleared, so that a repeated echo is not counted.
func (c *call) receive(m webrtc.DataChannelMessage) {
	now := time.Now()
	if len(m.Data) != messageSize {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := binary.BigEndian.Uint64(m.Data)
	if i >= uint64(len(c.sent)) || c.sent[i].IsZero() {
		return
	}
	c.rtts = append(c.rtts, now.Sub(c.sent[i]))
	c.gap = max(c.gap, now.Sub(c.last))
	c.sent[i], c.last = time.Time{}, now
}

func (c *call) figures(t *Test) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Sent, t.Received = len(c.sent), len(c.rtts)
	t.Loss = float64(t.Sent-t.Received) / float64(t.Sent)
	t.Gap = milliseconds(max(c.gap, c.until.Sub(c.last)))
	if t.Received == 0 {
		return
	}
	if d := c.last.Sub(c.started).Seconds(); d > 0 {
		t.Rate = float64(t.Received) / d
	}
	t.RTT = percentiles(c.rtts)
}

// percentiles sorts the times.
func percentiles(d []time.Duration) RTT {
	slices.Sort(d)
	at := func(percent int) float64 { return milliseconds(d[min(len(d)-1, len(d)*percent/100)]) }
	var sum time.Duration
	for _, x := range d {
		sum += x
	}
	return RTT{Mean: milliseconds(sum / time.Duration(len(d))), Median: at(50), P95: at(95), P99: at(99)}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (c *call) close() { c.conn.Close() }
