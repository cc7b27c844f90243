package icetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/logging"
	"github.com/pion/turn/v3"
	"github.com/pion/webrtc/v4"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

// relayPort is a relayAt with one port, so that all allocations, one after the other, have the same relayed address.
type relayPort struct {
	relayAt
	port string
}

func (r relayPort) AllocatePacketConn(string, int) (net.PacketConn, net.Addr, error) {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(string(r.relayAt), r.port))
	if err != nil {
		return nil, nil, err
	}
	return conn, conn.LocalAddr(), nil
}

// listenerOf runs a TURN server of a protocol at an address.
func listenerOf(t *testing.T, protocol config.Protocol, address string, relays turn.RelayAddressGenerator) Listener {
	t.Helper()
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	c := turn.ServerConfig{
		Realm: "example.org", LoggerFactory: quiet,
		AuthHandler: func(user, realm string, _ net.Addr) ([]byte, bool) {
			return turn.GenerateAuthKey(user, realm, "pw"), true
		},
	}
	at, port := net.JoinHostPort(address, "0"), 0
	if protocol == config.TURNUDP {
		conn, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		port = conn.LocalAddr().(*net.UDPAddr).Port
		c.PacketConnConfigs = []turn.PacketConnConfig{{PacketConn: conn, RelayAddressGenerator: relays}}
	} else {
		var l net.Listener
		var err error
		if protocol == config.TURNDTLS {
			l, err = dtls.ListenWithOptions(
				"udp", &net.UDPAddr{IP: net.ParseIP(address)}, dtls.WithCertificates(certificate(t)),
			)
		} else if l, err = net.Listen("tcp", at); err == nil && protocol == config.TURNTLS {
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate(t)}})
		}
		if err != nil {
			t.Fatal(err)
		}
		port = int(netip.MustParseAddrPort(l.Addr().String()).Port())
		c.ListenerConfigs = []turn.ListenerConfig{{Listener: l, RelayAddressGenerator: relays}}
	}
	s, err := turn.NewServer(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return Listener{Name: string(protocol), URI: "turn:" + address, Endpoint: turncat.Endpoint{
		Host: address, Port: port, Protocol: protocol, Insecure: true,
		Credential: credential.Credential{Username: "ada", Password: "pw"},
	}}
}

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// onePeer returns parameters of short runs, and the peer that all of them call.
func onePeer(t *testing.T, address string) (Options, *LocalPeer) {
	t.Helper()
	socket, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	peer := NewLocalPeer(socket)
	t.Cleanup(func() { peer.Close() })
	return Options{
		Peer: func() (Peer, error) { return peer, nil }, Rate: 100, Duration: 200 * time.Millisecond, MaxGap: time.Minute,
	}, peer
}

// passes fails the test unless all messages of all calls through the listeners are returned.
func passes(t *testing.T, when string, o Options, listeners ...Listener) {
	t.Helper()
	o.Listeners = func() []Listener { return listeners }
	r := Run(t.Context(), o)
	if len(r.Tests) != 2*len(listeners) {
		t.Errorf("%s: %d tests of %d listeners", when, len(r.Tests), len(listeners))
	}
	for _, got := range r.Tests {
		if got.Result != Pass || got.Sent != 20 || got.Received != got.Sent {
			t.Errorf("%s: %+v", when, got)
		}
	}
}

// TestListenersOfAGateway: the echo peer serves the calls through all listeners of a Gateway, in sequence and at the
// same time.
func TestListenersOfAGateway(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		for name, protocols := range map[string][]config.Protocol{
			"two of one transport": {config.TURNUDP, config.TURNUDP},
			"two transports":       {config.TURNUDP, config.TURNTCP},
			"all transports":       {config.TURNUDP, config.TURNTCP, config.TURNTLS, config.TURNDTLS},
		} {
			t.Run(name+" at "+address, func(t *testing.T) {
				o, _ := onePeer(t, address)
				var listeners []Listener
				for _, p := range protocols {
					listeners = append(listeners, listenerOf(t, p, address, relayAt(address)))
				}
				passes(t, "in sequence", o, listeners...)
				var calls sync.WaitGroup
				for _, l := range listeners {
					calls.Go(func() { passes(t, "at the same time", o, l) })
				}
				calls.Wait()
			})
		}
	}
}

// asymmetric makes one call to a peer and returns its result.
func asymmetric(t *testing.T, o Options, l Listener, peer Peer) Test {
	t.Helper()
	o.Peer = func() (Peer, error) { return peer, nil }
	return o.test(t.Context(), l, Asymmetric)
}

// unanswered is a peer whose answer the caller does not receive.
type unanswered struct{ Peer }

func (p unanswered) Answer(ctx context.Context, offer string) (string, error) {
	_, err := p.Peer.Answer(ctx, offer)
	return "", errors.Join(errors.New("the answer is lost"), err)
}

// garbled is a peer that receives an invalid offer.
type garbled struct{ Peer }

func (p garbled) Answer(ctx context.Context, _ string) (string, error) {
	return p.Peer.Answer(ctx, "v=0\r\n")
}

// TestCallsAfterAFailedOne: a call that failed, at any of its stages, does not affect the next call to the same peer,
// which has the same relayed address.
func TestCallsAfterAFailedOne(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		t.Run(address, func(t *testing.T) {
			o, peer := onePeer(t, address)
			spare, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
			if err != nil {
				t.Fatal(err)
			}
			port := netip.MustParseAddrPort(spare.LocalAddr().String()).Port()
			spare.Close()
			l := listenerOf(t, config.TURNUDP, address, relayPort{relayAt(address), strconv.Itoa(int(port))})
			denied := o
			denied.Denied = func(context.Context, string, netip.AddrPort) string { return "port_denied" }
			for _, c := range []struct {
				stage  string
				o      Options
				peer   Peer
				reason string // "" if the call passes
			}{
				{"an invalid offer", o, garbled{peer}, "peer: "},
				{"a lost answer", o, unanswered{peer}, "the answer is lost"},
				{"a denied peer", denied, peer, "port_denied"},
				{"a DTLS handshake that fails", o, impostor{peer}, "the DTLS handshake"},
				{"a call that passes", o, peer, ""},
			} {
				got := asymmetric(t, c.o, l, c.peer)
				if (got.Result == Pass) != (c.reason == "") || !strings.Contains(got.Reason, c.reason) {
					t.Errorf("%s: %+v, want the reason %q", c.stage, got, c.reason)
				}
				if got = asymmetric(t, o, l, peer); got.Result != Pass || got.Received != got.Sent {
					t.Errorf("after %s: %+v", c.stage, got)
				}
			}
		})
	}
}

// TestEndOfCall: the peer ends its connection when the context of the call ends. Other calls continue.
func TestEndOfCall(t *testing.T) {
	_, peer := onePeer(t, "127.0.0.1")
	dial := func(ctx context.Context) *call {
		socket, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { socket.Close() })
		c, err := open(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
		answer, err := peer.Answer(ctx, c.offer)
		if err == nil {
			err = c.connect(t.Context(), answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, cancel := context.WithCancel(t.Context())
	first, second := dial(ctx), dial(t.Context())
	echoed := make(chan struct{})
	second.channel.OnMessage(func(webrtc.DataChannelMessage) { close(echoed) })
	cancel()
	select {
	case <-first.ended:
	case <-time.After(connectTimeout):
		t.Error("the connection of the ended call is open")
	}
	if err := second.channel.SendText("hello"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-echoed:
	case <-time.After(connectTimeout):
		t.Error("the other call has ended")
	}
}
