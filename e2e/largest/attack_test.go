package largest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// Durations of the attack.
const (
	controlFor = 2 * time.Second
	burst      = time.Second // objects are repeated for -least, and further as long as the operator keeps them
	sliceFor   = time.Minute // of one object
)

// Others make this number of changes after the last object before they are judged.
const changesAfter = 3

const senders = 4

// keptLimit is the memory in bytes that the operator may use for the objects of one tenant.
const keptLimit = memory / 4

// Values of GOGC. Frequent garbage collections show how much for one object the operator keeps.
const usual, frequent = 100, 20

// kept is the share of the bytes of objects from which they are repeated further. The live heap is known from the last
// garbage collection, when it had at least half of its size.
const kept = 0.2

func newSchemas(config *rest.Config) (*schemas, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	paths, err := client.OpenAPIV3().Paths()
	return &schemas{paths: paths, loaded: map[string]map[string]*node{}}, err
}

// result is what an attempt has shown.
type result struct {
	*candidate
	sample
	copies int
	kept   int // bytes of the heap that are live after it
	ended  bool
	exit   error // why it has ended
	// restart is the error of a start with all objects.
	restart error
}

func (r *result) String() string {
	return fmt.Sprintf("%7d kB %6d copies %5d MiB peak %7.1f MiB kept  %7s change  %7s new Gateway  %s", r.bytes>>10, r.copies, r.peak>>20,
		float64(r.kept)/(1<<20), worst(r.changes), worst(r.births), r.candidate)
}

// judge reports an error if other tenants were affected.
func (s *suite) judge(r *result) {
	var faults []string
	if r.ended {
		faults = append(faults, fmt.Sprintf("the operator has ended: %v", r.exit))
	}
	if r.restart != nil {
		faults = append(faults, fmt.Sprintf("the operator does not start with them: %.200s", r.restart.Error()))
	}
	if len(r.unready) > 0 {
		faults = append(faults, fmt.Sprintf("the operator was not ready %d times: %s", len(r.unready), r.unready[0]))
	}
	if len(r.lost) > 0 && !r.ended {
		faults = append(faults, fmt.Sprintf("%d changes of others were lost: %s", len(r.lost), r.lost[0]))
	}
	if r.kept > keptLimit {
		faults = append(faults, fmt.Sprintf("the operator keeps %d MiB of them, want at most %d", r.kept>>20, keptLimit>>20))
	}
	limit := s.changeLimit
	if r.copies == 1 {
		limit = max(limit, single*slowestChange)
	}
	if took := p99(r.changes); took > limit {
		faults = append(faults, fmt.Sprintf("changes of others take %s, want at most %s", took, limit))
	}
	if took := p99(r.births); took > s.birthLimit {
		faults = append(faults, fmt.Sprintf("a new Gateway of others gets its Service after %s, want at most %s", took, s.birthLimit))
	}
	if len(faults) > 0 {
		s.Errorf("%d × %s (%d bytes each): %s", r.copies, r.candidate, r.bytes, strings.Join(faults, "; "))
	}
	mark := "  "
	if len(faults) > 0 {
		mark = "✗ "
	}
	s.report = append(s.report, mark+r.String())
	s.Log(mark + r.String())
}

// control measures the others while objects that the operator does not read are written, as large and as fast as those
// of the attack.
func (s *suite) control() {
	s.Helper()
	object := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
		"data": map[string]any{"much": strings.Repeat("x", most/2)},
	}
	c := &candidate{row: row{name: "control"}, base: object, bytes: most / 2}
	r := s.attempt(c, func(begun time.Time, _ *result) bool { return time.Since(begun) < controlFor })
	s.changeLimit = max(slowestChange, slower*p99(r.changes))
	s.birthLimit = max(slowestBirth, slower*p99(r.births))
	s.Logf("control: %d objects, changes of others p99 %s, new Gateways p99 %s: limits %s and %s", r.copies, p99(r.changes),
		p99(r.births), s.changeLimit, s.birthLimit)
	s.judge(r)
}

