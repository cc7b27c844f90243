package interop

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// loopback6 is the IPv6 address that all programs also listen on.
const loopback6 = "::1"

// patience is the timeout of conditions on a busy machine.
const patience = 20 * time.Second

// The clients sleep most of their time.
func TestMain(m *testing.M) {
	bedtest.Parallel(16)
	os.Exit(m.Run())
}

// dataplane is a running stunnerd with an echo peer. The port after peer, for RTCP, echoes too.
type dataplane struct {
	*bedtest.Dataplane
	peer int
}

// start runs a peer and a dataplane until the test ends. Its routes include the relayed addresses of other clients.
func start(t *testing.T, auth config.Auth) dataplane {
	t.Helper()
	peer, logs := bedtest.Port(t), t.TempDir()
	bedtest.Start(t, bed.Command{
		Name: "turnutils_peer", Path: installed(t, "turnutils_peer", "coturn"), Logs: logs,
		Args: []string{"-L", bed.Loopback, "-L", loopback6, "-p", strconv.Itoa(peer)},
	}, func(ctx context.Context) error {
		return errors.Join(echoes(ctx, bed.Loopback, peer), echoes(ctx, loopback6, peer+1))
	})
	return dataplane{bedtest.StartDataplane(t, bedtest.Build(t, bed.Stunnerd), config.Config{
		Auth: auth, Listeners: bedtest.Listeners(bed.Loopback),
		Clusters: []config.Cluster{
			{Name: "test/peers", Type: config.Static, Endpoints: []string{bed.Loopback, loopback6}},
		},
	}, []netip.Addr{netip.MustParseAddr(bed.Loopback), netip.MustParseAddr(loopback6)}), peer}
}

// echoes returns nil when a peer echoes a datagram.
func echoes(ctx context.Context, host string, port int) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("there?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 16))
	return err
}

// installed returns the path of a program from a Debian package.
func installed(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is not installed: run `sudo apt-get install --yes %s`", name, pkg)
	}
	return path
}

// client runs a client program to its end.
func client(t *testing.T, env []string, path string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
