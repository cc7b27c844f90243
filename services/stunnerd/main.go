// Command stunnerd is the dataplane of STUNner: a TURN server whose clients reach the peers that the routes of its
// config allow.
//
// # Files
//
//	flags.go                flags, environment variables and their defaults
//	former.go               settings of the existing dataplane
//	run.go                  start, SIGTERM, draining, end
//	supervise.go            --supervise: restart after a crash, upgrade by SIGUSR2
//	journalfolder.go        the folder of the journal
//	limits_linux.go         limits of the process
//	quick.go selfsigned.go  the config of a TURN URI in the command line
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

// Exit codes: 1 if stunnerd failed, 2 if the command line is wrong or after a panic, 3 after SIGUSR2.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitCrashed  = 2 // of the Go runtime
	exitReplaced = 3
)

// errReplaced is returned by run after SIGUSR2: another process continues the sessions.
var errReplaced = errors.New("replaced by another process")

func main() {
	// If the reader of the log or of usage records has ended, a write must fail and not end the calls.
	signal.Ignore(syscall.SIGPIPE)
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
	case isSupervised():
		endWithSupervisor()
	case o.supervise:
		log := telemetry.NewLog(os.Stderr, o.logFormat, new(telemetry.Levels))
		os.Exit(supervise(telemetry.Scope(log, "supervisor")))
	}
	// The first SIGTERM or interrupt starts draining. The second one ends it (see secondSignal).
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	replaced, _ := signal.NotifyContext(context.Background(), syscall.SIGUSR2)
	switch err := run(ctx, replaced, o); {
	case errors.Is(err, errReplaced):
		os.Exit(exitReplaced)
	case err != nil:
		fmt.Fprintln(os.Stderr, "stunnerd:", err)
		os.Exit(exitFailed)
	}
}

// secondSignal returns a context that ends with the next SIGTERM or interrupt.
func secondSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
}
