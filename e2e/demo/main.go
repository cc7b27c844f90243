// Command demo shows the product on this machine. It starts an operator with the YAML of docs/examples/quickstart, an
// auth service and an echo peer; the operator starts the dataplane. Then the demo makes a relayed call and keeps
// running until Ctrl-C. No process remains after its end, even if it is killed.
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

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		os.Exit(1)
	}
}

// run returns an error if the demo failed. The reason is already printed then.
func run(ctx context.Context, args []string) error {
	d := &demo{screen: newScreen(os.Stdout, os.Getenv)}
	here, err := os.Executable()
	if err != nil {
		d.screen.failure("programs", err, "the demo starts the programs in its own folder", nil)
		return err
	}
	d.stack.Bin = filepath.Dir(here)
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	example := flags.String(
		"quickstart", filepath.Join(d.stack.Bin, "../docs/examples/quickstart"), "folder with the YAML to start from",
	)
	once := flags.Bool("exit", os.Getenv("DEMO_EXIT") == "1", "end after the verdict; also with DEMO_EXIT=1")
	_ = flags.Parse(args) // exits on error

	if d.stack.Dir, err = os.MkdirTemp("", "stunner-demo-"); err != nil {
		d.screen.failure("work folder", err, "set TMPDIR to a folder that can be written", nil)
		return err
	}
	return d.run(ctx, *example, *once)
}

type demo struct {
	screen *screen
	stack  harness.Stack
}

// run makes the call, shows the verdict, waits for Ctrl-C and cleans up. After a failure it keeps the work folder,
// which holds the logs.
func (d *demo) run(ctx context.Context, example string, once bool) error {
	d.screen.title("STUNner on this machine", "a gateway declared in YAML, and a call through it")
	err := d.steps(ctx, example, once)
	if err == nil && !once {
		err = d.stay(ctx)
	}
	if ctx.Err() != nil { // Ctrl-C is not a failure
		err = nil
	}
	if stopErr := d.stack.Stop(); stopErr != nil {
		d.screen.failure("stop", stopErr, "a process did not exit after SIGTERM and was killed: see its log", nil)
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

// stay waits until ctx ends or a process of the product has exited.
func (d *demo) stay(ctx context.Context) error {
	d.screen.gap()
	d.screen.note("Ctrl-C ends it.", "")
	ended := make(chan *harness.Process, len(d.stack.Parts()))
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
		err := fmt.Errorf("%s exited: %v", p.Name, p.Err())
		d.screen.failure(p.Name, err, "", p.Tail(tailLines))
		return err
	}
}
