// Package largest tests that no object of a tenant exhausts the operator's memory or time, even with the largest size
// that the API server accepts.
//
// The objects are generated. For every list, map and string in the schema of every kind that the operator reads, the
// test finds the largest object that the API server admits, with requests that are not stored. It then creates each of
// these objects, and as many copies as fit into a minute, while three other tenants change their endpoints and create
// Gateways. Objects of a few kinds are in one such flood. Sizes multiply if all elements of a list of the largest size
// have large fields, and if an object refers to another one of the largest size.
//
//	schema_test.go  the fields of a kind, from OpenAPI
//	grow_test.go    values of any size
//	rows_test.go    the kinds, and the objects that make the operator read an object
//	size_test.go    the largest object that the API server admits
//	others_test.go  effects on other tenants
//	flood_test.go   which objects are created together
//	attack_test.go  the objects, once and repeated
//
// Finding the sizes takes a quarter of an hour, so they are stored in testdata/sizes.tsv. -sizes finds the missing
// ones, and the report names fields without a size. If a flood of several kinds fails, -rows and -only select single
// ones:
//
//	go test -v -count=1 -timeout=1h ./e2e/largest -rows 'Revocation|Gateway' -only 'metadata.finalizers' -for 30s
package largest

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

var (
	flood  = flag.Duration("for", time.Minute, "how long the objects of a flood are repeated")
	only   = flag.String("only", "", "regular expression of the objects to try, as the report names them")
	kinds  = flag.String("rows", everyRow, "regular expression of the names of rows to try")
	update = flag.Bool("update", false, "find all sizes again, and write them")
	sizes  = flag.Bool("sizes", false, "find the sizes that testdata does not have, write them, and end")
)

const everyRow = ".*"

// memory is the memory limit of the operator in bytes, as in the chart. The kernel kills an operator that exceeds it.
const memory = 512 << 20

// Limits for others while the objects of the attacker exist. On a slow machine, the limit is a multiple of the time in
// the control phase.
const (
	slowestChange   = 100 * time.Millisecond // until config discovery has a changed endpoint, for 99 % of the changes
	slowestCreation = time.Second            // between the Service that the test creates and the Service of a new Gateway
	slower          = 3                      // factor to the times in the control phase
)

// restartWithin is the limit of a start with all objects of the attacker, until others are served again.
const restartWithin = 30 * time.Second

// timeout limits steps that take seconds on an idle machine.
const timeout = 5 * time.Minute

// TestLargest: no object of a tenant ends the operator, makes it unready, or delays changes of others.
func TestLargest(t *testing.T) {
	s := start(t)
	all := s.candidates()
	if *sizes {
		return
	}
	s.launch()
	s.record(t.Context())
	s.floodAll(all)
}

// suite is the API server, the operator and the other tenants.
type suite struct {
	*testing.T
	*others
	decoder  *decoder
	operator *runner.Operator
	cancel   context.CancelFunc // ends the readers
	// changeLimit and creationLimit are the limits after the control phase.
	changeLimit, creationLimit time.Duration
	report                     []string
}

