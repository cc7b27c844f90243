package abuse

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Each host reaches the only address of the server over its own link.
var (
	serverAddr = netip.MustParseAddr("10.200.0.1")
	turnServer = netip.AddrPortFrom(serverAddr, 3478)
	dtlsServer = netip.AddrPortFrom(serverAddr, 5349) // the port of DTLS and TLS
	// farClients are behind a router: to the server they have one next hop, which always resolves.
	farClients = netip.MustParsePrefix("10.211.0.0/16")
	// lan is a subnet with a direct link to the server. Each of its addresses is a next hop of its own.
	lan = netip.MustParsePrefix("10.202.0.0/16")
	// peerNet is the subnet of the peers. slowNet is the subnet behind a link of 1 Mbit/s.
	peerNet, slowNet = netip.MustParsePrefix("10.203.0.0/16"), netip.MustParsePrefix("10.204.0.0/24")
)

// host returns the address in a subnet with a number.
func host(subnet netip.Prefix, number uint16) netip.Addr {
	a := subnet.Addr().As4()
	a[2], a[3] = byte(number>>8), byte(number)
	return netip.AddrFrom4(a)
}

// hosts are a server in a network namespace, and the hosts around it.
type hosts struct {
	server, far, lan, peers, slow *netns.Space
	echo                          []netip.AddrPort
	chain, key                    []byte // certificate of the server and its key, in PEM
	roots                         *x509.CertPool
	dir                           string
	process                       *harness.Process
	ephemeral                     bool // each client has its own user ID and ephemeral credential
}

