package config_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

func TestDiff(t *testing.T) {
	old := good()
	old.Admin.License = &config.License{Key: "k", HMAC: "hunter2"}
	next := old.Clone()
	next.Admin.License.HMAC = "hunter3"
	next.Admin.LogLevel = "all:DEBUG"
	next.Admin.UserQuota = 10
	next.Admin.SourceQuota = 20
	next.Admin.SessionByteRate, next.Admin.UserByteRate = 1000, 2000
	next.Auth.Realm = "media.example"
	next.Auth.Credentials["password"] = "hunter3"
	next.Auth.Credentials["username"] = "other"
	next.Auth.Credentials["secret"] = "hunter4"
	next.Listeners[0].Port = 3479
	next.Listeners[0].PublicAddress = "203.0.113.7"
	next.Listeners[0].PublicAddresses = []string{"203.0.113.7", "2001:db8::7"}
	next.Listeners[0].PublicHost = "turn.example.com"
	next.Listeners[0].ServiceAddresses = []string{"10.96.0.7:3478"}
	next.Listeners[0].TLSAtBalancer, next.Listeners[0].ProxyProtocol = true, []string{"10.0.0.7"}
	next.Listeners[0].Routes = []string{"media/sfu", "media/new"}
	next.Listeners[1] = config.Listener{
		Name: "media/edge/tls", Protocol: "tls", Port: 443, Cert: "Y2VydA==", Key: "hunter2",
	}
	next.Clusters[0].Endpoints = []string{
		"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7",
	}
	next.Clusters = append(
		next.Clusters, config.Cluster{Name: "media/sip", Type: config.StrictDNS, Endpoints: []string{"sip.media"}},
	)
	next.Default()

	var got []string
	for _, change := range config.Diff(old, next) {
		got = append(got, change.String())
	}
	want := []string{
		`admin.loglevel: "all:INFO" -> "all:DEBUG"`,
		`admin.user_quota: "0" -> "10"`,
		`admin.source_quota: "0" -> "20"`,
		`admin.session_byte_rate: "0" -> "1000"`,
		`admin.user_byte_rate: "0" -> "2000"`,
		`admin.license_config: "<redacted>" -> "<redacted>"`,
		`auth.realm: "stunner.l7mp.io" -> "media.example"`,
		`auth.credentials.password: "<redacted>" -> "<redacted>"`,
		`auth.credentials.secret: "" -> "<redacted>"`,
		`auth.credentials.username: "<redacted>" -> "<redacted>"`,
		`listeners[media/edge/udp].public_address: "" -> "203.0.113.7"`,
		`listeners[media/edge/udp].public_addresses: "" -> "203.0.113.7, 2001:db8::7"`,
		`listeners[media/edge/udp].public_host: "" -> "turn.example.com"`,
		`listeners[media/edge/udp].service_addresses: "" -> "10.96.0.7:3478"`,
		`listeners[media/edge/udp].tls_at_load_balancer: "false" -> "true"`,
		`listeners[media/edge/udp].proxy_protocol: "" -> "10.0.0.7/32"`,
		`listeners[media/edge/udp].port: "3478" -> "3479"`,
		`listeners[media/edge/udp].routes: "media/gone" -> "media/new"`,
		`listeners[media/edge/tls]: "" -> "TURN-TLS port 443"`,
		`listeners[media/edge/tcp]: "TURN-TCP port 3478" -> ""`,
		`clusters[media/sfu].endpoints: "10.0.0.0/8:<1-2>" -> "10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5 and 2 more"`,
		`clusters[media/sip]: "" -> "STRICT_DNS sip.media"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if text := fmt.Sprint(config.Diff(old, next)); strings.Contains(text, "hunter") {
		t.Errorf("a secret is shown: %s", text)
	}
}

func TestDiffAndRevisionAgree(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *config.Config)
		same   bool
	}{
		"nothing": {func(c *config.Config) {}, true},
		"an alias": {
			func(c *config.Config) { c.Listeners[0].Protocol, c.Auth.Type = "udp", "plaintext" }, true,
		},
		"a default": {
			func(c *config.Config) { c.Admin.LogLevel, c.Admin.HealthcheckEndpoint = "", nil }, true,
		},
		"order of routes":     {func(c *config.Config) { slices.Reverse(c.Listeners[0].Routes) }, true},
		"order of clusters":   {func(c *config.Config) { slices.Reverse(c.Clusters) }, true},
		"order of endpoints":  {func(c *config.Config) { slices.Reverse(c.Clusters[1].Endpoints) }, true},
		"order of listeners":  {func(c *config.Config) { slices.Reverse(c.Listeners) }, false},
		"an endpoint":         {func(c *config.Config) { c.Clusters[1].Endpoints[0] += ":<1-2>" }, false},
		"a password":          {func(c *config.Config) { c.Auth.Credentials["password"] = "x" }, false},
		"an empty health URL": {func(c *config.Config) { *c.Admin.HealthcheckEndpoint = "" }, false},
		"a certificate":       {func(c *config.Config) { c.Listeners[0].Cert = "x" }, false},
		"another certificate": {func(c *config.Config) { c.Listeners[0].Certificates[0].Cert = "x" }, false},
		"another key":         {func(c *config.Config) { c.Listeners[0].Certificates[0].Key = "x" }, false},
		"one certificate more": {func(c *config.Config) {
			c.Listeners[0].Certificates = append(c.Listeners[0].Certificates, config.Certificate{Cert: "x"})
		}, false},
		"no certificates": {func(c *config.Config) { c.Listeners[0].Certificates = nil }, false},
		"a lifetime":      {func(c *config.Config) { c.Auth.Lifetime = 60 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			old := good()
			old.Clusters = append(
				old.Clusters,
				config.Cluster{Name: "media/sip", Type: config.Static, Endpoints: []string{"10.1.1.2", "10.1.1.1"}},
			)
			old.Listeners[0].Certificates = []config.Certificate{{Cert: "c", Key: "hunter5"}}
			next := old.Clone()
			c.change(&next)
			if same := old.Revision() == next.Revision(); same != c.same {
				t.Errorf("same revision: %v", same)
			}
			changes := config.Diff(old, next)
			if (len(changes) == 0) != c.same {
				t.Errorf("changes: %v", changes)
			}
			if text := fmt.Sprint(changes); strings.Contains(text, "hunter") {
				t.Errorf("a secret is shown: %s", text)
			}
		})
	}
}

func TestCanonicalDoesNotModifyTheConfig(t *testing.T) {
	c := good()
	c.Clusters = append(c.Clusters, config.Cluster{Name: "a", Endpoints: []string{"2.2.2.2", "1.1.1.1"}})
	c.Listeners[0].Routes = []string{"z", "a"}
	shallow := c
	c.Canonical()
	shallow.Default()
	config.Diff(c, shallow)
	if c.Clusters[1].Endpoints[0] != "2.2.2.2" || c.Clusters[0].Name != "media/sfu" ||
		c.Listeners[0].Routes[0] != "z" || c.Clusters[1].Type != "" {
		t.Errorf("changed to %+v", c)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	c := good()
	c.Admin.License = &config.License{Key: "k"}
	c.Admin.OffloadInterfaces = []string{"eth0"}
	c.Listeners[0].Certificates = []config.Certificate{{Cert: "c"}}
	c.Listeners[0].PublicAddresses = []string{"203.0.113.7", "2001:db8::7"}
	c.Listeners[0].ServiceAddresses = []string{"10.96.0.7:1"}
	c.Listeners[0].ProxyProtocol = []string{"10.0.0.0/8"}
	before := string(c.Canonical())
	d := c.Clone()
	*d.Admin.HealthcheckEndpoint, d.Admin.License.Key, d.Admin.OffloadInterfaces[0] = "x", "x", "x"
	d.Auth.Credentials["password"], d.Listeners[0].Routes[0], d.Clusters[0].Endpoints[0] = "x", "x", "x"
	d.Listeners[0].PublicAddresses[0], d.Listeners[0].ServiceAddresses[0] = "x", "x"
	d.Listeners[0].ProxyProtocol[0] = "x"
	d.Listeners[1].Port, d.Listeners[0].Certificates[0].Cert = 1, "x"
	if string(c.Canonical()) != before {
		t.Error("the original has changed")
	}
}

// K-02: a redacted config contains no secrets and accepts no credentials.
func TestRedactedConfigHasNoSecretsAndAcceptsNoCredentials(t *testing.T) {
	cert, key := keyPair(t)
	c := good()
	c.Auth.Type, c.Auth.Credentials["secret"] = config.AuthEphemeral, "hunter3"
	c.Listeners[1].Protocol, c.Listeners[1].Cert, c.Listeners[1].Key = config.TURNTLS, cert, credential.Secret(key)
	c.Listeners[1].Certificates = []config.Certificate{{Cert: cert, Key: credential.Secret(key)}}
	c.Admin.License = &config.License{Key: "k", HMAC: "hunter4"}
	c.Auth.Credentials["username"], c.Auth.Former = "ned-from-a-secret", &config.FormerSecret{
		Secret: "hunter5", Until: 1,
	}
	redacted := c.Redacted()
	text := string(redacted.Canonical())
	if strings.Contains(text, "hunter") || strings.Contains(text, key) || strings.Contains(text, "ned-from-a-secret") {
		t.Errorf("a secret is left in %s", text)
	}
	if err := parse(t, text).Validate(); err == nil {
		t.Error("it validates, and the mark of a secret would be one")
	}
	if string(c.Auth.Credentials["password"]) != "hunter2" || string(c.Auth.Former.Secret) != "hunter5" {
		t.Error("the original has lost its secrets")
	}
	if former, _ := redacted.Auth.FormerAuthority(); former != (credential.Authority{}) {
		t.Errorf("it lets in whoever knows the word: %+v", former)
	}
	if a := redacted.Auth.Authority(); a.Username != "" || a.SharedSecret != "" {
		t.Errorf("it lets in whoever knows the word: %+v", a)
	}
}

func TestAuthority(t *testing.T) {
	all := map[string]credential.Secret{"username": "u", "password": "p", "secret": "s", "extra": "x"}
	for name, c := range map[string]struct {
		auth config.Auth
		want credential.Authority
	}{
		"none": {config.Auth{Type: "none", Realm: "r", Credentials: all}, credential.Authority{}},
		"static": {
			config.Auth{Type: "static", Realm: "r", Credentials: all},
			credential.Authority{Realm: "r", Username: "u", Password: "p"},
		},
		"alias of static": {
			config.Auth{Type: "plaintext", Realm: "r", Credentials: all},
			credential.Authority{Realm: "r", Username: "u", Password: "p"},
		},
		"both": {
			config.Auth{Type: "ephemeral", Realm: "r", Credentials: all},
			credential.Authority{Realm: "r", Username: "u", Password: "p", SharedSecret: "s"},
		},
		"ephemeral": {
			config.Auth{Type: "ephemeral", Realm: "r", Credentials: map[string]credential.Secret{"secret": "s"}},
			credential.Authority{Realm: "r", SharedSecret: "s"},
		},
		"user without password": {config.Auth{
			Type: "ephemeral", Realm: "r", Credentials: map[string]credential.Secret{"secret": "s", "username": "u"},
		}, credential.Authority{Realm: "r", SharedSecret: "s"}},
		"unknown": {config.Auth{Type: "oauth", Realm: "r", Credentials: all}, credential.Authority{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.auth.Authority(); got != c.want {
				t.Errorf("authority %q %q", got.Username, got.Realm)
			}
		})
	}
}

func TestLogsShowNameAndRevision(t *testing.T) {
	var out bytes.Buffer
	c := good()
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "config", c)
	if text := out.String(); strings.Contains(text, "hunter2") ||
		!strings.Contains(text, "config.name=media/edge config.revision="+c.Revision()) {
		t.Errorf("logged as %s", text)
	}
}
