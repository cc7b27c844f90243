package harnesstest

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// startTime bounds the start of all programs on a busy machine.
const startTime = time.Minute

// Quickstart runs the product from the YAML of the quickstart until the test ends. The Gateway, its relays and the echo
// peer are at an address of this host. Further programs are built into its folder of programs.
func Quickstart(t testing.TB, host string, programs ...string) *harness.Stack {
	t.Helper()
	ports, err := harness.FreePorts()
	NoError(t, err)
	programs = append(programs, harness.Operator, harness.Stunnerd, harness.Auth, harness.Echo)
	s := &harness.Stack{Bin: Build(t, programs...), Dir: t.TempDir(), Ports: ports, Host: host}
	NoError(t, s.Prepare(filepath.Join(Root(t), "docs/examples/quickstart")))
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
	NoError(t, s.Start(ctx))
	return s
}

// Dataplane is a stunnerd that runs without an operator.
type Dataplane struct {
	*harness.Process
	// Config is the config in File. Health is the base URL of probes, status and sessions. Metrics is the base URL of
	// the metrics.
	Config                config.Config
	File, Health, Metrics string
	// Plain is the port of UDP and TCP. Secure is the port of DTLS and TLS.
	Plain, Secure int
	// CA is the file with the certificate of the secure listeners, in PEM.
	CA string
}

// StartDataplane starts the stunnerd in the folder bin until the test ends, and waits until it is ready. Relays use the
// first address of each family. The certificate of secure listeners contains all addresses. Each listener has routes to
// all clusters.
func StartDataplane(t testing.TB, bin string, c config.Config, addresses []netip.Addr, args ...string) *Dataplane {
	t.Helper()
	dir := t.TempDir()
	d := &Dataplane{
		File: filepath.Join(dir, "config.json"), CA: filepath.Join(dir, "ca.pem"),
		Health: "http://" + Address(t), Metrics: "http://" + Address(t) + "/metrics",
	}
	chain, key, err := harness.Certificate(addresses...)
	NoError(t, err)
	d.Plain, d.Secure = Port(t), Port(t)
	var routes []string
	for _, cluster := range c.Clusters {
		routes = append(routes, cluster.Name)
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		l.Port, l.Routes = d.Plain, routes
		if l.Protocol.Secure() {
			l.Port, l.Cert = d.Secure, base64.StdEncoding.EncodeToString(chain)
			l.Key = credential.Secret(base64.StdEncoding.EncodeToString(key))
		}
	}
	c.Version, c.Admin.Name = config.Version, "test/dataplane"
	c.Admin.MetricsEndpoint, c.Admin.HealthcheckEndpoint = d.Metrics, &d.Health
	c.Default()
	d.Replace(t, c)
	NoError(t, os.WriteFile(d.CA, chain, 0o600))
	var relays []string
	for i, a := range addresses {
		if !slices.ContainsFunc(addresses[:i], func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			relays = append(relays, a.String())
		}
	}
	d.Process = Start(t, harness.Command{
		Name: "stunnerd", Path: filepath.Join(bin, "stunnerd"), Logs: dir,
		Args: append([]string{"--config", d.File, "--healthcheck-endpoint", d.Health}, args...),
		Env:  []string{"STUNNER_ADDRS=" + strings.Join(relays, ",")},
	}, harness.Answers(d.Health+"/ready", http.StatusOK))
	return d
}

// Replace replaces the config in the file atomically. stunnerd reads it with --watch.
func (d *Dataplane) Replace(t testing.TB, c config.Config) {
	t.Helper()
	d.Config = c
	err := os.WriteFile(d.File+".new", c.Canonical(), 0o600)
	if err == nil {
		err = os.Rename(d.File+".new", d.File)
	}
	NoError(t, err)
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
