package reports_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
)

// replica is a source whose news the test sends.
type replica struct{ news chan any }

func newReplica() replica { return replica{make(chan any)} }

// FollowReports passes changes to each, until one is an error. It fails if no change arrives in the first 30 s, as if
// the replica were unreachable.
func (r replica) FollowReports(ctx context.Context, each func(discovery.ReportChange) error) error {
	timeout := time.After(30 * time.Second)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout:
			return errors.New("no answer")
		case said := <-r.news:
			if err, ok := said.(error); ok {
				return err
			}
			timeout = nil
			if err := each(said.(discovery.ReportChange)); err != nil {
				return err
			}
		}
	}
}

func report(pod string, allocations int) discovery.ReportChange {
	return discovery.ReportChange{Report: &discovery.Report{ID: "media/edge", Pod: pod, Allocations: allocations}}
}

func gone(pod string) discovery.ReportChange {
	return discovery.ReportChange{Removed: &discovery.ReportKey{ID: "media/edge", Pod: pod}}
}

var (
	current = discovery.ReportChange{Current: true}
	errLost = errors.New("lost")
)

// view formats the stored reports of the config media/edge.
func view(c *reports.Store) string {
	synctest.Wait()
	var words []string
	for _, r := range c.Of("media/edge") {
		words = append(words, fmt.Sprintf("%s:%d", r.Pod, r.Allocations))
	}
	return strings.Join(words, " ")
}

// A pod counts once, with its latest report to any replica. The reports of an unreachable replica are kept for 30 s.
func TestOneViewOfAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, here, there := reports.New(slog.New(slog.DiscardHandler)), newReplica(), newReplica()
		go c.Follow(ctx, "here", here)
		go c.Follow(ctx, "there", there)
		steps := []struct {
			name string
			who  replica
			said []any
			wait time.Duration
			want string
		}{
			{"both begin", here, []any{report("a", 1), current}, 0, "a:1"},
			{"the other too", there, []any{report("b", 2), current}, 0, "a:1 b:2"},
			{"a pod moves", there, []any{report("a", 3)}, 0, "a:3 b:2"},
			{"the old stream ends", here, []any{gone("a")}, 0, "a:3 b:2"},
			{"the end of an unknown pod", here, []any{gone("x")}, 0, "a:3 b:2"},
			{"lost", there, []any{errLost}, 20 * time.Second, "a:3 b:2"},
			{"reconnected with fewer pods", there, []any{report("b", 4), current}, 0, "b:4"},
			{"lost for 40 s", there, []any{errLost}, 40 * time.Second, ""},
			{"reconnected", there, []any{report("b", 5)}, 0, "b:5"},
		}
		for _, s := range steps {
			for _, said := range s.said {
				s.who.news <- said
				time.Sleep(time.Millisecond)
			}
			time.Sleep(s.wait)
			if got := view(c); got != s.want {
				t.Errorf("%s: %q, want %q", s.name, got, s.want)
			}
		}
		if got := c.Changes(); !slices.Equal(got, []string{"media/edge"}) {
			t.Errorf("changes %q", got)
		}
		if all := c.All(); len(all) != 1 || len(c.Changes()) != 0 {
			t.Errorf("all %v", all)
		}
		cancel()
		if time.Sleep(29 * time.Second); view(c) != "b:5" {
			t.Error("forgotten too soon")
		}
		if time.Sleep(2 * time.Second); view(c) != "" {
			t.Error("never forgotten")
		}
	})
}

// A pod has connected to another replica, and the first replica has not noticed yet. A report that the first replica
// repeats on a new connection does not replace the newer report.
func TestARepeatedReportReplacesNoNewerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, here, there := reports.New(slog.New(slog.DiscardHandler)), newReplica(), newReplica()
		go c.Follow(ctx, "here", here)
		go c.Follow(ctx, "there", there)
		steps := []struct {
			who  replica
			said []any
			want string
		}{
			{here, []any{report("a", 1), current}, "a:1"},
			{there, []any{current, report("a", 100)}, "a:100"},
			{here, []any{errLost, report("a", 1), current}, "a:100"},
			{here, []any{errLost, report("a", 2), current}, "a:2"}, // the pod has reported 2 in the meantime
			{there, []any{report("a", 100)}, "a:100"},
			{here, []any{report("a", 2)}, "a:2"},
		}
		for i, s := range steps {
			for _, said := range s.said {
				s.who.news <- said
				time.Sleep(time.Millisecond)
			}
			if got := view(c); got != s.want {
				t.Errorf("step %d: %q, want %q", i, got, s.want)
			}
		}
		cancel()
		time.Sleep(time.Minute)
	})
}

// A replica that joins is followed once. The reports of a replica that leaves are kept for 30 s.
func TestReportsOfADepartedReplicaAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c, made := reports.New(slog.New(slog.DiscardHandler)), map[string]replica{}
		peers := reports.NewPeers(ctx, c, func(address string) reports.Source {
			if _, twice := made[address]; twice {
				t.Errorf("%s is followed twice", address)
			}
			made[address] = newReplica()
			return made[address]
		})
		peers.Set([]string{"one", "two"})
		peers.Set([]string{"two", "one"})
		made["one"].news <- report("a", 1)
		made["two"].news <- report("b", 2)
		peers.Set([]string{"two"})
		if got := view(c); got != "a:1 b:2" {
			t.Errorf("at once: %q", got)
		}
		time.Sleep(31 * time.Second)
		if got := view(c); got != "b:2" {
			t.Errorf("after half a minute: %q", got)
		}
		cancel()
		time.Sleep(time.Minute)
	})
}
