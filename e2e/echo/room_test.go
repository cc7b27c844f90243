package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/webrtc/v4"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// TestEcho: a data channel message is echoed, and the answer has candidates on the media port only.
func TestEcho(t *testing.T) {
	server, _, media := signalling(t, "127.0.0.1:0", 4)
	answer := call(t, server.URL, "127.0.0.1")
	if n := strings.Count(answer, "a=candidate:"); n == 0 ||
		n != strings.Count(answer, " "+strconv.Itoa(media)+" typ host") {
		t.Errorf("answer has candidates on other ports than %d:\n%s", media, answer)
	}
}

// TestBothFamilies: with media at [::], an answer has a candidate for each address of the host, except for link-local
// addresses. pion never offers ::1.
func TestBothFamilies(t *testing.T) {
	server, _, _ := signalling(t, fmt.Sprintf("[::]:%d", harnesstest.Port(t)), 256)
	answer := call(t, server.URL, "127.0.0.1")
	addresses, err := net.InterfaceAddrs()
	harnesstest.NoError(t, err)
	for _, a := range addresses {
		ip := a.(*net.IPNet).IP
		want := !ip.IsLinkLocalUnicast() && !ip.Equal(net.IPv6loopback)
		if strings.Contains(answer, " "+ip.String()+" ") != want {
			t.Errorf("a candidate %s: want %t in\n%s", ip, want, answer)
		}
	}
}

// TestAllAddresses: with media at all addresses of a host with several, calls to each address are echoed.
func TestAllAddresses(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	harnesstest.NoError(t, netns.AddAddress(netip.MustParsePrefix("198.51.100.1/32"), "lo"))
	const calls = 16 // calls to each address; a shared socket makes only some of them fail
	server, _, _ := signalling(t, fmt.Sprintf("0.0.0.0:%d", harnesstest.Port(t)), 256)
	addresses := map[string]bool{}
	for line := range strings.Lines(call(t, server.URL, "127.0.0.1")) {
		if strings.HasPrefix(line, "a=candidate:") {
			addresses[strings.Fields(line)[4]] = true
		}
	}
	if len(addresses) < 2 {
		t.Fatalf("candidates at %v only", addresses)
	}
	for address := range addresses {
		for range calls {
			t.Run(address, func(t *testing.T) {
				t.Parallel()
				call(t, server.URL, address)
			})
		}
	}
}

// TestPortOfAllAddresses: a media address without a port is refused if it requires several sockets.
func TestPortOfAllAddresses(t *testing.T) {
	if mux, _, err := listenMedia("0.0.0.0:0"); err == nil || !strings.Contains(err.Error(), "port other than 0") {
		t.Errorf("listen: %v, %v", mux, err)
	}
}

// TestRefusals: an invalid offer, an oversized offer, and an offer beyond the limit of peers are refused with the
// matching status code.
func TestRefusals(t *testing.T) {
	server, r, _ := signalling(t, "127.0.0.1:0", 1)
	for _, c := range []struct {
		name, kind, body string
		want             int
	}{
		{"no sdp", "application/sdp", "hello", http.StatusBadRequest},
		{"wrong type", "text/plain", "v=0", http.StatusUnsupportedMediaType},
		{"too large", "application/sdp", strings.Repeat("x", maxOffer+1), http.StatusRequestEntityTooLarge},
	} {
		if got, body := post(t, server.URL, c.kind, c.body); got != c.want {
			t.Errorf("%s: status %d, want %d: %s", c.name, got, c.want, body)
		}
	}
	client := caller(t)
	if _, err := client.CreateDataChannel("echo", nil); err != nil {
		t.Fatal(err)
	}
	sdp := offer(t, client)
	awaitSlot(t, r) // the peer of the first refused offer may still occupy the slot
	if got, body := post(t, server.URL, "application/sdp", sdp); got != http.StatusCreated {
		t.Fatalf("first peer with a limit of one: status %d: %s", got, body)
	}
	if got, body := post(t, server.URL, "application/sdp", sdp); got != http.StatusServiceUnavailable {
		t.Errorf("second peer with a limit of one: status %d: %s", got, body)
	}
}

