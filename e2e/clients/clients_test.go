// Package clients tests the client libraries of the auth service: that they agree with the contract, and that a call of
// three credential lifetimes never gets an expired credential, in Chromium, in Node.js and in Go, with the product.
//
// # Files
//
//	contract_test.go    the types of the Go client against the contract
//	typescript_test.go  the unit tests of the TypeScript client
//	generators_test.go  the contract as input of client generators
//	docs_test.go        the code of the documentation
//	front_test.go       the auth service with injected faults
//	page                the call in Chromium, and the program for Node.js
package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/clients/go/iceservers"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

const (
	// lifetime is the lifetime of credentials, in seconds. lifetimes is the duration of a call in lifetimes.
	lifetime  = 8
	lifetimes = 3
	// aheadMS is how far the clocks of clients are ahead, in ms.
	aheadMS = 60_000
)

// A call of three lifetimes never gets an expired credential, while the service answers 429 and 503 and breaks
// connections, and while the clock of the client is wrong by a minute.
func TestACallOfThreeLifetimes(t *testing.T) {
	compile(t)
	stack := harnesstest.Quickstart(t, "")
	reachRelays(t, stack)
	var old iceservers.ICEServer
	tests := map[string]func(*testing.T, *harness.Stack, *front){
		"Chromium, clock ahead":  func(t *testing.T, _ *harness.Stack, f *front) { browserCall(t, f, aheadMS) },
		"Chromium, clock behind": func(t *testing.T, _ *harness.Stack, f *front) { browserCall(t, f, -aheadMS) },
		"Node.js, clock ahead":   func(t *testing.T, s *harness.Stack, f *front) { nodeCalls(t, s, f, aheadMS) },
		"Node.js, clock behind":  func(t *testing.T, s *harness.Stack, f *front) { nodeCalls(t, s, f, -aheadMS) },
		"Go":                     func(t *testing.T, s *harness.Stack, f *front) { old = goCalls(t, s, f) },
	}
	t.Run("clients", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFront(t, stack)
				test(t, stack, f)
				f.renewedThroughFaults(t)
			})
		}
	})
	if n := expired(t, stack); n > 0 {
		t.Errorf("the gateway refused %d requests with expired credentials", n)
	}
	if t.Failed() {
		return
	}
	_, err := call.Start(t.Context(), call.Options{
		Gateway: stack.Gateway(), Network: call.UDP, Peer: stack.Datagrams(),
		Username: old.Username, Password: string(old.Credential),
	})
	if n := expired(t, stack); !errors.Is(err, call.ErrRefused) || n == 0 {
		t.Errorf("%d refusals after a call with the first credential, %v", n, err)
	}
}

var expiredPattern = regexp.MustCompile(`(?m)^` + telemetry.Refused + `\{.*"expired_credential".*\} (\d+)$`)

// expired returns how many requests with expired credentials the gateway has refused.
func expired(t *testing.T, stack *harness.Stack) (sum int) {
	t.Helper()
	c, err := stack.Config(t.Context())
	harnesstest.NoError(t, err)
	_, page, err := harness.Get(t.Context(), c.Admin.MetricsEndpoint)
	harnesstest.NoError(t, err)
	for _, match := range expiredPattern.FindAllStringSubmatch(string(page), -1) {
		n, err := strconv.Atoi(match[1])
		harnesstest.NoError(t, err)
		sum += n
	}
	return sum
}

// reachRelays lets the UDPRoute of the quickstart reach the relay addresses of the gateway, so that both sides of a
// call can be relayed.
func reachRelays(t *testing.T, stack *harness.Stack) {
	t.Helper()
	file := filepath.Join(stack.Input(), "udproute.yaml")
	text, err := os.ReadFile(file)
	harnesstest.NoError(t, err)
	ports := regexp.MustCompile(`port: \d+\n(\s+)endPort: \d+`)
	wide := ports.ReplaceAllString(string(text), "port: 1\n${1}endPort: 65535")
	if wide == string(text) {
		t.Fatalf("%s has no range of ports", file)
	}
	harnesstest.NoError(t, stack.Put("udproute.yaml", []byte(wide)))
}

