// Package largest tests that no tenant can take the operator's memory or time with an object, however large the API
// server lets it be.
//
// The objects are generated. For every list, map and string in the schema of every kind that the operator reads, the
// test finds the largest object that the API server admits, with requests that are not stored. It then creates the
// object, alone and repeatedly, while three other tenants change their endpoints and create Gateways. Fields that
// multiply are those of all elements of a list that has its largest size, and objects that refer to another one of the
// largest size.
//
//	schema_test.go  the fields of a kind, from OpenAPI
//	grow_test.go    values of any size
//	rows_test.go    the kinds, and what makes the operator read an object
//	size_test.go    the largest object that the API server admits
//	others_test.go  what other tenants observe
//	attack_test.go  the objects, once and repeated
//
// `go test ./e2e/largest` repeats the objects that cost the operator most, as many as fit into repeatFor.
// `go test ./e2e/largest -long -timeout=3h` tries all fields, and repeats each. -only selects by a part of the name.
package largest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

var (
	long  = flag.Bool("long", false, "try all fields, and repeat the largest object of each")
	only  = flag.String("only", "", "try only objects whose name in the report contains this, such as \"Service: map metadata.labels\"")
	kinds = flag.String("rows", ".*", "regular expression of the names of rows to try")
	sizes = flag.Bool("sizes", false, "print the largest sizes only")
)

// memory is the memory limit of the operator in bytes, as in the chart. The kernel kills an operator that exceeds it.
const memory = 512 << 20

// Limits for others while the objects of the attacker exist. On a machine that is slow by itself, a multiple of the time
// under the same load of the API server is allowed.
const (
	slowestChange = 100 * time.Millisecond // until config discovery has a changed endpoint, 99 % of the changes
	slowestBirth  = time.Second            // until a new Gateway has its Service, likewise
	slower        = 3                      // than in the control phase
)

// patience is the timeout of steps that take seconds on an idle machine.
const patience = 5 * time.Minute

// TestLargest: no object of a tenant ends the operator, makes it unready, or delays changes of others.
func TestLargest(t *testing.T) {
	s := start(t)
	all := s.candidates()
	if *sizes {
		return
	}
	s.control()
	s.attack(all)
}

// suite is the API server, the operator and the other tenants.
type suite struct {
	*testing.T
	*others
	decoder  *decoder
	operator *runner.Operator
	cancel   context.CancelFunc // of the readers
	// changeLimit and birthLimit are the limits after the control phase.
	changeLimit, birthLimit time.Duration
	report                  []string
	gogc                    int // of the operator
}

func start(t *testing.T) *suite {
	t.Helper()
	kube, err := cluster.Start(t.Context(), cluster.Options{Still: true, Roomy: true})
	s := &suite{T: t, decoder: newDecoder(t)}
	s.must(err)
	t.Cleanup(func() { s.must(kube.Stop()) })
	server, err := newAPIServer(kube)
	s.must(err)
	s.others = &others{apiServer: server, pulse: stall.Start(), one: make(chan struct{})}
	t.Cleanup(s.pulse.Stop)
	root, err := bed.Root()
	s.must(err)
	texts := []string{world}
	for i := range tenants {
		texts = append(texts, strings.NewReplacer("NS", namespaceOf(i), "NUMBER", fmt.Sprint(i+1)).Replace(tenant))
	}
	for _, file := range []string{"namespace", "rbac", "inspection", "policy"} {
		text, err := os.ReadFile(filepath.Join(root, "kustomize/base", file+".yaml"))
		s.must(err)
		s.must(kube.Apply(t.Context(), home, string(text)))
	}
	s.must(kube.Apply(t.Context(), attacker, strings.Join(texts, "")))
	s.must(kube.Apply(t.Context(), attacker, shared))
	const account = "system:serviceaccount:" + home + ":stunner-operator"
	s.operator = runner.New(t, kube, memory, account, "system:serviceaccounts", "system:serviceaccounts:"+home)
	s.process = func() *bed.Process { return s.operator.Process }
	s.discovery, s.health = s.operator.Discovery, s.operator.Health
	s.must(bed.Until(t.Context(), func(ctx context.Context) error { // the authorizer observes roles with a delay
		may, err := kube.May(ctx, account, "list", "gateways.gateway.networking.k8s.io", "")
		if err == nil && !may {
			err = fmt.Errorf("the operator may not list Gateways yet")
		}
		return err
	}))
	s.gogc = usual
	s.launch()
	return s
}

