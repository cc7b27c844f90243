// Package browser makes relayed calls with headless Chromium on the auth service's test page. The script drive.mjs
// controls the browser.
//
// # Files
//
//	offload_test.go  calls that the kernel forwards
//
// Package e2e/internal/chromium controls the browser.
package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
)

// patience is the timeout of operations in the browser.
const patience = 40 * time.Second

// A-02, N-05, R-14: a browser that may only use relays reaches the echo peer through UDP, TCP and TLS listeners, and
// gets an error event for a wrong password. Its call continues while listeners and credentials change.
func TestBrowser(t *testing.T) {
	stack := start(t)
	for _, transport := range []string{"udp", "tcp"} {
		t.Run("relays over "+transport, func(t *testing.T) { relays(t, stack, transport) })
	}
	t.Run("relays over tls", func(t *testing.T) { relaysSecurely(t, stack) })
	t.Run("a wrong password is an event", func(t *testing.T) { wrongPassword(t, stack) })
	t.Run("a call goes on while listeners and credentials change", func(t *testing.T) { goesOn(t, stack) })
}

// start runs the quickstart until the test ends.
func start(t *testing.T) *bed.Stack {
	t.Helper()
	root := bedtest.Root(t)
	bin := bedtest.Build(t, bed.Operator, bed.Stunnerd, bed.Auth, bed.Echo)
	ports, err := bed.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	stack := &bed.Stack{Bin: bin, Dir: t.TempDir(), Ports: ports}
	if err := stack.Prepare(filepath.Join(root, "docs/examples/quickstart")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, p := range stack.Parts() {
				t.Logf("last log lines of %s:\n%s", p.Name, strings.Join(p.Tail(40), "\n"))
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := stack.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return stack
}

func relays(t *testing.T, stack *bed.Stack, transport string, authorities ...string) {
	p := chromium.Open(t, stack.AuthURL()+"/demo/?run=1&transport="+transport, authorities...)
	await(t, func(ctx context.Context) error { return session(ctx, stack, bed.GatewayID+"/"+transport) })
	r := p.Reports("the test is over", over)
	complete(t, stack, r)
	if r.Pair.Local.Type != "relay" || r.Pair.Local.Relay != transport {
		t.Errorf(
			"selected local candidate is %s over %s, want relay over %s", r.Pair.Local.Type, r.Pair.Local.Relay,
			transport,
		)
	}
	if problems := p.Trouble(); len(problems) > 0 {
		t.Errorf("errors on the page: %q", problems)
	}
	screenshot(t, p, "relay-"+transport+".png")
	allocations(t, stack, "falls back to 0", func(n float64) bool { return n == 0 })
}

// relaysSecurely adds a TLS listener. The browser verifies its certificate: without the CA the call fails.
func relaysSecurely(t *testing.T, stack *bed.Stack) {
	port := bedtest.Port(t)
	authority, secret := certificate(t)
	if err := stack.Put("certificate.yaml", secret); err != nil {
		t.Fatal(err)
	}
	edit(
		t, stack, "gateway.yaml", "      protocol: TURN-TCP\n",
		"      protocol: TURN-TCP\n"+fmt.Sprintf(secureListener, port),
	)
	status(t, stack, "has the listener", "front-door/tls")

	relays(t, stack, "tls", authority)

	stranger, _ := certificate(t)
	r := chromium.Open(t, stack.AuthURL()+"/demo/?run=1&transport=tls", stranger).Reports("the test is over", over)
	if r.Verdict != "failed" || r.Error == nil || r.Error.Code != cannotConnect {
		t.Errorf(
			"verdict %q, error %+v, want a failure with error %d without the CA", r.Verdict, r.Error, cannotConnect,
		)
	}
}

const secureListener = `    - name: tls
      port: %d
      protocol: TURN-TLS
      tls:
        certificateRefs:
          - name: front-door-certificate
`

// Codes of the event icecandidateerror: that of TURN (RFC 8656 §5), and the browser's code for an unreachable server.
const (
	unauthorized  = 401
	cannotConnect = 701
)

// wrongPassword: the page gets the error event at once, without waiting for a timeout.
func wrongPassword(t *testing.T, stack *bed.Stack) {
	ice, err := stack.ICEServers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := chromium.Open(t, stack.AuthURL()+"/demo/")
	for _, transport := range []string{"udp", "tcp"} {
		server := ice.Servers[0]
		server.URLs = []string{fmt.Sprintf("turn:%s?transport=%s", stack.Gateway(), transport)}
		if g := p.Gather(server); !strings.Contains(g.Candidate, " typ relay ") {
			t.Errorf("%s: right password: %+v, want a relay", transport, g)
		}
		server.Credential += "x"
		if g := p.Gather(server); g.ErrorCode != unauthorized || g.URL != server.URLs[0] {
			t.Errorf("%s: wrong password: %+v, want error %d", transport, g, unauthorized)
		}
	}
}

// goesOn keeps a call running while the gateway changes.
func goesOn(t *testing.T, stack *bed.Stack) {
	p := chromium.Open(t, stack.AuthURL()+"/demo/?run=1&transport=udp&keep=1")
	flows := func() {
		t.Helper()
		n := p.Reports("the call runs", running).Received
		p.Reports("packets come back", func(r chromium.Report) bool { return over(r) || r.Received >= n+50 })
	}
	flows()
	edit(
		t, stack, "gateway.yaml", "    - name: tcp\n",
		"    - name: another\n      port: 5000\n      protocol: TURN-UDP\n    - name: tcp\n",
	)
	status(t, stack, "has the listener", "front-door/another")
	flows()
	refused := credential(t, stack)
	edit(t, stack, "gatewayconfig.yaml", "secret: quickstart", "secret: changed")
	await(t, refused)
	flows()
	screenshot(t, p, "while-it-changes.png")
	p.Tell("stop")
	r := p.Reports("the call is over", over)
	complete(t, stack, r)
	relays(t, stack, "udp") // with a credential from the new secret
}

// credential requests a credential, and returns the condition that the gateway refuses it.
func credential(t *testing.T, stack *bed.Stack) func(context.Context) error {
	t.Helper()
	ice, err := stack.ICEServers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := call.Options{
		Gateway: stack.Gateway(), Network: call.UDP, Peer: stack.Datagrams(),
		Username: ice.Servers[0].Username, Password: ice.Servers[0].Credential,
	}
	return func(ctx context.Context) error {
		c, err := call.Start(ctx, o)
		if errors.Is(err, call.ErrRefused) {
			return nil
		}
		if err == nil {
			c.End(0)
			err = errors.New("the gateway still accepts a credential from the previous secret")
		}
		return err
	}
}

// complete checks that a call succeeded. Chromium may drop datagrams on a busy machine, so up to a tenth may be
// missing; the gateway's drop counters are logged. The clients of e2e/interop and e2e/faults count every datagram.
func complete(t *testing.T, stack *bed.Stack, r chromium.Report) {
	t.Helper()
	if r.Verdict != "ok" || r.Received == 0 || r.Lost > r.Sent/10 {
		t.Errorf(
			"verdict %q (%s): sent %d, received %d, lost %d, error %+v", r.Verdict, r.Sentence, r.Sent, r.Received,
			r.Lost, r.Error,
		)
	}
	t.Logf("sent %d, received %d, lost %d; the gateway dropped: %q", r.Sent, r.Received, r.Lost, drops(t, stack))
}

// drops returns the series of the gateway's drop counter.
func drops(t *testing.T, stack *bed.Stack) []string {
	t.Helper()
	c, err := stack.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, page, err := bed.Get(t.Context(), c.Admin.MetricsEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	return dropPattern.FindAllString(string(page), -1)
}

var dropPattern = regexp.MustCompile(`(?m)^stunner_dropped_total.*$`)

func over(r chromium.Report) bool    { return r.Verdict == "ok" || r.Verdict == "failed" }
func running(r chromium.Report) bool { return over(r) || r.Received > 0 }

// edit replaces text in a file of the operator's input folder.
func edit(t *testing.T, stack *bed.Stack, name, old, with string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(stack.Input(), name))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s does not contain %q", name, old)
	}
	if err := stack.Put(name, []byte(strings.Replace(string(data), old, with, 1))); err != nil {
		t.Fatal(err)
	}
}

// await waits for a condition outside the browser.
func await(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := bed.Until(ctx, cond); err != nil {
		t.Fatal(err)
	}
}

// allocations waits until the dataplane's number of allocations satisfies a condition.
func allocations(t *testing.T, stack *bed.Stack, what string, wanted func(float64) bool) {
	t.Helper()
	await(t, func(ctx context.Context) error {
		n, err := stack.Metric(ctx, "stunner_allocations_active")
		if err == nil && !wanted(n) {
			err = fmt.Errorf("stunner_allocations_active is %g; wait until it %s", n, what)
		}
		return err
	})
}

// session returns nil if the listener has exactly one session.
func session(ctx context.Context, stack *bed.Stack, listener string) error {
	c, err := stack.Config(ctx)
	if err != nil {
		return err
	}
	_, body, err := bed.Get(ctx, *c.Admin.HealthcheckEndpoint+"/sessions?listener="+listener)
	if err != nil {
		return err
	}
	var answer struct{ Sessions []struct{ Listener string } }
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("read sessions: %w: %s", err, body)
	}
	if len(answer.Sessions) != 1 || answer.Sessions[0].Listener != listener {
		return fmt.Errorf("sessions on %s are %v, want one", listener, answer.Sessions)
	}
	return nil
}

// status waits until the dataplane's status contains a text.
func status(t *testing.T, stack *bed.Stack, what, text string) {
	t.Helper()
	await(t, func(ctx context.Context) error {
		data, err := stack.Status(ctx)
		if err == nil && !strings.Contains(string(data), text) {
			err = fmt.Errorf("wait until the dataplane %s", what)
		}
		return err
	})
}

// screenshot saves a picture of the page if the environment variable is set. The test does not depend on it.
func screenshot(t *testing.T, p *chromium.Page, name string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	path := filepath.Join(dir, name)
	p.Tell("screenshot " + path)
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Errorf("no picture of the page: %v", err)
	}
}
