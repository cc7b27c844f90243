// Command operator translates Gateway API objects into dataplane configs and runs the dataplanes: as pods in a
// cluster, or as processes of this host.
//
// options.go reads the flags and the environment, discovery.go checks the flags of config discovery and KEDA,
// providers.go configures a provider, and process.go limits memory and shutdown time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2 // wrong flags
)

func main() {
	o, err := parse(os.Args[1:], os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "operator: %v\n\"operator --help\" lists the flags\n", err)
		os.Exit(exitUsage)
	case o.version:
		fmt.Println(telemetry.Version("operator"))
		return
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(exitFailed)
	}
}

// run runs the provider until SIGINT or SIGTERM, or until the provider ends by itself. The first signal starts the
// shutdown of the operator. A second signal ends the process at once.
func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	defer stop()
	log := o.logger()
	for _, warning := range o.warnings {
		log.Warn(warning)
	}
	if o.provider == providerFile {
		p := o.fileProvider()
		return p.Run(ctx)
	}
	p, err := o.kubeProvider()
	if err != nil {
		return err
	}
	p.Memory = limitMemory(memlimit.FromCgroup, os.Getenv, p.Log)
	return runUntil(ctx, shutdownTimeout, p.Run, p.Running)
}
