// Package floods tests that a tenant cannot hurt others: with the right to write every object of one namespace, it
// floods the API server. The operator, with 512 MiB of memory, keeps serving three well-behaved tenants, and does so
// after a restart in the middle of the flood.
//
//	floods_test.go    the measurement
//	table_test.go     the floods; the flag -long selects all of them
//	apiserver_test.go the tenants and the writes of a flood
package floods

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/reader"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
)

var (
	long = flag.Bool("long", false, "also run the floods that take longer")
	only = flag.String("flood", "", "run only the floods whose name contains this")
)

// Limits for every flood.
const (
	memory  = 512 << 20 // bytes, as in the chart
	slowest = time.Second
	restart = 30 * time.Second // until all good configs are served again; a start lists all objects of the flood
)

// Durations of one flood.
const (
	calm    = 1500 * time.Millisecond // measured after the last object of the flood is written
	pace    = 100 * time.Millisecond  // between changes of the good tenants
	lost    = 5 * time.Second         // a change that takes longer counts as lost
	timeout = 3 * time.Minute
)

// TestFloods measures three tenants during the flood of a fourth one.
func TestFloods(t *testing.T) {
	kube := runner.NewCluster(t)
	a := newAPIServer(t, kube)
	var table []string
	for _, f := range floods {
		if f.long && !*long && *only == "" || !strings.Contains(f.name, strings.ReplaceAll(*only, "_", " ")) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			row := a.under(t, &operator{runner.New(t, kube, memory, runner.User, "system:masters")}, f)
			table = append(table, row.String())
			row.judge(t)
		})
		a.clear()
	}
	if len(table) == 0 {
		t.Errorf("-flood: the name of no flood contains %q", *only)
	}
	t.Logf(
		"time until a change of a good tenant reaches its dataplane, with an operator limited to %d MiB:\n%s\n%s", memory>>20, head,
		strings.Join(table, "\n"),
	)
}

// row is the result of one flood.
type row struct {
	name      string
	objects   int
	peak      int64 // MiB
	out       int   // exits of the operator, including OOM kills
	unready   time.Duration
	changes   int
	latencies []time.Duration
	creations []time.Duration // from a new Gateway of a good tenant to its Service
	lost      int             // changes that were not delivered
	back      time.Duration   // time from the restart until all good configs were complete
	missing   []string
}

const head = "flood                                              objects  peak MiB  ended  not ready  changes  lost    p50    p99    max  new p99  all back after"

// at returns the quantile of the durations for the given share. It is infinite if there are no durations.
func at(all []time.Duration, share float64) time.Duration {
	if len(all) == 0 {
		return math.MaxInt64
	}
	slices.Sort(all)
	return all[int(share*float64(len(all)-1))].Round(time.Millisecond)
}

// String returns a line of the table.
func (r row) String() string {
	return fmt.Sprintf("%-50s %7d  %8d  %5d  %9s  %7d  %4d  %5d  %5d  %5d  %7d  %s", r.name, r.objects, r.peak, r.out, r.unready.Round(time.Millisecond), r.changes, r.lost,
		at(r.latencies, 0.5).Milliseconds(), at(r.latencies, 0.99).Milliseconds(), at(r.latencies, 1).Milliseconds(),
		at(r.creations, 0.99).Milliseconds(), r.back.Round(time.Millisecond))
}

func (r row) judge(t *testing.T) {
	t.Log("\n" + head + "\n" + r.String())
	if r.out > 0 {
		t.Errorf("the operator exited %d times", r.out)
	}
	if r.unready > 0 {
		t.Errorf("the operator was not ready for %s", r.unready)
	}
	if p99 := at(r.latencies, 0.99); r.lost > 0 || p99 > slowest {
		t.Errorf("%d of %d changes were lost, p99 of the others is %s: want none, and at most %s", r.lost, r.changes, p99, slowest)
	}
	if p99 := at(r.creations, 0.99); p99 > slowest {
		t.Errorf("the Services of %d new Gateways were there after %s (p99), want at most %s", len(r.creations), p99, slowest)
	}
	if len(r.missing) > 0 || r.back > restart {
		t.Errorf(
			"configs complete %s after a restart, missing %v: want at most %s and none", r.back, r.missing,
			restart,
		)
	}
}

// operator is the program under test, in its own memory cgroup.
type operator struct{ *runner.Operator }

func (o *operator) start() { o.Helper(); o.Start(home, "off") }

// ready waits until the readiness probe succeeds.
func (o *operator) ready(most time.Duration) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), most)
	defer cancel()
	if err := o.Process.Until(ctx, harness.Answers("http://"+o.Health+"/ready", http.StatusOK)); err != nil {
		o.Errorf("the operator is not ready within %s: %v", most, err)
	}
}

