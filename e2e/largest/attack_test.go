package largest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Durations of the attack.
const (
	controlFor = 2 * time.Second
	burst      = time.Second // the duration of repeated copies, after which the operator is checked
)

// changesAfter is the number of changes that others make after the last object before the result is judged.
const changesAfter = 3

// senders is the number of requests for objects at a time. Each needs a core of the API server.
const senders = 2

// keptLimit is the memory in bytes that the operator may use for the objects of one tenant.
const keptLimit = memory / 4

func newSchemas(config *rest.Config) (*schemas, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	paths, err := client.OpenAPIV3().Paths()
	return &schemas{paths: paths, loaded: map[string]map[string]*node{}}, err
}

type result struct {
	of []*candidate
	sample
	copies int // the number of all objects
	kept   int // live bytes of the heap after the attempt
	ended  bool
	exit   error // why the operator has ended
	// restart is the error of a start with all objects, and started how long the start took.
	restart error
	started time.Duration
}

// bytes returns the mean size of the objects.
func (r *result) bytes() int {
	sum := 0
	for _, c := range r.of {
		sum += c.bytes
	}
	return sum / len(r.of)
}

// subject names the objects.
func (r *result) subject() string {
	if len(r.of) == 1 {
		return r.of[0].String()
	}
	return subjectOf(r.of)
}

// subjectOf returns the rows of objects, with the number of objects of each.
func subjectOf(of []*candidate) string {
	var names []string
	number := map[string]int{}
	for _, c := range of {
		name := c.row.name
		if c.using != nil {
			name += " with large references"
		}
		if number[name]++; number[name] == 1 {
			names = append(names, name)
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%s: %d objects", name, number[name])
	}
	return strings.Join(names, ", ")
}

func (r *result) String() string {
	return fmt.Sprintf("%5d kB %5d copies %4d MiB peak %4d MiB kept  change %s, p99 %s of %d  "+
		"new Gateway %s, p99 %s of %d (beyond a write of %s)  start %s  %s",
		r.bytes()>>10, r.copies, r.peak>>20, r.kept>>20, worst(r.changes), p99(r.changes), len(r.changes),
		worst(r.creations), p99(r.creations), len(r.creations), p99(r.writes), r.started.Round(time.Millisecond), r.subject())
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
	if took := p99(r.changes); took > s.changeLimit {
		faults = append(faults, fmt.Sprintf("changes of others take %s, want at most %s", took, s.changeLimit))
	}
	if len(r.changes) == 0 || len(r.creations) == 0 {
		faults = append(faults, fmt.Sprintf("TEST NOT VALID: the API server has let others make %d changes and %d Gateways",
			len(r.changes), len(r.creations)))
	}
	if took := p99(r.creations); took > s.creationLimit {
		faults = append(faults, fmt.Sprintf("a new Gateway of others gets its Service %s after another Service, want at most %s",
			took, s.creationLimit))
	}
	if len(faults) > 0 {
		s.Errorf("%d × %s (%d bytes each): %s", r.copies, r.subject(), r.bytes(), strings.Join(faults, "; "))
	}
	mark := "  "
	if len(faults) > 0 {
		mark = "✗ "
	}
	s.report = append(s.report, mark+r.String())
	s.Log(mark + r.String())
}

// control measures the others while objects that the operator does not read are written, with the size and the rate of
// the attack.
func (s *suite) control() {
	s.Helper()
	object := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
		"data": map[string]any{"much": strings.Repeat("x", most/2)},
	}
	c := &candidate{row: row{name: "control"}, base: object, bytes: most / 2}
	r := s.attempt([]*candidate{c}, controlFor)
	s.changeLimit = max(slowestChange, slower*p99(r.changes))
	s.creationLimit = max(slowestCreation, slower*p99(r.creations))
	s.Logf("control: %d objects, changes of others p99 %s, new Gateways p99 %s: limits %s and %s", r.copies,
		p99(r.changes), p99(r.creations), s.changeLimit, s.creationLimit)
	s.judge(r)
}

// attempt creates the objects of candidates once, and then copies of them in turn until the burst is over or the
// operator holds too much memory for them. It measures others until they have made some more changes, starts the
// operator while the objects exist, and deletes them. If the operator has ended, it is started again.
func (s *suite) attempt(of []*candidate, duration time.Duration) *result {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), timeout+duration+time.Duration(len(of))*slowestFirst)
	defer cancel()
	r := &result{of: of}
	s.must(s.createUsed(of))
	stop := s.measure(ctx)
	s.rest(ctx)
	before := s.live()
	requests := s.firstOfAll(ctx, of)
	r.copies = len(of)
	begun := time.Now()
	for time.Since(begun) < duration && r.kept < 2*keptLimit && !s.hasEnded() && ctx.Err() == nil {
		r.copies += s.repeat(ctx, requests, r.copies)
		s.changed(ctx, changesAfter)
		r.kept = s.live() - before
	}
	if ctx.Err() != nil {
		s.Errorf("TEST NOT VALID: the objects were not created in time: %s", r.subject())
	}
	stop()
	r.sample = s.take()
	r.ended = r.ended || s.hasEnded()
	r.exit = s.operator.Process.Err()
	if !r.ended {
		s.must(s.operator.Process.Kill())
		begun := time.Now()
		r.restart = s.startWithin(restartWithin)
		r.started = time.Since(begun)
	}
	removal, done := context.WithTimeout(s.Context(), timeout)
	defer done()
	s.must(s.remove(removal, of, r.copies))
	if r.ended || r.restart != nil {
		s.must(s.operator.Process.Kill())
		s.launch()
	}
	return r
}

