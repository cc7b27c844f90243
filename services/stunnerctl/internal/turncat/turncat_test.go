package turncat

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestParseTarget(t *testing.T) {
	const remote = "turn.example.org"
	for in, want := range map[string]Target{
		"turn://ada:p%40ss@192.0.2.1:3478": {URI: config.URI{
			Scheme: "turn", Host: "192.0.2.1", Port: 3478, Transport: "udp", Username: "ada", Password: "p@ss"}},
		"turn://ada:pw@[2001:db8::1]?transport=dtls": {URI: config.URI{
			Scheme: "turns", Host: "2001:db8::1", Port: 443, Transport: "udp", Username: "ada", Password: "pw"}},
		"turns://ada:pw@" + remote:            {URI: config.URI{Scheme: "turns", Host: remote, Port: 443, Transport: "tcp", Username: "ada", Password: "pw"}},
		"turn://secret:key@" + remote:         {URI: config.URI{Scheme: "turn", Host: remote, Port: 3478, Transport: "udp"}, SharedSecret: "key"},
		"turn://key@" + remote:                {URI: config.URI{Scheme: "turn", Host: remote, Port: 3478, Transport: "udp"}, SharedSecret: "key"},
		"turn://" + remote + "?transport=tcp": {URI: config.URI{Scheme: "turn", Host: remote, Port: 3478, Transport: "tcp"}},
		"k8s://media/front-door:udp":          {Namespace: "media", Gateway: "front-door", Listener: "udp"},
		"k8s:///front.door:udp.with.dots":     {Gateway: "front.door", Listener: "udp.with.dots"},
	} {
		if got, err := ParseTarget(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "-", "turn:", "turn://", "http://ada:hunter2@x", "turn://ada:hunter2@", "turn://ada:hunter2@x:0",
		"turn://ada:hunter2@x?transport=sctp", "turn://:hunter2@x", "k8s://", "k8s://media", "k8s://media/", "k8s://media/g",
		"k8s://media/g:", "k8s://media/../x:udp", "k8s://Media/g:udp", "k8s://media/g:udp?x", "k8s://" + strings.Repeat("a", 64) + "/g:l",
	} {
		if got, err := ParseTarget(in); err == nil {
			t.Errorf("%q is accepted: %+v", in, got)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error contains the password: %v", in, err)
		}
	}
}

// FuzzParseTarget: for any input, the parser returns a target with an address, or an error that does not contain the
// input.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{
		"turn://ada:pw@[::1]:1?transport=tls", "turn://secret:key@x", "k8s:///g:l", "turn://a@b@c", "turn://%zz@x", "turns:x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTarget(s)
		if err != nil {
			if _, secret, ok := strings.Cut(s, "@"); ok && len(secret) > 40 && strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains the input: %v", err)
			}
			return
		}
		gateway := got.Gateway != "" && got.Listener != ""
		if gateway == (got.URI.Host != "") ||
			!gateway && (got.URI.Port < 1 || got.URI.Port > 65535 || got.URI.Protocol() == "") {
			t.Errorf("%q is %+v", s, got)
		}
		if got.SharedSecret != "" && got.URI.Password != "" {
			t.Errorf("%q has a shared secret and a password", s)
		}
	})
}

