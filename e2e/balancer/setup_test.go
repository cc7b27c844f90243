package balancer

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const (
	gatewayID = harness.GatewayID
	// timeout limits the wait for a condition on a busy machine.
	timeout = 30 * time.Second

	// Reasons of closed connections.
	invalid    = "proxy_header_invalid"
	unexpected = "proxy_header_unexpected"

	magicCookie    = "\x21\x12\xa4\x42"
	bindingRequest = "\x00\x01\x00\x00" + magicCookie + "abcdefghijkl"
)

// Addresses of the gateway, of clients on its host, and of the load balancer.
var (
	gateway4, gateway6   = netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8:7::1")
	client4, client6     = netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:7::10")
	balancer4, balancer6 = netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("2001:db8:7::2")
)

// balanced is the product, and a load balancer in front of its Gateway.
type balanced struct {
	stack *harness.Stack
	space *netns.Space // network namespace of the load balancer
	ports map[string]int
	roots *x509.CertPool
	// authority is the file with the CA of all certificates.
	authority string
}

const gatewayYAML = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: front-door
  namespace: meet
  annotations:
    stunner.l7mp.io/tls-at-load-balancer: web
    stunner.l7mp.io/proxy-protocol: %[1]s/32
spec:
  gatewayClassName: calls
  addresses: [{value: %[1]s}, {value: %[2]s}]
  listeners:
    - {name: udp, port: 3478, protocol: TURN-UDP}
    - {name: tcp, port: %[3]d, protocol: TURN-TCP}
    - {name: web, port: %[4]d, protocol: TURN-TCP}
    - {name: tls, port: %[5]d, protocol: TURN-TLS, tls: {certificateRefs: [{name: front-door-certificate}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: front-door-certificate, namespace: meet}
type: kubernetes.io/tls
data: {tls.crt: %[6]s, tls.key: %[7]s}
`

// haproxy has the config of the load balancer. It checks whether each listener is healthy, and sends clients to a
// listener on a busy machine too.
const haproxy = `
defaults
  mode tcp
  timeout connect 10s
  timeout client 1m
  timeout server 1m
  timeout check 20s
  default-server check inter 300ms fall 1000
listen tcp
  bind %[1]s:%[4]d
  bind %[2]s:%[4]d
  server gateway %[3]s:%[4]d send-proxy-v2 proxy-v2-options crc32c,unique-id
listen tls
  bind %[1]s:%[5]d
  bind %[2]s:%[5]d
  server gateway %[3]s:%[5]d send-proxy-v2
listen web
  bind %[1]s:%[6]d ssl crt %[7]s
  bind %[2]s:%[6]d ssl crt %[7]s
  server gateway %[3]s:%[6]d send-proxy
`

func newStage(t *testing.T) *balanced {
	t.Helper()
	s := &balanced{
		ports: map[string]int{"tcp": harnesstest.Port(t), "web": harnesstest.Port(t), "tls": harnesstest.Port(t)},
		space: netns.New(t, "balancer"), roots: x509.NewCertPool(),
	}
	s.space.Link(t, netip.PrefixFrom(gateway4, 24), netip.PrefixFrom(balancer4, 24))
	netns.Run(t, fmt.Sprintf("ip address add %s/24 dev balancer", client4))
	for _, a := range []netip.Addr{gateway6, client6} {
		netns.Run(t, fmt.Sprintf("ip address add %s/64 dev balancer nodad", a))
	}
	s.space.Run(t, fmt.Sprintf("ip address add %s/64 dev eth0 nodad", balancer6))

	ca, err := harness.NewAuthority()
	harnesstest.NoError(t, err)
	chain, key, err := ca.Issue(balancer4, balancer6)
	dir := t.TempDir()
	s.authority = filepath.Join(dir, "authority.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate.Raw}
	pair := filepath.Join(dir, "pair.pem")
	harnesstest.NoError(t, errors.Join(err, os.WriteFile(s.authority, pem.EncodeToMemory(block), 0o600),
		os.WriteFile(pair, append(chain, key...), 0o600)))
	s.roots.AddCert(ca.Certificate)

	s.stack = harnesstest.Quickstart(t, "")
	text := base64.StdEncoding.EncodeToString
	harnesstest.NoError(t,
		s.stack.Put("gateway.yaml", fmt.Appendf(nil, gatewayYAML, balancer4, balancer6, s.ports["tcp"], s.ports["web"],
			s.ports["tls"], text(chain), text(key))))
	s.await(t, func(ctx context.Context) error {
		status, err := s.stack.Status(ctx)
		if err == nil && !strings.Contains(string(status), gatewayID+"/web") {
			err = errors.New("the dataplane has no listener web")
		}
		return err
	})
	s.balance(t, dir, fmt.Appendf(nil, haproxy, balancer4, balancer6, gateway4, s.ports["tcp"], s.ports["tls"], s.ports["web"], pair))
	return s
}

// balance starts the load balancer, and waits until it answers.
func (s *balanced) balance(t *testing.T, dir string, document []byte) {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatal("haproxy is not installed: run .ci/install")
	}
	file := filepath.Join(dir, "haproxy.cfg")
	harnesstest.NoError(t, os.WriteFile(file, document, 0o600))
	var process *harness.Process
	s.space.Do(func() {
		process, err = harness.Start(harness.Command{Name: "haproxy", Path: path, Args: []string{"-db", "-f", file},
			Logs: dir})
	})
	harnesstest.NoError(t, err)
	t.Cleanup(func() {
		_ = process.Kill()
		if t.Failed() {
			t.Logf("last log lines of haproxy:\n%s", strings.Join(process.Tail(20), "\n"))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(t, process.Until(ctx, func(ctx context.Context) error {
		for _, port := range s.ports {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(balancer4, uint16(port)).String())
			if err != nil {
				return err
			}
			_ = conn.Close()
		}
		return nil
	}))
}

// start starts a call from a local address through the load balancer.
func (s *balanced) start(
	ctx context.Context, t *testing.T, n call.Network, local, to netip.AddrPort,
) (*call.Call, error) {
	t.Helper()
	ice, err := s.stack.ICEServers(ctx)
	if err != nil {
		return nil, err
	}
	return call.Start(ctx, call.Options{
		Gateway: to, Network: n, Local: local, Roots: s.roots, Peer: s.stack.Datagrams(),
		Username: ice.Servers[0].Username, Password: ice.Servers[0].Credential,
	})
}

// dial is start for calls that must succeed. The caller ends the call.
func (s *balanced) dial(t *testing.T, n call.Network, local, to netip.AddrPort) *call.Call {
	t.Helper()
	c, err := s.start(t.Context(), t, n, local, to)
	if err != nil {
		t.Fatalf("call from %s over %s to %s: %v", local, n, to, err)
	}
	return c
}

// sessions returns the listeners of the sessions of a client in /sessions. The client is an address, or an address with
// a port. With "" it returns the listeners of all clients.
func (s *balanced) sessions(t *testing.T, client string) (listeners []string) {
	t.Helper()
	c, err := s.stack.Config(t.Context())
	harnesstest.NoError(t, err)
	path := "/sessions"
	if client != "" {
		path += "?client=" + url.QueryEscape(client)
	}
	_, body, err := harness.Get(t.Context(), *c.Admin.HealthcheckEndpoint+path)
	harnesstest.NoError(t, err)
	var answer inspection.SessionList
	harnesstest.NoError(t, json.Unmarshal(body, &answer))
	for _, session := range answer.Sessions {
		listeners = append(listeners, session.Listener)
	}
	return listeners
}

// metric returns the sum of the series of a metric with a value of the label reason, or with "" of all.
func (s *balanced) metric(t *testing.T, name, reason string) (total float64) {
	t.Helper()
	c, err := s.stack.Config(t.Context())
	harnesstest.NoError(t, err)
	_, page, err := harness.Get(t.Context(), c.Admin.MetricsEndpoint)
	harnesstest.NoError(t, err)
	for _, series := range regexp.MustCompile(`(?m)^`+name+`(\{.*\})? (\S+)$`).FindAllStringSubmatch(string(page), -1) {
		if reason == "" || strings.Contains(series[1], `reason="`+reason+`"`) {
			n, err := strconv.ParseFloat(series[2], 64)
			harnesstest.NoError(t, err)
			total += n
		}
	}
	return total
}

// edit replaces text of the Gateway.
func (s *balanced) edit(t *testing.T, old, with string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.stack.Input(), "gateway.yaml"))
	harnesstest.NoError(t, err)
	if !strings.Contains(string(data), old) {
		t.Fatalf("the Gateway does not contain %q", old)
	}
	harnesstest.NoError(t, s.stack.Put("gateway.yaml", []byte(strings.Replace(string(data), old, with, 1))))
}

func (s *balanced) await(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(t, harness.Until(ctx, cond))
}
