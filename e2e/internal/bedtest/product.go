package bedtest

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// startTime bounds the start of all programs on a busy machine.
const startTime = time.Minute

// Quickstart runs the product from the YAML of the quickstart until the test ends. The Gateway, its relays and the echo
// peer are at an address of this host. Further programs are built into its folder of programs.
func Quickstart(t testing.TB, host string, programs ...string) *bed.Stack {
	t.Helper()
	ports, err := bed.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	programs = append(programs, bed.Operator, bed.Stunnerd, bed.Auth, bed.Echo)
	s := &bed.Stack{Bin: Build(t, programs...), Dir: t.TempDir(), Ports: ports, Host: host}
	if err := s.Prepare(filepath.Join(Root(t), "docs/examples/quickstart")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		for _, p := range s.Parts() {
			if t.Failed() {
				t.Logf("last log lines of %s:\n%s", p.Name, strings.Join(p.Tail(20), "\n"))
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// Dataplane is a stunnerd that runs without an operator.
type Dataplane struct {
	*bed.Process
	// File has the config. Health is the base URL of probes, status and sessions, and Metrics the URL of the metrics.
	File, Health, Metrics string
	// Plain is the port of UDP and TCP, Secure that of DTLS and TLS; 0 without such a listener.
	Plain, Secure int
	// CA is the file with the certificate of the secure listeners, in PEM.
	CA string
}

// StartDataplane starts stunnerd of a folder of programs until the test ends, and waits until it is ready. Relays and
// peers have the addresses, which its secure listeners have in their certificate. Listeners of the config without a port
// or a certificate get one; one without routes has those to all clusters.
func StartDataplane(t testing.TB, bin string, c config.Config, addresses []netip.Addr, args ...string) *Dataplane {
	t.Helper()
	dir := t.TempDir()
	d := &Dataplane{
		File: filepath.Join(dir, "config.json"), CA: filepath.Join(dir, "ca.pem"),
		Health: "http://" + Address(t), Metrics: "http://" + Address(t) + "/metrics",
	}
	chain, key, err := bed.Certificate(addresses...)
	if err != nil {
		t.Fatal(err)
	}
	d.Plain, d.Secure = Port(t), Port(t)
	var routes []string
	for _, cluster := range c.Clusters {
		routes = append(routes, cluster.Name)
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		port := &d.Plain
		if l.Protocol.Secure() {
			port = &d.Secure
			l.Cert = cmp.Or(l.Cert, base64.StdEncoding.EncodeToString(chain))
			l.Key = cmp.Or(l.Key, credential.Secret(base64.StdEncoding.EncodeToString(key)))
		}
		l.Port = cmp.Or(l.Port, *port)
		*port = l.Port
		if l.Routes == nil {
			l.Routes = routes
		}
	}
	c.Version = config.Version
	c.Admin.Name, c.Admin.MetricsEndpoint = cmp.Or(c.Admin.Name, "test/dataplane"), d.Metrics
	c.Admin.HealthcheckEndpoint = &d.Health
	c.Default()
	for file, content := range map[string][]byte{d.File: c.Canonical(), d.CA: chain} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var relays []string
	for _, a := range addresses {
		relays = append(relays, a.String())
	}
	d.Process = Start(t, bed.Command{
		Name: "stunnerd", Path: filepath.Join(bin, "stunnerd"), Logs: dir,
		Args: append([]string{"--config", d.File, "--healthcheck-endpoint", d.Health}, args...),
		Env:  []string{"STUNNER_ADDRS=" + strings.Join(relays, ",")},
	}, bed.Answers(d.Health+"/ready", http.StatusOK))
	return d
}

// Listeners returns a listener for each protocol at an address. StartDataplane selects their ports.
func Listeners(address string) (all []config.Listener) {
	for _, p := range []config.Protocol{config.TURNUDP, config.TURNTCP, config.TURNDTLS, config.TURNTLS} {
		all = append(all, config.Listener{Name: fmt.Sprintf("test/dataplane/%s", strings.ToLower(string(p))),
			Protocol: p, Address: address})
	}
	return all
}

// Static returns the authentication by one user name and password.
func Static(user, password credential.Secret) config.Auth {
	return config.Auth{Type: config.AuthStatic, Realm: "test.example.org", Credentials: map[string]credential.Secret{
		config.KeyUsername: user, config.KeyPassword: password,
	}}
}

// Ephemeral returns the authentication by a shared secret.
func Ephemeral(secret credential.Secret) config.Auth {
	return config.Auth{Type: config.AuthEphemeral, Realm: "test.example.org", Credentials: map[string]credential.Secret{
		config.KeySecret: secret,
	}}
}