// restart starts the operator with another value of GOGC.
func (s *suite) restart(gogc int) {
	s.Helper()
	s.must(s.operator.Process.Kill())
	s.gogc = gogc
	s.launch()
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
	if s.cancel != nil {
		s.cancel()
	}
	s.operator.Env = []string{fmt.Sprintf("GOGC=%d", s.gogc)}
	s.operator.Start(home, "off")
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	s.must(s.operator.Process.Until(ctx, bed.Answers("http://"+s.health+"/ready", 200)))
	var readers context.Context
	readers, s.cancel = context.WithCancel(s.Context())
	followed := make(chan error, 1)
	go func() { followed <- s.follow(readers) }()
	select {
	case err := <-followed:
		s.must(err)
	case <-ctx.Done():
		s.Fatal("others have no configs")
	}
}

// candidates returns the largest object for each field of each row.
func (s *suite) candidates() (all []*candidate) {
	s.Helper()
	begun := time.Now()
	client, err := newSchemas(s.Admin.Config)
	s.must(err)
	s.must(s.createUsed(&candidate{row: row{uses: map[string]string{}}}))
	byRow := map[string][]*candidate{}
	tried := map[string]bool{}
	selected := regexp.MustCompile("^(" + *kinds + ")$")
	for _, r := range rows {
		if !selected.MatchString(r.name) {
			continue
		}
		base, err := s.decoder.base(r, name)
		s.must(err)
		n, err := client.of(kindOf(base))
		s.must(err)
		refused, err := s.admits(s.Context(), base)
		s.must(err)
		if refused != nil {
			s.Fatalf("row %s: the API server does not admit the base object: %v", r.name, refused)
		}
		var small []string
		fields := n.fields(base)
		for _, f := range fields {
			if !*long && len(f.path) > 4 && tried[f.definition] {
				continue
			}
			tried[f.definition] = true
			c, err := s.grow(s.Context(), r, n, base, f)
			s.must(err)
			if c.size == nil {
				small = append(small, f.String())
				continue
			}
			byRow[r.name] = append(byRow[r.name], c)
		}
		s.Logf("%s after %s: %d fields, %d do not grow: %s", r.name, time.Since(begun).Round(time.Second/10), len(fields), len(small), strings.Join(small, ", "))
		for _, of := range s.pairs(byRow[r.name]) {
			byRow[r.name] = append(byRow[r.name], of)
		}
		all = append(all, byRow[r.name]...)
	}
	all = append(all, s.crossed(byRow)...)
	for _, c := range all {
		s.Logf("%d bytes: %s", c.bytes, c)
	}
	all = slices.DeleteFunc(all, func(c *candidate) bool {
		return c.bytes < worthwhile && c.using == nil || !strings.Contains(c.String(), *only)
	})
	s.Logf("%d largest objects, found with %d requests in %s", len(all), s.requests, time.Since(begun).Round(time.Second))
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
			if p := inner.fields[0].path; strings.HasPrefix(p.String(), prefix) && inner.bytes < most/2 {
				all = append(all, pair{outer, inner, outer.size[0] * (inner.bytes - len(bytesOf(inner.base)))})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b pair) int { return b.bytes - a.bytes })
	for _, p := range all {
		if len(pairs) == maxPairs {
			break
		}
		if p.bytes < 2*max(p.outer.bytes, p.inner.bytes) {
			continue
		}
		c, err := s.together(s.Context(), p.outer, p.inner)
		s.must(err)
		if c != nil && c.bytes > max(p.outer.bytes, p.inner.bytes) {
			pairs = append(pairs, c)
		}
	}
	return pairs
}

// maxUsed is the number of largest objects of a row to which objects of another row refer.
const maxUsed = 2

// crossed returns the base object and the pairs of each row, with the largest objects of the rows that it uses.
func (s *suite) crossed(byRow map[string][]*candidate) (all []*candidate) {
	for _, r := range rows {
		for used, of := range r.uses {
			largest := slices.Clone(byRow[of])
			largest = slices.DeleteFunc(largest, func(c *candidate) bool {
				return c.bytes < worthwhile || c.fields[0].path[0] == "metadata"
			})
			// Values that repeat that of the base object are valid beside it.
			slices.SortStableFunc(largest, func(a, b *candidate) int {
				if a.way[0].name != b.way[0].name {
					if a.way[0].name == "repeated base value" {
						return -1
					}
					if b.way[0].name == "repeated base value" {
						return 1
					}
				}
				return b.bytes - a.bytes
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
					own = append(own, &candidate{row: r, node: first.node, base: first.base, bytes: len(bytesOf(first.base))})
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