// TestIdlePeerEnds: a peer without messages frees its slot after the idle time.
func TestIdlePeerEnds(t *testing.T) {
	r := newRoom(media(t, "127.0.0.1:0"), 1, time.Second) // longer than an answer takes
	t.Cleanup(r.close)
	client := caller(t)
	if _, err := client.CreateDataChannel("echo", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admit(offer(t, client)); err != nil {
		t.Fatal(err)
	}
	awaitSlot(t, r)
}

// TestMirror: a datagram is echoed unchanged.
func TestMirror(t *testing.T) {
	peer := listen(t)
	go mirror(peer)
	conn, err := net.Dial("udp4", peer.LocalAddr().String())
	harnesstest.NoError(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	harnesstest.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "ping" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
}

// signalling serves a room over HTTP, and returns the port of its media.
func signalling(t *testing.T, address string, peers int) (server *httptest.Server, r *room, port int) {
	t.Helper()
	mux := media(t, address)
	r = newRoom(mux, peers, time.Minute)
	t.Cleanup(r.close)
	server = httptest.NewServer(r)
	t.Cleanup(server.Close)
	return server, r, mux.GetListenAddresses()[0].(*net.UDPAddr).Port
}

func media(t *testing.T, address string) ice.UDPMux {
	t.Helper()
	mux, _, err := listenMedia(address)
	harnesstest.NoError(t, err)
	t.Cleanup(func() { mux.Close() })
	return mux
}

func listen(t *testing.T) net.PacketConn {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	harnesstest.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// call waits for the echo of a message, and returns the answer. It uses the candidate of the answer at one address
// only, like a client of a relay that has a permission for this address only.
func call(t *testing.T, url, address string) (answer string) {
	t.Helper()
	client := caller(t)
	channel, err := client.CreateDataChannel("echo", nil)
	harnesstest.NoError(t, err)
	back := make(chan string, 1)
	channel.OnOpen(func() { _ = channel.SendText("hello") })
	channel.OnMessage(func(m webrtc.DataChannelMessage) { back <- string(m.Data) })
	status, answer := post(t, url, "application/sdp", offer(t, client))
	if status != http.StatusCreated {
		t.Fatalf("offer: status %d: %s", status, answer)
	}
	var one strings.Builder
	for line := range strings.Lines(answer) {
		if !strings.HasPrefix(line, "a=candidate:") || strings.Contains(line, " "+address+" ") {
			one.WriteString(line)
		}
	}
	if err := client.SetRemoteDescription(
		webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: one.String()},
	); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-back:
		if got != "hello" {
			t.Errorf("echo: got %q", got)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("no echo; ICE is %s, DTLS is %s", client.ICEConnectionState(), client.SCTP().Transport().State())
	}
	return answer
}

// distant delays sent datagrams.
type distant struct{ net.PacketConn }

func (c distant) WriteTo(p []byte, to net.Addr) (int, error) {
	sent := slices.Clone(p)
	time.AfterFunc(20*time.Millisecond, func() { _, _ = c.PacketConn.WriteTo(sent, to) }) // an error counts as a loss
	return len(p), nil
}

// caller returns a peer with one candidate, at the loopback address. Because of the delay, the echo peer has handled a
// packet before the next packet arrives.
func caller(t *testing.T) *webrtc.PeerConnection {
	t.Helper()
	engine := webrtc.SettingEngine{}
	engine.SetICEUDPMux(webrtc.NewICEUDPMux(nil, distant{listen(t)}))
	engine.SetIncludeLoopbackCandidate(true)
	client, err := webrtc.NewAPI(webrtc.WithSettingEngine(engine)).NewPeerConnection(webrtc.Configuration{})
	harnesstest.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func offer(t *testing.T, client *webrtc.PeerConnection) string {
	t.Helper()
	description, err := client.CreateOffer(nil)
	harnesstest.NoError(t, err)
	gathered := webrtc.GatheringCompletePromise(client)
	harnesstest.NoError(t, client.SetLocalDescription(description))
	<-gathered
	return client.LocalDescription().SDP
}

func post(t *testing.T, url, kind, body string) (int, string) {
	t.Helper()
	res, err := http.Post(url, kind, strings.NewReader(body))
	harnesstest.NoError(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	harnesstest.NoError(t, err)
	return res.StatusCode, string(answer)
}

// awaitSlot waits until a slot is free.
func awaitSlot(t *testing.T, r *room) {
	t.Helper()
	select {
	case r.slots <- struct{}{}:
		<-r.slots
	case <-time.After(10 * time.Second):
		t.Fatal("no free slot before the deadline")
	}
}
