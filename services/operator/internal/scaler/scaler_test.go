package scaler

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hostName = "discovery.example.net"

// port is a scaler that listens on this host.
type port struct {
	*testing.T
	address   string
	authority trust.Authority
	identity  *trust.Identity
	end       func() error

	mu      sync.Mutex
	answers map[codes.Code]int
}

var edge = types.NamespacedName{Namespace: "media", Name: "edge"}

// forty returns the load of the Gateway media/edge.
func forty(gateway types.NamespacedName) (int, error) {
	if gateway != edge {
		return 0, ErrUnknown
	}
	return 40, nil
}

func open(t *testing.T, secured bool, load func(types.NamespacedName) (int, error)) *port {
	t.Helper()
	p := &port{T: t, identity: &trust.Identity{Names: []string{hostName}}, answers: map[codes.Code]int{}}
	p.renew()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	p.address = ln.Addr().String()
	var security *tls.Config
	if secured {
		security = p.identity.Server()
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(
			ctx, ln, security,
			Options{Allocations: load, OnAnswer: p.answered, Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
		)
	}()
	p.end = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { p.must(p.end()) })
	return p
}

// renew issues a certificate of another CA.
func (p *port) renew() {
	p.Helper()
	var err error
	p.authority, err = trust.Authority{}.Next(time.Now())
	p.must(err)
	p.must(p.identity.Renew(p.authority, time.Now()))
}

func (p *port) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *port) answered(code codes.Code) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[code]++
}

func (p *port) counted() map[codes.Code]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.answers)
}

// keda returns a client that behaves like KEDA: with the credentials of a ScaledObject, over TLS if there is a CA.
func (p *port) keda(security credentials.TransportCredentials) (pb.ExternalScalerClient, *grpc.ClientConn) {
	p.Helper()
	conn, err := grpc.NewClient(
		p.address, grpc.WithTransportCredentials(security),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin":{}}]}`),
	)
	p.must(err)
	p.Cleanup(func() { _ = conn.Close() })
	return pb.NewExternalScalerClient(conn), conn
}

func (p *port) secured() credentials.TransportCredentials {
	return credentials.NewTLS(
		&tls.Config{RootCAs: p.authority.Pool(), ServerName: hostName, MinVersion: tls.VersionTLS12},
	)
}

func ref(namespace string, pairs ...string) *pb.ScaledObjectRef {
	r := &pb.ScaledObjectRef{
		Name: "edge", Namespace: namespace, ScalerMetadata: map[string]string{"scalerAddress": "operator:13480"},
	}
	for i := 0; i < len(pairs); i += 2 {
		r.ScalerMetadata[pairs[i]] = pairs[i+1]
	}
	return r
}

var ours = ref("media", "gateway", "edge", "namespace", "media", "allocationsPerReplica", "500")

// load requests the metric like KEDA.
func load(ctx context.Context, keda pb.ExternalScalerClient, r *pb.ScaledObjectRef) (*pb.GetMetricsResponse, error) {
	return keda.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: r, MetricName: MetricName})
}

// KEDA requests the metric spec, the metric and the activity over TLS.
func TestKEDAIsAnswered(t *testing.T) {
	p := open(t, true, forty)
	keda, _ := p.keda(p.secured())
	spec, err := keda.GetMetricSpec(t.Context(), ours)
	p.must(err)
	if m := spec.GetMetricSpecs(); len(m) != 1 || m[0].GetMetricName() != MetricName || m[0].GetTargetSize() != 500 ||
		m[0].GetTargetSizeFloat() != 500 {
		t.Errorf("target %v", spec)
	}
	got, err := load(t.Context(), keda, ours)
	p.must(err)
	if m := got.GetMetricValues(); len(m) != 1 || m[0].GetMetricName() != MetricName || m[0].GetMetricValue() != 40 ||
		m[0].GetMetricValueFloat() != 40 {
		t.Errorf("load %v", got)
	}
	active, err := keda.IsActive(t.Context(), ours)
	p.must(err)
	if !active.GetResult() {
		t.Error("a Gateway is not active, and may lose its last pod")
	}
	stream, err := keda.StreamMetricSpec(t.Context(), ours)
	p.must(err)
	if _, err := stream.Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("StreamMetricSpec: %v", err)
	}
	if got := p.counted(); got[codes.OK] != 3 {
		t.Errorf("answers %v", got)
	}
}

