package shapes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

var (
	allFlag   = flag.Bool("all", false, "run all shapes, in which each pair of values occurs")
	shapeFlag = flag.String("shape", "", "run one shape, the values of which are separated by commas")
	onlyFlag  = flag.String("only", "", "run the behaviours with these names, separated by commas")
	sideFlag  = flag.Int("side-by-side", 4, "shapes that run at a time")
	logsFlag  = flag.String("logs", "", "folder that keeps the logs of failing shapes, and cells.log with the result of each cell at once")
)

// only are the names in the flag of this name; nil means all behaviours.
var only []string

// small are the factors whose pairs the shapes of an ordinary run cover.
var small = []env.Factor{env.Listeners, env.Pods, env.Families}

// limit is the longest time that a shape may take.
const limit = 15 * time.Minute

// TestBehavioursHoldInEachShape runs all behaviours in some shapes, or with -all in shapes that have each pair of
// values.
func TestBehavioursHoldInEachShape(t *testing.T) {
	shapes := selected(t)
	if *onlyFlag != "" {
		only = strings.Split(*onlyFlag, ",")
	}
	for _, name := range only {
		if !slices.ContainsFunc(Behaviours, func(b Behaviour) bool { return b.Name == name }) {
			t.Fatalf("-only: there is no behaviour %s", name)
		}
	}
	kube, err := cluster.Start(t.Context(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := matrix{log: io.Discard}
	if *logsFlag != "" {
		log, err := os.Create(filepath.Join(*logsFlag, "cells.log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		m.log = log
	}
	t.Run("shapes", func(t *testing.T) {
		places := make(chan struct{}, *sideFlag)
		for i, s := range shapes {
			t.Run(s.String(), func(t *testing.T) {
				t.Parallel()
				places <- struct{}{}
				defer func() { <-places }()
				run(t, &m, s, i+1, kube)
			})
		}
	})
	if err := kube.Stop(); err != nil {
		t.Error(err)
	}
	m.print(t, shapes)
}

// selected returns the shapes that the flags select.
func selected(t *testing.T) []env.Shape {
	t.Helper()
	switch {
	case *shapeFlag != "":
		s, err := env.ParseShape(*shapeFlag)
		if err != nil {
			t.Fatal(err)
		}
		return []env.Shape{s}
	case *allFlag:
		return env.Cover(env.AllFactors())
	}
	return env.Cover(small)
}

// run tests the behaviours in one shape.
func run(t *testing.T, m *matrix, s env.Shape, number int, kube *cluster.Cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	e, err := env.New(ctx, env.Options{Shape: s, Number: number, Cluster: kube, Dir: t.TempDir(), Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() && *logsFlag != "" {
			keep(t, e.Dir, filepath.Join(*logsFlag, s.String()))
		}
	}()
	for _, b := range Behaviours {
		if b.In != nil && !b.In(s) || only != nil && b.Name != Starts && !slices.Contains(only, b.Name) {
			continue
		}
		begun, behaves, failing := time.Now(), ctx, find(b.Name, s)
		if failing != nil {
			behaves = env.Failing(ctx, regexp.MustCompile(failing.Symptom))
		}
		err := b.Holds(behaves, e)
		m.note(b.Name, s, err, time.Since(begun))
		t.Run(b.Name, func(t *testing.T) {
			t.Logf("%s", time.Since(begun).Round(time.Millisecond))
			check(t, b, failing, err)
		})
		if b.Last && err != nil {
			return
		}
	}
}

// check compares the result of a cell with failing.go.
func check(t *testing.T, b Behaviour, failing *Failing, err error) {
	switch {
	case failing == nil && err != nil:
		t.Errorf("%s\n%v", b.Promise, err)
	case failing != nil && err == nil:
		t.Errorf("this cell passes now: remove its row from failing.go, or narrow it: %+v", *failing)
	case failing != nil && !regexp.MustCompile(failing.Symptom).MatchString(err.Error()):
		t.Errorf("this cell fails otherwise than failing.go says, %q: %v", failing.Symptom, err)
	}
}

// keep copies logs.
func keep(t *testing.T, from, to string) {
	err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".log" {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		target := filepath.Join(to, name)
		return errors.Join(err, os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, data, 0o644))
	})
	if err != nil {
		t.Error(err)
	}
}

// matrix is the result of all cells.
type matrix struct {
	mu    sync.Mutex
	cells map[string]map[env.Shape]error
	log   io.Writer
}

func (m *matrix) note(behaviour string, s env.Shape, err error, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(m.log, "%6.1fs  %s  %s  %v\n", took.Seconds(), s, behaviour, err)
	if m.cells == nil {
		m.cells = map[string]map[env.Shape]error{}
	}
	if m.cells[behaviour] == nil {
		m.cells[behaviour] = map[env.Shape]error{}
	}
	m.cells[behaviour][s] = err
}

// print prints a row for each behaviour and a column for each shape, and how many pairs of values are covered.
func (m *matrix) print(t *testing.T, shapes []env.Shape) {
	var text strings.Builder
	fmt.Fprintf(&text, "\nshapes:\n")
	for i, s := range shapes {
		fmt.Fprintf(&text, "%4d  %s\n", i+1, s)
	}
	fmt.Fprintf(&text, "\n%-34s", "")
	for i := range shapes {
		fmt.Fprintf(&text, "%3d", i+1)
	}
	failed, tested := 0, 0
	for _, b := range Behaviours {
		fmt.Fprintf(&text, "\n%-34s", b.Name)
		for _, s := range shapes {
			mark := ""
			if err, done := m.cells[b.Name][s]; done {
				tested++
				if mark = "ok"; err != nil {
					mark = "F"
					failed++
				}
			}
			fmt.Fprintf(&text, "%3s", mark)
		}
	}
	all := env.AllFactors()
	fmt.Fprintf(&text, "\n\n%d cells, %d fail; %d of %d possible pairs of values are covered\n", tested, failed, env.Covered(shapes, all),
		env.Pairs(all))
	t.Log(text.String())
}