// rest waits until the operator has handled the objects of the previous attempt: until a change of others takes as long
// as usual. It discards the measurements of others.
func (s *suite) rest(ctx context.Context) {
	for fast := false; !fast && ctx.Err() == nil && !s.hasEnded(); {
		s.take()
		s.changed(ctx, 2)
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
	next, err := harness.Metric(ctx, "http://"+s.health+"/metrics", "go_memstats_next_gc_bytes")
	if err != nil {
		return 0 // the process is stuck or has ended, as the measurement shows
	}
	return int(next / 2) // GOGC is 100
}

// createUsed creates the objects that objects refer to.
func (s *suite) createUsed(by []*candidate) error {
	uses, using := map[string]string{}, map[string]*candidate{}
	for _, c := range by {
		maps.Copy(uses, c.row.uses)
		maps.Copy(using, c.using)
	}
	for name, of := range uses {
		r := rows[slices.IndexFunc(rows, func(r row) bool { return r.name == of })]
		base, err := s.decoder.base(r, name)
		if err != nil {
			return err
		}
		if u := using[name]; u != nil {
			base = maps.Clone(u.object())
			metadata := maps.Clone(base["metadata"].(map[string]any)) // other objects of the row share it
			metadata["name"] = name
			base["metadata"] = metadata
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

// firstOfAll creates the objects of candidates, each with its own number. It returns the requests for each, or none for
// an object that the API server does not create in time.
func (s *suite) firstOfAll(ctx context.Context, of []*candidate) [][]body {
	requests := make([][]body, len(of))
	var group errgroup.Group
	group.SetLimit(senders)
	for i, c := range of {
		group.Go(func() error {
			bodies, err := s.first(ctx, c, i)
			switch {
			case s.hasEnded():
			case isLate(err):
				s.Logf("the API server does not create in time: %s", c)
			case err != nil:
				s.Errorf("create %s: %v", c, err)
			default:
				requests[i] = bodies
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	return requests
}

// slowestFirst is how long the API server may take to create an object. A flood of slower objects would load the API
// server rather than the operator. Objects that take longer are made smaller, at least an eighth of the size.
const (
	slowestFirst = 2 * time.Second
	halvings     = 3
)

// first creates a copy of the object of a candidate and the objects that it needs. An object that is too large for
// etcd, or that exceeds slowestFirst, is made smaller.
func (s *suite) first(ctx context.Context, c *candidate, copied int) (bodies []body, err error) {
	with, err := s.decoder.read(c.row.with, name)
	if err != nil {
		return nil, err
	}
	for _, o := range with {
		bodies = append(bodies, bodiesOf(o)...)
	}
	for _, b := range bodies {
		if b = b.copyOf(copied); s.hasEnded() {
			return nil, nil
		}
		if err := s.send(ctx, b.method, b.path, b.json); err != nil {
			return nil, fmt.Errorf("%s %s: %w", b.method, b.path, err)
		}
	}
	created := false
	for late := 0; ; {
		own := bodiesOf(c.object())
		query := fmt.Sprintf("?timeout=%s", slowestFirst)
		if late == halvings || len(c.size) == 0 {
			query = ""
		}
		c.bytes = 0
		for _, b := range own {
			if c.bytes += len(b.json); b.method == http.MethodPost && created {
				continue // only the status is too large
			}
			b = b.copyOf(copied)
			var r *refusal
			err = s.send(ctx, b.method, b.path+query, b.json)
			if errors.As(err, &r) && r.code == http.StatusConflict && late > 0 {
				err = nil // the API server has created the object after its timeout
			}
			if err != nil {
				break
			}
			created = true
		}
		var r *refusal
		last := len(c.size) - 1
		switch {
		case err == nil:
			return append(bodies, own...), nil
		case isLate(err) && query != "":
			late++
			c.size = append(slices.Clone(c.size[:last]), (c.size[last]+1)/2)
		case errors.As(err, &r) && r.tooLarge() && last >= 0:
			c.size = append(slices.Clone(c.size[:last]), c.size[last]*9/10)
		default:
			return nil, err
		}
	}
}

// repeat creates copies of objects in turn until the burst is over or the operator has ended, and returns their number.
func (s *suite) repeat(ctx context.Context, requests [][]body, from int) int {
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
				for _, b := range requests[i%len(requests)] {
					// When the burst is over, the last copy is completed, because copies have consecutive numbers.
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
func (s *suite) remove(ctx context.Context, of []*candidate, copies int) error {
	for i := range copies {
		c := of[i%len(of)]
		kind := kindOf(c.base)
		held := slices.ContainsFunc(c.fields, func(f field) bool { return f.path.String() == "metadata.finalizers" })
		at := fmt.Sprintf("%s/object-%05d", pathOf(kind, attacker), i)
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
