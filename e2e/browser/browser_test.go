// Package browser makes relayed calls with headless Chromium on the auth service's test page. The script drive.mjs
// controls the browser.
//
// # Files
//
//	page_test.go     texts of the test page about failing URLs
//	crash_test.go    calls during crashes of stunnerd
//	offload_test.go  calls that the kernel forwards
//	regions_test.go  calls while a region is unreachable
//
// Package e2e/internal/chromium controls the browser.
package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// timeout limits the wait for a condition outside the browser.
const timeout = 40 * time.Second

// A-02, N-05, R-14: a browser that may only use relays reaches the echo peer through UDP, TCP and TLS listeners, and
// gets an error event for a wrong password. Its call continues while listeners and credentials change.
func TestBrowser(t *testing.T) {
	stack := harnesstest.Quickstart(t, "")
	port := harnesstest.Port(t)
	authority, secret := certificate(t)
	harnesstest.NoError(t, stack.Put("certificate.yaml", secret))
	edit(t, stack, "gateway.yaml", "      protocol: TURN-TCP\n",
		"      protocol: TURN-TCP\n"+fmt.Sprintf(secureListener, port))
	status(t, stack, "front-door/tls")
	t.Run("tcp", func(t *testing.T) { relays(t, stack, "tcp") })
	t.Run("tls", func(t *testing.T) { relays(t, stack, "tls", authority) })
	t.Run("unknown CA", func(t *testing.T) { unknownAuthority(t, stack) })
	t.Run("tls at the name of the certificate", func(t *testing.T) { relaysByName(t, stack, port) })
	t.Run("a call goes on while listeners and credentials change", func(t *testing.T) { continues(t, stack) })
	t.Run("udp", func(t *testing.T) { relays(t, stack, "udp") }) // with a credential from the changed secret
	await(t, func(ctx context.Context) error {
		n, err := stack.Metric(ctx, "stunner_allocations_active")
		if err == nil && n != 0 {
			err = fmt.Errorf("%g allocations are left", n)
		}
		return err
	})
}

// relays makes a call over a transport.
func relays(t *testing.T, stack *harness.Stack, transport string, authorities ...string) {
	p := chromium.Open(t, stack.AuthURL()+"/demo/?run=1&transport="+transport, authorities...)
	await(t, func(ctx context.Context) error { return session(ctx, stack, harness.GatewayID+"/"+transport) })
	r := p.Reports("the test is over", over)
	complete(t, stack, r)
	if local := r.Pair.Local; local.Type != "relay" || local.Relay != transport {
		t.Errorf("selected local candidate is %s over %s, want relay over %s", local.Type, local.Relay, transport)
	}
	if problems := p.Trouble(); len(problems) > 0 {
		t.Errorf("errors on the page: %q", problems)
	}
}

// relaysByName: without spec.addresses, the auth service returns the host name of a certificate that has no address.
// The browser verifies the certificate by this name.
func relaysByName(t *testing.T, stack *harness.Stack, port int) {
	const name = "turn.example.org"
	authority, secret := certificate(t, name)
	harnesstest.NoError(t, stack.Put("certificate.yaml", secret))
	url := fmt.Sprintf("turns:%s:%d?transport=tcp", name, port)
	await(t, func(ctx context.Context) error {
		ice, err := stack.ICEServers(ctx)
		if err == nil && !slices.Contains(ice.Servers[0].URLs, url) {
			err = fmt.Errorf("URLs are %q, want %s", ice.Servers[0].URLs, url)
		}
		return err
	})
	page := stack.AuthURL() + "/demo/?run=1&transport=tls"
	p := chromium.OpenBy(t, chromium.Resolving(name, harness.Loopback), page, authority)
	r := p.Reports("the test is over", over)
	complete(t, stack, r)
	if len(r.Results) != 1 || r.Results[0].URL != url || r.Pair.Local.Relay != "tls" {
		t.Errorf("%+v, want a call at %s", r, url)
	}
}

// unknownAuthority: the browser verifies the certificate of a TLS listener.
func unknownAuthority(t *testing.T, stack *harness.Stack) {
	another, _ := certificate(t)
	r := chromium.Open(t, stack.AuthURL()+"/demo/?run=1&transport=tls", another).Reports("the test is over", over)
	if r.Verdict != "failed" || r.Error == nil || r.Error.Code != cannotConnect {
		t.Errorf("verdict %q, error %+v, want a failure with error %d without the CA", r.Verdict, r.Error, cannotConnect)
	}
}

const secureListener = `    - name: tls
      port: %d
      protocol: TURN-TLS
      tls:
        certificateRefs:
          - name: front-door-certificate
`

const certificateSecret = `apiVersion: v1
kind: Secret
metadata:
  name: front-door-certificate
  namespace: meet
type: kubernetes.io/tls
data:
  tls.crt: %s
  tls.key: %s
`

