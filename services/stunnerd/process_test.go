package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// asProgram makes this test binary run as stunnerd, so that the tests cover the process, signals and exit code. With
// the value withOrphan, the process adopts an orphan first.
const asProgram = "STUNNERD_AS_PROGRAM"

func TestMain(m *testing.M) {
	if role := os.Getenv(asProgram); role != "" {
		if role == withOrphan && !isSupervised() {
			adoptOrphan()
		}
		main()
		return
	}
	os.Exit(m.Run())
}

var authority = credential.Authority{Realm: "test.example", SharedSecret: "of the tests"}

// later is an address in the routes that no host has before a test adds it.
const later = "198.51.100.9"

// process is a running stunnerd with a listener of each protocol, whose clients reach an echo peer.
type process struct {
	t *testing.T
	// program is the path of a copy of this test binary; "" means the binary itself. role is the value of asProgram.
	program, role string
	attr          *syscall.SysProcAttr
	stdout        *os.File // nil discards it
	command       *exec.Cmd
	log           *os.File
	// turn are the addresses of the listeners: udp, tcp, tls and dtls.
	turn   map[string]string
	probes string
	peer   *net.UDPAddr
	ended  chan struct{}
	// failed is the error of the process. It may be read after ended.
	failed error
}

// start starts the program and waits until it is ready.
func start(t *testing.T, flags ...string) *process {
	t.Helper()
	return startWith(t, func(*config.Config) {}, flags...)
}

// startWith starts the program with a changed config.
func startWith(t *testing.T, change func(*config.Config), flags ...string) *process {
	t.Helper()
	p := &process{t: t, peer: echo(t), ended: make(chan struct{})}
	p.launch(append(flags, "--config", p.config(change))...)
	return p
}

// launch starts the program and waits until it is ready.
func (p *process) launch(flags ...string) {
	p.t.Helper()
	p.begin(flags...)
	p.within("ready", func() bool { return p.code("/ready") == http.StatusOK })
}

// begin starts the program.
func (p *process) begin(flags ...string) {
	t := p.t
	t.Helper()
	var err error
	if p.log, err = os.Create(filepath.Join(t.TempDir(), "log")); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.command = exec.Command(cmp.Or(p.program, program), flags...)
	p.command.Env = append(os.Environ(), asProgram+"="+cmp.Or(p.role, "yes"))
	p.command.Stderr, p.command.SysProcAttr = p.log, p.attr
	if p.stdout != nil {
		p.command.Stdout = p.stdout
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.failed = p.command.Wait()
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		<-p.ended
		_ = p.log.Close()
		if t.Failed() {
			t.Logf("log of stunnerd, its beginning:\n%.4000s", p.said())
		}
	})
}

// config writes the config of the program and returns the name of its file.
func (p *process) config(change func(*config.Config)) string {
	p.t.Helper()
	p.turn, p.probes = map[string]string{}, fmt.Sprintf("http://127.0.0.1:%d", testport.Free(p.t))
	c := config.Config{
		Version: config.Version,
		Admin:   config.Admin{Name: "media/edge", HealthcheckEndpoint: &p.probes},
		Auth: config.Auth{Type: config.AuthEphemeral, Realm: authority.Realm, Credentials: map[string]credential.Secret{
			config.KeySecret: authority.SharedSecret,
		}},
		Clusters: []config.Cluster{{Name: "media/echo", Type: config.Static, Endpoints: []string{"127.0.0.1", later}}},
	}
	cert, key, err := selfSigned("127.0.0.1", time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	for transport, protocol := range map[string]config.Protocol{
		"udp": config.TURNUDP, "tcp": config.TURNTCP, "tls": config.TURNTLS, "dtls": config.TURNDTLS,
	} {
		port := testport.Free(p.t)
		p.turn[transport] = fmt.Sprintf("127.0.0.1:%d", port)
		l := config.Listener{
			Name: "media/edge/" + transport, Protocol: protocol, Port: port, Address: "127.0.0.1",
			Routes: []string{"media/echo"},
		}
		if protocol.Secure() {
			l.Cert, l.Key = cert, key
		}
		c.Listeners = append(c.Listeners, l)
	}
	change(&c)
	c.Default()
	data, err := json.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	file := filepath.Join(p.t.TempDir(), "config.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// get requests a path of the probes server. The code is 0 if there is no answer.
func (p *process) get(path string) (code int, body []byte) {
	resp, err := http.Get(p.probes + path)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, body
}

func (p *process) code(path string) int {
	code, _ := p.get(path)
	return code
}

func (p *process) status() (s inspection.Status) {
	if _, body := p.get("/status"); json.Unmarshal(body, &s) != nil {
		return inspection.Status{}
	}
	return s
}

// received is the number of packets that a listener has read.
func (p *process) received(listener string) uint64 {
	for _, l := range p.status().Listeners {
		if l.Name == listener {
			return l.Stats.Rx.Packets
		}
	}
	return 0
}

// said returns the log so far.
func (p *process) said() []byte {
	data, err := os.ReadFile(p.log.Name())
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

func (p *process) terminate() {
	p.t.Helper()
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

// draining sends SIGTERM and waits until the process drains.
func (p *process) draining() {
	p.t.Helper()
	p.terminate()
	p.within("draining", func() bool { return p.status().Status == inspection.Terminating })
}

// endsWell waits for the end of the process and expects exit code 0.
func (p *process) endsWell() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		p.t.Fatal("the process does not end")
	}
	if p.failed != nil {
		p.t.Errorf("the process failed: %v", p.failed)
	}
}

// runs checks that the process is still running.
func (p *process) runs() {
	p.t.Helper()
	select {
	case <-p.ended:
		p.t.Fatalf("the process has ended: %v", p.failed)
	default:
	}
}

// within waits for a condition of the process.
func (p *process) within(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// call is a client with an allocation.
type call struct {
	client *turn.Client
	relay  net.PacketConn
	peer   *net.UDPAddr
}

// dial makes an allocation in the name of a user.
func (p *process) dial(user string) (*call, error) {
	p.t.Helper()
	minted, err := authority.Mint(user, time.Hour, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: p.turn["udp"], TURNServerAddr: p.turn["udp"], Conn: conn,
		Username: minted.Username, Password: string(minted.Password), LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err != nil {
		p.t.Fatal(errors.Join(err, conn.Close()))
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	p.t.Cleanup(client.Close)
	if err := client.Listen(); err != nil {
		p.t.Fatal(err)
	}
	relay, err := client.Allocate()
	if err != nil {
		return nil, err
	}
	return &call{client, relay, p.peer}, nil
}

func (p *process) mustDial(user string) *call {
	p.t.Helper()
	c, err := p.dial(user)
	if err != nil {
		p.t.Fatalf("call: %v", err)
	}
	return c
}

// echo sends a text to the peer and expects it back.
func (c *call) echo(text string) error {
	if _, err := c.relay.WriteTo([]byte(text), c.peer); err != nil {
		return err
	}
	if err := c.relay.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	n, _, err := c.relay.ReadFrom(buf)
	if err == nil && string(buf[:n]) != text {
		err = fmt.Errorf("%q came back, %q was sent", buf[:n], text)
	}
	return err
}

// echo answers every datagram with itself.
func echo(t *testing.T) *net.UDPAddr {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr)
}
