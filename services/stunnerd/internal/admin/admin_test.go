package admin

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestContractMetrics wants the documented families, the label-free ones equal to the sums of the labelled ones.
func TestContractMetrics(t *testing.T) {
	m, table := meter.New(), session.NewTable()
	table.Add(&session.Session{UserID: "ann", Relay: netip.MustParseAddrPort("192.0.2.1:1")})
	for i, name := range []string{"media/edge/udp", "media/edge/tcp"} {
		m.Listener(name).Rx.Add(100 * (i + 1))
		m.Listener(name).Tx.Add(10 * (i + 1))
		m.Listener(name).Open.Add(1)
		m.Listener(name).Opened.Add(2)
	}
	m.Cluster("media/sfu").Tx.Add(50)
	m.Sessions.Add(3)
	m.Refuse(meter.PeerDenied)
	want := `
# HELP stunner_allocations_active Active TURN allocations, those of a draining process included.
# TYPE stunner_allocations_active gauge
stunner_allocations_active 1
# HELP stunner_bytes_received_total Bytes received from clients, over all listeners.
# TYPE stunner_bytes_received_total counter
stunner_bytes_received_total 300
# HELP stunner_bytes_sent_total Bytes sent to clients, over all listeners.
# TYPE stunner_bytes_sent_total counter
stunner_bytes_sent_total 30
# HELP stunner_cluster_packets_total Packets between the relay sockets and the peers of a cluster, by direction rx or tx.
# TYPE stunner_cluster_packets_total counter
stunner_cluster_packets_total{direction="rx",name="media/sfu"} 0
stunner_cluster_packets_total{direction="tx",name="media/sfu"} 1
# HELP stunner_connections_total Client sessions since start: accepted stream and DTLS connections, and UDP 5-tuples that made an allocation.
# TYPE stunner_connections_total counter
stunner_connections_total 3
# HELP stunner_listener_connections Open client connections of a listener; for UDP the number of its sockets.
# TYPE stunner_listener_connections gauge
stunner_listener_connections{name="media/edge/tcp"} 1
stunner_listener_connections{name="media/edge/udp"} 1
# HELP stunner_refused_total STUN requests that were answered with an error, by reason.
# TYPE stunner_refused_total counter
stunner_refused_total{reason="peer_denied"} 1
`
	c := &Collector{Meter: m, Sessions: table}
	err := testutil.CollectAndCompare(c, strings.NewReader(want), "stunner_allocations_active", "stunner_bytes_received_total",
		"stunner_bytes_sent_total", "stunner_cluster_packets_total", "stunner_connections_total", "stunner_listener_connections", "stunner_refused_total")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	prometheus.NewPedanticRegistry().MustRegister(c)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestEndpointMovesOnlyWhenTheNewOneIsUp(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	e := NewEndpoints(slog.New(slog.DiscardHandler))
	defer e.Close()
	answer := func(text string) func(string) http.Handler {
		return func(string) http.Handler { return JSON(func() any { return text }) }
	}
	first, taken := freeURL(t), ""
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken = "http://" + ln.Addr().String()

	if err := e.Set("health", first, HealthPort, answer("one")); err != nil {
		t.Fatal(err)
	}
	if err := e.Set("health", taken, HealthPort, answer("two")); err == nil {
		t.Error("no error for a taken port")
	}
	if code, body := get(t, first); code != 200 || !strings.Contains(body, "one") {
		t.Errorf("the old endpoint is gone: %d %s", code, body)
	}
	second := freeURL(t)
	if err := e.Set("health", second, HealthPort, answer("three")); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, second); code != 200 || !strings.Contains(body, "three") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := get(t, first); code != 0 {
		t.Error("the old endpoint still answers")
	}
	if err := e.Set("health", "", HealthPort, nil); err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, second); code != 0 {
		t.Error("a removed endpoint still answers")
	}
}

func TestStatusIsReadOnly(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	e := NewEndpoints(slog.New(slog.DiscardHandler))
	defer e.Close()
	url := freeURL(t)
	if err := e.Set("health", url, HealthPort, func(string) http.Handler { return JSON(func() any { return 1 }) }); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", resp.StatusCode)
	}
}

func freeURL(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return fmt.Sprintf("http://%s", ln.Addr())
}
