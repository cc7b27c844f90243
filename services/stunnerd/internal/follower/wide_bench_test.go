package follower

import (
	"fmt"
	"log/slog"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// wideShapes are configs of Gateways with many routes: their number, and the endpoints of each.
var wideShapes = []struct {
	name              string
	routes, endpoints int
}{
	{"1 route of 3 endpoints", 1, 3},
	{"1 route of 10,000 endpoints", 1, 10_000},
	{"1,000 routes of 10 endpoints", 1_000, 10},
	{"5,000 routes of 1 endpoint", 5_000, 1},
}

// wide returns a config with a listener, whose routes have different endpoints. With each turn the endpoint of another
// route changes.
func wide(port, routes, endpoints, turn int) config.Config {
	c := config.Config{
		Version: config.Version, Admin: config.Admin{Name: id},
		Auth: config.Auth{
			Type:        config.AuthStatic,
			Credentials: map[string]credential.Secret{config.KeyUsername: "ann", config.KeyPassword: "correct-horse"},
		},
		Listeners: []config.Listener{{Name: id + "/udp", Protocol: config.TURNUDP, Address: "127.0.0.1", Port: port}},
	}
	for r := range routes {
		cluster := config.Cluster{Name: fmt.Sprintf("media/route-%04d", r)}
		for e := range endpoints {
			if n := r*endpoints + e; e > 0 || r != turn%routes {
				cluster.Endpoints = append(
					cluster.Endpoints, fmt.Sprintf("10.%d.%d.%d:<7000-7999>", n>>16, n>>8&255, n&255),
				)
			}
		}
		cluster.Endpoints = append(cluster.Endpoints, fmt.Sprintf("172.16.%d.%d:<7000-7999>", turn>>8&255, turn&255))
		c.Listeners[0].Routes = append(c.Listeners[0].Routes, cluster.Name)
		c.Clusters = append(c.Clusters, cluster)
	}
	c.Default()
	return c
}

// processorTime returns the CPU time of the process. Other processes affect it less than the wall-clock time.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkWide measures a changed endpoint in a config with many routes, from the frame to the report.
func BenchmarkWide(b *testing.B) {
	for _, shape := range wideShapes {
		b.Run(shape.name, func(b *testing.B) {
			srv, err := server.New(server.Options{
				HostAddresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = srv.Close() }()
			f := New(Options{
				Source: &hand{reports: make(chan discovery.Report)}, Server: srv,
				Last: LastGood{Dir: b.TempDir(), ID: id}, Applied: func(config.Config) error { return nil },
				Lookup: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler),
			})
			var frames [2][]byte
			port := testport.Free(b)
			for turn := range frames {
				c := wide(port, shape.routes, shape.endpoints, turn)
				frames[turn] = c.Canonical()
			}
			b.ReportAllocs()
			before := processorTime(b)
			for turn := 0; b.Loop(); turn++ {
				frame := frames[turn%2]
				c, unknown, err := config.Parse(frame)
				if err == nil {
					err = c.Validate()
				}
				if err != nil {
					b.Fatal(err)
				}
				f.handle(discovery.Event{ID: id, Config: c, Revision: config.RevisionOf(frame), Unknown: unknown})
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(len(frames[0])), "frame-bytes")
		})
	}
}
