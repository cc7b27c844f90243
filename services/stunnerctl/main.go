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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := command.Run(ctx, os.Args, command.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}
