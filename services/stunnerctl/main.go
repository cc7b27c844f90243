// Command stunnerctl inspects and tests STUNner gateways: in a cluster, at an operator's URL, or in the folder of a
// file provider. Under the name kubectl-stunner it is a plugin of kubectl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/command"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1) makes the process ignore SIGHUP
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := command.Run(ctx, os.Args, command.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}
