package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

// Settings that the dataplane's config and the prober share.
const (
	realm    = "probe.example.org"
	user     = "ann"
	password = "opens-the-door"
	secret   = "shared-by-both-sides"
	quota    = 40
	patience = 8 * time.Second // for a response; the dataplane closes a connection without a request after 10 s
)

func TestMain(m *testing.M) {
	bedtest.Parallel(3) // both address families of stunnerd, and coturn
	os.Exit(m.Run())
}

// N-08: the dataplane passes the checks over IPv4 and IPv6.
// It passes every check over every transport, except known faults.
func TestStunnerd(t *testing.T) {
	t.Parallel()
	d := startStunnerd(t)
	for _, family := range []struct {
		name   string
		target probe.Target
	}{
		{"IPv4", probe.Target{
			Server: netip.MustParseAddrPort("127.0.0.1:0"), PeerAddr: netip.MustParseAddr("127.0.0.1"),
			Denied: netip.MustParseAddr("192.0.2.1"),
			User:   user, Password: password, Secret: secret,
		}},
		{"IPv6", probe.Target{
			Server: netip.MustParseAddrPort("[::1]:0"), PeerAddr: netip.IPv6Loopback(),
			Denied: netip.MustParseAddr("2001:db8::1"), Secret: secret,
		}},
	} {
		t.Run(family.name, func(t *testing.T) {
			t.Parallel()
			for _, transport := range probe.Transports {
				target := family.target
				target.Transport, target.Realm, target.Quota = transport, realm, quota
				target.FirstPeer, target.LastPeer = d.First, d.Last
				for _, l := range d.Listeners {
					target.Own = append(target.Own, uint16(l.Port))
				}
				target.Silence, target.Answer = probe.DefaultSilence, patience
				target.Server = netip.AddrPortFrom(target.Server.Addr(), d.port(transport))
				t.Run(string(transport), func(t *testing.T) { compare(t, target) })
			}
		})
	}
}

// compare runs the prober and compares its failures with the known faults.
func compare(t *testing.T, target probe.Target) {
	results, err := probe.Run(target, probe.Checks(), func(probe.Result) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		wrong := knownAt(r.ID, target)
		switch {
		case r.ID == "T-08 time":
			// Timing comparisons are reliable on an idle machine only. Their result is logged and does not fail the
			// test.
			t.Logf("%s: %s %s", r.ID, r.Verdict, r.Reason)
		case r.Verdict == probe.Fail && wrong == "":
			t.Errorf("%s (RFC %s): %s: %s", r.ID, r.RFC, r.Says, r.Reason)
		case r.Verdict == probe.Pass && wrong != "":
			t.Errorf("%s passes now: remove it from the known faults (%s)", r.ID, wrong)
		case r.Verdict == probe.Skipped && r.Pace != probe.Long:
			t.Errorf("%s was not run: %s", r.ID, r.Reason)
		}
	}
	t.Log(summary(results))
}

func summary(results []probe.Result) string {
	var parts []string
	count := probe.Count(results)
	for _, v := range probe.Verdicts {
		parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
	}
	return fmt.Sprintf("%d checks: %s", len(results), strings.Join(parts, ", "))
}

// dataplane is a running stunnerd with one listener per transport and address family.
type dataplane struct {
	Realm, User, Password, Secret string
	Quota, Health                 int
	Listeners                     []listener
	First, Last                   uint16 // ports of peers; they include the listeners' ports, but no relay ports
}

type listener struct {
	Transport probe.Transport
	Cert, Key string
	Port      int
}

// Protocol returns the protocol name of the transport in a config.
func (l listener) Protocol() string { return "TURN-" + strings.ToUpper(string(l.Transport)) }

func (d dataplane) port(transport probe.Transport) uint16 {
	at := slices.IndexFunc(d.Listeners, func(l listener) bool { return l.Transport == transport })
	return uint16(d.Listeners[at].Port)
}

// document is the dataplane's config. Its routes include the peers of the prober, and addresses that must be refused
// although a route names them.
var document = template.Must(template.New("config").Parse(`version: v1
admin: {name: probe/door, loglevel: "all:WARN", healthcheck_endpoint: "http://127.0.0.1:{{.Health}}", user_quota: {{.Quota}}}
auth: {type: ephemeral, realm: {{.Realm}}, credentials: {username: {{.User}}, password: {{.Password}}, secret: {{.Secret}}}}
listeners:
{{- range .Listeners}}
  - {name: probe/door/{{.Transport}}, protocol: {{.Protocol}}, port: {{.Port}}, routes: [probe/peers, probe/traps], cert: "{{.Cert}}", key: "{{.Key}}"}
{{- end}}
clusters:
  - {name: probe/peers, type: STATIC, endpoints: ["127.0.0.1:<{{.First}}-{{.Last}}>", "::1:<{{.First}}-{{.Last}}>"]}
  - name: probe/traps
    type: STATIC
    endpoints: [0.0.0.0/8, 169.254.0.0/16, 224.0.0.0/4, 240.0.0.0/4, 100.100.100.200, "::/128", "fe80::/10", "ff00::/8",
      "fd00:ec2::254", "64:ff9b::/96", "2002::/16", "::/96"]
`))

func startStunnerd(t *testing.T) dataplane {
	t.Helper()
	dir := bedtest.Build(t, bed.Stunnerd)
	d := newDataplane(t)
	config := filepath.Join(dir, "config.yaml")
	file, err := os.Create(config)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := document.Execute(file, d); err != nil {
		t.Fatal(err)
	}
	start(t, bed.Command{Name: "stunnerd", Path: filepath.Join(dir, "stunnerd"), Args: []string{
		"--watch", "--icmp-indications", "--config", config,
	}, Logs: dir,
		Env: []string{"STUNNER_ADDRS=127.0.0.1,::1"}},
		bed.Answers(fmt.Sprintf("http://127.0.0.1:%d/ready", d.Health), http.StatusOK))
	return d
}

func newDataplane(t *testing.T) dataplane {
	cert, key := certificate(t)
	d := dataplane{
		Realm: realm, User: user, Password: password, Secret: secret, Quota: quota, Health: bedtest.Port(t),
		First: 18000, Last: 31999,
	}
	for _, transport := range probe.Transports {
		l := listener{Transport: transport, Port: bedtest.Port(t)}
		if transport == probe.TLS || transport == probe.DTLS {
			l.Cert, l.Key = cert, key
		}
		d.Listeners = append(d.Listeners, l)
	}
	return d
}

// start runs a server until the test ends. It is killed, because allocations left by the prober would delay its
// graceful shutdown.
func start(t *testing.T, command bed.Command, ready func(context.Context) error) {
	t.Helper()
	p, err := bed.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.Err() != nil || t.Failed() {
			t.Logf("last log lines of %s:\n%s", p.Name, strings.Join(p.Tail(20), "\n"))
		}
		p.Kill()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Until(ctx, ready); err != nil {
		t.Fatal(err)
	}
}

// certificate returns a certificate for the loopback addresses and its key, encoded for a config.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "probe.example.org"},
		DNSNames:  []string{"probe.example.org"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	signed, err := x509.CreateCertificate(rand.Reader, form, form, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	armour := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return armour("CERTIFICATE", signed), armour("PRIVATE KEY", encoded)
}
