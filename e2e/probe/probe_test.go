// Package probe tests what stunnerctl why and doctor find by the packets that they send: faults that no object, no
// condition and no answer of a pod shows. Each fault is made in the network between stunnerctl, the dataplanes and the
// media servers. A healthy Gateway has no finding.
//
//	probe_test.go  healthy shapes, and the helpers
//	folder_test.go faults on a host without a cluster
//	media_test.go  faults of media servers, and of the way to them
//	pods_test.go   faults in a cluster
//	proxy_test.go  a proxy with another certificate, and a load balancer that ends TLS
//	main_test.go   the network namespace
package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// limit is the longest time that a diagnosis with packets may take, on a machine that runs nothing else.
const limit = 20 * time.Second

// start starts the product in a shape.
func start(t *testing.T, shape string, number int, kube *cluster.Cluster, annotations ...string) *env.Env {
	t.Helper()
	s, err := env.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	e, err := env.New(t.Context(), env.Options{Shape: s, Number: number, Cluster: kube, Dir: t.TempDir(), Logf: t.Logf,
		Annotation: strings.Join(annotations, ", ")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if s.Is(env.APIServer) {
		undo, err := e.Net.ReachPublic()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := undo(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// startCluster starts an API server.
func startCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	kube, err := cluster.Start(t.Context(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kube.Stop(); err != nil {
			t.Error(err)
		}
	})
	return kube
}

// fault is a fault and the finding that names it.
type fault struct {
	name string
	// make makes the fault, and undo ends it.
	make, undo func(*testing.T)
	// args are further arguments of why.
	args []string
	// severity, object, field, problem and remedy are those of the finding; the last three may be parts of it.
	severity, object, field, problem, remedy string
	// also is another object that shows the effect of the fault.
	also string
}

// rules are rules of nftables in a network, which undo removes.
func rules(in *netns.Space, text string) (set, undo func(*testing.T)) {
	return rulesOf(in, "fault", text)
}

// rulesOf are rules in a table.
func rulesOf(in *netns.Space, table, text string) (set, undo func(*testing.T)) {
	set = func(t *testing.T) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "fault.nft")
		if err := os.WriteFile(file, []byte("table inet "+table+" {\n"+text+"\n}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Exec("nft -f " + file); err != nil {
			t.Fatal(err)
		}
	}
	undo = func(t *testing.T) {
		t.Helper()
		if _, err := in.Exec("nft delete table inet " + table); err != nil {
			t.Error(err)
		}
	}
	return set, undo
}

// report is the output of why.
type report struct {
	Steps    []struct{ Stage, State, Fact string }
	Findings []env.Finding
}

// diagnose runs why or doctor.
func diagnose(ctx context.Context, e *env.Env, args ...string) (r report, err error) {
	o, err := e.Ctl(ctx, append(args, "-o", "json")...)
	if err == nil {
		err = json.Unmarshal([]byte(o.Text), &r)
	}
	if wrong := len(problems(r.Findings)) > 0; err == nil && wrong != (o.Code == 1) {
		err = fmt.Errorf("exit code %d with %+v", o.Code, r.Findings)
	}
	if err != nil {
		err = fmt.Errorf("stunnerctl %v: %w: %s%s", args, err, o.Text, o.Errors)
	}
	return r, err
}

// why runs stunnerctl why.
func why(t *testing.T, e *env.Env, args ...string) (r report, took time.Duration) {
	t.Helper()
	begun := time.Now()
	r, err := diagnose(t.Context(), e, append([]string{"why", e.Gateways[0].ID()}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return r, time.Since(begun)
}

// problems returns the findings that are no remarks.
func problems(all []env.Finding) []env.Finding {
	return slices.DeleteFunc(slices.Clone(all), func(f env.Finding) bool { return f.Severity == "info" })
}

// awaitHealthy waits until why finds nothing, because refusals and lost connections are reported for a while.
func awaitHealthy(t *testing.T, e *env.Env, args ...string) {
	t.Helper()
	err := e.Await(t.Context(), "healthy Gateway", func(ctx context.Context) error {
		r, err := diagnose(ctx, e, args...)
		if wrong := problems(r.Findings); err == nil && len(wrong) > 0 {
			err = fmt.Errorf("%v: findings %+v", args, wrong)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// find tests that the packets show the faults, and that nothing else shows them.
func find(t *testing.T, e *env.Env, faults []fault) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if f.make != nil {
				f.make(t)
				defer f.undo(t)
			}
			if r, _ := why(t, e, "--probe=false"); len(problems(r.Findings)) > 0 {
				t.Errorf("without packets why finds %+v", r.Findings)
			}
			r, took := why(t, e, f.args...)
			t.Logf("%.1f s: %+v", took.Seconds(), r.Findings)
			if took > limit {
				t.Errorf("why takes %s", took)
			}
			if !slices.ContainsFunc(r.Findings, func(got env.Finding) bool {
				return got.Severity == f.severity && got.Object == f.object && strings.Contains(got.Field, f.field) &&
					strings.Contains(got.Problem, f.problem) && got.Remedy != "" && strings.Contains(got.Remedy, f.remedy)
			}) {
				t.Errorf("no finding %s %s, %s: %s in %+v", f.severity, f.object, f.field, f.problem, r.Findings)
			}
			for _, more := range problems(r.Findings) {
				if more.Object != f.object && more.Object != f.also {
					t.Errorf("another object is blamed: %+v", more)
				}
			}
			if more := problems(r.Findings); f.severity != "info" && len(more) > 2 { // one for each family
				t.Errorf("%d findings about one fault: %+v", len(more), more)
			}
		})
	}
}
