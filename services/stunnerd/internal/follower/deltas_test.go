package follower

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// inForceLog is a log that receives a value when a config is in force.
type inForceLog chan struct{}

func (inForceLog) Enabled(context.Context, slog.Level) bool { return true }
func (l inForceLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l inForceLog) WithGroup(string) slog.Handler          { return l }

func (l inForceLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "config in force" {
		select {
		case l <- struct{}{}:
		default:
		}
	}
	return nil
}

// A dataplane that follows a discovery server with deltas runs exactly the published config after any change, and after
// a restart of the server. It reports the published revision, and saves the whole config.
func TestADataplaneRunsWhatItsServerPublishes(t *testing.T) {
	type instance struct {
		*discovery.Server
		ctx context.Context
		end context.CancelFunc
	}
	var current atomic.Pointer[instance]
	start := func() *instance {
		i := &instance{Server: discovery.NewServer(discovery.ServerOptions{})}
		i.ctx, i.end = context.WithCancel(t.Context())
		current.Store(i)
		return i
	}
	var deltas atomic.Int64
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("delta") {
			deltas.Add(1)
		}
		i := current.Load()
		i.ServeHTTP(w, r.WithContext(i.ctx)) // the streams end with i.ctx
	}))
	defer h.Close()
	server := start()
	source, err := discovery.Open(h.URL, discovery.Options{ID: id, Deltas: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	inForce := make(inForceLog, 1)
	f, _ := newFollower(t, func(o *Options) { o.Source, o.Last.Dir, o.Log = source, dir, slog.New(inForce) })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()

	random := rand.New(rand.NewPCG(7, 0))
	c := wide(testport.Free(t), 20, 20, 0)
	patched, restarts := 0, 0
	for turn := range 40 {
		revision, _ := server.Publish(c)
		for f.Revision() != revision {
			select {
			case <-inForce:
			case <-time.After(20 * time.Second):
				t.Fatalf("turn %d: revision %s is not in force, but %s: %s", turn, revision, f.Revision(), f.Problem())
			}
		}
		if running := f.opt.Server.Running(); string(running.Canonical()) != string(c.Canonical()) {
			t.Fatalf("turn %d: the dataplane runs\n%s\nwant\n%s", turn, running.Canonical(), c.Canonical())
		}
		if f.state().patched {
			patched++
		}
		c.Clusters = slices.Clone(c.Clusters)
		i := random.IntN(len(c.Clusters))
		switch kind := random.IntN(10); {
		case kind == 0:
			c.Auth.Realm = fmt.Sprint("realm-", turn)
		case kind == 1:
			c.Clusters = slices.Delete(c.Clusters, i, i+1)
		case kind == 2:
			c.Clusters[i].Endpoints = []string{fmt.Sprintf("10.%d.0.0/16", 100+turn)}
		case turn%20 > 14 && current.Load().ctx.Err() == nil && restarts < turn/20+1:
			restarts++
			former := server
			server = start()
			former.end()
			fallthrough
		default:
			kept := slices.Clone(c.Clusters[i].Endpoints[1:])
			c.Clusters[i].Endpoints = append(kept, fmt.Sprintf("172.20.%d.%d", turn>>8, turn&255))
		}
	}
	stop()
	server.end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	saved, _, err := LastGood{Dir: dir, ID: id}.Load(time.Now())
	if err != nil || saved.Revision() != f.Revision() {
		t.Errorf("the last good config has revision %s, want %s: %v", saved.Revision(), f.Revision(), err)
	}
	if patched < 10 || deltas.Load() < 2 || !strings.Contains(f.Status().Revision, f.Revision()) {
		t.Errorf("%d patches, %d streams with deltas: too few for this test", patched, deltas.Load())
	}
}
