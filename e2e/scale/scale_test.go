// Package scale measures the operator on a real API server with many Gateways: the cost of a start and of a change.
//
// Counts (writes, translations, frames, allocations) and memory have limits on every machine. Durations and CPU time
// depend on the load of the machine: they are printed beside those of the same run with few Gateways.
//
// The same in memory: services/operator/internal/translate/change_bench_test.go. `make bench` prints both.
package scale

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/reader"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
)

var many = flag.Int("gateways", 200, "number of Gateways; each has 5 UDPRoutes, 2 Services and 50 endpoints")

// few is the number of Gateways for comparison.
const few = 10

// timeout limits steps that take seconds on an idle machine.
const timeout = 10 * time.Minute

// memory is the memory limit of the operator in bytes, as in the chart. The kernel kills an operator that exceeds it.
const memory = 512 << 20

// Limits that do not depend on the speed of the machine.
const (
	maxRatio = 1.2 // allocations of a change, relative to few Gateways
	// The other fifteen workers may still write one Service and one Deployment each while one worker writes the first
	// status
	maxLate = 30
)

// Work between two readings of the CPU time, enough for its resolution.
const (
	changes = 150
	pace    = time.Second / 20
	busy    = 100 // changes that are measured while other Gateways change
	seed    = 1
)

// maxTakeover is less than the duration of the lease, after which another replica writes in any case.
const maxTakeover = 9 * time.Second

// R-31, L-2: a change among many Gateways costs as much as among few, writes nothing, and reaches its one reader; the
// start after a kill writes nothing. A start writes each new object once, Services and workloads before statuses of
// routes.
func TestGateways(t *testing.T) {
	kube := runner.NewCluster(t)
	b := &scaleTest{
		T: t, kube: kube, userObjects: newUserObjects(t, kube.Admin),
		operator: newOperator(t, kube, "off", administrators),
		random:   rand.New(rand.NewPCG(seed, 0)),
	}

	b.grow(few)
	b.starts()
	b.expose()
	alone := b.costs(fmt.Sprintf("%d Gateways", few), changes, b.quietly)
	b.operator.stop()
	b.leave()

	b.grow(*many)
	b.starts()
	b.expose()
	crowded := b.costs(fmt.Sprintf("%d Gateways", *many), changes, b.quietly)
	b.costs(
		fmt.Sprintf("%d Gateways, %.0f other changes/s", *many, float64(time.Second/pace)), busy, b.whileOthersChange,
	)
	b.Logf("a change with %d Gateways, compared with %d: %.2f times the allocations, %.2f times the CPU time, %.2f times the latency", *many, few,
		crowded.allocations/alone.allocations, float64(crowded.cpu)/float64(alone.cpu), float64(crowded.median)/float64(
			alone.median,
		))
	if crowded.allocations > maxRatio*alone.allocations {
		t.Errorf(
			"a change with %d Gateways makes %.0f allocations, want at most %.1f times the %.0f with %d", *many,
			crowded.allocations, maxRatio, alone.allocations, few,
		)
	}
	b.restarts()
	b.failsOver()
}

// scaleTest has the objects of users, an operator, and one reader for each Gateway.
type scaleTest struct {
	*testing.T
	*userObjects
	operator *operator
	kube     *cluster.Cluster
	random   *rand.Rand
	readers  []*reader.Reader
	leave    context.CancelFunc
	turn     int
	written  int // Gateways that an earlier operator wrote
}

// starts starts the operator and waits until all Gateways are served and all objects are written.
func (b *scaleTest) starts() {
	b.Helper()
	var ctx context.Context
	ctx, b.leave = context.WithCancel(b.Context())
	b.Cleanup(b.leave)
	begun := time.Now()
	b.operator.start()
	b.readers = nil
	for g := range b.size {
		b.readers = append(b.readers, reader.Read(ctx, b.operator.Discovery, idOf(g)))
	}
	served := b.all("has a config", func(_ int, s reader.State) bool { return s.Changes > 0 })
	b.Logf(
		"%d Gateways: all served %s after the start, CPU %s", b.size, served.Sub(begun).Round(time.Millisecond),
		b.operator.cpu(),
	)
	b.operator.settles()
	b.Logf("%d Gateways: %.0f writes done after %s, CPU %s, peak %d MiB", b.size,
		b.operator.metric(
			"stunner_operator_writes_total",
		), (time.Since(begun) - quiet).Round(time.Second/10), b.operator.cpu(), b.operator.peak())
	b.wroteInOrder(begun)
	for g, r := range b.readers {
		// The Service of a new Gateway gets its cluster IP after the first config was published.
		s := r.State()
		clusters, addressed := bytes.Count(s.Last.Data, []byte(`"STATIC"`)), bytes.Contains(
			s.Last.Data, []byte(`"service_addresses"`),
		)
		if s.Changes > 2 || clusters != routes || !addressed {
			b.Errorf(
				"%s: %d configs, the last with %d clusters, with the Service's address: %t; want at most two configs, the last one complete",
				idOf(g), s.Changes, clusters, addressed,
			)
		}
	}
}