// browserCall makes a call between two peers of a page, both relayed. The page reports each user name of its servers.
func browserCall(t *testing.T, f *front, ahead int) {
	query := url.Values{
		"ahead": {fmt.Sprint(ahead)}, "ttl": {fmt.Sprint(lifetime)}, "lifetimes": {fmt.Sprint(lifetimes)},
	}
	p := chromium.Open(t, f.URL+"/page/call.html?"+query.Encode())
	over := func(r chromium.Report) bool { return r.Verdict == "ok" || r.Verdict == "failed" }
	r := p.Reports("the call is over", over)
	// The restart of ICE may lose messages in flight. Without it, the gateway ends the session of the call.
	if r.Verdict != "ok" || r.Received < r.Sent*9/10 || r.Sent < lifetimes*lifetime*10 {
		t.Errorf("%+v, errors %q", r, p.Trouble())
	}
	t.Logf("sent %d, received %d", r.Sent, r.Received)
}

// nodeCalls makes a relayed call with each credential that a program of Node.js gets.
func nodeCalls(t *testing.T, stack *harness.Stack, f *front, ahead int) {
	script := filepath.Join(harnesstest.Root(t), "e2e/clients/page/hold.mjs")
	cmd := exec.Command(node(t), script, f.URL+"/v1/ice-servers", fmt.Sprint(ahead), fmt.Sprint(lifetime))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	harnesstest.NoError(t, err)
	harnesstest.NoError(t, cmd.Start())
	defer func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Errorf("end program: %v", err)
		}
		if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
			t.Errorf("node: %v\n%s", err, stderr.String())
		}
	}()
	began := time.Now()
	for lines := bufio.NewScanner(out); time.Since(began) < lifetimes*lifetime*time.Second; {
		if !lines.Scan() {
			t.Fatalf("the program ended: %v", lines.Err())
		}
		var server harness.ICEServer
		harnesstest.NoError(t, json.Unmarshal(lines.Bytes(), &server))
		begin(t, stack, f, server.Username, server.Credential)
	}
}

// goCalls makes a relayed call with each credential that the Go client gets. It returns the first credential.
func goCalls(t *testing.T, stack *harness.Stack, f *front) (first iceservers.ICEServer) {
	var mu sync.Mutex
	var failures []error
	source := iceservers.NewSource(
		&iceservers.Client{URL: f.URL + "/v1/ice-servers", Request: iceservers.Request{TTL: lifetime}},
		nil, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, err)
		},
	)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- source.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	end := time.After(lifetimes * lifetime * time.Second)
	for tick := time.Tick(100 * time.Millisecond); ; {
		servers, err := source.Get(t.Context())
		harnesstest.NoError(t, err)
		server := servers.ICEServers[0]
		if first.Username == "" {
			first = server
		}
		begin(t, stack, f, server.Username, string(server.Credential))
		select {
		case <-end:
			mu.Lock()
			defer mu.Unlock()
			if len(failures) < lifetimes {
				t.Errorf("%d requests failed, want %d at least", len(failures), lifetimes)
			}
			return first
		case <-tick:
		}
	}
}

// begin checks that a credential has not expired. For a new credential it starts a relayed call, and ends it after some
// echoes.
func begin(t *testing.T, stack *harness.Stack, f *front, username, password string) {
	t.Helper()
	if !f.see(t, username) {
		return
	}
	c, err := call.Start(t.Context(), call.Options{
		Gateway: stack.Gateway(), Network: call.UDP, Peer: stack.Datagrams(), Username: username, Password: password,
	})
	if err != nil {
		t.Fatalf("begin call as %s: %v", username, err)
	}
	c.End(100 * time.Millisecond)
}