// under measures the good tenants during a flood.
func (a *apiServer) under(t *testing.T, o *operator, f flood) row {
	defer func(outer *testing.T) { a.T = outer }(a.T)
	a.T = t
	r := row{name: f.name}
	o.start()
	o.ready(timeout)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.read(ctx, o.Discovery)
	if missing := a.incomplete(timeout); len(missing) > 0 {
		t.Fatalf("before the flood the operator does not serve %v", missing)
	}
	// calmly measures after the flood, after a pause in which the operator can react.
	calmly := func(m *measurement) {
		time.Sleep(calm)
		m.stop()
		select {
		case <-o.Process.Done():
			t.Logf("the operator has exited: %v", o.Process.Err())
			r.out++
		default:
		}
		r.unready += m.unready
		r.latencies, r.creations = append(r.latencies, m.latencies...), append(r.creations, m.creations...)
		r.changes, r.lost = r.changes+m.changes, r.lost+m.lost
	}
	m := a.measure(ctx, o)
	r.objects = a.pour(ctx, f)
	calmly(m)
	o.Must(o.Process.Kill())
	begun := time.Now()
	o.start()
	a.read(ctx, o.Discovery) // with new readers, which have no config yet
	o.ready(restart)
	r.missing = a.incomplete(restart - time.Since(begun))
	r.back = a.stalls.Since(begun)
	calmly(a.measure(ctx, o))
	peak, err := o.Memory.Peak()
	o.Must(err)
	r.peak = peak >> 20
	o.Must(o.Process.Kill())
	return r
}

// measurement is a sequence of changes of the good tenants until it is stopped.
type measurement struct {
	unready       time.Duration
	changes, lost int
	latencies     []time.Duration
	creations     []time.Duration
	stop          func()
}

// measure changes the endpoint of one good tenant after the other, and waits until both Gateways with that endpoint
// have it: the tenant's own and the shared one. At the same time it creates Gateways of good tenants, and probes the
// readiness.
func (a *apiServer) measure(ctx context.Context, o *operator) *measurement {
	m := &measurement{}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			a.turn++
			switch took, err := a.change(a.turn % tenants); {
			case errors.Is(err, errNotTaken): // the API server is overloaded
				a.Log(err)
			case err != nil:
				m.changes, m.lost = m.changes+1, m.lost+1
				a.Log(err)
			default:
				m.changes, m.latencies = m.changes+1, append(m.latencies, took)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	group.Go(func() {
		for tenant := 0; ctx.Err() == nil; tenant = (tenant + 1) % tenants {
			took, err := a.createGateway(tenant)
			switch {
			case errors.Is(err, errNotTaken): // the API server is overloaded
				a.Log(err)
			case err != nil:
				a.Error(err)
			default:
				m.creations = append(m.creations, took)
			}
		}
	})
	group.Go(func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			begun := time.Now()
			probe, cancel := context.WithTimeout(context.WithoutCancel(ctx), lost)
			err := harness.Answers("http://"+o.Health+"/ready", http.StatusOK)(probe)
			took := a.stalls.Since(begun)
			if probe.Err() != nil && took <= slowest { // the machine was stalled
				err = nil
			}
			cancel()
			if err == nil && took > slowest { // the timeout of a probe is one second, as in the chart
				err = fmt.Errorf("response after %s", took)
			}
			if err != nil {
				m.unready += took
				a.Logf("not ready: %v", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	m.stop = func() { cancel(); group.Wait() }
	return m
}

// errNotTaken means that the API server rejected a change, so that the operator does not receive it.
var errNotTaken = errors.New("the API server has not accepted a change")

// change moves the endpoint of a good tenant, and returns the time until its dataplanes have it.
func (a *apiServer) change(tenant int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(a.Context(), 2*lost)
	defer cancel()
	address, err := a.move(ctx, tenant, a.turn)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotTaken, err)
	}
	begun := time.Now()
	took := time.Duration(0)
	for _, r := range []*reader.Reader{a.readers[tenant], a.readers[tenants]} {
		s, err := r.Await(ctx, func(s reader.State) bool { return bytes.Contains(s.Last.Data, []byte(address)) })
		if err != nil {
			return 0, err
		}
		took = max(took, s.Last.At.Sub(begun)-a.stalls.Stalled(begun, s.Last.At))
	}
	return took, nil
}

// writes is the maximum number of requests of the operator from a new Gateway to its Service.
const writes = 4

// createGateway creates a Gateway of a good tenant, and returns the time until the operator has created its Service.
// Then it deletes the Gateway and its objects. The returned time does not include the time of the operator's requests,
// because a flood of large objects keeps the API server busy. Each request is assumed to take as long as the request of
// the test.
func (a *apiServer) createGateway(tenant int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(a.Context(), 2*lost)
	defer cancel()
	a.creations++
	ns, name := numbered("good", tenant), numbered("new", a.creations)
	seen, err := a.of("Service").Namespace(ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotTaken, err)
	}
	defer seen.Stop()
	asked := time.Now()
	if err := a.create(ctx, gateway(ns, name, "Same")); err != nil {
		return 0, fmt.Errorf("%w: %w", errNotTaken, err)
	}
	begun := time.Now()
	_, there := <-seen.ResultChan()
	took := max(0, a.stalls.Since(begun)-writes*begun.Sub(asked))
	if !there {
		return 0, fmt.Errorf("Gateway %s/%s has no Service after %s", ns, name, took)
	}
	for _, kind := range []string{"Gateway", "Service", "Deployment", "ConfigMap"} {
		err := a.of(kind).Namespace(ns).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete %s %s/%s: %w", kind, ns, name, err)
		}
	}
	return took, nil
}
