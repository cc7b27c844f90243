package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// A process never shares the probes of another one: if the port of its probes is in use, it ends with an error, whether
// the other process serves or drains. It does not open its journal, because after two processes that end while they
// restore a journal, the third one starts without it.
func TestProcessEndsIfAnotherOneHasItsProbes(t *testing.T) {
	for _, drains := range []bool{false, true} {
		for _, supervised := range []bool{false, true} {
			t.Run(fmt.Sprintf("the other one drains %t, supervised %t", drains, supervised), func(t *testing.T) {
				t.Parallel()
				first := &process{t: t, peer: echo(t), ended: make(chan struct{})}
				first.launch(first.following()...)
				live := first.mustDial("ann")
				if drains {
					first.draining()
				}

				state := t.TempDir()
				second := &process{t: t, peer: first.peer, ended: make(chan struct{})}
				flags := append(second.following(), "--state-dir", state, "--healthcheck-endpoint", first.probes,
					fmt.Sprintf("--supervise=%t", supervised))
				second.begin(flags...)
				select {
				case <-second.ended:
				case <-time.After(20 * time.Second):
					t.Fatal("the second process does not end")
				}
				if code := second.command.ProcessState.ExitCode(); code != exitFailed {
					t.Errorf("exit code %d, want %d", code, exitFailed)
				}
				if !bytes.Contains(second.said(), []byte("address already in use: free the port")) {
					t.Error("the log does not say why it ended")
				}
				if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
					t.Errorf("left in the state folder: %v, %v", left, err)
				}
				first.runs()
				if err := live.echo("undisturbed"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// following returns the flags of a process that follows its config, with the probes of the config from the beginning.
func (p *process) following() []string {
	p.t.Helper()
	file := p.config(func(*config.Config) {})
	return []string{"--watch", "--config", file, "--id", "media/edge", "--healthcheck-endpoint", p.probes}
}
