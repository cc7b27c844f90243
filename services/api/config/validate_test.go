package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// good is a valid config, which each test modifies.
func good() config.Config {
	c := config.Config{
		Admin: config.Admin{Name: "media/edge"},
		Auth:  config.Auth{Credentials: map[string]credential.Secret{"username": "user", "password": "hunter2"}},
		Listeners: []config.Listener{
			{Name: "media/edge/udp", Port: 3478, Routes: []string{"media/sfu", "media/gone"}},
			{Name: "media/edge/tcp", Protocol: "TCP", Port: 3478, Address: config.AddressPlaceholder, PublicAddress: "turn.example.com"},
		},
		Clusters: []config.Cluster{{Name: "media/sfu", Endpoints: []string{"10.0.0.0/8:<1-2>"}}},
	}
	c.Default()
	return c
}

// R-10, T-06: a config with one error is refused with field and remedy, including empty passwords and secrets.
func TestValidate(t *testing.T) {
	cert, key := keyPair(t)
	otherCert, _ := keyPair(t)
	tls := func(c *config.Config, cert, key string) {
		c.Listeners[1].Protocol, c.Listeners[1].Cert, c.Listeners[1].Key = config.TURNTLS, cert, credential.Secret(key)
	}
	for name, c := range map[string]struct {
		change func(c *config.Config)
		want   string // empty: valid
	}{
		"nothing changed": {func(c *config.Config) {}, ""},
		"version": {
			func(c *config.Config) { c.Version = "v2" }, `version: "v2" is not supported: use v1`,
		},
		"no name": {
			func(c *config.Config) { c.Admin.Name = "" }, "admin.name: is missing: give a name",
		},
		"control characters in names": {
			func(c *config.Config) { c.Admin.Name = "a\nb" },
			`admin.name: "a\nb" has control characters: leave them out`,
		},
		"long name": {
			func(c *config.Config) { c.Admin.Name = strings.Repeat("x", 1025) }, "is too long: use at most 1024 bytes",
		},
		"source quota": {
			func(c *config.Config) { c.Admin.SourceQuota = -1 },
			"admin.source_quota: -1 is negative: use 0 for no bound",
		},
		"session rate": {
			func(c *config.Config) { c.Admin.SessionByteRate = -1 },
			"admin.session_byte_rate: -1 is negative: use 0 for no bound",
		},
		"user rate": {
			func(c *config.Config) { c.Admin.UserByteRate = -1 },
			"admin.user_byte_rate: -1 is negative: use 0 for no bound",
		},
		"quota": {
			func(c *config.Config) { c.Admin.UserQuota = -1 }, "admin.user_quota: -1 is negative: use 0 for no bound",
		},
		"engine": {
			func(c *config.Config) { c.Admin.OffloadEngine = "DPDK" },
			`admin.offload_engine: "DPDK" is unknown: use None, XDP, TC or Auto`,
		},

		"metrics": {func(c *config.Config) { c.Admin.MetricsEndpoint = "http://:8080/metrics" }, ""},
		"metrics on an IPv6": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "http://[::1]:8080/metrics" }, "",
		},
		"metrics on a placeholder": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "http://$STUNNER_ADDR:8080/metrics" }, "",
		},
		"metrics without port": {func(c *config.Config) { c.Admin.MetricsEndpoint = "http://127.0.0.1" }, ""},
		"metrics over TLS": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "https://:8080" },
			`admin.metrics_endpoint: "https://:8080" is no http URL: write http://ADDRESS:PORT/PATH`,
		},
		"metrics port zero": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "http://:0" }, "has a port out of range",
		},
		"metrics port too high": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "http://:65536" }, "has a port out of range",
		},
		"metrics port no number": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "http://:http" }, "is no URL with a valid port",
		},
		"metrics with a password": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "http://u:hunter2@:80" },
			"has more than address, port and path",
		},
		"metrics without URL": {
			func(c *config.Config) { c.Admin.MetricsEndpoint = "8080" },
			"admin.metrics_endpoint: 8080 is no http URL: write http://ADDRESS:PORT/PATH",
		},
		"healthcheck at no address": {
			func(c *config.Config) { *c.Admin.HealthcheckEndpoint = "http://a b:80" }, "admin.healthcheck_endpoint",
		},
		"healthcheck off": {func(c *config.Config) { *c.Admin.HealthcheckEndpoint = "" }, ""},

		"auth type": {
			func(c *config.Config) { c.Auth.Type = "oauth" },
			`auth.type: "oauth" is unknown: use none, static or ephemeral`,
		},
		"no credentials": {
			func(c *config.Config) { c.Auth.Credentials = nil },
			"auth.credentials.username: is missing or empty: authentication of type static needs it",
		},
		"empty password": {
			func(c *config.Config) { c.Auth.Credentials["password"] = "" },
			"auth.credentials.password: is missing or empty",
		},
		"no secret": {
			func(c *config.Config) { c.Auth.Type = config.AuthEphemeral },
			"auth.credentials.secret: is missing or empty: authentication of type ephemeral needs it",
		},
		"long password": {func(c *config.Config) {
			c.Auth.Credentials["password"] = credential.Secret(strings.Repeat("hunter2", 600))
		}, "auth.credentials.password: is too long"},
		"no authentication": {func(c *config.Config) { c.Auth.Type, c.Auth.Credentials = config.AuthNone, nil }, ""},
		"both kinds": {
			func(c *config.Config) { c.Auth.Type, c.Auth.Credentials["secret"] = config.AuthEphemeral, "hunter2" }, "",
		},
		"negative lifetime": {func(c *config.Config) { c.Auth.Lifetime = -1 }, "auth.lifetime: -1 is negative"},
		"longest realm":     {func(c *config.Config) { c.Auth.Realm = strings.Repeat("ü", 127) }, ""},
		"realm too long":    {func(c *config.Config) { c.Auth.Realm = strings.Repeat("x", 128) }, "auth.realm"},
		"realm with quotes": {
			func(c *config.Config) { c.Auth.Realm = `a"b` }, `auth.realm: "a\"b" is no realm: use 1 to 127 characters`,
		},
		"realm with C1":       {func(c *config.Config) { c.Auth.Realm = "a\u0085b" }, "auth.realm"},
		"realm on two lines":  {func(c *config.Config) { c.Auth.Realm = "a\r\nb" }, "auth.realm"},
		"realm with a space":  {func(c *config.Config) { c.Auth.Realm = "media of example.com" }, ""},
		"realm is left empty": {func(c *config.Config) { c.Auth.Realm = "" }, "auth.realm: is no realm"},

		"listener without name": {
			func(c *config.Config) { c.Listeners[0].Name = "" }, "listeners[0].name: is missing: give a name",
		},
		"listener names twice": {
			func(c *config.Config) { c.Listeners[1].Name = c.Listeners[0].Name },
			`listeners[1].name: "media/edge/udp" is the name of listeners[0] already: choose another name`,
		},
		"protocol": {
			func(c *config.Config) { c.Listeners[1].Protocol = "SCTP" },
			`listeners[1].protocol: "SCTP" is unknown: use TURN-UDP, TURN-TCP, TURN-TLS or TURN-DTLS`,
		},
		"port zero": {
			func(c *config.Config) { c.Listeners[0].Port = 0 }, "listeners[0].port: 0 is out of range: use 1 to 65535",
		},
		"port too high": {
			func(c *config.Config) { c.Listeners[1].Port = 70000 },
			"listeners[1].port: 70000 is out of range: use 1 to 65535",
		},
		"port negative": {
			func(c *config.Config) { c.Listeners[1].Port = -1 }, "listeners[1].port: -1 is out of range",
		},
		"public port too high": {
			func(c *config.Config) { c.Listeners[1].PublicPort = 65536 },
			"listeners[1].public_port: 65536 is out of range",
		},
		"UDP port taken": {
			func(c *config.Config) { c.Listeners[1].Protocol = config.TURNUDP },
			"listeners[1].port: 3478 is the udp port of listeners[0] already: choose another port",
		},
		"address is a name": {
			func(c *config.Config) { c.Listeners[0].Address = "example.com" },
			`listeners[0].address: "example.com" is no IP address: use an IP address, localhost or $STUNNER_ADDR`,
		},
		"address of the node": {
			func(c *config.Config) { c.Listeners[0].Address = config.NodeAddressPlaceholder }, "",
		},
		"address is IPv6": {func(c *config.Config) { c.Listeners[0].Address = "2001:db8::1" }, ""},
		"address with zone": {
			func(c *config.Config) { c.Listeners[0].Address = "fe80::1%eth0" }, "listeners[0].address",
		},
		"address of another": {func(c *config.Config) { c.Listeners[0].Address = "$HOME" }, "listeners[0].address"},
		"half a placeholder": {func(c *config.Config) { c.Listeners[0].Address = "10.$STUNNER_ADDR" }, ""},
		"public address": {
			func(c *config.Config) { c.Listeners[0].PublicAddress = "a:b" },
			`listeners[0].public_address: "a:b" is neither IP address nor host name`,
		},
		"public address half IP": {
			func(c *config.Config) { c.Listeners[0].PublicAddress = "203.0.113.256" }, "listeners[0].public_address",
		},
		"public addresses": {
			func(c *config.Config) {
				c.Listeners[0].PublicAddresses = []string{"turn.example.com", "2001:db8::7", "203.0.113.7"}
			}, "",
		},
		"one public address of several": {
			func(c *config.Config) { c.Listeners[0].PublicAddresses = []string{"203.0.113.7", "a:b"} },
			`listeners[0].public_addresses[1]: "a:b" is neither IP address nor host name`,
		},
		"very many public addresses": {
			func(c *config.Config) { c.Listeners[0].PublicAddresses = make([]string, config.MaxPublicAddresses+1) },
			"listeners[0].public_addresses",
		},
		"public host": {
			func(c *config.Config) { tls(c, cert, key); c.Listeners[1].PublicHost = "turn.example.com" }, "",
		},
		"public host behind a load balancer that ends TLS": {
			func(c *config.Config) {
				c.Listeners[1].TLSAtBalancer, c.Listeners[1].PublicHost = true, "turn.example.com"
			}, "",
		},
		"public host with a port": {
			func(c *config.Config) { tls(c, cert, key); c.Listeners[1].PublicHost = "turn.example.com:443" },
			`listeners[1].public_host: "turn.example.com:443" is no host name: write a name of the certificate, without port`,
		},
		"public host that is an address": {
			func(c *config.Config) { tls(c, cert, key); c.Listeners[1].PublicHost = "203.0.113.7" },
			`listeners[1].public_host: "203.0.113.7" is no host name`,
		},
		"long public host": {
			func(c *config.Config) {
				tls(c, cert, key)
				c.Listeners[1].PublicHost = strings.Repeat("a.", 126) + "ab"
			},
			"listeners[1].public_host",
		},
		"public host without TLS": {
			func(c *config.Config) { c.Listeners[1].PublicHost = "turn.example.com" },
			`listeners[1].public_host: "turn.example.com" is set for a listener of protocol TURN-TCP: use public_address`,
		},
		"addresses of Services": {
			func(c *config.Config) { c.Listeners[0].ServiceAddresses = []string{"10.96.0.7:3478", "[fd00::7]:3478"} },
			"",
		},
		"Service without port": {
			func(c *config.Config) { c.Listeners[0].ServiceAddresses = []string{"10.96.0.7:1", "10.96.0.7"} },
			`listeners[0].service_addresses[1]: "10.96.0.7" is no IP address with a port: write IP:PORT or [IP]:PORT`,
		},
		"Service at port zero": {
			func(c *config.Config) { c.Listeners[1].ServiceAddresses = []string{"10.96.0.7:0"} },
			"listeners[1].service_addresses[0]",
		},
		"Service at a name": {
			func(c *config.Config) { c.Listeners[0].ServiceAddresses = []string{"turn.example.com:3478"} },
			"listeners[0].service_addresses[0]",
		},
		"Service with zone": {
			func(c *config.Config) { c.Listeners[0].ServiceAddresses = []string{"[fe80::1%eth0]:3478"} },
			"listeners[0].service_addresses[0]",
		},
		"Services without end": {
			func(c *config.Config) { c.Listeners[0].ServiceAddresses = make([]string, 1001) },
			"listeners[0].service_addresses: 1001 entries are too many: the limit is 1000",
		},
		"route without name": {
			func(c *config.Config) { c.Listeners[0].Routes = []string{""} }, "listeners[0].routes[0]: is missing",
		},

		"TLS": {func(c *config.Config) { tls(c, cert, key) }, ""},
		"DTLS beside it": {func(c *config.Config) {
			tls(c, cert, key)
			c.Listeners[1].Protocol, c.Listeners[1].Port = config.TURNDTLS, 1
		}, ""},
		"TLS without cert": {
			func(c *config.Config) { tls(c, "", key) }, "listeners[1].cert: is missing: TURN-TLS needs a certificate",
		},
		"TLS with certificates": {func(c *config.Config) {
			tls(c, cert, key)
			c.Listeners[1].Certificates = []config.Certificate{{Cert: cert, Key: credential.Secret(key)}}
		}, ""},
		"TLS with a certificate of another key": {func(c *config.Config) {
			tls(c, cert, key)
			c.Listeners[1].Certificates = []config.Certificate{
				{Cert: cert, Key: credential.Secret(key)}, {Cert: otherCert, Key: credential.Secret(key)},
			}
		}, "listeners[1].certificates[1].cert: and key are unusable"},
		"TLS with a certificate without key": {func(c *config.Config) {
			tls(c, cert, key)
			c.Listeners[1].Certificates = []config.Certificate{{Cert: cert}}
		}, "listeners[1].certificates[0].key: is missing: TURN-TLS needs a private key"},
		"TLS with too many certificates": {func(c *config.Config) {
			tls(c, cert, key)
			c.Listeners[1].Certificates = make([]config.Certificate, 65)
		}, "listeners[1].certificates: 65 entries are too many: the limit is 64"},
		"TLS without key": {
			func(c *config.Config) { tls(c, cert, "") }, "listeners[1].key: is missing: TURN-TLS needs a private key",
		},
		"cert is a file name": {
			func(c *config.Config) { tls(c, "/etc/tls.crt", key) },
			"listeners[1].cert: and key are unusable: decode certificate: no base64",
		},
		"key is no base64": {func(c *config.Config) { tls(c, cert, "hunter2!") }, "decode key: no base64"},
		"key is no PEM": {
			func(c *config.Config) { tls(c, cert, base64.StdEncoding.EncodeToString([]byte("hunter2"))) },
			"read key pair",
		},
		"cert of another key": {
			func(c *config.Config) { tls(c, otherCert, key) },
			"read key pair: tls: private key does not match public key",
		},
		"key without TLS": {func(c *config.Config) { c.Listeners[0].Key = "whatever" }, ""},
		"cluster names twice": {
			func(c *config.Config) { c.Clusters = append(c.Clusters, c.Clusters[0]) },
			`clusters[1].name: "media/sfu" is the name of clusters[0] already`,
		},
		"cluster type": {
			func(c *config.Config) { c.Clusters[0].Type = "EDS" },
			`clusters[0].type: "EDS" is unknown: use STATIC or STRICT_DNS`,
		},
		"cluster protocol": {
			func(c *config.Config) { c.Clusters[0].Protocol = "TCP" },
			`clusters[0].protocol: "TCP" is not supported: use UDP`,
		},
		"prefix length": {
			func(c *config.Config) { c.Clusters[0].Endpoints[0] = "10.0.0.0/33" },
			`clusters[0].endpoints[0]: "10.0.0.0/33" is no endpoint: prefix length "33" is out of range: use 0 to 32`,
		},
		"range upside down": {
			func(c *config.Config) { c.Clusters[0].Endpoints[0] = "10.0.0.1:<20-10>" },
			"port range <20-10> is upside down: write <10-20>",
		},
		"range from zero": {
			func(c *config.Config) { c.Clusters[0].Endpoints[0] = "10.0.0.1:<0-10>" },
			"port range <0-10> is out of range: use ports 1 to 65535",
		},
		"range too high": {
			func(c *config.Config) { c.Clusters[0].Endpoints[0] = "10.0.0.1:<1-65536>" },
			"port range <1-65536> is out of range: use ports 1 to 65535",
		},
		"names": {func(c *config.Config) {
			c.Clusters[0].Type, c.Clusters[0].Endpoints = config.StrictDNS, []string{"sfu.media.svc.cluster.local"}
		}, ""},
		"too many names": {func(c *config.Config) {
			c.Clusters[0].Type, c.Clusters[0].Endpoints = config.StrictDNS, slices.Repeat([]string{"sfu.example"}, 6000)
			c.Clusters = append(c.Clusters, c.Clusters[0])
			c.Clusters[1].Name = "media/other"
		}, "clusters: 12000 host names are too many: the limit is 10000, over all clusters"},
		"names with ports": {
			func(c *config.Config) { c.Clusters[0].Type = config.StrictDNS },
			`clusters[0].endpoints[0]: "10.0.0.0/8:<1-2>" is no host name`,
		},
		"no listeners": {func(c *config.Config) { c.Listeners = nil }, ""},
		"too many listeners": {
			func(c *config.Config) { c.Listeners = make([]config.Listener, 1001) },
			"listeners: 1001 entries are too many: the limit is 1000",
		},
		"too many clusters": {
			func(c *config.Config) { c.Clusters = make([]config.Cluster, 10001) },
			"clusters: 10001 entries are too many: the limit is 10000",
		},
		"too many endpoints": {
			func(c *config.Config) { c.Clusters[0].Endpoints = make([]string, 100001) },
			"clusters[0].endpoints: 100001 entries are too many",
		},
		"a value of half a mile": {
			func(c *config.Config) { c.Listeners[0].Address = strings.Repeat("ü", 1000) }, `üü…" is no IP address`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good()
			c.change(&bad)
			err := bad.Validate()
			switch {
			case c.want == "" && err != nil:
				t.Errorf("it is valid: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v\nwant  %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestValidateReturnsAllErrors(t *testing.T) {
	c := good()
	c.Listeners[0].Port, c.Listeners[1].Protocol, c.Auth.Credentials = 0, "x", nil
	err := c.Validate()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 {
		t.Errorf("errors %v", err)
	}
}

func TestValidateBoundsItsErrors(t *testing.T) {
	c := good()
	c.Clusters[0].Endpoints = make([]string, 5000)
	err := c.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 100 ||
		!strings.HasSuffix(err.Error(), "config: has more problems: correct these first") {
		t.Errorf("errors %v", err)
	}
}

func TestExpand(t *testing.T) {
	c := good()
	c.Admin.Name = "${STUNNER_NAMESPACE}/${STUNNER_NAME}"
	c.Admin.MetricsEndpoint = "http://${STUNNER_ADDR}:8080/metrics"
	*c.Admin.HealthcheckEndpoint = "http://$STUNNER_ADDR:8086"
	c.Listeners[0].Address = config.NodeAddressPlaceholder
	c.Listeners[0].PublicAddress = "$STUNNER_PUBLIC_ADDR"
	c.Auth.Credentials["password"] = "pa$STUNNER_ADDR$$HOME"
	before := string(c.Canonical())
	environment := map[string]string{
		"STUNNER_ADDR": "10.1.2.3", "STUNNER_NAMESPACE": "media", "STUNNER_NAME": "$STUNNER_ADDR",
		"STUNNER_PUBLIC_ADDR": "203.0.113.1",
	}
	got, err := c.Expand(func(name string) string {
		value, ok := environment[name]
		if !ok {
			t.Errorf("asked for %s", name)
		}
		return value
	})
	if err != nil {
		t.Error(err)
	}
	for field, want := range map[string][2]string{
		"name":        {got.Admin.Name, "media/$STUNNER_ADDR"}, // a value is not expanded again
		"metrics":     {got.Admin.MetricsEndpoint, "http://10.1.2.3:8080/metrics"},
		"healthcheck": {*got.Admin.HealthcheckEndpoint, "http://10.1.2.3:8086"},
		"node":        {got.Listeners[0].Address, "10.1.2.3"},
		"public":      {got.Listeners[0].PublicAddress, "203.0.113.1"},
		"address":     {got.Listeners[1].Address, "10.1.2.3"},
		"password":    {string(got.Auth.Credentials["password"]), "pa$STUNNER_ADDR$$HOME"},
	} {
		if want[0] != want[1] {
			t.Errorf("%s is %q, want %q", field, want[0], want[1])
		}
	}
	if string(c.Canonical()) != before {
		t.Error("the config itself was changed")
	}
}

func TestUnsetVariablesAreErrors(t *testing.T) {
	c := good()
	c.Listeners[0].Address = "${STUNNER_RELAY}"
	c.Listeners[1].Address = "$HOME"
	if err := c.Validate(); err == nil || strings.Contains(err.Error(), "listeners[0]") {
		t.Errorf("before: %v", err)
	}
	_, err := c.Expand(func(string) string { return "" })
	if want := `listeners[0].address: "STUNNER_RELAY" is not set: set the variable in the environment of the process`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	_, err = c.Expand(func(string) string { return "192.0.2.1" })
	if want := `listeners[1].address: "$HOME" is no IP address`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// keyPair returns a certificate and its key as a config holds them.
func keyPair(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certDER, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", certDER), encode("PRIVATE KEY", keyDER)
}

func TestKeyPairOfAListener(t *testing.T) {
	cert, key := keyPair(t)
	pair, err := config.Certificate{Cert: cert, Key: credential.Secret(key)}.KeyPair()
	if err != nil || len(pair.Certificate) != 1 {
		t.Errorf("pair %d, %v", len(pair.Certificate), err)
	}
}
