package interop

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// loopback6 is the IPv6 address that all programs also listen on.
const loopback6 = "::1"

// timeout limits the wait for a condition on a busy machine.
const timeout = 20 * time.Second

// The clients sleep most of their time.
func TestMain(m *testing.M) {
	harnesstest.Parallel(16)
	os.Exit(m.Run())
}

// dataplane is a running stunnerd with an echo peer. The port after peer, for RTCP, echoes too.
type dataplane struct {
	*harnesstest.Dataplane
	peer int
}

// addresses are the addresses of clients, relays and peers.
var addresses = []netip.Addr{netip.MustParseAddr(harness.Loopback), netip.MustParseAddr(loopback6)}

// startPeer runs an echo peer until the test ends, and returns its port.
func startPeer(t *testing.T) int {
	t.Helper()
	peer, err := harness.FreePair()
	harnesstest.NoError(t, err)
	harnesstest.Start(t, harness.Command{
		Name: "turnutils_peer", Path: installed(t, "turnutils_peer", "coturn"), Logs: t.TempDir(),
		Args: []string{"-L", harness.Loopback, "-L", loopback6, "-p", strconv.Itoa(peer)},
	}, func(ctx context.Context) error {
		return errors.Join(echoes(ctx, harness.Loopback, peer), echoes(ctx, loopback6, peer+1))
	})
	return peer
}

// startCoturn runs coturn's own server with the static credential of the dataplane, and a peer.
func startCoturn(t *testing.T) dataplane {
	t.Helper()
	return coturn(t, "--lt-cred-mech", "--user="+carol[1]+":"+carol[3])
}

// coturn runs coturn's own server with options for credentials, and a peer.
func coturn(t *testing.T, credentials ...string) dataplane {
	t.Helper()
	d := dataplane{&harnesstest.Dataplane{Plain: harnesstest.Port(t), Secure: harnesstest.Port(t)}, startPeer(t)}
	dir := t.TempDir()
	chain, key, err := harness.Certificate(addresses...)
	harnesstest.NoError(t, err)
	cert, pkey := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	harnesstest.NoError(t, errors.Join(os.WriteFile(cert, chain, 0o600), os.WriteFile(pkey, key, 0o600)))
	args := []string{
		"-n", "--no-cli", "--no-rfc5780", "--mobility", "--denied-peer-ip=192.0.2.1", "--denied-peer-ip=2001:db8::1", "--realm=" + static.Realm, "--allow-loopback-peers", "--cert=" + cert, "--pkey=" + pkey,
		"--listening-port=" + strconv.Itoa(d.Plain), "--tls-listening-port=" + strconv.Itoa(d.Secure),
		"--db=" + dir + "/users.db", "--log-file=stdout", "--pidfile=" + dir + "/pid",
	}
	args = append(args, credentials...)
	for _, a := range addresses {
		args = append(args, "--listening-ip="+a.String(), "--relay-ip="+a.String())
	}
	harnesstest.Start(t, harness.Command{
		Name: "turnserver", Path: installed(t, "turnserver", "coturn"), Args: args, Dir: dir, Logs: dir,
	}, func(ctx context.Context) error {
		for _, a := range addresses {
			for _, port := range []int{d.Plain, d.Secure} {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(a.String(), strconv.Itoa(port)))
				if err != nil {
					return err
				}
				conn.Close()
			}
		}
		return nil
	})
	return d
}

// start runs a peer and a dataplane until the test ends. Its routes include the relayed addresses of other clients.
func start(t *testing.T, auth config.Auth) dataplane {
	t.Helper()
	peer := startPeer(t)
	return dataplane{harnesstest.StartDataplane(t, harnesstest.Build(t, harness.Stunnerd), config.Config{
		Auth: auth, Listeners: harnesstest.Listeners(harness.Loopback),
		Clusters: []config.Cluster{
			{Name: "test/peers", Type: config.Static, Endpoints: []string{harness.Loopback, loopback6}},
		},
	}, addresses), peer}
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