// attack creates objects once, in an order, and then repeats those that cost the operator most.
func (s *suite) attack(all []*candidate, order map[string]int) {
	s.Helper()
	slices.SortStableFunc(all, func(a, b *candidate) int { return order[a.name()] - order[b.name()] })
	s.restart(frequent)
	var results []*result
	for begun := time.Now(); len(results) < len(all) && time.Since(begun) < *once; {
		r := s.attempt(all[len(results)], nil)
		s.judge(r)
		results = append(results, r)
	}
	s.Logf("%d of %d objects were created once", len(results), len(all))
	s.restart(usual)
	slices.SortStableFunc(results, func(a, b *result) int { return b.cost() - a.cost() })
	tried := 0
	for begun := time.Now(); tried < len(results) && time.Since(begun) < *again; tried++ {
		r := s.attempt(results[tried].candidate, func(begun time.Time, r *result) bool {
			took := time.Since(begun)
			return took < sliceFor && r.kept < 2*keptLimit && (took < *least || float64(r.kept) > kept*float64(r.copies*r.bytes))
		})
		s.judge(r)
		results[tried].sample, results[tried].kept = r.sample, max(r.kept, results[tried].kept)
	}
	s.Logf("%d of %d objects were repeated; operator limited to %d MiB, limits of others %s and %s:\n%s", tried, len(all), memory>>20,
		s.changeLimit, s.birthLimit, strings.Join(s.report, "\n"))
	if *update {
		slices.SortStableFunc(results, func(a, b *result) int { return b.cost() - a.cost() })
		names := make([]string, 0, len(all))
		for _, r := range results {
			names = append(names, r.name())
		}
		for _, c := range all[len(results):] { // in the order of the file
			names = append(names, c.name())
		}
		writeLines(s.T, "order.txt", names)
	}
}

// cost orders results: first those that delayed others most, in tenths of a second, then those whose objects the
// operator kept, in MiB.
func (r *result) cost() int {
	return 1000*int(worst(r.changes)/(100*time.Millisecond)) + r.kept>>20
}

// attempt creates the object of a candidate, and bursts of copies as long as more returns true. It measures others
// until they have made some changes more, and deletes the objects. An operator that has ended is started again.
func (s *suite) attempt(c *candidate, more func(begun time.Time, r *result) bool) *result {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	r := &result{candidate: c}
	s.must(s.createUsed(c))
	stop := s.measure(ctx)
	s.rest(ctx)
	before := s.live()
	bodies, err := s.first(ctx, c)
	s.must(err)
	r.copies = 1
	begun := time.Now()
	for {
		if more != nil {
			copies := s.repeat(ctx, bodies, r.copies)
			r.copies += copies
		}
		s.changed(changesAfter)
		if r.ended = s.hasEnded(); r.ended {
			break
		}
		r.kept = s.live() - before
		if more == nil || !more(begun, r) {
			break
		}
	}
	stop()
	r.sample = s.take()
	r.ended = r.ended || s.hasEnded()
	r.exit = s.operator.Process.Err()
	if more != nil && !r.ended && s.changeLimit > 0 { // not in the control phase
		s.must(s.operator.Process.Kill())
		r.restart = s.startWithin(restartWithin)
	}
	removal, done := context.WithTimeout(s.Context(), patience)
	defer done()
	s.must(s.remove(removal, c, r.copies))
	if r.ended || r.restart != nil {
		s.must(s.operator.Process.Kill())
		s.launch()
	}
	return r
}

// rest waits until the operator has finished with the objects of the attempt before: a change of others takes as long
// as usual. It discards what others have observed.
func (s *suite) rest(ctx context.Context) {
	for fast := false; !fast && ctx.Err() == nil && !s.hasEnded(); {
		s.take()
		s.changed(2)
		now := s.take()
		fast = len(now.changes) > 0 && worst(now.changes) < slowestChange
	}
}

func (s *suite) hasEnded() bool {
	select {
	case <-s.operator.Process.Done():
		return true
	default:
		return false
	}
}

// live returns the bytes of the heap of the operator that were live at its last garbage collection.
func (s *suite) live() int {
	ctx, cancel := context.WithTimeout(s.Context(), lost)
	defer cancel()
	next, err := bed.Metric(ctx, "http://"+s.health+"/metrics", "go_memstats_next_gc_bytes")
	if err != nil {
		return 0 // it is stuck or has ended, which the measurement shows
	}
	return int(next * 100 / float64(100+s.gogc))
}