func start(t *testing.T) *suite {
	t.Helper()
	kube, err := cluster.Start(t.Context(), cluster.Options{Still: true, Roomy: true})
	s := &suite{T: t, decoder: newDecoder(t)}
	s.must(err)
	t.Cleanup(func() { s.must(kube.Stop()) })
	server, err := newAPIServer(kube)
	s.must(err)
	s.others = &others{apiServer: server, stalls: stall.Start(), one: make(chan struct{}), seen: map[string]*receipt{}}
	t.Cleanup(s.stalls.Stop)
	root, err := harness.Root()
	s.must(err)
	texts := []string{objectsOfOthers}
	for i := range tenants {
		texts = append(texts, strings.NewReplacer("NS", namespaceOf(i), "NUMBER", fmt.Sprint(i+1)).Replace(tenant))
	}
	for _, file := range []string{"namespace", "rbac", "inspection", "policy"} {
		text, err := os.ReadFile(filepath.Join(root, "kustomize/base", file+".yaml"))
		s.must(err)
		s.must(kube.Apply(t.Context(), home, string(text)))
	}
	s.must(kube.InstallKEDA(t.Context()))
	s.must(kube.Apply(t.Context(), attacker, strings.Join(texts, "")))
	s.must(kube.Apply(t.Context(), attacker, shared))
	const account = "system:serviceaccount:" + home + ":stunner-operator"
	s.operator = runner.New(t, kube, memory, account, "system:serviceaccounts", "system:serviceaccounts:"+home)
	s.process = func() *harness.Process { return s.operator.Process }
	s.discovery, s.health = s.operator.Discovery, s.operator.Health
	s.must(harness.Until(t.Context(), func(ctx context.Context) error { // the authorizer observes roles with a delay
		may, err := kube.May(ctx, account, "list", "gateways.gateway.networking.k8s.io", "")
		if err == nil && !may {
			err = fmt.Errorf("the operator may not list Gateways yet")
		}
		return err
	}))
	return s
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// launch starts the operator, and waits until others have their configs.
func (s *suite) launch() {
	s.Helper()
	s.must(s.startWithin(timeout))
}

// startWithin starts the operator. It returns an error if the operator ends, or is not ready or has not published the
// configs of others in time.
func (s *suite) startWithin(limit time.Duration) error {
	s.Helper()
	if s.cancel != nil {
		s.cancel()
	}
	s.operator.Start(home, "off")
	ctx, cancel := context.WithTimeout(s.Context(), limit)
	defer cancel()
	if err := s.operator.Process.Until(ctx, harness.Answers("http://"+s.health+"/ready", http.StatusOK)); err != nil {
		return err
	}
	var readers context.Context
	readers, s.cancel = context.WithCancel(s.Context())
	s.follow(readers)
	return s.operator.Process.Until(ctx, func(context.Context) error { return s.complete() })
}

// hasPods are kinds with the fields of a pod. Only the first row with such a kind tries these fields.
var hasPods = map[string]bool{"Deployment": true, "DaemonSet": true, "Pod": true}

// candidates returns the largest object for each field of each row.
func (s *suite) candidates() (all []*candidate) {
	s.Helper()
	begun := time.Now()
	client, err := newSchemas(s.Admin.Config)
	s.must(err)
	table := readSizes(s.T)
	byRow, tried, missing := map[string][]*candidate{}, map[string]bool{}, map[string]int{}
	tries, selected := regexp.MustCompile(*only), regexp.MustCompile("^("+*kinds+")$")
	for _, r := range rows {
		base, err := s.decoder.base(r, name)
		s.must(err)
		refused, err := s.admits(s.Context(), base)
		s.must(err)
		if refused != nil {
			s.Errorf("row %s: the API server does not admit the base object: %v", r.name, refused)
		}
	}
	if s.Failed() {
		s.FailNow()
	}
	if !slices.ContainsFunc(rows, func(r row) bool { return selected.MatchString(r.name) }) {
		s.Fatalf("-rows: the name of no row matches %q", *kinds)
	}
	for _, r := range rows {
		if !selected.MatchString(r.name) {
			continue
		}
		base, err := s.decoder.base(r, name)
		s.must(err)
		n, err := client.of(kindOf(base))
		s.must(err)
		fields, found, exists, known := n.fields(base), 0, false, table.has(r)
		for _, f := range fields {
			if hasPods[kindOf(base).Kind] && strings.HasPrefix(f.definition, "io.k8s.api.core.") && tried[f.definition] {
				continue
			}
			tried[f.definition] = true
			c, is := table.candidate(r, n, base, f)
			if !is && !*update && !*sizes {
				missing[r.name]++
				continue
			}
			if !is || *update {
				if f.ofStatus() && !exists { // the API server admits a status of objects that exist
					s.must(s.create(s.Context(), base))
					exists = true
				}
				found++
				c, err = s.grow(s.Context(), r, n, base, f)
				s.must(err)
				table.set(c)
			}
			if len(c.size) > 0 {
				byRow[r.name] = append(byRow[r.name], c)
			}
		}
		if exists {
			s.must(s.remove(s.Context(), []*candidate{{row: r, base: base}}, 1))
		}
		if found > 0 {
			if *update || *sizes {
				table.write(s.T)
			}
			if !known || *update {
				table.setPairs(r, s.pairs(byRow[r.name]))
			}
			if *update || *sizes {
				table.write(s.T)
			}
			s.Logf("%s: found the sizes of %d fields after %s", r.name, found, time.Since(begun).Round(time.Second/10))
		}
		pairs, err := table.pairs(r, n, base, fields)
		s.must(err)
		byRow[r.name] = append(byRow[r.name], pairs...)
		all = append(all, byRow[r.name]...)
	}
	for row, fields := range missing {
		s.Logf("%s: %d fields are not tried: testdata/sizes.tsv has no sizes of them, find them with -sizes", row, fields)
	}
	all = append(all, s.crossed(byRow)...)
	all = slices.DeleteFunc(all, func(c *candidate) bool {
		return c.length() < worthwhile && c.using == nil || !tries.MatchString(c.String())
	})
	s.Logf("%d largest objects, with %d requests in %s", len(all), s.requests, time.Since(begun).Round(time.Second))
	return all
}

// maxPairs is the number of pairs of fields of a row.
const maxPairs = 3

// pairs returns objects in which a field has its largest size in all elements of a list of the largest size.
func (s *suite) pairs(of []*candidate) (pairs []*candidate) {
	type pair struct {
		outer, inner *candidate
		bytes        int
	}
	var all []pair
	for _, outer := range of {
		if outer.fields[0].form != list || outer.size[0] < 2 {
			continue
		}
		prefix := outer.fields[0].path.String() + element
		for _, inner := range of {
			if p := inner.fields[0].path; strings.HasPrefix(p.String(), prefix) && inner.length() < most/2 {
				all = append(all, pair{outer, inner, outer.size[0] * (inner.length() - len(bytesOf(inner.base)))})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b pair) int { return b.bytes - a.bytes })
	for _, p := range all {
		if len(pairs) == maxPairs {
			break
		}
		if p.bytes < 2*max(p.outer.length(), p.inner.length()) {
			continue
		}
		c, err := s.together(s.Context(), p.outer, p.inner)
		s.must(err)
		if c != nil && c.length() > max(p.outer.length(), p.inner.length()) {
			pairs = append(pairs, c)
		}
	}
	return pairs
}

// maxUsed is the number of objects of a row, the largest first, to which objects of another row refer.
const maxUsed = 2

// crossed returns the base object and the pairs of each row, with the largest objects of the rows that it uses.
func (s *suite) crossed(byRow map[string][]*candidate) (all []*candidate) {
	for _, r := range rows {
		for used, of := range r.uses {
			largest := slices.Clone(byRow[of])
			largest = slices.DeleteFunc(largest, func(c *candidate) bool {
				// a path of one step is the type of a Secret
				return c.length() < worthwhile || c.fields[0].ofStatus() || c.fields[0].path[0] == "metadata" || len(c.fields[0].path) < 2
			})
			// Growths that repeat a value of the base object come first, because their values are valid together with the rest
			// of it.
			slices.SortStableFunc(largest, func(a, b *candidate) int {
				if a.growth[0].name != b.growth[0].name {
					if a.growth[0].name == "repeated base value" {
						return -1
					}
					if b.growth[0].name == "repeated base value" {
						return 1
					}
				}
				return b.length() - a.length()
			})
			for _, u := range largest[:min(maxUsed, len(largest))] {
				own := []*candidate{}
				for _, c := range byRow[r.name] {
					if len(c.fields) > 1 {
						own = append(own, c)
					}
				}
				if len(byRow[r.name]) > 0 {
					first := byRow[r.name][0]
					own = append(own, &candidate{row: r, node: first.node, base: first.base})
				}
				for _, c := range own {
					other := *c
					other.using = map[string]*candidate{used: u}
					all = append(all, &other)
				}
			}
		}
	}
	return all
}