func TestParseListenerAndPeer(t *testing.T) {
	for in, want := range map[string]Listener{
		"udp://127.0.0.1:5000": {"udp", "127.0.0.1:5000"}, "tcp://[::1]:0": {"tcp", "[::1]:0"}, "udp://:9": {"udp", ":9"},
		"unix:///tmp/s": {"unix", "/tmp/s"}, "-": {Network: stdin}, "file://stdin": {Network: stdin},
	} {
		if got, err := ParseListener(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "udp://", "udp://x", "udp://x:65536", "tcp://::1:5", "sctp://x:1", "unix://", "file:///etc/passwd"} {
		if got, err := ParseListener(in); err == nil {
			t.Errorf("%q is accepted: %+v", in, got)
		}
	}
	for in, want := range map[string]string{
		"udp://127.0.0.1:9": "127.0.0.1:9", "udp://[2001:db8::1]:9": "[2001:db8::1]:9", "udp://[::ffff:192.0.2.1]:9": "192.0.2.1:9",
	} {
		if got, err := ParsePeer(in); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "tcp://127.0.0.1:9", "127.0.0.1:9", "udp://:9", "udp://127.0.0.1", "udp://127.0.0.1:0", "udp://::1:9"} {
		if got, err := ParsePeer(in); err == nil {
			t.Errorf("%q is accepted: %s", in, got)
		}
	}
}

// TestStreamFraming: messages are returned one by one as soon as they are complete, also ChannelData of one byte.
func TestStreamFraming(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := &link{Conn: ours, stream: bufio.NewReader(ours)}
	defer l.Close()
	binding := stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw
	short := []byte{0x40, 0, 0, 1, 'x', 0, 0, 0}
	long := append([]byte{0x40, 1, 0xff, 0xff}, make([]byte, 65536)...)
	go func() {
		for _, p := range [][]byte{short, binding[:7], binding[7:], append(bytes.Clone(short), long...), {0x80, 0, 0, 0}} {
			_, _ = theirs.Write(p)
		}
	}()
	buf := make([]byte, maxMessage+3)
	for i, want := range [][]byte{short, binding, short, long} {
		_ = l.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, _, err := l.ReadFrom(buf)
		if err != nil || !bytes.Equal(buf[:n], want) {
			t.Fatalf("message %d: %d bytes, %v; want %d bytes", i, n, err, len(want))
		}
	}
	if _, _, err := l.ReadFrom(buf); !errors.Is(err, errFrame) {
		t.Errorf("a message of neither kind: %v", err)
	}
	if data, ok := channelData(short); !ok || string(data) != "x" {
		t.Errorf("%q", data)
	}
	for _, p := range [][]byte{nil, {0x40, 0, 0}, {0x40, 0, 0, 2, 'x'}, binding} {
		if _, ok := channelData(p); ok {
			t.Errorf("%x is ChannelData", p)
		}
	}
}

// TestRequestedAddressFamily: an Allocate request for a peer with an IPv6 address requests an IPv6 relay (RFC 8656
// §7.1), and its MESSAGE-INTEGRITY and FINGERPRINT are valid.
func TestRequestedAddressFamily(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l := &link{Conn: ours, addressFamily: IPv6, password: "pw"}
	defer l.Close()
	integrity := stun.NewLongTermIntegrity("ada", "example.org", "pw")
	allocate := stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest),
		stun.NewUsername("ada"), stun.NewRealm("example.org"), stun.NewNonce("n"), integrity, stun.Fingerprint)
	refresh := stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodRefresh, stun.ClassRequest), stun.Fingerprint)
	go func() {
		for _, m := range []*stun.Message{allocate, refresh} {
			if n, err := l.WriteTo(m.Raw, nil); err != nil || n != len(m.Raw) {
				t.Errorf("%d, %v", n, err)
			}
		}
		l.Close()
	}()
	buf := make([]byte, 2048)
	n, err := theirs.Read(buf)
	got := &stun.Message{Raw: bytes.Clone(buf[:n])}
	if err != nil || got.Decode() != nil || got.TransactionID != allocate.TransactionID {
		t.Fatalf("%v %v", got, err)
	}
	family, err := got.Get(stun.AttrRequestedAddressFamily)
	if err != nil || !bytes.Equal(family, []byte{2, 0, 0, 0}) {
		t.Errorf("family %x, %v", family, err)
	}
	if err := errors.Join(integrity.Check(got), stun.Fingerprint.Check(got)); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(theirs); err != nil || !bytes.Equal(rest, refresh.Raw) {
		t.Errorf("another request is changed: %x, %v", rest, err)
	}
}

// TestStats: the table counts round trips of a bounded number of probes.
func TestStats(t *testing.T) {
	var s Stats
	for i := range 2*maxRTTs + 1 {
		s.rtt(time.Duration(i%10) * time.Millisecond)
	}
	if median, most := s.RTT(); len(s.rtts) > maxRTTs || median < 4*time.Millisecond || most != 9*time.Millisecond {
		t.Errorf("%d round trips, median %s, max %s", len(s.rtts), median, most)
	}
}
