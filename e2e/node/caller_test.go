//go:build node

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// silence is the gap after which a call counts as dropped.
const silence = 30 * time.Second

// caller makes calls through the Gateway front-door of a namespace to its echo peer.
type caller struct {
	testNamespace
	auth  netip.Addr
	peer  netip.AddrPort
	token string // bearer token for the auth service, if it requires one
}

// publish makes the auth service reachable from outside the cluster, in place of the web app in front of it, and
// returns its address.
func (s testNamespace) publish() netip.Addr {
	s.Helper()
	system := testNamespace{s.T, home}
	system.kubectl(
		"", "expose", "deployment", "stunner-auth", "--name=from-outside", "--type=LoadBalancer", "--port=8088",
	)
	return system.address("from-outside")
}

// withdraw reverts publish.
func (m caller) withdraw() {
	m.Helper()
	testNamespace{m.T, home}.kubectl("", "delete", "service", "from-outside")
}

// echo returns the address of the namespace's echo peer.
func (s testNamespace) echo() netip.AddrPort {
	s.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr(s.pods("app=echo")[0].Status.PodIP), 7002)
}

// call makes calls with credentials and addresses from the auth service.
func (m caller) call(t *testing.T) {
	for network, c := range m.start(t) {
		m.echoes(t, network, c)
		m.end(t, network, c)
	}
}

// goesOn checks that calls were not disturbed, ends them, and waits until their pod has exited.
func (m caller) goesOn(t *testing.T, calls map[call.Network]*call.Call, pod string) {
	t.Helper()
	for network, c := range calls {
		m.echoes(t, network, c)
	}
	if m.kubectl("", "get", "pod", pod, "--output=jsonpath={.metadata.deletionTimestamp}") == "" {
		t.Errorf("pod %s is not terminating", pod)
	}
	for network, c := range calls {
		m.end(t, network, c)
	}
	m.wait("delete", "pod/"+pod)
}

// echoes waits for a hundred more echoes.
func (m caller) echoes(t *testing.T, network call.Network, c *call.Call) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), silence)
	defer cancel()
	if err := c.AwaitMore(ctx, 100); err != nil {
		t.Errorf("%s: %v", network, err)
	}
}

// start makes a call over each transport.
func (m caller) start(t *testing.T) map[call.Network]*call.Call {
	t.Helper()
	calls := map[call.Network]*call.Call{}
	for network := range protocols {
		calls[network] = m.dial(t, network)
		m.echoes(t, network, calls[network])
	}
	return calls
}

// protocols are the protocols of front-door's listeners.
var protocols = map[call.Network]config.Protocol{call.UDP: config.TURNUDP, call.TCP: config.TURNTCP}

// dial makes a call as a web app does: it requests credentials, and waits for the first echo.
func (m caller) dial(t *testing.T, network call.Network) (c *call.Call) {
	t.Helper()
	// kube-proxy may have no endpoint for the pod yet
	m.until("a call by "+string(network)+" is set up", func(ctx context.Context) error {
		ice, err := m.ask(ctx)
		if err != nil {
			return err
		}
		if c, err = m.with(t.Context(), ice, network); err != nil {
			return err
		}
		return c.Await(ctx, 1)
	})
	return c
}

// with makes a call with a credential.
func (m caller) with(ctx context.Context, ice harness.ICEServer, network call.Network) (*call.Call, error) {
	gateway, err := ice.Address(protocols[network])
	if err != nil {
		return nil, err
	}
	return call.Start(ctx, call.Options{
		Gateway: gateway, Network: network, Username: ice.Username, Password: ice.Credential, Peer: m.peer,
	})
}

// end ends a call, which must have lost nothing.
func (m caller) end(t *testing.T, network call.Network, c *call.Call) {
	t.Helper()
	stats := c.End(5 * time.Second)
	t.Logf("%s: %s", network, stats)
	if stats.Lost != 0 || stats.Err != nil {
		t.Errorf("%s: %s", network, stats)
	}
}

// ask requests credentials as a web app does, and returns the credentials of the Gateway.
func (m caller) ask(ctx context.Context) (harness.ICEServer, error) {
	code, answer, err := m.post(ctx, m.token)
	var ice harness.ICE
	if err := errors.Join(err, json.Unmarshal(answer, &ice)); err != nil || code != http.StatusCreated ||
		len(ice.Servers) != 1 {
		return harness.ICEServer{}, fmt.Errorf("request credentials: status %d, %w: %s", code, err, answer)
	}
	return ice.Servers[0], nil
}

// post requests credentials, with a token unless it is empty.
func (m caller) post(ctx context.Context, token string) (code int, answer []byte, err error) {
	body := fmt.Sprintf(`{"gateways":[{"namespace":%q,"name":"front-door"}]}`, m.namespace)
	url := fmt.Sprintf("http://%s:8088/v1/ice-servers", m.auth)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return harness.Do(req)
}
