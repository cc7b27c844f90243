package env

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

var shapeFlag = flag.String("shape", "folder,host", "values of the shape that TestShape starts")

// TestShape starts a shape, makes its event happen during calls, and ends it.
func TestShape(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	shape, err := ParseShape(*shapeFlag)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	o := Options{Shape: shape, Number: 1, Dir: t.TempDir(), Logf: t.Logf}
	if shape[Input] == APIServer {
		if o.Cluster, err = cluster.Start(ctx, cluster.Options{}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := o.Cluster.Stop(); err != nil {
				t.Error(err)
			}
		}()
	}
	e, err := New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			for _, name := range []string{"operator.log", "auth.log"} {
				text, _ := os.ReadFile(o.Dir + "/" + name)
				t.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	step := func(what string, do func() error) {
		t.Helper()
		begun := time.Now()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s: %s", what, time.Since(begun).Round(time.Millisecond))
	}
	step("start", func() error { return e.Start(ctx) })
	var calls Calls
	step("calls", func() (err error) { calls, err = e.DialAll(ctx, "someone"); return err })
	step("event", func() error { return e.CauseEvent(ctx) })
	step("calls continue", func() error { return calls.AwaitEchoes(ctx) })
	for _, s := range calls.HangUp() {
		t.Log(s)
	}
}