// createUsed creates the objects that an object refers to.
func (s *suite) createUsed(c *candidate) error {
	for name, of := range c.row.uses {
		r := rows[slices.IndexFunc(rows, func(r row) bool { return r.name == of })]
		base, err := s.decoder.base(r, name)
		if err != nil {
			return err
		}
		if u := c.using[name]; u != nil {
			base = u.object()
			base["metadata"].(map[string]any)["name"] = name
		}
		others, err := s.decoder.read(r.with, name)
		if err != nil {
			return err
		}
		for _, o := range append([]map[string]any{base}, others...) {
			if err := s.create(s.Context(), o); err != nil {
				return fmt.Errorf("create %s of %s: %w", name, r.name, err)
			}
		}
	}
	return nil
}

// first creates the object of a candidate and those that it needs. An object that is too large for etcd is made
// smaller.
func (s *suite) first(ctx context.Context, c *candidate) (bodies []body, err error) {
	with, err := s.decoder.read(c.row.with, name)
	if err != nil {
		return nil, err
	}
	for _, o := range with {
		bodies = append(bodies, bodiesOf(o)...)
	}
	for _, b := range bodies {
		if err := s.send(ctx, b.method, b.path, b.json); err != nil {
			return nil, err
		}
	}
	for created := false; ; {
		own := bodiesOf(c.object())
		var err error
		c.bytes = 0
		for _, b := range own {
			if c.bytes += len(b.json); b.method == http.MethodPost && created {
				continue // only the status was too large
			}
			if err = s.send(ctx, b.method, b.path, b.json); err != nil {
				break
			}
			created = true
		}
		if err == nil {
			return append(bodies, own...), nil
		}
		var r *refusal
		if !errors.As(err, &r) || !r.tooLarge() || len(c.size) == 0 {
			return nil, fmt.Errorf("create %s: %w", c, err)
		}
		last := len(c.size) - 1
		c.size = append(slices.Clone(c.size[:last]), c.size[last]*9/10)
	}
}

// repeat creates copies until the burst is over or the operator has ended, and returns their number.
func (s *suite) repeat(ctx context.Context, bodies []body, from int) int {
	ctx, cancel := context.WithTimeout(ctx, burst)
	defer cancel()
	defer context.AfterFunc(s.ended(), cancel)()
	next := atomic.Int64{}
	next.Store(int64(from))
	var group sync.WaitGroup
	for range senders {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				for _, b := range bodies {
					// A copy that is not complete when the burst ends is completed: copies have consecutive numbers.
					b := b.copyOf(i)
					if err := s.send(context.WithoutCancel(ctx), b.method, b.path, b.json); err != nil {
						s.note(func(*sample) { s.Logf("copy %d: %v", i, err) })
						return
					}
				}
			}
		})
	}
	group.Wait()
	return int(next.Load()) - from
}

// remove deletes the objects of an attempt.
func (s *suite) remove(ctx context.Context, c *candidate, copies int) error {
	kind := kindOf(c.base)
	path := pathOf(kind, attacker)
	held := slices.ContainsFunc(c.fields, func(f field) bool { return f.path.String() == "metadata.finalizers" })
	for i := range copies {
		at := fmt.Sprintf("%s/object-%05d", path, i)
		if held {
			if err := s.strip(ctx, at); err != nil {
				return err
			}
		}
		if clusterWide[kind.Kind] {
			_ = s.send(ctx, http.MethodDelete, at, nil) // a Namespace is deleted when it is finalized
		}
		if kind.Kind == "Namespace" {
			text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"object-%05d"},"spec":{}}`, i)
			if err := s.send(ctx, http.MethodPut, at+"/finalize", []byte(text)); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(s.clear(ctx, attacker), s.clear(ctx, young)); err != nil {
		return err
	}
	door, err := s.decoder.read(shared, "")
	if err == nil {
		err = s.create(ctx, door[0])
	}
	return err
}

// strip removes the finalizers of an object.
func (s *suite) strip(ctx context.Context, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, s.Admin.Config.Host+path,
		strings.NewReader(`{"metadata":{"finalizers":null}}`))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/merge-patch+json")
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