// newHosts makes the hosts and their links: of TAP interfaces, whose driver supports XDP, or of veth interfaces.
func newHosts(t *testing.T, taps bool) *hosts {
	t.Helper()
	h := &hosts{
		server: netns.New(t, "server"), far: netns.New(t, "far"), lan: netns.New(t, "lan"), peers: netns.New(t, "peers"),
		slow: netns.New(t, "slow"), roots: x509.NewCertPool(), dir: t.TempDir(),
	}
	h.server.Run(t, fmt.Sprintf("ip address add %s/32 dev lo", serverAddr))
	h.server.Run(t, "sysctl -q -w net.ipv4.ip_forward=0 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	link := netip.MustParsePrefix("10.201.0.0/24")
	for name, of := range map[string]struct {
		space  *netns.Space
		subnet netip.Prefix
	}{"far": {h.far, link}, "lan": {h.lan, lan}, "peers": {h.peers, peerNet}, "slow": {h.slow, slowNet}} {
		here := []netip.Prefix{netip.PrefixFrom(host(of.subnet, 1), of.subnet.Bits())}
		there := []netip.Prefix{netip.PrefixFrom(host(of.subnet, 2), of.subnet.Bits())}
		if !taps {
			must(t, of.space.Join(h.server, name, here, there))
			continue
		}
		pair, err := of.space.JoinByTAP(h.server, name, here, there)
		must(t, err)
		t.Cleanup(func() { pair.Close() })
	}
	h.far.Run(t, fmt.Sprintf("ip route add local %s dev lo", farClients))
	h.server.Run(t, fmt.Sprintf("ip route add %s via %s", farClients, host(link, 2)))
	h.server.Run(t, "tc qdisc add dev slow root tbf rate 1mbit burst 3000 limit 300000")
	// Without this limit, a host answers every datagram to a closed port with an ICMP error.
	h.peers.Run(t, "sysctl -q -w net.ipv4.icmp_ratelimit=0")
	for i := range uint16(4) {
		peer := host(peerNet, 10+i)
		h.peers.Run(t, fmt.Sprintf("ip address add %s/%d dev eth0", peer, peerNet.Bits()))
		h.peers.Do(func() { h.echo = append(h.echo, harnesstest.Echo(t, peer)) })
	}
	h.chain, h.key = certificate(t, serverAddr)
	h.roots.AppendCertsFromPEM(h.chain)
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// certificate makes a certificate for an address and its key, in PEM. The key is RSA, the default of cert-manager, with
// which a handshake costs the server far more than with an elliptic curve.
func certificate(t *testing.T, server netip.Addr) (chain, private []byte) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	return certificateOf(t, server, key)
}

// certificateOf makes a certificate for an address with a key, in PEM.
func certificateOf(t *testing.T, server netip.Addr, key crypto.Signer) (chain, private []byte) {
	t.Helper()
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{server.AsSlice()},
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// socket opens a UDP socket in a namespace, and closes the socket at the end of the test.
func socket(t *testing.T, in *netns.Space, local netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	var err error
	in.Do(func() { conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(local)) })
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

type server struct {
	name string
	// engine is the offload engine of stunnerd, and mechanism how its programs are attached; empty in user space.
	engine, mechanism string
	// memory confines the process, if it is not nil, and state is the folder of its journal.
	memory *harness.MemoryGroup
	state  string
}

// coturn is the server for comparison.
const coturn = "coturn"

// run starts a server and waits until it accepts connections. It has the capabilities of a pod. In user space it runs
// without CAP_NET_ADMIN, which would allow it to exceed the limit of send buffers.
func (h *hosts) run(t *testing.T, what server) {
	t.Helper()
	for _, device := range []string{"lan", "peers"} { // forget the neighbours of the previous round
		h.server.Run(t, "ip neigh flush dev "+device)
	}
	if what.mechanism == "clsact" {
		h.server.Do(func() { bpf.OccupyTCX(t, "far", "lan", "peers", "slow") })
	}
	args := h.stunnerd(t, what.engine)
	if what.name == coturn {
		args = h.coturn(t)
	}
	capabilities := []string{"--bounding-set=-net_admin", "--inh-caps=-net_admin"}
	if what.mechanism != "" {
		capabilities = []string{"--bounding-set=-all,+net_admin,+bpf", "--inh-caps=-all"}
	}
	path, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal("setpriv is not installed: run `sudo apt-get install --yes util-linux`")
	}
	if what.state != "" {
		args = append(args, "--state-dir", what.state)
	}
	command := harness.Command{Name: what.name, Path: path, Args: append(capabilities, args...), Dir: h.dir,
		Logs: t.TempDir()}
	if what.memory != nil {
		command = what.memory.Contain(command)
	}
	h.server.Do(func() { h.process = harnesstest.Start(t, command, func(context.Context) error { return nil }) })
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	must(t, h.process.Until(ctx, func(ctx context.Context) error { // the server opens TCP last
		conn, err := h.server.Dial(ctx, "tcp", turnServer.String())
		if err == nil {
			conn.Close()
		}
		return err
	}))
}

var neighbourConfig = template.Must(template.New("config").Parse(`version: v1
admin: {name: abuse/neighbours, healthcheck_endpoint: "http://127.0.0.1:8086", metrics_endpoint: "http://127.0.0.1:8080/metrics", offload_engine: {{.Engine}}}
auth: {type: {{.Type}}, realm: abuse.example.org, credentials: {username: {{.User}}, password: {{.Password}}{{with .Secret}}, secret: {{.}}{{end}}}}
listeners:
{{- range $protocol, $port := .Ports}}
  - {name: {{$protocol}}, protocol: TURN-{{$protocol}}, address: {{$.Address}}, port: {{$port}}, routes: [peers], cert: {{$.Cert}}, key: {{$.Key}}}
{{- end}}
clusters:
  - {name: peers, type: STATIC, endpoints: ["{{.Peers}}", "{{.Slow}}"]}
`))

// stunnerd returns the command line of a stunnerd with an offload engine.
func (h *hosts) stunnerd(t *testing.T, engine string) []string {
	t.Helper()
	var config bytes.Buffer
	kind, shared := "static", ""
	if h.ephemeral {
		kind, shared = "ephemeral", secret
	}
	must(t, neighbourConfig.Execute(&config, map[string]any{
		"Type": kind, "Secret": shared,
		"User": user, "Password": password, "Address": serverAddr, "Peers": peerNet, "Slow": slowNet, "Engine": engine,
		"Ports": map[string]uint16{
			"DTLS": dtlsServer.Port(), "TCP": turnServer.Port(), "TLS": dtlsServer.Port(), "UDP": turnServer.Port(),
		},
		"Cert": base64.StdEncoding.EncodeToString(h.chain), "Key": base64.StdEncoding.EncodeToString(h.key),
	}))
	return []string{program, "--config", h.file(t, "config.yaml", config.Bytes())}
}

func (h *hosts) coturn(t *testing.T) []string {
	t.Helper()
	path, err := exec.LookPath("turnserver")
	if err != nil {
		t.Fatal("turnserver is not installed: run `sudo apt-get install --yes coturn`")
	}
	return []string{
		path, "-n", "--no-cli", "--no-multicast-peers", "--lt-cred-mech", "-u", user + ":" + password,
		"-r", "abuse.example.org", "-L", serverAddr.String(), "-E", serverAddr.String(),
		"--listening-port", strconv.Itoa(int(turnServer.Port())), "--tls-listening-port", strconv.Itoa(int(dtlsServer.Port())),
		"--no-rfc5780", "--cert", h.file(t, "cert.pem", h.chain), "--pkey", h.file(t, "key.pem", h.key),
		"--db", filepath.Join(h.dir, "users.db"), "--log-file=stdout", "--pidfile", filepath.Join(h.dir, "pid"),
	}
}

// file writes a file and returns its path.
func (h *hosts) file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(h.dir, name)
	must(t, os.WriteFile(path, content, 0o600))
	return path
}

// assertKernel fails the test unless the kernel of the server has forwarded a number of datagrams.
func (h *hosts) assertKernel(t *testing.T, mechanism string, datagrams int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: h.server.Dial, DisableKeepAlives: true}}
	_, status, err := harness.GetBy(t.Context(), client, "http://127.0.0.1:8086/status")
	must(t, err)
	_, page, err := harness.GetBy(t.Context(), client, "http://127.0.0.1:8080/metrics")
	must(t, err)
	n, err := harness.Sum(string(page), telemetry.OffloadPackets)
	if err != nil || int(n) < datagrams || !strings.Contains(string(status), fmt.Sprintf(`"mechanism": %q`, mechanism)) {
		t.Errorf("%d datagrams were sent in each direction, the kernel has forwarded %g; %v; %s", datagrams, n, err, status)
	}
}

// unresolved returns the number of next hops of an interface of the server that do not resolve.
func (h *hosts) unresolved(t *testing.T, device string) (entries int) {
	t.Helper()
	for line := range strings.Lines(h.server.Run(t, "ip neigh show dev "+device+" nud all")) {
		if strings.Contains(line, "INCOMPLETE") || strings.Contains(line, "FAILED") {
			entries++
		}
	}
	return entries
}