// expose gives every Gateway an address, and waits until every config has it and every status is written.
func (b *scaleTest) expose() {
	b.Helper()
	begun := time.Now()
	b.userObjects.expose()
	shown := b.all(
		"has the address",
		func(g int, s reader.State) bool { return bytes.Contains(s.Last.Data, []byte(`"`+public(g)+`"`)) },
	)
	b.operator.settles()
	b.Logf(
		"%d Gateways: all have their address %s after the first got it", b.size,
		shown.Sub(begun).Round(time.Millisecond),
	)
}

// all waits until the state of every reader satisfies wanted, and returns the time of the last reader.
func (b *scaleTest) all(what string, wanted func(gateway int, s reader.State) bool) (last time.Time) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	for g, r := range b.readers {
		s, err := r.Await(ctx, func(s reader.State) bool { return wanted(g, s) })
		if err != nil {
			b.Fatalf("%s %s: %v", idOf(g), what, err)
		}
		if s.Last.At.After(last) {
			last = s.Last.At
		}
	}
	return last
}

type cost struct {
	cpu, median time.Duration
	allocations float64
}

// costs measures changes of one EndpointSlice each: CPU time, allocations, latency to the reader, translations and
// writes.
func (b *scaleTest) costs(where string, n int, do func(n int) (latencies []time.Duration, total int)) cost {
	b.Helper()
	begun, cpu, translations := time.Now(), b.operator.cpu(), b.operator.metric("stunner_operator_translations_total")
	frames, allocations := b.frames(), b.operator.metric("go_memstats_mallocs_total")
	latencies, total := do(n)
	took := time.Since(begun)
	c := cost{cpu: (b.operator.cpu() - cpu) / time.Duration(total)}
	c.allocations = (b.operator.metric("go_memstats_mallocs_total") - allocations) / float64(total)
	slices.Sort(latencies)
	c.median = latencies[len(latencies)/2]
	translated := b.operator.metric("stunner_operator_translations_total") - translations
	b.Logf("%s: a change reaches its reader in %s, p95 %s, p99 %s; costs %s of CPU, %.0f allocations; %d changes in %s", where, c.median.Round(time.Millisecond/10),
		latencies[len(latencies)*95/100].Round(time.Millisecond/10), latencies[len(latencies)*99/100].Round(
			time.Millisecond/10,
		), c.cpu, c.allocations, total, took.Round(time.Second))
	if translated != float64(total) {
		b.Errorf("%s: %.0f translations for %d changes of one Gateway each", where, translated, total)
	}
	b.gets(where, frames+total)
	b.wroteNothing(where, begun)
	return c
}

// asks are API requests that are writes by their verb and change no object of a user: leases and reviews.
var asks = map[string]bool{"leases": true, "selfsubjectreviews": true}

// wroteNothing checks that the operator has written nothing since a time. Standby Secrets may still lack endpoints of
// the last ten minutes.
func (b *scaleTest) wroteNothing(when string, since time.Time) {
	b.Helper()
	all, err := b.kube.Audit(since)
	if err != nil {
		b.Fatal(err)
	}
	wrote := map[string]int{}
	for _, e := range all {
		if e.Write() && e.User == runner.User && !asks[e.Resource] {
			wrote[e.Verb+" "+e.Resource]++
		}
	}
	if len(wrote) > 0 {
		b.Errorf("%s: the operator wrote %v, want nothing", when, wrote)
	}
	b.readNothing(all)
}

// readNothing checks that the operator read no single object that its cache contains, or whose absence the cache shows.
func (b *scaleTest) readNothing(all []cluster.Entry) {
	b.Helper()
	read := map[string]int{}
	for _, e := range all {
		if e.Verb == "get" && e.User == runner.User && slices.Contains(generated, e.Resource) && e.Name != secretName {
			read[e.Resource]++
		}
	}
	if len(read) > 0 {
		b.Errorf("the operator read %v, want no generated object", read)
	}
}

// generated are the resources of the objects that the operator writes for each Gateway.
var generated = []string{"services", "deployments", "configmaps", "secrets"}

// wroteInOrder checks that the ConfigMap and the Secret of each new Gateway were written once since a time, and that
// Services and Deployments were taken from the queue before statuses of routes. Because a write may be slow, the test
// compares the order in which the writes arrive.
func (b *scaleTest) wroteInOrder(since time.Time) {
	b.Helper()
	all, err := b.kube.Audit(since)
	if err != nil {
		b.Fatal(err)
	}
	slices.SortStableFunc(all, func(a, b cluster.Entry) int { return a.Time.Compare(b.Time) })
	wrote, late := map[string]int{}, 0
	b.readNothing(all)
	for _, e := range all {
		if !e.Write() || e.User != runner.User || e.Namespace == "" || asks[e.Resource] {
			continue
		}
		wrote[e.Resource+e.Subresource]++
		if (e.Resource == "services" || e.Resource == "deployments") && wrote["udproutesstatus"] > 0 {
			late++
		}
	}
	fresh := b.size - b.written
	b.Logf("%d new Gateways: wrote %v", fresh, wrote)
	if late > maxLate {
		b.Errorf(
			"%d of %d new Services and Deployments were written after the first status of a route, want at most %d",
			late, 2*fresh, maxLate,
		)
	}
	own := 1 // one Secret may be that of the CA of config discovery
	for _, resource := range generated {
		if got := wrote[resource]; got < fresh || got > fresh+own {
			b.Errorf("%d writes of %s for %d new Gateways, want one each", got, resource, fresh)
		}
	}
	b.written = b.size
}

