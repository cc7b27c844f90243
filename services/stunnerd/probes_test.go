package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// A process never shares the probes of another process. If the port of its probes is in use, it ends with an error,
// whether the other process serves or drains. It does not open its journal, because after two processes that end while
// they restore a journal, the third one starts without it.
func TestProcessEndsIfItsProbePortIsInUse(t *testing.T) {
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

// The kubelet sends probes to the port in the pod template until the pod is replaced, and kills a container that does
// not answer. So a pod answers on this port after a config has moved or disabled the endpoint. A process outside of a
// pod has only the endpoint of its config.
func TestProbesStayAtThePortOfThePodTemplate(t *testing.T) {
	for _, pod := range []bool{true, false} {
		p := &process{t: t, peer: echo(t), ended: make(chan struct{})}
		flags := p.following()
		if pod {
			flags = append(flags, "--pod", "edge-1")
		}
		p.launch(flags...)
		template, moved := p.probes, fmt.Sprintf("http://127.0.0.1:%d", testport.Free(t))
		answers := func(at string) bool {
			p.probes = at
			return p.code("/live") == http.StatusOK && p.code("/ready") == http.StatusOK
		}
		for _, endpoint := range []string{moved, "", moved, template} {
			p.setEndpoint(flags[2], endpoint)
			p.within(fmt.Sprintf("at %q with endpoint %q, in a pod %t", moved, endpoint, pod),
				func() bool { return answers(moved) == (endpoint == moved) })
			p.within(fmt.Sprintf("at that of the template with endpoint %q, in a pod %t", endpoint, pod),
				func() bool { return answers(template) == (pod || endpoint == template) })
		}
	}
}

// setEndpoint changes the endpoint of the probes in a config file that the process follows.
func (p *process) setEndpoint(file, endpoint string) {
	p.t.Helper()
	data, err := os.ReadFile(file)
	var c config.Config
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	c.Admin.HealthcheckEndpoint = &endpoint
	if err == nil {
		data, err = json.Marshal(c)
	}
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
