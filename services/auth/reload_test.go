package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// asking sends requests for ICE servers without a pause, and fails the test if one of them gets none.
type asking struct {
	url  string
	stop func()

	mu      sync.Mutex
	answers int
	last    string // the addresses in the last answer
	equal   int    // the number of answers with them in a row
}

var address = regexp.MustCompile(`turn:([0-9.]+):`)

func ask(t *testing.T, url string, clients int) *asking {
	t.Helper()
	a := &asking{url: url + "/v1/ice-servers"}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				addresses, err := a.once(client)
				if err != nil {
					t.Error(err)
					return
				}
				a.count(addresses)
			}
		})
	}
	a.stop = func() { cancel(); running.Wait() }
	t.Cleanup(a.stop)
	return a
}

func (a *asking) once(client *http.Client) (string, error) {
	answer, err := client.Post(a.url, "", nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("%d %s, %v", answer.StatusCode, body, err)
	}
	var found []string
	for _, m := range address.FindAllStringSubmatch(string(body), -1) {
		found = append(found, m[1])
	}
	return strings.Join(slices.Compact(found), " "), nil
}

func (a *asking) count(addresses string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != addresses {
		a.last, a.equal = addresses, 0
	}
	a.answers++
	a.equal++
}

// await waits until many answers in a row have these addresses.
func (a *asking) await(t *testing.T, step, want string) {
	t.Helper()
	eventually(t, func() string {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.last != want || a.equal < 50 {
			return fmt.Sprintf("%s: %d answers have %q, want %q", step, a.equal, a.last, want)
		}
		return ""
	})
}

// eventually polls until check returns nothing.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		problem := check()
		if problem == "" {
			return
		}
		select {
		case <-deadline.C:
			t.Fatal(problem)
		case <-tick.C:
		}
	}
}

// TestClustersFileIsReadAgain: under load, clusters are added and removed by changes of the file, and no request fails.
// An invalid file changes nothing, and neither does a file whose clusters do not answer. The log has line and field.
func TestClustersFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clusters.yaml")
	fra, iad, moved := configFileOf(t, "192.0.2.1"), configFileOf(t, "192.0.2.2"), configFileOf(t, "192.0.2.3")
	const regions = "version: v1\nregions: [{name: europe}, {name: america}]\nclusters:\n"
	europe := func(config string) string {
		return "- {name: fra, region: europe, config: '" + config + "'}\n"
	}
	america := func(config string) string {
		return "- {name: iad, region: america, config: '" + config + "'}\n"
	}
	write := func(text string) {
		t.Helper()
		next := file + ".next"
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
	}
	write("version: v1\nregions: [{name: europe}]\nclusters:\n" + europe(fra))
	p := launch(t, "--clusters", file, "--cluster-rate-limit", "0", "--shutdown-delay", "0")
	load := ask(t, "http://"+p.public, 2)
	load.await(t, "at the start", "192.0.2.1")
	for _, step := range []struct{ name, text, addresses, log string }{
		{"a cluster is added", regions + europe(fra) + america(iad), "192.0.2.1 192.0.2.2", "clusters=2"},
		{"an unknown field", regions + europe(fra) + "- {name: iad, wait: 3}\n", "192.0.2.1 192.0.2.2", "clusters.yaml:5: clusters[1].wait: is unknown"},
		{"an origin that is none", regions + europe(fra) + america("ftp://x"), "192.0.2.1 192.0.2.2", "clusters[1]: open config"},
		{"another order", "version: v1\nregions: [{name: america}, {name: europe}]\nclusters:\n" + europe(fra) + america(iad), "192.0.2.2 192.0.2.1", "clusters=2"},
		{"a cluster is removed", "version: v1\nregions: [{name: america}]\nclusters:\n" + america(iad), "192.0.2.2", "clusters=1"},
		{"no cluster answers", "version: v1\nregions: [{name: america}]\nclusters:\n" + america("http://127.0.0.1:1"), "192.0.2.2", "keep last clusters until one"},
		{"one cluster does not answer", regions + europe(fra) + america("http://127.0.0.1:1"), "192.0.2.1", "clusters=2"},
		{"a cluster moves", "version: v1\nregions: [{name: europe}]\nclusters:\n" + europe(moved), "192.0.2.3", "clusters=1"},
	} {
		logged := len(p.logs.String())
		write(step.text)
		eventually(t, func() string {
			if text := p.logs.String()[logged:]; !strings.Contains(text, step.log) {
				return fmt.Sprintf("%s: the log does not have %q: %s", step.name, step.log, text)
			}
			return ""
		})
		load.await(t, step.name, step.addresses)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if !strings.Contains(p.logs.String(), "clusters.yaml: no such file") {
			return "the log does not have that the file is gone"
		}
		return ""
	})
	load.await(t, "without the file", "192.0.2.3")
	load.stop()
	t.Logf("%d answers", load.answers)
	p.end(t)
}
