// Command stunnerd is the dataplane of STUNner: a TURN server whose clients reach the peers that the routes of its
// config allow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Exit codes: 1 if stunnerd failed, 2 if the command line is wrong.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	o, err := parseFlags(os.Args[1:], os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "stunnerd: %v\n\"stunnerd --help\" lists the flags\n", err)
		os.Exit(exitUsage)
	case o.version:
		fmt.Println(telemetry.Version("stunnerd"))
		return
	}
	// The first SIGTERM or interrupt starts draining. The second one ends it (see secondSignal).
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "stunnerd:", err)
		os.Exit(exitFailed)
	}
}

// secondSignal returns a context that ends with the next SIGTERM or interrupt.
func secondSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
}
