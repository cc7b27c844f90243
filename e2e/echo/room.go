package main

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/logging"
	"github.com/pion/webrtc/v4"
)

const (
	maxOffer      = 32 << 10 // bytes; a browser's offer of one data channel has about 600
	gatherTimeout = 5 * time.Second
	maxMessage    = 64 << 10
	maxBacklog    = 1 << 20
)

// room holds the WebRTC peers. It answers SDP offers up to a maximum number of concurrent peers.
type room struct {
	api   *webrtc.API
	slots chan struct{} // one element per peer
	idle  time.Duration
	ended chan struct{} // closed to end all peers
}

// quiet returns loggers of errors.
func quiet() *logging.DefaultLoggerFactory {
	f := logging.NewDefaultLoggerFactory()
	f.DefaultLogLevel = logging.LogLevelError
	return f
}

// listenMedia opens the UDP sockets for media, and returns their address.
//
// For 0.0.0.0 there is one socket for each IPv4 address of the host, and for [::] one for each address of both
// families, except link-local addresses, which peers behind a relay cannot reach. With a single socket, all ICE
// candidates of a peer would read from one queue. A connectivity check and the response to the triggered check could
// then be attributed to different candidate pairs, and the peer would not select a pair (RFC 8445 §7.3.1.5).
func listenMedia(at string) (mux ice.UDPMux, address string, err error) {
	addr, err := net.ResolveUDPAddr("udp", at)
	if err != nil {
		return nil, "", err
	}
	logger := quiet().NewLogger("mux")
	if addr.IP != nil && !addr.IP.IsUnspecified() {
		conn, err := net.ListenUDP("udp", addr)
		if err != nil {
			return nil, "", err
		}
		return webrtc.NewICEUDPMux(logger, conn), conn.LocalAddr().String(), nil
	}
	if addr.Port == 0 {
		return nil, "", fmt.Errorf("%s: the sockets of all addresses need one port: set a port other than 0", at)
	}
	networks := []ice.NetworkType{ice.NetworkTypeUDP4, ice.NetworkTypeUDP6}
	if addr.IP.To4() != nil {
		networks = networks[:1]
	}
	mux, err = ice.NewMultiUDPMuxFromPort(addr.Port, ice.UDPMuxFromPortWithNetworks(networks...),
		ice.UDPMuxFromPortWithIPFilter(func(ip net.IP) bool { return !ip.IsLinkLocalUnicast() }),
		ice.UDPMuxFromPortWithLoopback(), ice.UDPMuxFromPortWithLogger(logger))
	return mux, addr.String(), err
}

// newRoom returns a room whose peers share the sockets of mux.
func newRoom(mux ice.UDPMux, peers int, idle time.Duration) *room {
	engine := webrtc.SettingEngine{LoggerFactory: quiet()}
	// ICE lite: clients connect through the gateway, and this peer has one known address, so it needs no connectivity
	// checks of its own (RFC 8445 §2.5).
	engine.SetLite(true)
	engine.SetICEUDPMux(mux)
	engine.SetIncludeLoopbackCandidate(true)
	engine.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4, webrtc.NetworkTypeUDP6})
	engine.SetSCTPMaxReceiveBufferSize(1 << 20)
	engine.SetSCTPMaxMessageSize(maxMessage)
	return &room{
		api:   webrtc.NewAPI(webrtc.WithSettingEngine(engine)),
		slots: make(chan struct{}, peers),
		idle:  idle,
		ended: make(chan struct{}),
	}
}

// close ends all peers.
func (r *room) close() { close(r.ended) }

// errFull reports that the maximum number of peers is reached.
var errFull = errors.New("too many peers")

// ServeHTTP answers an SDP offer with an SDP answer that holds all candidates (no trickle ICE).
func (r *room) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost || req.URL.Path != "/" {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "POST an SDP offer to /", http.StatusMethodNotAllowed)
		return
	}
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/sdp" {
		http.Error(w, "the offer must be application/sdp", http.StatusUnsupportedMediaType)
		return
	}
	offer, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxOffer))
	if err != nil {
		http.Error(w, fmt.Sprintf("read offer: at most %d bytes", maxOffer), http.StatusRequestEntityTooLarge)
		return
	}
	answer, err := r.admit(string(offer))
	switch {
	case errors.Is(err, errFull):
		w.Header().Set("Retry-After", "5")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		w.Header().Set("Content-Type", "application/sdp")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	}
}

// admit starts a peer and returns its answer. The peer occupies a slot until it ends.
func (r *room) admit(offer string) (answer string, err error) {
	select {
	case r.slots <- struct{}{}:
	default:
		return "", errFull
	}
	free := func() { <-r.slots }
	conn, err := r.api.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		free()
		return "", fmt.Errorf("make peer: %w", err)
	}
	p := &peer{conn: conn, received: make(chan struct{}, 1), gone: make(chan struct{}, 1)}
	go func() {
		defer free()
		p.live(r.idle, r.ended)
	}()
	if answer, err = p.answer(offer); err != nil {
		p.leave()
	}
	return answer, err
}

// peer is one WebRTC connection whose data channel messages are echoed.
type peer struct {
	conn     *webrtc.PeerConnection
	received chan struct{} // receives a value for each message
	gone     chan struct{} // receives a value when the connection has ended
}

// answer accepts the offer and gathers all candidates.
func (p *peer) answer(offer string) (string, error) {
	p.conn.OnDataChannel(p.echo)
	p.conn.OnConnectionStateChange(func(s webrtc.PeerConnectionState) {
		if s == webrtc.PeerConnectionStateFailed || s == webrtc.PeerConnectionStateClosed {
			p.leave()
		}
	})
	if err := p.conn.SetRemoteDescription(
		webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer},
	); err != nil {
		return "", fmt.Errorf("read offer: %w", err)
	}
	gathered := webrtc.GatheringCompletePromise(p.conn)
	answer, err := p.conn.CreateAnswer(nil)
	if err != nil {
		return "", fmt.Errorf("make answer: %w", err)
	}
	if err := p.conn.SetLocalDescription(answer); err != nil {
		return "", fmt.Errorf("make answer: %w", err)
	}
	select {
	case <-gathered:
		return p.conn.LocalDescription().SDP, nil
	case <-time.After(gatherTimeout):
		return "", errors.New("make answer: gathering took too long")
	}
}

// echo echoes each message of a channel as text or binary, as received.
func (p *peer) echo(channel *webrtc.DataChannel) {
	channel.OnMessage(func(m webrtc.DataChannelMessage) {
		ring(p.received)
		if channel.BufferedAmount() > maxBacklog { // the client sends but does not read
			return
		}
		if m.IsString {
			_ = channel.SendText(string(m.Data)) // an error means that the channel is closing
			return
		}
		_ = channel.Send(m.Data)
	})
	channel.OnClose(p.leave)
}

// leave ends the peer.
func (p *peer) leave() { ring(p.gone) }

// live returns when the connection has ended, after idle without a message, or when ended is closed.
func (p *peer) live(idle time.Duration, ended <-chan struct{}) {
	silence := time.NewTimer(idle)
	defer silence.Stop()
	defer p.conn.Close()
	for {
		select {
		case <-p.received:
			silence.Reset(idle)
		case <-p.gone:
			return
		case <-silence.C:
			return
		case <-ended:
			return
		}
	}
}

// ring sends a signal without blocking. It does nothing if a signal is pending.
func ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
