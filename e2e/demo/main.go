// Command demo shows the product on this machine: it starts an operator on the YAML of docs/examples/quickstart, the dataplane that the
// operator makes of it, an auth service and an echo peer, and makes a relayed call through them. It stays until Ctrl-C, and leaves
// no process behind however it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		os.Exit(1)
	}
}

// run returns an error when the demo failed; the screen has said why by then.
func run(ctx context.Context, args []string) error {
	d := &demo{screen: newScreen(os.Stdout, os.Getenv)}
	here, err := os.Executable()
	if err != nil {
		d.screen.failure("programs", err, "the demo starts the programs that lie beside it", nil)
		return err
	}
	d.stack.Bin = filepath.Dir(here)
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	example := flags.String("quickstart", filepath.Join(d.stack.Bin, "../docs/examples/quickstart"), "folder with the YAML to start from")
	once := flags.Bool("exit", os.Getenv("DEMO_EXIT") == "1", "end after the verdict; also with DEMO_EXIT=1")
	_ = flags.Parse(args) // exits on error

	if d.stack.Dir, err = os.MkdirTemp("", "stunner-demo-"); err != nil {
		d.screen.failure("work folder", err, "set TMPDIR to a folder that can be written", nil)
		return err
	}
	return d.run(ctx, *example, *once)
}

// demo is one run.
type demo struct {
	screen *screen
	stack  bed.Stack
}

// run makes the call, shows the verdict, stays, and cleans up. The work folder stays when something failed: it holds the logs.
func (d *demo) run(ctx context.Context, example string, once bool) error {
	d.screen.title("STUNner on this machine", "a gateway declared in YAML, and a call through it")
	err := d.steps(ctx, example, once)
	if err == nil && !once {
		err = d.stay(ctx)
	}
	if ctx.Err() != nil { // Ctrl-C, at whatever point, is what the user wanted
		err = nil
	}
	if stopErr := d.stack.Stop(); stopErr != nil {
		d.screen.failure("stop", stopErr, "a process did not end by itself and was killed: its log says why", nil)
		err = errors.Join(err, stopErr)
	}
	if err != nil {
		d.screen.note("logs", d.stack.Logs())
		return err
	}
	if !once {
		d.screen.note("Nothing is left running.", "")
	}
	if err = os.RemoveAll(d.stack.Dir); err != nil {
		d.screen.failure("work folder", err, "remove it by hand", nil)
	}
	return err
}

// stay returns when the user has had enough, or a part of the product has ended.
func (d *demo) stay(ctx context.Context) error {
	d.screen.gap()
	d.screen.note("Ctrl-C ends it.", "")
	ended := make(chan *bed.Process, len(d.stack.Parts()))
	for _, p := range d.stack.Parts() {
		go func() {
			<-p.Done()
			ended <- p
		}()
	}
	select {
	case <-ctx.Done():
		d.screen.gap()
		return nil
	case p := <-ended:
		if ctx.Err() != nil {
			return nil
		}
		err := fmt.Errorf("%s ended by itself: %v", p.Name, p.Err())
		d.screen.failure(p.Name, err, "", p.Tail(tailLines))
		return err
	}
}
