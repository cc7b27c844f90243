package abuse

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// Addresses of the stage. All hosts reach the one address of the server over their own links.
var (
	serverAddr = netip.MustParseAddr("10.200.0.1")
	// farClients are behind a router: to the server they have one next hop, which always resolves.
	farClients = netip.MustParsePrefix("10.211.0.0/16")
	// lan is a subnet with a direct link to the server. Each of its addresses is a next hop of its own.
	lan = netip.MustParsePrefix("10.202.0.0/16")
	// peerNet is the subnet of the peers, on another link.
	peerNet = netip.MustParsePrefix("10.203.0.0/16")
	// slowNet is behind a link with slowRate.
	slowNet = netip.MustParsePrefix("10.204.0.0/24")
)

const (
	turnPort, dtlsPort = 3478, 5349 // dtlsPort is also the TLS port
	echoPort           = 7
	echoPeers          = 4
	// usualSendBuffer is the default of net.core.wmem_max and net.core.wmem_default in Linux, in bytes.
	usualSendBuffer = 212992
)

// stage holds the server under test, in the network namespace of this process, and the hosts around it.
type stage struct {
	far, lan, peers, slow *netns.Space
	// echo are the echo peers.
	echo  []netip.AddrPort
	chain []byte // certificate of the server, in PEM
	key   []byte
	roots *x509.CertPool
	dir   string
}

// host returns the address in a subnet with a number.
func host(subnet netip.Prefix, number uint16) netip.Addr {
	a := subnet.Addr().As4()
	a[2], a[3] = byte(number>>8), byte(number)
	return netip.AddrFrom4(a)
}

// newStage creates the hosts and their links, each of its own or all by a switch. The kernel removes them when the process
// ends.
func newStage(t *testing.T, by *netns.Switch) *stage {
	t.Helper()
	s := &stage{
		far: by.New(t, "far"), lan: by.New(t, "lan"), peers: by.New(t, "peers"), slow: by.New(t, "slow"),
		roots: x509.NewCertPool(), dir: t.TempDir(),
	}
	at := func(subnet netip.Prefix, number uint16) netip.Prefix {
		return netip.PrefixFrom(host(subnet, number), subnet.Bits())
	}
	netns.Run(t, fmt.Sprintf("ip address add %s/32 dev lo", serverAddr))
	netns.Run(t, "sysctl -q -w net.ipv4.ip_forward=0 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	link := netip.MustParsePrefix("10.201.0.0/24")
	s.far.Link(t, at(link, 1), at(link, 2))
	s.far.Run(t, fmt.Sprintf("ip route add local %s dev lo", farClients))
	netns.Run(t, fmt.Sprintf("ip route add %s via %s", farClients, host(link, 2)))
	s.lan.Link(t, at(lan, 1), at(lan, 2))
	s.peers.Link(t, at(peerNet, 1), at(peerNet, 2))
	s.slow.Link(t, at(slowNet, 1), at(slowNet, 2))
	s.slow.Shape(t, "tbf rate 1mbit burst 3000 limit 300000")
	// Without this limit, a host answers every datagram to a closed port with an ICMP error.
	s.peers.Run(t, "sysctl -q -w net.ipv4.icmp_ratelimit=0")
	for i := range uint16(echoPeers) {
		peer := netip.AddrPortFrom(host(peerNet, 10+i), echoPort)
		s.peers.Run(t, fmt.Sprintf("ip address add %s/%d dev eth0", peer.Addr(), peerNet.Bits()))
		s.serveEcho(t, peer)
		s.echo = append(s.echo, peer)
	}
	s.chain, s.key = certificate(t, serverAddr)
	s.roots.AppendCertsFromPEM(s.chain)
	return s
}

// certificate makes a certificate for an address and its key, in PEM. The key is RSA, the default of cert-manager, with
// which a handshake costs the server far more than with an elliptic curve.
func certificate(t *testing.T, server netip.Addr) (chain, private []byte) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{server.AsSlice()},
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(
		&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8},
	)
}

