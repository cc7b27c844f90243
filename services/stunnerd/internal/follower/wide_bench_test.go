package follower

import (
	"bytes"
	"compress/flate"
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

// wide returns a config with a listener, whose routes have different endpoints. Each turn changes the endpoint of
// another route.
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
		if r == turn%routes {
			changed := fmt.Sprintf("172.16.%d.%d:<7000-7999>", turn>>8&255, turn&255)
			cluster.Endpoints = append(cluster.Endpoints, changed)
		}
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

// wideFixture is a follower with a running config of a shape, without a source, and two frames between which it
// changes.
type wideFixture struct {
	follower *Follower
	parts    [2]*config.Parts
	frames   [2][]byte
}

func newWideFixture(b testing.TB, routes, endpoints int) *wideFixture {
	srv, err := server.New(server.Options{
		HostAddresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = srv.Close() })
	w := &wideFixture{follower: New(Options{
		Source: &hand{reports: make(chan discovery.Report)}, Server: srv,
		Last: LastGood{Dir: b.TempDir(), ID: id}, Applied: func(config.Config) error { return nil },
		Lookup: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler),
	})}
	port := testport.Free(b)
	for turn := range w.frames {
		c := wide(port, routes, endpoints, turn)
		w.parts[turn], w.frames[turn] = config.PartsOf(c, w.parts[0]), c.Canonical()
	}
	return w
}

// takeFrame takes a whole frame as the discovery client does.
func (w *wideFixture) takeFrame(b testing.TB, turn int) {
	frame := w.frames[turn%2]
	c, unknown, err := config.Parse(frame)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		b.Fatal(err)
	}
	w.follower.handle(discovery.Event{ID: id, Config: c, Revision: config.RevisionOf(frame), Unknown: unknown})
}

// takeDelta takes a delta as the discovery client does.
func (w *wideFixture) takeDelta(b testing.TB, current *config.Parts, delta []byte) *config.Parts {
	d, err := config.ParseDelta(delta)
	if err != nil {
		b.Fatal(err)
	}
	next, _, err := current.Apply(d)
	if err != nil {
		b.Fatal(err)
	}
	w.follower.handle(discovery.Event{ID: id, Config: next.Config(), Revision: d.Revision})
	return next
}

// deltas returns the deltas between the two configs, in both directions.
func (w *wideFixture) deltas() (all [2][]byte) {
	revision := func(turn int) string { return config.RevisionOf(w.frames[turn]) }
	for turn := range all {
		all[turn] = w.parts[turn].Since(w.parts[1-turn], revision(1-turn), revision(turn)).Encode()
	}
	return all
}

// BenchmarkWide measures a changed endpoint in a config with many routes, from the frame to the report: with whole
// frames, and with deltas.
func BenchmarkWide(b *testing.B) {
	for _, shape := range wideShapes {
		b.Run(shape.name, func(b *testing.B) {
			var whole, delta time.Duration // CPU time of one change
			b.Run("whole", func(b *testing.B) {
				w := newWideFixture(b, shape.routes, shape.endpoints)
				b.ReportAllocs()
				before := processorTime(b)
				for turn := 0; b.Loop(); turn++ {
					w.takeFrame(b, turn)
				}
				whole = (processorTime(b) - before) / time.Duration(b.N)
				b.ReportMetric(float64(whole), "cpu-ns/op")
				b.ReportMetric(float64(len(w.frames[0])), "frame-bytes")
				b.ReportMetric(float64(deflated(b, w.frames[0])), "deflated-bytes")
			})
			b.Run("delta", func(b *testing.B) {
				w := newWideFixture(b, shape.routes, shape.endpoints)
				deltas := w.deltas()
				w.takeFrame(b, 0)
				current := config.PartsOf(w.follower.state().wanted.Config, nil)
				b.ReportAllocs()
				b.ResetTimer()
				before := processorTime(b)
				for turn := 1; b.Loop(); turn++ {
					current = w.takeDelta(b, current, deltas[turn%2])
				}
				delta = (processorTime(b) - before) / time.Duration(b.N)
				b.ReportMetric(float64(delta), "cpu-ns/op")
				b.ReportMetric(float64(len(deltas[1])), "frame-bytes")
				if whole > 0 {
					b.ReportMetric(float64(whole)/float64(max(delta, 1)), "times-cheaper")
				}
			})
		})
	}
}

// deflated returns the length of a frame with the compression of permessage-deflate (RFC 7692).
func deflated(b testing.TB, frame []byte) int {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(frame)
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		b.Fatal(err)
	}
	return out.Len()
}

// A changed endpoint of a Gateway with many routes is applied as a delta: with a fraction of the allocations of a whole
// frame, in a frame of less than 1 kB, and with exactly the same result.
func TestAChangedEndpointIsSentAsADelta(t *testing.T) {
	for _, shape := range wideShapes {
		w := newWideFixture(t, shape.routes, shape.endpoints)
		turn, deltas := 0, w.deltas()
		wholes := testing.AllocsPerRun(2, func() { turn++; w.takeFrame(t, turn) })
		current := config.PartsOf(w.follower.state().wanted.Config, nil)
		changes := testing.AllocsPerRun(4, func() { turn++; current = w.takeDelta(t, current, deltas[turn%2]) })
		if running := w.follower.opt.Server.Running(); string(running.Canonical()) != string(w.frames[turn%2]) {
			t.Errorf("%s: the running config is not the one of the last delta", shape.name)
		}
		if size := len(deltas[1]); size > 1_000 {
			t.Errorf("%s: a delta of %d bytes", shape.name, size)
		}
		if changes > 300 || shape.routes*shape.endpoints > 1_000 && changes > wholes/20 {
			t.Errorf("%s: %.0f allocations with a delta, %.0f with a whole frame", shape.name, changes, wholes)
		}
	}
}
