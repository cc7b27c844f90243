// Command stunnerd is the dataplane of STUNner: a TURN server whose clients reach what the routes of its config allow.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Exit codes: 1 when running failed, 2 when the command line is wrong.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	o, err := parseFlags(os.Args[1:], os.Getenv, os.Stderr)
	switch {
	case errors.Is(err, errHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "stunnerd:", err)
		os.Exit(exitUsage)
	case o.version:
		fmt.Println(telemetry.Version("stunnerd"))
		return
	}
	// The first signal drains; the one after it is waited for by secondSignal.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "stunnerd:", err)
		os.Exit(exitFailed)
	}
}

// secondSignal is done when the process is told to end once more.
func secondSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
}