// frames returns the number of new configs that the readers got.
func (b *scaleTest) frames() (sum int) {
	for _, r := range b.readers {
		sum += r.State().Changes
	}
	return sum
}

// gets checks that the readers got exactly this number of new configs.
func (b *scaleTest) gets(where string, want int) {
	b.Helper()
	b.operator.await(where, func(context.Context) error {
		if got := b.frames(); got < want {
			return fmt.Errorf("%d frames fewer than changes", want-got)
		}
		return nil
	})
	if got := b.frames(); got > want {
		b.Errorf("%s: %d more frames than changes", where, got-want)
	}
}

// quietly makes one change after the other. Each change is made after the previous one was delivered.
func (b *scaleTest) quietly(n int) (latencies []time.Duration, total int) {
	b.Helper()
	for range n {
		latencies = append(latencies, b.change(b.random.IntN(b.size)))
	}
	return latencies, n
}

// change moves an endpoint of a Gateway and returns the time until its reader has it.
func (b *scaleTest) change(gateway int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	b.turn++
	begun := time.Now()
	moved, err := b.move(ctx, gateway, b.turn)
	if err != nil {
		b.Fatal(err)
	}
	s, err := b.readers[gateway].Await(
		ctx, func(s reader.State) bool { return bytes.Contains(s.Last.Data, []byte(`"`+moved+`"`)) },
	)
	if err != nil {
		b.Fatal(err)
	}
	return s.Last.At.Sub(begun)
}

// whileOthersChange is like quietly while the endpoints of other Gateways change at a constant rate.
func (b *scaleTest) whileOthersChange(n int) (latencies []time.Duration, total int) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var group sync.WaitGroup
	half, others := b.size/2, 0
	start := b.turn + n
	group.Go(func() {
		clock := time.NewTicker(pace)
		defer clock.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-clock.C:
			}
			others++
			if _, err := b.move(b.Context(), half+others%(b.size-half), start+others); err != nil {
				b.Errorf("change in the background: %v", err)
				return
			}
		}
	})
	for range n {
		latencies = append(latencies, b.change(b.random.IntN(half)))
	}
	cancel()
	group.Wait()
	b.turn += others
	b.change(0) // when this change has arrived, the operator has processed all others
	return latencies, n + others + 1
}

// restarts kills the operator and starts another operator, which must write nothing. No reader may get a new config.
func (b *scaleTest) restarts() {
	b.Helper()
	visits := make([]int, b.size)
	for g, r := range b.readers {
		visits[g] = r.State().Visits
	}
	frames := b.frames()
	if err := b.operator.Process.Kill(); err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	b.operator.start()
	b.all("is back", func(g int, s reader.State) bool { return s.Connected && s.Visits > visits[g] })
	b.Logf("%d Gateways: all readers are served again %s after a kill, CPU %s", b.size,
		time.Since(begun).Round(time.Second/10), b.operator.cpu())
	b.operator.settles()
	b.Logf("%d Gateways: at rest %s after a kill, CPU %s, peak %d MiB", b.size,
		(time.Since(begun) - quiet).Round(time.Second/10), b.operator.cpu(), b.operator.peak())
	b.change(b.size - 1)
	b.gets("after a kill", frames+1)
	b.wroteNothing("after a kill", begun)
}

// failsOver kills the leader of two operators, and measures the time until the other operator has created the Service
// of a new Gateway.
func (b *scaleTest) failsOver() {
	b.Helper()
	second := newOperator(b.T, b.kube, "off", administrators)
	second.Args = []string{"--identity=second"}
	second.start()
	second.await("the second operator is ready", harness.Answers("http://"+second.Health+"/ready", http.StatusOK))
	if second.metric("stunner_operator_leader") != 0 || b.operator.metric("stunner_operator_leader") != 1 {
		b.Fatal("the second operator leads, or the first does not")
	}
	killed := time.Now()
	if err := b.operator.Process.Kill(); err != nil {
		b.Fatal(err)
	}
	for _, o := range objects(b.size) {
		if err := b.create(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
	second.await("the new Gateway has a Service", func(ctx context.Context) error {
		_, err := b.in("v1", "services", b.size).Get(ctx, nameOf(b.size), metav1.GetOptions{})
		return err
	})
	took := time.Since(killed)
	b.Logf("%d Gateways: a new one has a Service %s after the leader is killed", b.size, took.Round(time.Second/10))
	if took > maxTakeover {
		b.Errorf("the other operator has written after %s, want at most %s", took, maxTakeover)
	}
}
