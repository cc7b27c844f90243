package media

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/pion/stun/v2"
	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

var (
	// relays are the addresses of the server. A port has at most 65,535 of them, so 100,000 allocations need two.
	relays     = []netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("10.200.0.2")}
	turnServer = netip.AddrPortFrom(relays[0], turnPort)
	clientNet  = netip.MustParsePrefix("10.128.0.0/14")
	peerNet    = netip.MustParsePrefix("10.204.0.0/16")
)

const (
	turnPort, morePort, tlsPort = 3478, 3479, 5349
	firstRelay, lastRelay       = "8192", "65535" // ports
	healthURL                   = "http://127.0.0.1:8086"
	metricsURL                  = "http://127.0.0.1:8080/metrics"
	realm                       = "media.example.org"
	timeout                     = 20 * time.Second
)

// stage has the server in the network namespace of this process, and clients and peers in namespaces of their own.
type stage struct {
	clients, peers *netns.Space
	dir            string
	cert, key      string  // files of the certificate and its key, in PEM
	chain, private string  // content of these files, encoded for a config
	noise          float64 // cores that other programs use
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{clients: netns.New(t, "clients"), peers: netns.New(t, "peers"), dir: t.TempDir()}
	for _, a := range relays {
		netns.Run(t, fmt.Sprintf("ip address add %s/32 dev lo", a))
	}
	netns.Run(t, "sysctl -q -w net.ipv4.ip_forward=0 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	harnesstest.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte(firstRelay+" "+lastRelay), 0))
	for i, n := range []struct {
		space  *netns.Space
		subnet netip.Prefix
	}{{s.clients, clientNet}, {s.peers, peerNet}} {
		here, there := netip.AddrFrom4([4]byte{10, 201, byte(i), 1}), netip.AddrFrom4([4]byte{10, 201, byte(i), 2})
		n.space.Link(t, netip.PrefixFrom(here, 24), netip.PrefixFrom(there, 24))
		n.space.Run(t, fmt.Sprintf("ip route add local %s dev lo", n.subnet))
		netns.Run(t, fmt.Sprintf("ip route add %s via %s src %s", n.subnet, there, relays[0]))
		// The sender's interface splits bursts (UDP_SEGMENT) into datagrams, as a network card does.
		n.space.Run(t, "ip link set dev eth0 gso_max_segs 1")
	}
	chain, private, err := harness.Certificate(relays[0])
	harnesstest.NoError(t, err)
	s.cert, s.key = s.file(t, "cert.pem", chain), s.file(t, "key.pem", private)
	s.chain, s.private = base64.StdEncoding.EncodeToString(chain), base64.StdEncoding.EncodeToString(private)
	return s
}

// file writes a file of the stage and returns its path.
func (s *stage) file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	harnesstest.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// server is a column of the table.
type server struct {
	name string
	// command returns the program. Without one, clients and peers send to a socket behind the same link.
	command func(t *testing.T, s *stage, cores int) harness.Command
	product bool // the server has the metrics of stunnerd
	streams bool // the server listens on TCP and TLS
	kernel  bool // the server forwards in the kernel
}

// config has a second UDP listener, whose relays have the second address.
var config = template.Must(template.New("config").Parse(`version: v1
admin: {name: media/bench, healthcheck_endpoint: "` + healthURL + `", metrics_endpoint: "` + metricsURL + `", offload_engine: {{.engine}}}
auth: {type: static, realm: ` + realm + `, credentials: {username: ` + user + `, password: ` + password + `}}
listeners:
  - {name: udp, protocol: TURN-UDP, address: {{index .relays 0}}, port: {{.port}}, routes: [peers]}
  - {name: more, protocol: TURN-UDP, address: {{index .relays 1}}, port: {{.more}}, routes: [peers]}
  - {name: tcp, protocol: TURN-TCP, address: {{index .relays 0}}, port: {{.port}}, routes: [peers]}
  - {name: tls, protocol: TURN-TLS, address: {{index .relays 0}}, port: {{.tls}}, routes: [peers], cert: {{.cert}}, key: {{.key}}}
clusters:
  - {name: peers, type: STATIC, endpoints: [{{.peers}}]}
`))

// stunnerd returns a build of stunnerd with an offload engine.
func stunnerd(name, path, engine string) server {
	return server{name: name, product: true, streams: true,
		command: func(t *testing.T, s *stage, _ int) harness.Command {
			var text bytes.Buffer
			if err := config.Execute(&text, map[string]any{
				"engine": engine, "relays": relays, "port": turnPort, "more": morePort, "tls": tlsPort, "cert": s.chain,
				"key": s.private, "peers": peerNet,
			}); err != nil {
				t.Fatal(err)
			}
			return harness.Command{Path: path, Args: []string{"--config", s.file(t, "config.yaml", text.Bytes())}}
		}}
}

func coturn(path string) server {
	return server{name: "coturn", streams: true, command: func(t *testing.T, s *stage, cores int) harness.Command {
		return harness.Command{Path: path, Args: []string{
			"-n", "--no-cli", "--no-multicast-peers", "--lt-cred-mech", "-u", user + ":" + password,
			"-r", realm, "-L", relays[0].String(), "-E", relays[0].String(),
			"--listening-port", strconv.Itoa(turnPort), "--tls-listening-port", strconv.Itoa(tlsPort), "--no-rfc5780",
			"--relay-threads", strconv.Itoa(cores), "--min-port", firstRelay, "--max-port", lastRelay, "--cert", s.cert,
			"--pkey", s.key, "--db", filepath.Join(s.dir, "users.db"), "--log-file=stdout",
			"--pidfile", filepath.Join(s.dir, "pid"),
		}}
	}}
}

func bare(path string) server {
	return server{name: "pion/turn v3", command: func(*testing.T, *stage, int) harness.Command {
		return harness.Command{Path: path, Args: []string{
			"-listen", turnServer.String(), "-user", user, "-password", password,
		}}
	}}
}

// direct means that there is no server. The difference to direct is the cost of a relay.
var direct = server{name: "none"}

// start starts a server on a number of cores, and waits until it answers. It returns nil for direct.
func (s *stage) start(t *testing.T, what server, cores int) *harness.Process {
	t.Helper()
	if what.command == nil {
		return nil
	}
	c := what.command(t, s, cores)
	c.Args = append([]string{"-c", fmt.Sprintf("0-%d", cores-1), c.Path}, c.Args...)
	path, err := exec.LookPath("taskset")
	if err != nil {
		t.Fatal("taskset is not installed: run `sudo apt-get install --yes util-linux`")
	}
	c.Name, c.Path, c.Dir, c.Logs = strings.ReplaceAll(what.name, "/", "-"), path, s.dir, s.dir
	return harnesstest.Start(t, c, func(context.Context) error { return s.serves() })
}

// serves returns nil when the server answers a Binding request over UDP.
func (s *stage) serves() (err error) {
	var c *ask.Client
	s.clients.Do(func() { c, err = ask.Dial(netip.IPv4Unspecified(), turnServer, "", "") })
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Once(c.Request(stun.MethodBinding), 100*time.Millisecond)
	return err
}

// offload returns the offload engine in use of a running stunnerd, and its warnings.
func offload(ctx context.Context) (engine, warnings string, err error) {
	var status struct {
		Admin struct {
			Offload string `json:"offload"`
		} `json:"admin"`
		Warnings []string `json:"warnings"`
	}
	code, body, err := harness.Get(ctx, healthURL+"/status")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status: code %d", code)
	}
	if err == nil {
		err = json.Unmarshal(body, &status)
	}
	return status.Admin.Offload, strings.Join(status.Warnings, "; "), err
}

// pin binds all threads of this process to the core of the generator.
func pin(t *testing.T, core int) {
	t.Helper()
	var cores unix.CPUSet
	cores.Set(core)
	if err := threads(os.Getpid(), func(tid int) error { return unix.SchedSetaffinity(tid, &cores) }); err != nil {
		t.Fatalf("bind the generator to core %d: %v", core, err)
	}
}

// prioritize gives a server real-time priority, so that other programs on its core do not delay it.
func prioritize(t *testing.T, p *harness.Process) {
	t.Helper()
	if p == nil {
		return
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	if err := threads(p.PID(), func(tid int) error { return unix.SchedSetAttr(tid, &attr, 0) }); err != nil {
		t.Fatalf("give %s real-time priority: %v: run the test as root with CAP_SYS_NICE", p.Name, err)
	}
}

// threads calls a function for each thread of a process. Threads that end meanwhile are no error.
func threads(pid int, f func(tid int) error) error {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		tid, bad := strconv.Atoi(task.Name())
		if bad == nil {
			bad = f(tid)
		}
		if !errors.Is(bad, unix.ESRCH) {
			err = errors.Join(err, bad)
		}
	}
	return err
}