// An uncertain value is an error, never a low number. An existing Gateway is active anyway.
func TestAnUnknownNumberIsAnError(t *testing.T) {
	p := open(t, true, func(gateway types.NamespacedName) (int, error) {
		switch gateway.Name {
		case "silent":
			return 7, errors.New("1 of 2 ready pods has not reported to the operator: silent-0")
		case "faulty":
			panic("a fault of ours")
		}
		return forty(gateway)
	})
	keda, _ := p.keda(p.secured())
	for gateway, want := range map[string]struct {
		code   codes.Code
		says   string
		active codes.Code
	}{
		"silent": {
			codes.Unavailable, "gateway media/silent: 1 of 2 ready pods has not reported to the operator: silent-0",
			codes.OK,
		},
		"other":  {codes.NotFound, "gateway media/other: this operator serves no such Gateway", codes.NotFound},
		"faulty": {codes.Internal, "see its log", codes.Internal},
		"edge":   {codes.OK, "", codes.OK},
	} {
		r := ref("media", "gateway", gateway, "allocationsPerReplica", "500")
		if got, err := load(t.Context(), keda, r); status.Code(err) != want.code ||
			!strings.Contains(status.Convert(err).Message(), want.says) {
			t.Errorf("%s: %v, %v", gateway, got, err)
		}
		if active, err := keda.IsActive(t.Context(), r); status.Code(err) != want.active || err == nil &&
			!active.GetResult() {
			t.Errorf("%s: active %v, %v", gateway, active, err)
		}
		if _, err := keda.GetMetricSpec(t.Context(), r); err != nil {
			t.Errorf("%s: the target depends on what is known: %v", gateway, err)
		}
	}
	if got := p.counted(); got[codes.Unavailable] != 1 || got[codes.NotFound] != 2 || got[codes.Internal] != 2 {
		t.Errorf("answers %v", got)
	}
}

// wrong are invalid requests with their errors.
var wrong = []struct {
	name string
	ref  *pb.ScaledObjectRef
	code codes.Code
	says string
}{
	{"nothing", nil, codes.InvalidArgument, "namespace of the ScaledObject is missing"},
	{"no namespace", ref(
		"", "gateway", "edge", "namespace", "media", "allocationsPerReplica", "1",
	), codes.InvalidArgument, "namespace of the ScaledObject is missing"},
	{"no name of a namespace", ref(
		"a/b", "gateway", "edge", "allocationsPerReplica", "1",
	), codes.InvalidArgument, `namespace of the ScaledObject "a/b": no name`},
	{"another's Gateway", ref("tenant", "gateway", "edge", "namespace", "media", "allocationsPerReplica", "1"), codes.PermissionDenied, `metadata.namespace "media": a ScaledObject may ask about Gateways of its own namespace, tenant`},
	{"no Gateway", ref("media", "allocationsPerReplica", "1"), codes.InvalidArgument, "metadata.gateway is missing"},
	{"a path", ref(
		"media", "gateway", "../tenant/edge", "allocationsPerReplica", "1",
	), codes.InvalidArgument, `metadata.gateway "../tenant/edge": no name`},
	{"a line break", ref(
		"media", "gateway", "edge\nedge", "allocationsPerReplica", "1",
	), codes.InvalidArgument, `"edge\nedge"`},
	{"a name without end", ref(
		"media", "gateway", strings.Repeat("x", 60_000), "allocationsPerReplica", "1",
	), codes.InvalidArgument, `metadata.gateway "xxx`},
	{"no target", ref("media", "gateway", "edge"), codes.InvalidArgument, "metadata.allocationsPerReplica is missing"},
	{"an empty target", ref(
		"media", "gateway", "edge", "allocationsPerReplica", "",
	), codes.InvalidArgument, `metadata.allocationsPerReplica ""`},
	{"no number", ref(
		"media", "gateway", "edge", "allocationsPerReplica", "many",
	), codes.InvalidArgument, `metadata.allocationsPerReplica "many": use a whole number`},
	{"nothing a pod", ref("media", "gateway", "edge", "allocationsPerReplica", "0"), codes.InvalidArgument, `"0"`},
	{"less than nothing", ref(
		"media", "gateway", "edge", "allocationsPerReplica", "-5",
	), codes.InvalidArgument, `"-5"`},
	{"a fraction", ref("media", "gateway", "edge", "allocationsPerReplica", "1.5"), codes.InvalidArgument, `"1.5"`},
	{"not a number", ref("media", "gateway", "edge", "allocationsPerReplica", "NaN"), codes.InvalidArgument, `"NaN"`},
	{"more than any pod", ref(
		"media", "gateway", "edge", "allocationsPerReplica", "9223372036854775808",
	), codes.InvalidArgument, `from 1 to 1000000`},
}

