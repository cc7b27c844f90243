// Package host tests what `stunnerctl doctor` and `why` find on a host without a cluster: faults of disks, files, ports,
// addresses and processes, which the operator of a folder finds. Each fault is made for real. e2e/diagnose has faults of
// objects, with an API server and without processes, and e2e/probe those of packets.
//
//	host_test.go    the product, and how a fault is found
//	faults_test.go  the table of faults
//	main_test.go    the network namespace
package host

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// patience is how long a fault may take to be found on a busy machine. One run of stunnerctl takes at most most.
const (
	patience = 60 * time.Second
	most     = 20 * time.Second
)

// outputSize is the size of the disk of the output folder.
const outputSize = "4m"

// product is a product in a folder, whose output folder is a small disk.
type product struct {
	*testing.T
	*env.Env
	env.Host
	input, output string
	name          string // of the host
}

func start(t *testing.T, shape string, number int) *product {
	t.Helper()
	s, err := env.ParseShape(shape)
	must(t, err)
	e, err := env.New(t.Context(), env.Options{Shape: s, Number: number, Dir: t.TempDir(), Logf: t.Logf})
	must(t, err)
	p := &product{T: t, Env: e}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(p.output, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p.input, p.output = e.Folders()
	must(t, mkdir(p.output))
	must(t, unix.Mount("tmpfs", p.output, "tmpfs", 0, "size="+outputSize))
	must(t, e.Start(t.Context()))
	p.Host = e.Host()
	return p
}

// found runs stunnerctl and returns its findings.
func (p *product) found(ctx context.Context, args ...string) ([]env.Finding, error) {
	begun := time.Now()
	o, err := p.Ctl(ctx, append(args, "-o", "json")...)
	if err != nil {
		return nil, err
	}
	var report struct{ Findings []env.Finding }
	if err := json.Unmarshal([]byte(o.Text), &report); err != nil {
		return nil, bed.Final(fmt.Errorf("stunnerctl %v: %w: %s%s", args, err, o.Text, o.Errors))
	}
	if took := time.Since(begun); took > most {
		err = bed.Final(fmt.Errorf("stunnerctl %v took %s", args, took))
	}
	return report.Findings, err
}

// fault is a fault and the finding that names it.
type fault struct {
	name string
	// make makes the fault, and undo ends it. With lasts, the finding stays for a while after undo.
	make, undo func(t *testing.T)
	lasts      bool
	// severity, object, field and problem are those of the finding; the last two may be parts of it.
	severity, object, field, problem string
	// fields are the words of the remedy that name what to do; empty means any.
	remedy string
}

func (f fault) is(found env.Finding) bool {
	return found.Severity == f.severity && found.Object == f.object && strings.Contains(found.Field, f.field) &&
		strings.Contains(found.Problem, f.problem) && found.Remedy != "" && strings.Contains(found.Remedy, f.remedy)
}

// find makes a fault, waits until doctor names it, prints what a person sees, and ends it.
func (p *product) find(t *testing.T, f fault) {
	f.make(t)
	ended := false
	end := func() {
		if !ended {
			ended = true
			f.undo(t)
		}
	}
	t.Cleanup(end)
	p.until(t, func(ctx context.Context) error {
		all, err := p.found(ctx, "doctor")
		if err == nil && !slices.ContainsFunc(all, f.is) {
			err = fmt.Errorf("want %s %s, %s: %s; found %+v", f.severity, f.object, f.field, f.problem, all)
		}
		return err
	})
	if o, err := p.Ctl(t.Context(), "doctor"); err == nil {
		t.Log(o.Text)
	}
	end()
	if !f.lasts {
		p.healthy(t)
	}
}

// healthy waits until doctor finds no problem.
func (p *product) healthy(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"doctor"}, {"why", "--probe=false", p.Gateways[0].ID()}} {
		p.until(t, func(ctx context.Context) error {
			all, err := p.found(ctx, args...)
			wrong := slices.DeleteFunc(all, func(f env.Finding) bool { return f.Severity == "info" })
			if err == nil && len(wrong) > 0 {
				err = fmt.Errorf("%v of a healthy installation finds %+v", args, wrong)
			}
			return err
		})
	}
}

func (p *product) until(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, bed.Until(ctx, cond))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file returns the only input file that matches a pattern.
func (p *product) file(t *testing.T, pattern string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(p.input, pattern))
	if err != nil || len(all) != 1 {
		t.Fatalf("%s: %v, %v", pattern, all, err)
	}
	return all[0]
}

// signal sends a signal to processes.
func signal(t *testing.T, s syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		must(t, syscall.Kill(pid, s))
	}
}
