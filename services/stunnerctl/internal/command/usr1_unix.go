//go:build unix

package command

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// printOnSignal prints statistics on each SIGUSR1 until stop is called.
func printOnSignal(out io.Writer, stats fmt.Stringer) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		for range signals {
			fmt.Fprint(out, stats)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}