// All methods validate requests alike, and the error names the field and a remedy.
func TestQuestionsThatCannotBeAnswered(t *testing.T) {
	p := open(t, true, func(types.NamespacedName) (int, error) { t.Error("asked all the same"); return 0, nil })
	keda, _ := p.keda(p.secured())
	for _, c := range wrong {
		t.Run(c.name, func(t *testing.T) {
			_, spec := keda.GetMetricSpec(t.Context(), c.ref)
			_, metrics := load(t.Context(), keda, c.ref)
			_, active := keda.IsActive(t.Context(), c.ref)
			stream, err := keda.StreamIsActive(t.Context(), c.ref)
			if err == nil {
				_, err = stream.Recv()
			}
			for call, err := range map[string]error{
				"GetMetricSpec": spec, "GetMetrics": metrics, "IsActive": active, "StreamIsActive": err,
			} {
				if got := status.Convert(err); got.Code() != c.code || !strings.Contains(got.Message(), c.says) ||
					len(got.Message()) > 300 {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
	_, err := keda.GetMetrics(
		t.Context(), &pb.GetMetricsRequest{ScaledObjectRef: ours, MetricName: "s0-stunner-allocations"},
	)
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "ask for stunner-allocations") {
		t.Errorf("another metric: %v", err)
	}
}

// Plain text, another CA and another name in the certificate fail. New connections use a renewed certificate, without a
// restart.
func TestTheConnectionIsLocked(t *testing.T) {
	p := open(t, true, forty)
	first, old := p.secured(), p.authority
	keda, _ := p.keda(first)
	_, err := load(t.Context(), keda, ours)
	p.must(err)
	stranger, err := trust.Authority{}.Next(time.Now())
	p.must(err)
	for who, c := range map[string]credentials.TransportCredentials{
		"in clear text": insecure.NewCredentials(),
		"another CA": credentials.NewTLS(
			&tls.Config{RootCAs: stranger.Pool(), ServerName: hostName, MinVersion: tls.VersionTLS12},
		),
		"another name": credentials.NewTLS(
			&tls.Config{RootCAs: old.Pool(), ServerName: "evil.example.net", MinVersion: tls.VersionTLS12},
		),
		"TLS 1.1 at most": credentials.NewTLS(&tls.Config{
			RootCAs: old.Pool(), ServerName: hostName, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11,
		}),
	} {
		other, _ := p.keda(c)
		if got, err := load(t.Context(), other, ours); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, %v", who, got, err)
		}
	}
	p.renew()
	if _, err := load(t.Context(), keda, ours); err != nil {
		t.Errorf("a connection that there was: %v", err)
	}
	late, _ := p.keda(p.secured())
	if _, err := load(t.Context(), late, ours); err != nil {
		t.Errorf("with the new CA: %v", err)
	}
	gone, _ := p.keda(first)
	if _, err := load(t.Context(), gone, ours); status.Code(err) != codes.Unavailable {
		t.Errorf("with the old CA: %v", err)
	}
}

// With AuthOff there are no certificates.
func TestClearTextWhereThereAreNoCertificates(t *testing.T) {
	p := open(t, false, forty)
	keda, _ := p.keda(insecure.NewCredentials())
	_, err := load(t.Context(), keda, ours)
	p.must(err)
}

// With the trigger external-push a stream sends once that the Gateway is active, and stays open until one side ends it.
func TestStreamsStayAsLongAsTheirClient(t *testing.T) {
	p := open(t, true, forty)
	keda, _ := p.keda(p.secured())
	begin := func(ctx context.Context) grpc.ServerStreamingClient[pb.IsActiveResponse] {
		stream, err := keda.StreamIsActive(ctx, ours)
		p.must(err)
		active, err := stream.Recv()
		p.must(err)
		if !active.GetResult() {
			t.Error("not active")
		}
		return stream
	}
	ctx, leave := context.WithCancel(t.Context())
	left, stays := begin(ctx), begin(t.Context())
	leave()
	if _, err := left.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("left: %v", err)
	}
	for deadline := time.Now().Add(30 * time.Second); p.counted()[codes.Canceled] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the stream of a client that has left goes on")
		}
	}
	p.must(p.end())
	if _, err := stays.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("when the operator ends: %v", err)
	}
}

