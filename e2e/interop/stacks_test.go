package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	pion "github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// TestAioice: aioice, the TURN client of aiortc, has every datagram relayed and echoed, over each of its transports.
func TestAioice(t *testing.T) {
	d := start(t, static)
	for name, port := range map[string]int{"udp": d.Plain, "tcp": d.Plain, "tls": d.Secure} {
		t.Run(name, func(t *testing.T) {
			out, err := aioice(t, d, d.CA, name, port, "sings-alto")
			if err != nil || !strings.Contains(out, "relayed by "+harness.Loopback) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("wrong password", func(t *testing.T) {
		out, err := aioice(t, d, d.CA, "udp", d.Plain, "guessed")
		if err == nil || !strings.Contains(out, "TransactionFailed: STUN transaction failed (401") {
			t.Errorf("want error 401: %v\n%s", err, out)
		}
	})
	t.Run("untrusted certificate", func(t *testing.T) {
		out, err := aioice(t, d, os.DevNull, "tls", d.Secure, "sings-alto")
		if err == nil || !strings.Contains(out, "CERTIFICATE_VERIFY_FAILED") {
			t.Errorf("want a certificate error: %v\n%s", err, out)
		}
	})
	idle(t, d)
}

func aioice(t *testing.T, d dataplane, ca, transport string, port int, password string) (string, error) {
	t.Helper()
	return python(t, "aioice_echo.py", []string{"SSL_CERT_FILE=" + ca, "SSL_CERT_DIR=" + os.DevNull},
		transport, harness.Loopback, strconv.Itoa(port), "carol", password, harness.Loopback, strconv.Itoa(d.peer))
}

// TestPion: a client with pion/turn keeps working while it sends to closed ports. The library would end the session if
// ICMP errors were relayed.
func TestPion(t *testing.T) {
	d := start(t, static)
	silent := harnesstest.Port(t)
	to := func(port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(harness.Loopback), uint16(port))
	}
	for _, network := range []pion.Network{pion.UDP, pion.TCP} {
		t.Run(string(network), func(t *testing.T) {
			one, err := pion.Start(t.Context(), pion.Options{
				Gateway: to(d.Plain), Network: network, Username: "carol", Password: "sings-alto", Peer: to(d.peer),
			})
			harnesstest.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			for range 10 {
				err = errors.Join(err, one.SendTo(to(silent)), one.AwaitMore(ctx, 10))
			}
			if s := one.End(timeout); err != nil || s.Lost != 0 || s.Err != nil {
				t.Errorf("%v, %s", err, s)
			}
		})
	}
	idle(t, d)
}

// TestLibnice: two libnice agents that are limited to relays connect to each other and lose nothing.
func TestLibnice(t *testing.T) {
	d := start(t, static)
	for _, transport := range []string{"udp", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			out, err := python(
				t, "libnice_call.py", nil, transport, harness.Loopback, strconv.Itoa(d.Plain), "carol", "sings-alto",
			)
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	idle(t, d)
}

// python runs a script in this folder with Debian's Python, which has the needed modules. Another Python may come first
// in PATH.
func python(t *testing.T, script string, env []string, args ...string) (string, error) {
	t.Helper()
	const path = "/usr/bin/python3"
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `sudo apt-get install --yes python3-aioice python3-gi gir1.2-nice-0.1`", err)
	}
	return client(t, env, path, append([]string{script}, args...)...)
}

// idle waits until the dataplane has no allocation: clients that exit properly delete theirs.
func idle(t *testing.T, d dataplane) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	err := harness.Until(ctx, func(ctx context.Context) error {
		n, err := harness.Metric(ctx, d.Metrics, "stunner_allocations_active")
		if err == nil && n != 0 {
			err = fmt.Errorf("%g allocations are left", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
