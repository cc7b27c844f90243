// Package turncat tests the command turncat with stunnerd and with coturn, on the loopback address.
//
// # Files
//
//	icetest_test.go  the command icetest, on the demo
//	turncat_test.go  data and clients through both servers
package turncat

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// megabytes is more than all buffers between client and peer hold.
var megabytes = flag.Int("megabytes", 25, "data to carry over each transport, in MB")

const (
	timeout = 60 * time.Second
	slow    = 4 * time.Minute // time for the data of one transport on a busy machine
)

// bin is the folder of the built programs.
var bin = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "stunner-turncat-")
	root, rootErr := harness.Root()
	if err = errors.Join(err, rootErr); err == nil {
		err = harness.Build(context.Background(), root, dir, harness.Stunnerd, harness.Stunnerctl)
	}
	if err == nil {
		err = os.Symlink("stunnerctl", filepath.Join(dir, "turncat"))
	}
	if err != nil {
		panic(err)
	}
	return dir
})

func TestMain(m *testing.M) {
	harnesstest.Parallel(4)
	code := m.Run()
	_ = os.RemoveAll(bin())
	os.Exit(code)
}

// server is a running TURN server.
type server struct {
	host  string // host in URIs
	plain int    // port of UDP and TCP
	tls   int    // port of DTLS and TLS
	ca    string // file with the certificate
	user  string // USER:PASSWORD@, or secret:KEY@
	peer  netip.AddrPort
}

func (s server) uri(transport string) string {
	port := s.plain
	if transport == "tls" || transport == "dtls" {
		port = s.tls
	}
	return fmt.Sprintf("turn://%s%s?transport=%s", s.user, net.JoinHostPort(s.host, strconv.Itoa(port)), transport)
}

var (
	static    = harnesstest.Static("ada", "p@ss/w")
	ephemeral = harnesstest.Ephemeral("shared-by-two-programs")
)

// dataplane starts stunnerd with an echo peer at a loopback address. Its routes allow all ports but one.
func dataplane(t *testing.T, auth config.Auth, host string) server {
	t.Helper()
	s := server{host: host, user: "ada:p%40ss%2Fw@", peer: harnesstest.Echo(t, netip.MustParseAddr(host))}
	if auth.Type == config.AuthEphemeral {
		s.user = "secret:shared-by-two-programs@"
	}
	d := harnesstest.StartDataplane(t, bin(), config.Config{
		Auth: auth, Listeners: harnesstest.Listeners(host),
		Clusters: []config.Cluster{
			{Name: "test/peers", Type: config.Static, Endpoints: []string{"127.0.0.1:<1-65534>", "::1"}},
		},
	}, []netip.Addr{netip.MustParseAddr(harness.Loopback), netip.IPv6Loopback()})
	s.plain, s.tls, s.ca = d.Plain, d.Secure, d.CA
	return s
}

// cat runs turncat to its end, under the name of the program of the existing system.
func cat(t *testing.T, in io.Reader, out io.Writer, args ...string) (stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), slow)
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin(), "turncat"), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &log
	err = cmd.Run()
	return log.String(), err
}

// random returns n reproducible pseudo-random bytes.
func random(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{15}), n) }

// returned sends data to the echo peer and back through turncat, and compares the hashes.
func returned(t *testing.T, n int64, args ...string) {
	t.Helper()
	want, got := sha256.New(), sha256.New()
	begun := time.Now()
	log, err := cat(t, io.TeeReader(random(n), want), got, append([]string{"--stats", "--pace", "echo"}, args...)...)
	t.Logf("%d MB in %.1f s\n%s", n/1e6, time.Since(begun).Seconds(), log)
	if err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("%v; the bytes differ: %t", err, !bytes.Equal(got.Sum(nil), want.Sum(nil)))
	}
}

var transports = []string{"udp", "tcp", "tls", "dtls"}

// TestEveryTransportRelaysAFile: the bytes of a file arrive at the peer and return unchanged, over every transport and
// both address families, with a static and an ephemeral credential. turncat requests a relayed address of the family of
// the peer. With -i, it accepts every certificate.
func TestEveryTransportRelaysAFile(t *testing.T) {
	four, six := dataplane(t, static, harness.Loopback), dataplane(t, ephemeral, "::1")
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			args := []string{"--turn-ca-file", four.ca, "-", four.uri(transport), "udp://" + four.peer.String()}
			returned(t, int64(*megabytes)*1e6, args...)
			args = []string{"--turn-ca-file", six.ca, "-", six.uri(transport), "udp://" + six.peer.String()}
			returned(t, 1e6, args...)
			returned(t, 1e4, "-i", "-", four.uri(transport), "udp://"+six.peer.String())
		})
	}
}