// The number of streams is bounded, and unary calls are answered beside them.
func TestNumberOfStreamsIsBounded(t *testing.T) {
	p := open(t, false, forty)
	keda, _ := p.keda(insecure.NewCredentials())
	for range maxStreams {
		stream, err := keda.StreamIsActive(t.Context(), ours)
		p.must(err)
		_, err = stream.Recv()
		p.must(err)
	}
	stream, err := keda.StreamIsActive(t.Context(), ours)
	p.must(err)
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	if _, err := load(t.Context(), keda, ours); err != nil {
		t.Errorf("a question beside the streams: %v", err)
	}
}

// A request that is too large, or never arrives, affects no other request.
func TestOversizedRequestsAffectNoOthers(t *testing.T) {
	p := open(t, false, forty)
	keda, conn := p.keda(insecure.NewCredentials())
	if _, err := keda.IsActive(
		t.Context(), ref("media", "gateway", strings.Repeat("x", 1<<20)),
	); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large one: %v", err)
	}
	silent, err := conn.NewStream(
		t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		pb.ExternalScaler_GetMetrics_FullMethodName,
	)
	p.must(err)
	if err := silent.RecvMsg(new(pb.GetMetricsResponse)); status.Code(err) != codes.DeadlineExceeded &&
		status.Code(err) != codes.Canceled {
		t.Errorf("one that never comes: %v", err)
	}
	_, err = load(t.Context(), keda, ours)
	p.must(err)
}

// Connections without gRPC, and incomplete TLS handshakes, are closed, and affect no others.
func TestConnectionsWithoutGRPCAreClosed(t *testing.T) {
	p := open(t, true, forty)
	for what, text := range map[string]string{
		"HTTP":       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"nothing":    "",
		"half a TLS": "\x16\x03\x01\x02\x00\x01",
		"HTTP/2":     "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
	} {
		conn, err := net.Dial("tcp", p.address)
		p.must(err)
		_, err = io.WriteString(conn, text)
		p.must(err)
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			defer func() { _ = conn.Close() }()
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) || err != nil &&
				strings.Contains(err.Error(), "timeout") {
				t.Error("not cut off")
			}
		})
	}
	keda, _ := p.keda(p.secured())
	_, err := load(t.Context(), keda, ours)
	p.must(err)
}

// Every answer is about the namespace in the request, or a short error.
func FuzzParse(f *testing.F) {
	for _, c := range wrong {
		f.Add(
			c.ref.GetNamespace(), c.ref.GetScalerMetadata()[NamespaceKey], c.ref.GetScalerMetadata()[GatewayKey],
			c.ref.GetScalerMetadata()[PerReplicaKey],
		)
	}
	f.Add("media", "", "edge", "500")
	f.Fuzz(func(t *testing.T, namespace, other, gateway, perReplica string) {
		q, err := parse(ref(namespace, NamespaceKey, other, GatewayKey, gateway, PerReplicaKey, perReplica))
		switch {
		case err != nil:
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.PermissionDenied ||
				len(err.Error()) > 1_000 {
				t.Errorf("%v", err)
			}
		case q.gateway.Namespace != namespace || q.gateway.Name != gateway || other != "" && other != namespace ||
			q.perReplica < 1:
			t.Errorf("%+v", q)
		}
	})
}

// BenchmarkGetMetrics measures the metric request among a thousand Gateways.
func BenchmarkGetMetrics(b *testing.B) {
	s := &service{Options: Options{Allocations: func(types.NamespacedName) (int, error) { return 40, nil }}}
	var questions []*pb.GetMetricsRequest
	for i := range 1_000 {
		r := ref("media", GatewayKey, "edge-"+strconv.Itoa(i), PerReplicaKey, "500")
		questions = append(questions, &pb.GetMetricsRequest{ScaledObjectRef: r, MetricName: MetricName})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := s.GetMetrics(b.Context(), questions[i%len(questions)]); err != nil {
			b.Fatal(err)
		}
	}
}
