package icetest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"
	"github.com/pion/webrtc/v4"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// server runs a TURN server over UDP that relays to the peers for which allowed returns true.
func server(t *testing.T, allowed func(net.IP) bool) Listener {
	return serverAt(t, "127.0.0.1", allowed)
}

// serverAt is server with the given address, which is also the relayed address.
func serverAt(t *testing.T, address string, allowed func(net.IP) bool) Listener {
	t.Helper()
	conn, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	s, err := turn.NewServer(turn.ServerConfig{
		Realm: "example.org", LoggerFactory: quiet,
		AuthHandler: func(user, realm string, _ net.Addr) ([]byte, bool) {
			return turn.GenerateAuthKey(user, realm, "pw"), true
		},
		PacketConnConfigs: []turn.PacketConnConfig{{
			PacketConn: conn, RelayAddressGenerator: relayAt(address),
			PermissionHandler: func(_ net.Addr, peer net.IP) bool { return allowed(peer) },
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return Listener{Name: "udp", URI: "turn:" + address, Endpoint: turncat.Endpoint{
		Host: address, Port: conn.LocalAddr().(*net.UDPAddr).Port, Protocol: config.TURNUDP,
		Credential: credential.Credential{Username: "ada", Password: "pw"},
	}}
}

// relayAt allocates relayed addresses of both families, other than the generators of pion/turn.
type relayAt string

func (relayAt) Validate() error { return nil }

func (r relayAt) AllocatePacketConn(string, int) (net.PacketConn, net.Addr, error) {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(string(r), "0"))
	if err != nil {
		return nil, nil, err
	}
	return conn, conn.LocalAddr(), nil
}

func (relayAt) AllocateConn(string, int) (net.Conn, net.Addr, error) {
	return nil, nil, errors.New("no TCP relay")
}

// options returns parameters of a short run with a peer in this process.
func options(t *testing.T, l Listener) Options {
	t.Helper()
	socket, err := ListenAllowed(
		[]string{"192.0.2.0/24", "a.name", "127.0.0.1"},
		[]netip.Addr{netip.IPv6Loopback(), loopback},
	)
	if err != nil {
		t.Fatal(err)
	}
	peer := NewLocalPeer(socket)
	t.Cleanup(func() { peer.Close() })
	return Options{
		Gateway: "test/gateway", Listeners: func() []Listener { return []Listener{l} },
		Peer: func() (Peer, error) { return peer, nil }, Rate: 100, Duration: 300 * time.Millisecond, MaxGap: time.Minute,
	}
}

// TestBothModes: a call through a listener to a peer, and between two clients of the listener, loses nothing.
func TestBothModes(t *testing.T) {
	o := options(t, server(t, func(net.IP) bool { return true }))
	r := Run(t.Context(), o)
	if r.Verdict != Pass || len(r.Tests) != 2 {
		t.Fatalf("%+v", r)
	}
	for i, mode := range []Mode{Asymmetric, Symmetric} {
		got := r.Tests[i]
		if got.Mode != mode || got.Result != Pass || got.Sent != 30 || got.Received != 30 || got.Rate < 50 ||
			got.RTT.Median <= 0 || got.RTT.P99 < got.RTT.P95 || got.RTT.P95 < got.RTT.Median || got.Relay == "" || got.Peer == "" {
			t.Errorf("%+v", got)
		}
	}
}

// TestSkippedAndFailedTests: tests that the routes do not allow, or for which there is no peer, are skipped with the
// reason. A refused credential fails, with the findings of the diagnosis.
func TestSkippedAndFailedTests(t *testing.T) {
	l := server(t, func(net.IP) bool { return true })
	o := options(t, l)
	o.Peer = func() (Peer, error) { return nil, ErrNoAddress }
	o.Denied = func(context.Context, string, netip.AddrPort) string { return "port_denied" }
	r := Run(t.Context(), o)
	if r.Verdict != Fail || r.Tests[0].Result != Skip || !strings.Contains(r.Tests[0].Reason, "--echo-url") ||
		r.Tests[1].Result != Skip || !strings.Contains(r.Tests[1].Reason, "relayed addresses of the gateway") {
		t.Errorf("%+v", r)
	}
	o = options(t, l)
	o.Denied = func(context.Context, string, netip.AddrPort) string { return "port_denied" }
	if r = Run(t.Context(), o); r.Verdict != Fail || r.Tests[0].Result != Fail ||
		!strings.Contains(r.Tests[0].Reason, "port_denied") {
		t.Errorf("%+v", r)
	}
	o = options(t, l)
	o.Why = func(context.Context, netip.AddrPort) []diagnose.Finding {
		return []diagnose.Finding{{Severity: "error", Problem: "the cause"}}
	}
	l.Credential.Password = "wrong"
	o.Listeners = func() []Listener { return []Listener{l} }
	r = Run(t.Context(), o)
	for _, got := range r.Tests {
		if got.Result != Fail || len(got.Findings) != 1 {
			t.Errorf("%+v", got)
		}
	}
	o.Setup = []Setup{
		{"first", func(context.Context) (string, error) { return "done", nil }},
		{"second", func(context.Context) (string, error) { return "", errors.New("broken") }},
		{"third", func(context.Context) (string, error) { t.Error("a step after a failed one"); return "", nil }},
	}
	r = Run(t.Context(), o)
	if r.Verdict != Fail || len(r.Tests) != 0 || len(r.Steps) != 2 || r.Steps[0].Text != "done" ||
		r.Steps[1].Text != "broken" ||
		len(r.Steps[1].Findings) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestLoss: messages without an echo are lost.
func TestLoss(t *testing.T) {
	c := &call{
		sent:    make([]time.Time, 4),
		rtts:    []time.Duration{4e6, 1e6, 2e6},
		started: time.Unix(0, 0),
		until:   time.Unix(5, 0),
		last:    time.Unix(3, 0),
		gap:     time.Second,
	}
	var got Test
	c.figures(&got)
	if got.Loss != 0.25 || got.Gap != 2000 || got.Rate != 1 || got.RTT != (RTT{Mean: 2.333, Median: 2, P95: 4, P99: 4}) {
		t.Errorf("%+v", got)
	}
}

// outage is a socket that discards everything for a time, which begins with a datagram.
type outage struct {
	net.PacketConn
	after    int // datagrams
	length   time.Duration
	received int
	begun    time.Time
}

func (o *outage) ReadFrom(p []byte) (n int, from net.Addr, err error) {
	for {
		n, from, err = o.PacketConn.ReadFrom(p)
		if o.received++; o.received == o.after {
			o.begun = time.Now()
		}
		if err != nil || o.begun.IsZero() || time.Since(o.begun) > o.length {
			return n, from, err
		}
	}
}

// TestOutage: a test fails after a period without echoes, even if nearly all messages return later.
func TestOutage(t *testing.T) {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const length = 700 * time.Millisecond
	peer := NewLocalPeer(&outage{PacketConn: socket, after: 40, length: length})
	t.Cleanup(func() { peer.Close() })
	o := options(t, server(t, func(net.IP) bool { return true }))
	o.Peer = func() (Peer, error) { return peer, nil }
	o.Duration, o.MaxLoss, o.MaxGap = 3*time.Second, 1, length/2
	got := Run(t.Context(), o).Tests[0]
	if got.Result != Fail || got.Gap < milliseconds(length) || !strings.Contains(got.Reason, "no message was returned for") {
		t.Errorf("%+v", got)
	}
}

// TestIncomplete: the reason of a failed call names the stage that the connection has not passed.
func TestIncomplete(t *testing.T) {
	const dtlsNew, dtlsConnected = webrtc.DTLSTransportStateNew, webrtc.DTLSTransportStateConnected
	for _, c := range []struct {
		ice  webrtc.ICEConnectionState
		dtls webrtc.DTLSTransportState
		want string
	}{
		{webrtc.ICEConnectionStateChecking, dtlsNew, "ICE is checking: the peer does not answer"},
		{webrtc.ICEConnectionStateFailed, dtlsConnected, "ICE is failed: the peer does not answer"},
		{webrtc.ICEConnectionStateConnected, webrtc.DTLSTransportStateConnecting, "DTLS is connecting: the peer answers"},
		{webrtc.ICEConnectionStateCompleted, dtlsNew, "DTLS is new: the peer answers"},
		{webrtc.ICEConnectionStateClosed, webrtc.DTLSTransportStateClosed, "DTLS is closed: the peer answers"},
		{webrtc.ICEConnectionStateConnected, dtlsConnected, "data channel"},
	} {
		if err := incomplete(c.ice, c.dtls); !strings.Contains(err.Error(), c.want) {
			t.Errorf("ICE %s, DTLS %s: %v", c.ice, c.dtls, err)
		}
	}
}

// TestNoHandshake: a peer that answers connectivity checks, but fails in the DTLS handshake, is named as the cause.
func TestNoHandshake(t *testing.T) {
	o := options(t, server(t, func(net.IP) bool { return true }))
	peer, err := o.Peer()
	if err != nil {
		t.Fatal(err)
	}
	o.Peer = func() (Peer, error) { return impostor{peer}, nil }
	if got := Run(t.Context(), o).Tests[0]; got.Result != Fail || !strings.Contains(got.Reason, "the DTLS handshake") {
		t.Errorf("%+v", got)
	}
}

// impostor is a peer whose answer has the fingerprint of another certificate.
type impostor struct{ Peer }

func (p impostor) Answer(ctx context.Context, offer string) (string, error) {
	answer, err := p.Peer.Answer(ctx, offer)
	return regexp.MustCompile("(?m)^(a=fingerprint:sha-256) .*$").
		ReplaceAllString(answer, "$1 00"+strings.Repeat(":00", 31)+"\r"), err
}

// TestCandidate: addresses other than loopback addresses are preferred, and among them an address of the family of the
// relay.
func TestCandidate(t *testing.T) {
	const udp, typ = "a=candidate:1 1 UDP 1 ", " 7001 typ host\r\n"
	const all = "v=0\r\na=candidate:1 1 TCP 1 192.0.2.1 9 typ host\r\n" + udp + "x.local" + typ + udp + "::1" + typ +
		udp + "127.0.0.1" + typ
	for _, c := range []struct {
		sdp    string
		family turncat.Family
		want   string
	}{
		{all, turncat.IPv4, "127.0.0.1:7001"},
		{all, turncat.IPv6, "[::1]:7001"},
		{all + udp + "2001:db8::1" + typ, turncat.IPv4, "[2001:db8::1]:7001"}, // of a pod with IPv6 only
		{all + udp + "192.0.2.7" + typ + udp + "2001:db8::1" + typ, turncat.IPv4, "192.0.2.7:7001"},
		{all + udp + "192.0.2.7" + typ + udp + "2001:db8::1" + typ, turncat.IPv6, "[2001:db8::1]:7001"},
	} {
		if got, err := candidate(c.sdp, c.family); err != nil || got.String() != c.want {
			t.Errorf("%s, %v, want %s of\n%s", got, err, c.want, c.sdp)
		}
	}
	for _, sdp := range []string{"", "a=candidate:", "a=candidate:1 1 udp 1 192.0.2.1 70000 typ host"} {
		if got, err := candidate(sdp, turncat.IPv4); err == nil {
			t.Errorf("%q: %s", sdp, got)
		}
	}
}

// TestIPv6: both modes pass over a listener and relayed addresses of IPv6.
func TestIPv6(t *testing.T) {
	l := serverAt(t, "::1", func(net.IP) bool { return true })
	socket, err := ListenAllowed([]string{"::1"}, []netip.Addr{loopback, netip.IPv6Loopback()})
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, l)
	peer := NewLocalPeer(socket)
	t.Cleanup(func() { peer.Close() })
	o.Peer = func() (Peer, error) { return peer, nil }
	r := Run(t.Context(), o)
	if r.Verdict != Pass || len(r.Tests) != 2 {
		t.Fatalf("%+v", r)
	}
	for _, got := range r.Tests {
		if got.Received != 30 || !strings.HasPrefix(got.Relay, "[::1]:") || !strings.HasPrefix(got.Peer, "[::1]:") {
			t.Errorf("%+v", got)
		}
	}
}

// TestRelayTo: the address of the peer is of the family that the server chooses.
func TestRelayTo(t *testing.T) {
	peer := []netip.AddrPort{netip.MustParseAddrPort("[::1]:7001"), netip.MustParseAddrPort("127.0.0.1:7001")}
	for address, want := range map[string]netip.AddrPort{"::1": peer[0], "127.0.0.1": peer[1]} {
		relay, got, err := serverAt(t, address, func(net.IP) bool { return true }).RelayTo(t.Context(), peer)
		if err != nil || got != want {
			t.Fatalf("%s: %s, %v", address, got, err)
		}
		relay.Close()
	}
}

func TestListenAllowed(t *testing.T) {
	taken, err := ListenAllowed([]string{"127.0.0.1:<1-65535>"}, []netip.Addr{loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	only := config.PortRange{First: port, Last: port}
	if conn, err := ListenAllowed([]string{"127.0.0.0/8:<" + only.String() + ">"}, []netip.Addr{loopback}); !errors.Is(
		err,
		ErrNoAddress,
	) {
		t.Errorf("a port in use: %v, %v", conn, err)
	}
	if conn, err := ListenAllowed([]string{"10.0.0.0/8"}, []netip.Addr{loopback}); !errors.Is(err, ErrNoAddress) {
		t.Errorf("another address: %v, %v", conn, err)
	}
}

func TestImageBesideTheDataplane(t *testing.T) {
	for image, want := range map[string]string{
		"ghcr.io/stunner-gateway/stunnerd:0.1.0": "ghcr.io/stunner-gateway/echo:0.1.0", "stunnerd:x": "echo:x",
		"mirror:5000/a/stunnerd:1@sha256:abc": "mirror:5000/a/echo:1", "mirror:5000/a/stunnerd": "", "l7mp/stunnerd-fork:1": "", "": "",
	} {
		if got := echoImageFor(image); got != want {
			t.Errorf("%q: %q, want %q", image, got, want)
		}
	}
}

// TestDeployment: the echo peer is a Job with a deadline that owns the Service and the UDPRoute, so that Kubernetes
// deletes all of them after the deadline if icetest was killed. Stop and Cleanup delete them, and nothing else.
func TestDeployment(t *testing.T) {
	other := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "media"}}
	dataplane := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "d",
			Namespace: "media",
			Labels:    map[string]string{"stunner.l7mp.io/related-gateway-name": "door"},
		},
		Spec: corev1.PodSpec{
			Containers:       []corev1.Container{{Image: "example.org/stunnerd:1"}},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		},
	}
	client := fake.NewClientset(other, dataplane)
	client.PrependReactor("create", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.CreateAction).GetObject().(*batchv1.Job).UID = "7d3e"
		return false, nil, nil
	})
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{udpRoutes: "UDPRouteList"})
	count := func() (n int) {
		jobs, _ := client.BatchV1().Jobs("").List(t.Context(), metav1.ListOptions{})
		services, _ := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		routes, _ := objects.Resource(udpRoutes).List(t.Context(), metav1.ListOptions{})
		return len(jobs.Items) + len(services.Items) + len(routes.Items)
	}
	d := Deployment{
		Client:  client,
		Dynamic: objects,
		Gateway: types.NamespacedName{Namespace: "media", Name: "door"},
		Timeout: time.Minute,
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.Start(ctx); err == nil || !strings.Contains(err.Error(), "no pod") {
		t.Errorf("without a pod: %v", err)
	}
	if count() != 4 || d.Image != "example.org/echo:1" {
		t.Errorf("%d objects, image %s", count(), d.Image)
	}
	job, err := client.BatchV1().Jobs("media").Get(t.Context(), d.name, metav1.GetOptions{})
	if err != nil || *job.Spec.ActiveDeadlineSeconds != 120 || *job.Spec.TTLSecondsAfterFinished != 0 ||
		*job.Spec.BackoffLimit != 0 || job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("%+v %v", job, err)
	}
	if got := job.Spec.Template.Spec.ImagePullSecrets; !slices.Equal(got, dataplane.Spec.ImagePullSecrets) {
		t.Errorf("pull Secrets %v, want those of the dataplane", got)
	}
	route, err := objects.Resource(udpRoutes).Namespace("media").Get(t.Context(), d.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service, err := client.CoreV1().Services("media").Get(t.Context(), d.name, metav1.GetOptions{})
	if err != nil || *service.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack {
		t.Errorf("%+v %v", service, err)
	}
	owner := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: "7d3e"}
	for _, o := range []metav1.Object{route, service} {
		if got := o.GetOwnerReferences(); len(got) != 1 || got[0] != owner {
			t.Errorf("the owners of %s are %+v, want %+v", o.GetName(), got, owner)
		}
	}
	if err := d.Stop(t.Context()); err != nil || count() != 1 {
		t.Errorf("%v, %d objects are left", err, count())
	}
	_ = d.Start(ctx) // is killed
	if deleted, err := Cleanup(t.Context(), client, objects, "", Label); err != nil || deleted != 3 || count() != 1 {
		t.Errorf("%d, %v, %d objects are left", deleted, err, count())
	}
	forbidden := fake.NewClientset()
	forbidden.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "jobs"}, "", errors.New("no right"))
	})
	d = Deployment{Client: forbidden, Dynamic: objects, Gateway: d.Gateway, Image: "x", Timeout: time.Minute}
	if err := d.Start(ctx); err == nil || !strings.Contains(err.Error(), "no right") {
		t.Error(err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