// TestCoturn: turncat works with another TURN server.
func TestCoturn(t *testing.T) {
	path, err := exec.LookPath("turnserver")
	if err != nil {
		t.Fatal("turnserver is not installed: run `sudo apt-get install --yes coturn`")
	}
	for _, auth := range []struct {
		user string
		args []string
	}{
		{"ada:carol@", []string{"--lt-cred-mech", "--user=ada:carol"}},
		{"secret:shared-by-two@", []string{"--use-auth-secret", "--static-auth-secret=shared-by-two"}},
	} {
		dir := t.TempDir()
		chain, key, err := harness.Certificate()
		harnesstest.NoError(t, err)
		ca, private := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem")
		for file, data := range map[string][]byte{ca: chain, private: key} {
			harnesstest.NoError(t, os.WriteFile(file, data, 0o600))
		}
		s := server{host: harness.Loopback, plain: harnesstest.Port(t), tls: harnesstest.Port(t), user: auth.user,
			peer: harnesstest.Echo(t, netip.MustParseAddr(harness.Loopback))}
		harnesstest.Start(t, harness.Command{Name: "turnserver", Path: path, Logs: dir, Args: append(auth.args,
			"--no-cli", "--log-file=stdout", "--simple-log", "--realm=turncat.example.org", "--allow-loopback-peers",
			"--listening-ip="+harness.Loopback, "--relay-ip="+harness.Loopback,
			fmt.Sprintf("--listening-port=%d", s.plain),
			fmt.Sprintf("--tls-listening-port=%d", s.tls), "--cert="+ca, "--pkey="+private,
			"--pidfile="+filepath.Join(dir, "pid"), "--userdb="+filepath.Join(dir, "db"))},
			func(ctx context.Context) error {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(s.host, strconv.Itoa(s.tls)))
				if err == nil {
					conn.Close()
				}
				return err
			})
		for _, transport := range transports {
			t.Run(auth.user+transport, func(t *testing.T) {
				returned(t, 1e6, "--turn-ca-file", ca, "-", s.uri(transport), "udp://"+s.peer.String())
			})
		}
	}
}

// serve starts turncat for clients of a network, and returns their address.
func serve(t *testing.T, client string, s server, args ...string) *harness.Process {
	t.Helper()
	args = append(args, "-v", client, s.uri("udp"), "udp://"+s.peer.String())
	command := harness.Command{Name: "turncat", Path: filepath.Join(bin(), "turncat"), Args: args, Logs: t.TempDir()}
	p := harnesstest.Start(t, command, func(context.Context) error { return nil })
	logs(t, p, "listening")
	return p
}

// logs waits until the log of a program matches a pattern.
func logs(t *testing.T, p *harness.Process, pattern string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if _, err := p.AwaitOutput(ctx, regexp.MustCompile(pattern)); err != nil {
		t.Fatal(err, p.Output())
	}
}

// exchange sends a message until it is returned.
func exchange(t *testing.T, conn net.Conn, message string) {
	t.Helper()
	buf := make([]byte, 2048)
	harnesstest.NoError(t, conn.SetDeadline(time.Now().Add(timeout)))
	if _, err := io.WriteString(conn, message); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(buf); err != nil || string(buf[:n]) != message {
		t.Fatalf("returned %q, %v; want %q", buf[:n], err, message)
	}
}

// TestClientsHaveAllocationsOfTheirOwn: listeners serve several clients at once. Statistics count them, and the number
// of clients is bounded.
func TestClientsHaveAllocationsOfTheirOwn(t *testing.T) {
	s := dataplane(t, ephemeral, harness.Loopback)
	socket := filepath.Join(t.TempDir(), "socket")
	for network, address := range map[string]string{"udp": harnesstest.Address(t), "tcp": harnesstest.Address(t),
		"unix": socket} {
		t.Run(network, func(t *testing.T) {
			p := serve(t, network+"://"+address, s, "--max-clients", "3")
			var conns []net.Conn
			for i := range 3 {
				conn, err := net.Dial(network, address)
				harnesstest.NoError(t, err)
				defer conn.Close()
				conns = append(conns, conn)
				exchange(t, conn, fmt.Sprint("x", i)) // shorter than four bytes, which STUNConn of pion/turn delays
			}
			for i, conn := range conns {
				exchange(t, conn, fmt.Sprint("again from client ", i))
			}
			fourth, err := net.Dial(network, address)
			harnesstest.NoError(t, err)
			defer fourth.Close()
			_ = fourth.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(fourth, "no place")
			if n, err := fourth.Read(make([]byte, 9)); err == nil {
				t.Errorf("a fourth client got %d bytes", n)
			}
			harnesstest.NoError(t, p.Signal(syscall.SIGUSR1))
			logs(t, p, `(?m)^clients +3, active 3, refused [1-9]`)
			if err := p.Stop(timeout); err != nil || p.Err() != nil {
				t.Errorf("%v %v", err, p.Err())
			}
		})
	}
}

