package icetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// LocalPeer is a WebRTC peer in this process that echoes messages. All its connections use one socket.
type LocalPeer struct {
	api    *webrtc.API
	socket net.PacketConn
}

// NewLocalPeer returns a peer whose only candidate is the address of socket. Close closes the socket.
func NewLocalPeer(socket net.PacketConn) *LocalPeer { return &LocalPeer{newAPI(socket), socket} }

// errOffer is the error of an offer that the WebRTC library does not accept. Its own texts name no remedy.
var errOffer = errors.New("the echo peer in this process does not accept the SDP offer: use --echo-address with another address " +
	"of this host")

// Answer accepts an offer. The connection ends with ctx, because the peer is not notified when a call fails. The next
// call may come from the same relayed address, and the socket assigns datagrams to connections by this address.
func (p *LocalPeer) Answer(ctx context.Context, offer string) (string, error) {
	conn, err := p.api.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return "", errOffer
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	conn.OnDataChannel(func(d *webrtc.DataChannel) {
		d.OnMessage(func(m webrtc.DataChannelMessage) {
			if d.BufferedAmount() < maxBacklog {
				_ = d.Send(m.Data) // a lost echo counts as lost
			}
		})
	})
	err = conn.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer})
	if err != nil {
		return "", errOffer
	}
	answer, err := conn.CreateAnswer(nil)
	if err != nil {
		return "", errOffer
	}
	return localDescription(ctx, conn, answer)
}

// Close closes the socket.
func (p *LocalPeer) Close() error { return p.socket.Close() }

// ErrNoAddress means that no route allows a free address of this host.
var ErrNoAddress = errors.New("no route allows a peer at a free address of this host: use --echo-url or --echo-address")

// maxPorts bounds the ports of an endpoint that are tried.
const maxPorts = 64

// ListenAllowed opens a UDP socket at an address of this host that the endpoints allow.
func ListenAllowed(endpoints []string, local []netip.Addr) (net.PacketConn, error) {
	for _, text := range endpoints {
		e, err := config.ParseEndpoint(text)
		if err != nil {
			continue // the endpoint is a host name
		}
		for _, a := range local {
			if a.IsLinkLocalUnicast() || !e.Prefix.Contains(a) { // a link-local address needs a zone
				continue
			}
			if e.Ports == config.AllPorts {
				if conn, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 0).String()); err == nil {
					return conn, nil
				}
				continue
			}
			first := max(int(e.Ports.First), config.LowestRelayPort) // lower ports need privileges
			for port := first; port <= int(e.Ports.Last) && port < first+maxPorts; port++ {
				if conn, err := net.ListenPacket("udp", netip.AddrPortFrom(a, uint16(port)).String()); err == nil {
					return conn, nil
				}
			}
		}
	}
	return nil, ErrNoAddress
}

// HTTPPeer is an echo peer that answers offers over HTTP: POST with the content type application/sdp, as e2e/echo and
// the path /demo/echo of the auth service do.
type HTTPPeer struct {
	URL    string
	Token  string
	Client *http.Client
}

const (
	maxSDP      = 64 << 10
	postTimeout = 15 * time.Second
)

// Answer posts the offer.
func (p HTTPPeer) Answer(ctx context.Context, offer string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, strings.NewReader(offer))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/sdp")
	if p.Token != "" {
		req.Header.Set("Authorization", "Bearer "+p.Token)
	}
	res, err := p.Client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxSDP))
	if err != nil {
		return "", err
	}
	if res.StatusCode/100 != 2 {
		return "", fmt.Errorf("%s answers %s", req.URL.Redacted(), res.Status)
	}
	return string(body), nil
}

// Close implements Peer.
func (HTTPPeer) Close() error { return nil }