// socket opens a UDP socket in a namespace that is closed at the end of the test.
func socket(t *testing.T, in *netns.Space, local netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	var err error
	in.Do(func() { conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(local)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (s *stage) serveEcho(t *testing.T, at netip.AddrPort) {
	t.Helper()
	go sendBack(socket(t, s.peers, at))
}

// sendBufferLimit is the file of net.core.wmem_max, in bytes.
const sendBufferLimit = "/proc/sys/net/core/wmem_max"

// hasUsualBuffers reports whether the limit of send buffers is at most the default of Linux. Before Linux 6.8 this is
// visible in the initial network namespace only.
func hasUsualBuffers(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile(sendBufferLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	limit, bad := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := errors.Join(err, bad); err != nil {
		t.Fatal(err)
	}
	return limit <= usualSendBuffer
}

// usualBuffers lowers the limit of send buffers to the default of Linux during the test. With larger buffers, a server
// would pass a test that it fails on most machines. All network namespaces share the limit, which can be written in the
// initial one only, so the parent process lowers it before the child starts.
func usualBuffers(t *testing.T) {
	t.Helper()
	if hasUsualBuffers(t) {
		return
	}
	was, err := os.ReadFile(sendBufferLimit)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sendBufferLimit, []byte(strconv.Itoa(usualSendBuffer)), 0); err != nil {
		t.Fatalf(
			"lower net.core.wmem_max from %s to %d, the default of Linux: %v: run the test as root of the host", was,
			usualSendBuffer, err,
		)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(sendBufferLimit, was, 0); err != nil {
			t.Errorf("restore net.core.wmem_max to %s: %v", was, err)
		}
	})
}

// server describes a TURN server that can run on the stage.
type server struct {
	name    string
	command func(t *testing.T, s *stage) bed.Command
	// mechanism is how the programs of the in-kernel path are attached. It is empty for a server in user space.
	mechanism string
}

// product is the server under test. reference is the server for comparison.
const product, reference = "stunnerd", "coturn"

// run starts a server and waits until it accepts connections. It has the capabilities that it has in a cluster: in user
// space it runs without CAP_NET_ADMIN, which would allow it to exceed the limit of send buffers.
func (s *stage) run(t *testing.T, what server) *bed.Process {
	t.Helper()
	if !hasUsualBuffers(t) {
		t.Fatal("TEST NOT VALID: net.core.wmem_max was raised during the test, perhaps by another run of it")
	}
	c := what.command(t, s)
	capabilities := []string{"--bounding-set=-net_admin", "--inh-caps=-net_admin", c.Path}
	if what.mechanism != "" {
		capabilities = []string{"--bounding-set=-all,+net_admin,+bpf", "--inh-caps=-all", c.Path}
	}
	c.Args = append(capabilities, c.Args...)
	c.Path = "setpriv"
	path, err := exec.LookPath(c.Path)
	if err != nil {
		t.Fatal("setpriv is not installed: run `sudo apt-get install --yes util-linux`")
	}
	c.Name, c.Path, c.Dir, c.Logs = what.name, path, s.dir, t.TempDir()
	return bedtest.Start(t, c, s.serves)
}

// serves returns nil when the server accepts TCP connections. It opens the other transports before.
func (s *stage) serves(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(serverAddr, turnPort).String())
	if err == nil {
		conn.Close()
	}
	return err
}

var neighbourConfig = template.Must(template.New("config").Parse(`version: v1
admin: {name: abuse/neighbours, healthcheck_endpoint: "http://127.0.0.1:8086", metrics_endpoint: "http://127.0.0.1:8080/metrics", offload_engine: {{.Engine}}}
auth: {type: static, realm: abuse.example.org, credentials: {username: {{.User}}, password: {{.Password}}}}
listeners:
  - {name: udp, protocol: TURN-UDP, address: {{.Address}}, port: {{.TURN}}, routes: [peers]}
  - {name: dtls, protocol: TURN-DTLS, address: {{.Address}}, port: {{.DTLS}}, routes: [peers], cert: {{.Cert}}, key: {{.Key}}}
  - {name: tls, protocol: TURN-TLS, address: {{.Address}}, port: {{.DTLS}}, routes: [peers], cert: {{.Cert}}, key: {{.Key}}}
  - {name: tcp, protocol: TURN-TCP, address: {{.Address}}, port: {{.TURN}}, routes: [peers]}
clusters:
  - {name: peers, type: STATIC, endpoints: ["{{.Peers}}", "{{.Slow}}"]}
`))

func stunnerdCommand(t *testing.T, s *stage) bed.Command { return configured(t, s, "None") }
func kernelCommand(t *testing.T, s *stage) bed.Command   { return configured(t, s, "TC") }
func xdpCommand(t *testing.T, s *stage) bed.Command      { return configured(t, s, "XDP") }

// configured returns the command of a stunnerd with an offload engine.
func configured(t *testing.T, s *stage, engine string) bed.Command {
	t.Helper()
	var config bytes.Buffer
	if err := neighbourConfig.Execute(&config, map[string]any{
		"User": user, "Password": password, "Address": serverAddr, "TURN": turnPort, "DTLS": dtlsPort, "Peers": peerNet,
		"Slow": slowNet, "Engine": engine,
		"Cert": base64.StdEncoding.EncodeToString(s.chain), "Key": base64.StdEncoding.EncodeToString(s.key),
	}); err != nil {
		t.Fatal(err)
	}
	file := s.file(t, "config.yaml", config.Bytes())
	return bed.Command{Path: program, Args: []string{"--config", file}}
}

func coturnCommand(t *testing.T, s *stage) bed.Command {
	t.Helper()
	path, err := exec.LookPath("turnserver")
	if err != nil {
		t.Fatal("turnserver is not installed: run `sudo apt-get install --yes coturn`")
	}
	return bed.Command{Path: path, Args: []string{
		"-n", "--no-cli", "--no-multicast-peers", "--lt-cred-mech", "-u", user + ":" + password, "-r",
		"abuse.example.org",
		"-L", serverAddr.String(), "-E", serverAddr.String(),
		"--listening-port", strconv.Itoa(turnPort), "--tls-listening-port", strconv.Itoa(dtlsPort), "--no-rfc5780",
		"--cert", s.file(t, "cert.pem", s.chain), "--pkey", s.file(t, "key.pem", s.key),
		"--db", filepath.Join(s.dir, "users.db"), "--log-file=stdout", "--pidfile", filepath.Join(s.dir, "pid"),
	}}
}

// file writes a file of the stage and returns its path.
func (s *stage) file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