// TestIdleClientsEnd: a UDP client that is idle loses its allocation, and gets another allocation when it sends again.
func TestIdleClientsEnd(t *testing.T) {
	s := dataplane(t, static, harness.Loopback)
	address := harnesstest.Address(t)
	p := serve(t, "udp://"+address, s, "--idle", "300ms")
	conn, err := net.Dial("udp", address)
	harnesstest.NoError(t, err)
	defer conn.Close()
	exchange(t, conn, "first")
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := p.Until(ctx, func(context.Context) error {
		if err := p.Signal(syscall.SIGUSR1); err != nil || strings.Contains(p.Output(), "active 0") {
			return err
		}
		return fmt.Errorf("still active:\n%s", p.Output())
	}); err != nil {
		t.Fatal(err)
	}
	exchange(t, conn, "second")
}

// TestErrorsNameTheCause: a refusal of the server, a wrong name and a missing echo end turncat with an error that names
// the cause, and no error contains the password.
func TestErrorsNameTheCause(t *testing.T) {
	s := dataplane(t, static, harness.Loopback)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	harnesstest.NoError(t, err)
	defer silent.Close()
	at := func(user string) string {
		return server{host: s.host, plain: s.plain, tls: s.tls, user: user}.uri("udp")
	}
	peer := "udp://" + s.peer.String()
	type failure struct {
		args []string
		code int
		want string
	}
	failures := map[string]failure{
		"wrong password":       {[]string{"-", at("ada:hunter2@"), peer}, 1, "credential is wrong or expired"},
		"wrong secret":         {[]string{"-", at("hunter2@"), peer}, 1, "credential is wrong or expired"},
		"peer without a route": {[]string{"-", s.uri("udp"), "udp://192.0.2.1:9"}, 1, "no route of the gateway allows the peer"},
		"wrong name":           {[]string{"--turn-ca-file", s.ca, "--sni", "example.org", "-", s.uri("tls"), peer}, 1, "--sni"},
		"unknown issuer":       {[]string{"-", s.uri("tls"), peer}, 1, "--turn-ca-file"},
		"no server":            {[]string{"-", "turn://ada:hunter2@127.0.0.1:9", peer}, 1, "refuses the connection"},
		"no credential":        {[]string{"-", "turn://127.0.0.1", peer}, 2, "--password-file"},
		"no echo":              {[]string{"--pace", "echo", "-", s.uri("udp"), "udp://" + silent.LocalAddr().String()}, 1, "did not return 5 bytes"},
		"no peer":              {[]string{"-", at("ada:hunter2@"), "tcp://127.0.0.1:1"}, 2, "peer address"},
		"unreadable server":    {[]string{"-", "turn://ada:hunter2@[::1", peer}, 2, "TURN server"},
	}
	for _, transport := range []string{"udp", "tcp", "dtls", "tls"} {
		failures["port without a route over "+transport] = failure{
			[]string{"--turn-ca-file", s.ca, "-", s.uri(transport), "udp://127.0.0.1:65535"}, 1,
			"bind channel to peer 127.0.0.1:65535: error 403: no route of the gateway allows the peer: see stunnerctl can-reach",
		}
	}
	for name, c := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, err := cat(t, strings.NewReader("hello"), io.Discard, c.args...)
			exit, _ := err.(*exec.ExitError)
			if exit == nil || exit.ExitCode() != c.code || !strings.Contains(log, c.want) ||
				strings.Contains(log, "hunter2") {
				t.Errorf("%v, want exit code %d and %q:\n%s", err, c.code, c.want, log)
			}
		})
	}
}

// TestUDPClientLogsAPortWithoutARoute: turncat logs the refusal of each attempt, with growing pauses between them.
func TestUDPClientLogsAPortWithoutARoute(t *testing.T) {
	s := dataplane(t, static, harness.Loopback)
	s.peer = netip.AddrPortFrom(s.peer.Addr(), 65535)
	client := harnesstest.Address(t)
	p := serve(t, "udp://"+client, s)
	conn, err := net.Dial("udp", client)
	harnesstest.NoError(t, err)
	defer conn.Close()
	for _, pause := range []string{"1s", "2s"} {
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		logs(t, p, "error 403: .* retry="+pause)
	}
}
