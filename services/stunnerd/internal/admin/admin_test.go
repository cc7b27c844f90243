package admin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestContractMetrics checks the documented metrics. Metrics without labels must equal the sums of the metrics with
// labels.
func TestContractMetrics(t *testing.T) {
	m, table := meter.New(), session.NewTable()
	table.SetBounds(session.Bounds{UserSessions: 2, SourceSessions: 4})
	ann := &session.Session{UserID: "ann", Relay: netip.MustParseAddrPort("192.0.2.1:1")}
	if err := table.Reserve(ann); err != nil {
		t.Fatal(err)
	}
	table.Add(ann)
	for i, name := range []string{"media/edge/udp", "media/edge/tcp"} {
		m.Listener(name).Rx.Add(100 * (i + 1))
		m.Listener(name).Tx.Add(10 * (i + 1))
		m.Listener(name).Open.Add(1)
		m.Listener(name).Opened.Add(2)
	}
	m.Cluster("media/sfu").Tx.Add(50)
	m.Sessions.Add(3)
	m.Refuse(meter.PeerDenied)
	m.IgnoredFamilies.Add(1)
	m.IgnoredOthers.Add(2)
	m.CountPanic("test", "a fault")
	m.Restored.Add(4)
	m.Unrestore(meter.PortTaken, 5, meter.Note{})
	m.ListenerDrops.Watch(func() uint64 { return 3 })()
	m.ListenerDrops.Watch(func() uint64 { return 4 })
	want := `
# HELP stunner_allocations_active Active TURN allocations, including those of a draining process.
# TYPE stunner_allocations_active gauge
stunner_allocations_active 1
# HELP stunner_allocations_capacity Maximum number of TURN allocations of the process, from its file descriptors, relay ports and memory.
# TYPE stunner_allocations_capacity gauge
stunner_allocations_capacity 800
# HELP stunner_allocations_total TURN allocations made since start.
# TYPE stunner_allocations_total counter
stunner_allocations_total 1
# HELP stunner_bytes_received_total Bytes received from clients, over all listeners.
# TYPE stunner_bytes_received_total counter
stunner_bytes_received_total 300
# HELP stunner_bytes_sent_total Bytes sent to clients, over all listeners.
# TYPE stunner_bytes_sent_total counter
stunner_bytes_sent_total 30
# HELP stunner_certificate_expiry_timestamp_seconds Time at which the first certificate of a listener expires, in seconds since 1970.
# TYPE stunner_certificate_expiry_timestamp_seconds gauge
stunner_certificate_expiry_timestamp_seconds{name="media/edge/tls"} 1.893456e+09
# HELP stunner_cluster_packets_total Packets between the relay sockets and the peers of a cluster, by direction rx or tx.
# TYPE stunner_cluster_packets_total counter
stunner_cluster_packets_total{direction="rx",name="media/sfu"} 0
stunner_cluster_packets_total{direction="tx",name="media/sfu"} 1
# HELP stunner_config_problem 1 if the last received config was rejected or the running one is only partly in force, else 0.
# TYPE stunner_config_problem gauge
stunner_config_problem 1
# HELP stunner_connections_total Client sessions since start: accepted stream and DTLS connections, and UDP 5-tuples that made an allocation.
# TYPE stunner_connections_total counter
stunner_connections_total 3
# HELP stunner_forward_peers Other pods of the Gateway to which datagrams are forwarded.
# TYPE stunner_forward_peers gauge
stunner_forward_peers 2
# HELP stunner_forward_problem 1 if datagrams cannot be forwarded between the pods of the Gateway, else 0.
# TYPE stunner_forward_problem gauge
stunner_forward_problem 0
# HELP stunner_forward_refused_total Datagrams of other pods that were dropped, frames that could not be sent to them, and datagrams of clients without a session in any pod, by reason.
# TYPE stunner_forward_refused_total counter
stunner_forward_refused_total{reason="bad_key"} 9
stunner_forward_refused_total{reason="limited"} 8
stunner_forward_refused_total{reason="unknown"} 7
# HELP stunner_forwarded_packets_total Datagrams of clients that arrive at another pod than the one with their session. At the pod where they arrive, by direction passed to the session or answered to the client; at the other pod, delivered or replied.
# TYPE stunner_forwarded_packets_total counter
stunner_forwarded_packets_total{direction="answered"} 4
stunner_forwarded_packets_total{direction="delivered"} 5
stunner_forwarded_packets_total{direction="passed"} 3
stunner_forwarded_packets_total{direction="replied"} 6
# HELP stunner_ignored_attributes_total Attributes of authenticated requests that are behind MESSAGE-INTEGRITY and therefore ignored, by attribute: requested_address_family or other.
# TYPE stunner_ignored_attributes_total counter
stunner_ignored_attributes_total{attribute="other"} 2
stunner_ignored_attributes_total{attribute="requested_address_family"} 1
# HELP stunner_journal_errors_total Failed writes of the session journal, and journals that were set aside.
# TYPE stunner_journal_errors_total counter
stunner_journal_errors_total 2
# HELP stunner_usage_records_total Usage records that were delivered.
# TYPE stunner_usage_records_total counter
stunner_usage_records_total 9
# HELP stunner_usage_records_lost_total Sessions whose last usage record is lost, because too many could not be delivered.
# TYPE stunner_usage_records_lost_total counter
stunner_usage_records_lost_total 1
# HELP stunner_usage_records_waiting Sessions with a usage record that is due and not delivered.
# TYPE stunner_usage_records_waiting gauge
stunner_usage_records_waiting 2
# HELP stunner_journal_problem 1 if sessions are not stored in the journal, so that a crash would end them, else 0.
# TYPE stunner_journal_problem gauge
stunner_journal_problem 1
# HELP stunner_kernel_dropped_total Datagrams that the kernel dropped before stunnerd read them, by socket: listener or relay.
# TYPE stunner_kernel_dropped_total counter
stunner_kernel_dropped_total{socket="listener"} 7
stunner_kernel_dropped_total{socket="relay"} 0
# HELP stunner_listener_connections Open client connections of a listener; for UDP the number of its sockets.
# TYPE stunner_listener_connections gauge
stunner_listener_connections{name="media/edge/tcp"} 1
stunner_listener_connections{name="media/edge/udp"} 1
# HELP stunner_panics_total Panics that were recovered from. Each ended at most one session. The log has the stack.
# TYPE stunner_panics_total counter
stunner_panics_total 1
# HELP stunner_quota_used_ratio Used share of a quota, from 0 to 1, of the user or the source that uses the most of it; 0 without a quota.
# TYPE stunner_quota_used_ratio gauge
stunner_quota_used_ratio{quota="source"} 0.25
stunner_quota_used_ratio{quota="user"} 0.5
# HELP stunner_refused_total STUN requests that were answered with an error, by reason.
# TYPE stunner_refused_total counter
stunner_refused_total{reason="peer_denied"} 1
# HELP stunner_sessions_dropped_total Sessions of a process that has crashed that this process could not continue, by reason.
# TYPE stunner_sessions_dropped_total counter
stunner_sessions_dropped_total{reason="expired"} 0
stunner_sessions_dropped_total{reason="failed"} 0
stunner_sessions_dropped_total{reason="no_listener"} 0
stunner_sessions_dropped_total{reason="port_taken"} 5
stunner_sessions_dropped_total{reason="revoked"} 0
# HELP stunner_sessions_restored_total Sessions of a process that has crashed that this process continues.
# TYPE stunner_sessions_restored_total counter
stunner_sessions_restored_total 4
`
	end := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	secured := config.Listener{
		Name:         "media/edge/tls",
		Certificates: []config.Certificate{certificate(t, end.AddDate(1, 0, 0)), certificate(t, end)},
	}
	c := &Collector{Meter: m, Sessions: table, Capacity: func() int { return 800 }, Offload: noOffload, Forwarding: forwarded,
		Journal: someJournal, Usage: func() usage.Status { return usage.Status{Delivered: 9, Lost: 1, Waiting: 2} },
		Config: func() Config {
			return Config{Problem: "port taken", Listeners: []config.Listener{{Name: "media/edge/udp"}, secured}}
		}}
	err := testutil.CollectAndCompare(c, strings.NewReader(
		want,
	), "stunner_allocations_active", "stunner_allocations_capacity",
		"stunner_allocations_total", "stunner_bytes_received_total", "stunner_bytes_sent_total",
		"stunner_certificate_expiry_timestamp_seconds",
		"stunner_cluster_packets_total", "stunner_config_problem", "stunner_connections_total", "stunner_forward_peers",
		"stunner_forward_problem", "stunner_forward_refused_total", "stunner_forwarded_packets_total", "stunner_kernel_dropped_total", "stunner_ignored_attributes_total",
		"stunner_listener_connections", "stunner_panics_total", "stunner_quota_used_ratio", "stunner_refused_total",
		"stunner_usage_records_total", "stunner_usage_records_lost_total", "stunner_usage_records_waiting",
		"stunner_journal_errors_total", "stunner_journal_problem", "stunner_sessions_dropped_total", "stunner_sessions_restored_total")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	prometheus.NewPedanticRegistry().MustRegister(c)
}

// certificate returns a certificate with a given expiry.
func certificate(t *testing.T, end time.Time) config.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.AddDate(-1, 0, 0), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encoded := func(kind string, bytes []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
	}
	return config.Certificate{Cert: encoded("CERTIFICATE", der), Key: credential.Secret(encoded("PRIVATE KEY", secret))}
}

func forwarded() *inspection.ForwardingStatus {
	return &inspection.ForwardingStatus{
		Peers: 2, Passed: 3, Answered: 4, Delivered: 5, Replied: 6, Unknown: 7, Limited: 8,
		Refused: map[string]uint64{"bad_key": 9},
	}
}

func noOffload() inspection.OffloadStatus {
	return inspection.OffloadStatus{Engine: "None", Mechanism: "None"}
}

func someJournal() *inspection.JournalStatus {
	return &inspection.JournalStatus{Problem: "volume full", Errors: 2}
}