// certificate makes a CA, as a file, and a Secret with a certificate of the CA for host names, or else for the loopback
// address.
func certificate(t *testing.T, names ...string) (authority string, secret []byte) {
	t.Helper()
	ca, err := harness.NewAuthority()
	harnesstest.NoError(t, err)
	chain, key, err := ca.Issue()
	if len(names) > 0 {
		chain, key, err = ca.IssueNames(names...)
	}
	authority = filepath.Join(t.TempDir(), "authority.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate.Raw}
	harnesstest.NoError(t, errors.Join(err, os.WriteFile(authority, pem.EncodeToMemory(block), 0o600)))
	text := base64.StdEncoding.EncodeToString
	return authority, fmt.Appendf(nil, certificateSecret, text(chain), text(key))
}

// Codes of the event icecandidateerror: the code of TURN (RFC 8656 §5), and the browser's code for an unreachable
// server.
const (
	unauthorized  = 401
	cannotConnect = 701
)

// wrongPassword: the page gets the error event at once, without waiting for a timeout.
func wrongPassword(t *testing.T, stack *harness.Stack, p *chromium.Page) {
	t.Helper()
	ice, err := stack.ICEServers(t.Context())
	harnesstest.NoError(t, err)
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

// continues keeps a call running while the gateway changes.
func continues(t *testing.T, stack *harness.Stack) {
	p := chromium.Open(t, stack.AuthURL()+"/demo/?run=1&transport=udp&keep=1")
	flows := func() {
		t.Helper()
		n := p.Reports("the call runs", running).Received
		p.Reports("packets come back", func(r chromium.Report) bool { return over(r) || r.Received >= n+50 })
	}
	flows()
	wrongPassword(t, stack, p)
	edit(t, stack, "gateway.yaml", "    - name: tcp\n",
		"    - name: another\n      port: 5000\n      protocol: TURN-UDP\n    - name: tcp\n")
	status(t, stack, "front-door/another")
	flows()
	refused := credential(t, stack)
	edit(t, stack, "gatewayconfig.yaml", "secret: quickstart", "secret: changed")
	await(t, refused)
	flows()
	p.Tell("stop")
	complete(t, stack, p.Reports("the call is over", over))
}

// credential requests a credential, and returns the condition that the gateway refuses it.
func credential(t *testing.T, stack *harness.Stack) func(context.Context) error {
	t.Helper()
	ice, err := stack.ICEServers(t.Context())
	harnesstest.NoError(t, err)
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

var dropPattern = regexp.MustCompile(`(?m)^stunner_dropped_total.*$`)

// complete checks that a call succeeded. Chromium may drop datagrams on a busy machine, so up to a tenth may be
// missing; the gateway's drop counters are logged. The clients of e2e/interop and e2e/faults count every datagram.
func complete(t *testing.T, stack *harness.Stack, r chromium.Report) {
	t.Helper()
	if r.Verdict != "ok" || r.Received == 0 || r.Lost > r.Sent/10 {
		t.Errorf("verdict %q (%s), error %+v", r.Verdict, r.Sentence, r.Error)
	}
	c, err := stack.Config(t.Context())
	harnesstest.NoError(t, err)
	_, page, err := harness.Get(t.Context(), c.Admin.MetricsEndpoint)
	t.Logf("sent %d, received %d, lost %d; the gateway dropped: %q, %v", r.Sent, r.Received, r.Lost,
		dropPattern.FindAllString(string(page), -1), err)
}

func over(r chromium.Report) bool    { return r.Verdict == "ok" || r.Verdict == "failed" }
func running(r chromium.Report) bool { return over(r) || r.Received > 0 }

// edit replaces text in a file of the operator's input folder.
func edit(t *testing.T, stack *harness.Stack, name, old, with string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(stack.Input(), name))
	if err != nil || !strings.Contains(string(data), old) {
		t.Fatalf("%s does not contain %q: %v", name, old, err)
	}
	harnesstest.NoError(t, stack.Put(name, []byte(strings.Replace(string(data), old, with, 1))))
}

// await waits for a condition outside the browser.
func await(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(t, harness.Until(ctx, cond))
}

// session returns nil if the listener has exactly one session.
func session(ctx context.Context, stack *harness.Stack, listener string) error {
	c, err := stack.Config(ctx)
	if err != nil {
		return err
	}
	_, body, err := harness.Get(ctx, *c.Admin.HealthcheckEndpoint+"/sessions?listener="+listener)
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

// status waits until the dataplane's status contains the name of a listener.
func status(t *testing.T, stack *harness.Stack, listener string) {
	t.Helper()
	await(t, func(ctx context.Context) error {
		data, err := stack.Status(ctx)
		if err == nil && !strings.Contains(string(data), listener) {
			err = fmt.Errorf("the dataplane has no listener %s", listener)
		}
		return err
	})
}
