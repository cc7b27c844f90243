package main

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestContractCommandLine(t *testing.T) {
	env := map[string]string{
		"STUNNER_NAMESPACE": "media", "STUNNER_NAME": "edge", "STUNNER_CONFIG_ORIGIN": "http://discovery:13478",
		"STUNNER_DRAIN_TIMEOUT": "2h",
	}
	lookup := func(name string) string { return env[name] }
	cases := map[string]struct {
		args []string
		want func(options) bool
	}{
		"environment": {nil, func(o options) bool {
			return o.id == "media/edge" && o.config == "http://discovery:13478" && !o.watch && o.drain == 2*time.Hour
		}},
		"deployed arguments": {
			[]string{"-w", "--udp-thread-num=16"}, func(o options) bool { return o.watch && o.sockets == 16 },
		},
		"short flags": {[]string{
			"-c", "file.yaml", "-i", "a/b", "-l", "all:INFO,turn:DEBUG", "-u", "2",
		}, func(o options) bool {
			return o.config == "file.yaml" && o.id == "a/b" && o.log == "all:INFO,turn:DEBUG" && o.sockets == 2
		}},
		"long flags": {
			[]string{"--config", "file://x", "--id", "a/b", "--log", "all:WARN", "--watch"},
			func(o options) bool { return o.config == "file://x" && o.log == "all:WARN" && o.watch },
		},
		"verbose": {[]string{"-v"}, func(o options) bool { return o.log == "all:DEBUG" }},
		"force ready": {
			[]string{"--force-ready-status", "--drain-timeout=2m"},
			func(o options) bool { return o.forced && o.drain == 2*time.Minute },
		},
		"admin": {
			[]string{"--unready-on-drain", "--show-users", "--sessions-from=any"},
			func(o options) bool { return o.unready && o.showUsers && o.from == fromAny },
		},
		"relay ports": {
			[]string{"--relay-ports", "40000-40099"},
			func(o options) bool { return o.relayPorts.First == 40000 && o.relayPorts.Last == 40099 },
		},
		"drain minimum": {[]string{"--drain-minimum=20s"}, func(o options) bool { return o.drainLeast == 20*time.Second }},
		"nonces": {
			[]string{"--nonce-lifetime=10m"}, func(o options) bool { return o.nonceLifetime == 10*time.Minute },
		},
		"supervised": {[]string{"--supervise"}, func(o options) bool { return o.supervise }},
		"journal":    {[]string{"--journal-dir=/dev/shm/a"}, func(o options) bool { return o.journalDir == "/dev/shm/a" }},
		"hand over":  {[]string{"--hand-over"}, func(o options) bool { return o.handOver }},
		"moves":      {nil, func(o options) bool { return o.move }},
		"no moves":   {[]string{"--move-sessions=false"}, func(o options) bool { return !o.move }},
		"hour":       {nil, func(o options) bool { return o.nonceLifetime == time.Hour && o.drainLeast == 3*time.Second }},
		"ICMP":       {[]string{"--icmp-indications"}, func(o options) bool { return o.icmp }},
		"quick server": {
			[]string{"turn://ann:pw@127.0.0.1:3478?transport=tcp"},
			func(o options) bool { return o.uri != nil && o.uri.Port == 3478 && o.uri.Transport == "tcp" },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o, err := parseFlags(tc.args, lookup, io.Discard)
			if err != nil || !tc.want(o) {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

func TestWrongCommandLineNamesTheFlagAndTheRemedy(t *testing.T) {
	cases := map[string][]string{
		"write MIN-MAX":    {"--relay-ports", "40000"},
		"begins too low":   {"--relay-ports", "80-90"},
		"is upside down":   {"--relay-ports", "50000-40000"},
		"--relay-ports":    {"--relay-ports", "40000-70000"},
		"--log-format":     {"--log-format", "xml"},
		"--drain-timeout":  {"--drain-timeout", "3600"},
		"--drain-minimum":  {"--drain-minimum", "-1s"},
		"--nonce-lifetime": {"--nonce-lifetime", "61m"},
		"between 10m":      {"--nonce-lifetime", "9m"},
		"NAMESPACE/NAME":   {"--id", "just-a-name"},
		"--udp-thread-num": {"-u", "-1"},
		"--sessions-from":  {"--sessions-from", "everywhere"},
		"contradict":       {"--unready-on-drain", "--force-ready-status"},
		"unexpected":       {"turn://a:b@127.0.0.1", "more"},
		"TURN URI":         {"http://a:b@127.0.0.1"},
		"not defined":      {"--no-such-flag"},
	}
	for want, args := range cases {
		if _, err := parseFlags(args, func(string) string { return "" }, io.Discard); err == nil || !strings.Contains(
			err.Error(), want,
		) {
			t.Errorf("%v: error %v does not say %q", args, err, want)
		}
	}
	for name, value := range map[string]string{
		"STUNNER_ADDR": "pod.example", "STUNNER_DRAIN_TIMEOUT": "-1s", "STUNNER_NONCE_LIFETIME": "3600",
		"STUNNER_RELAY_PORTS": "none",
	} {
		bad := func(n string) string { return map[string]string{name: value}[n] }
		if _, err := parseFlags(nil, bad, io.Discard); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

func TestAllErrorsOfACommandLineAreReported(t *testing.T) {
	bad := func(n string) string { return map[string]string{"STUNNER_NONCE_LIFETIME": "3600"}[n] }
	_, err := parseFlags(
		[]string{"--log-format", "xml", "--id", "just-a-name", "--sessions-from=everywhere"}, bad, io.Discard,
	)
	for _, want := range []string{"--log-format", "--id", "--sessions-from", "STUNNER_NONCE_LIFETIME"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestAddressesAreOneOfEachFamily(t *testing.T) {
	for _, tc := range []struct{ addr, addrs, want string }{
		{"10.0.0.7", "", "[10.0.0.7]"},
		{"10.0.0.7", "10.0.0.7,fd00::7", "[10.0.0.7 fd00::7]"},
		{"fd00::7", "10.0.0.7, fd00::7", "[fd00::7 10.0.0.7]"},
	} {
		env := map[string]string{"STUNNER_ADDR": tc.addr, "STUNNER_ADDRS": tc.addrs}
		o, err := parseFlags(nil, func(name string) string { return env[name] }, io.Discard)
		if err != nil || fmt.Sprint(o.addresses) != tc.want {
			t.Errorf("%+v: %v, %v", tc, o.addresses, err)
		}
	}
	if got := oneOfEach(hostAddresses()); len(got) == 0 || len(got) > 2 {
		t.Errorf("this host: %v", got)
	}
}

func TestQuickServerIsOneListenerForOneUser(t *testing.T) {
	for address, protocol := range map[string]config.Protocol{
		"127.0.0.1:5000?transport=udp": config.TURNUDP, "127.0.0.1:5000?transport=tcp": config.TURNTCP,
		"127.0.0.1:5000?transport=tls": config.TURNTLS, "127.0.0.1:5000?transport=dtls": config.TURNDTLS,
		"localhost:5000": config.TURNUDP, "Localhost:5000?transport=tls": config.TURNTLS,
	} {
		o, err := parseFlags(
			[]string{"turn://ann:pw@" + address}, func(string) string { return "" },
			io.Discard,
		)
		if err != nil {
			t.Fatal(err)
		}
		source, err := quickServer(*o.uri)
		if err != nil {
			t.Fatal(err)
		}
		configs, err := source.Load(t.Context())
		if err != nil || len(configs) != 1 {
			t.Fatalf("%d configs, %v", len(configs), err)
		}
		if l := configs[0].Listeners[0]; l.Port != 5000 || l.Protocol != protocol || l.Address != "127.0.0.1" ||
			configs[0].Clusters[0].Endpoints[0] != "0.0.0.0/0" {
			t.Errorf("%s: %+v", address, configs[0])
		}
		o.uri.Password = ""
		if _, err := quickServer(*o.uri); err == nil {
			t.Error("a server without a password started")
		}
	}
}

// standalone is a hand-written config of a process without an operator.
const standalone = `version: v1
admin: {name: $STUNNER_NAMESPACE/$STUNNER_NAME, loglevel: $STUNNER_LOGLEVEL}
auth:
  type: $STUNNER_AUTH_TYPE
  realm: $STUNNER_REALM
  credentials: {username: ann, password: pa$STUNNER_REALM$HOME}
listeners:
- {name: udp, protocol: UDP, address: $STUNNER_ADDR, port: $STUNNER_PORT, public_address: "${STUNNER_PUBLIC_ADDR}", public_port: "${STUNNER_PUBLIC_PORT}"}
`

// Placeholders in a file are replaced by environment variables, in texts and numbers but not in credentials. A variable
// without the prefix is never read.
func TestContractPlaceholdersOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stunnerd.yaml")
	if err := os.WriteFile(file, []byte(standalone), 0o600); err != nil {
		t.Fatal(err)
	}
	full := map[string]string{
		"STUNNER_NAMESPACE": "media", "STUNNER_NAME": "edge", "STUNNER_LOGLEVEL": "all:WARN",
		"STUNNER_AUTH_TYPE": "plaintext", "STUNNER_REALM": "calls.example.org",
		"STUNNER_ADDR": "192.0.2.7", "STUNNER_PORT": "5000", "STUNNER_PUBLIC_ADDR": "203.0.113.7",
		"STUNNER_PUBLIC_PORT": "6000",
	}
	read := func(changed map[string]string) (config.Config, error) {
		env := maps.Clone(full)
		maps.Copy(env, changed)
		o, err := parseFlags([]string{"--config", file}, func(name string) string {
			if name == "HOME" {
				t.Error("asked for HOME")
			}
			return env[name]
		}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		o.id = ""
		source, err := open(o, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		configs, err := source.Load(t.Context())
		if err != nil || len(configs) != 1 {
			return config.Config{}, fmt.Errorf("%d configs: %w", len(configs), err)
		}
		return configs[0].Expand(o.lookup)
	}
	c, err := read(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := c.Listeners[0]
	got := fmt.Sprint(
		c.Admin.Name, c.Admin.LogLevel, c.Auth.Type, c.Auth.Realm, string(c.Auth.Credentials[config.KeyPassword]),
		l.Address, l.Port, l.PublicAddress, l.PublicPort,
	)
	if want := fmt.Sprint(
		"media/edge", "all:WARN", config.AuthStatic, "calls.example.org", "pa$STUNNER_REALM$HOME", "192.0.2.7", 5000,
		"203.0.113.7", 6000,
	); got != want {
		t.Errorf("read %s, want %s", got, want)
	}
	for name, tc := range map[string]struct {
		env  map[string]string
		port int
		want string
	}{
		"no port": {map[string]string{"STUNNER_PORT": ""}, 6000, ""},
		// as Kubernetes sets it for a Service called stunner
		"a port that is a URL": {map[string]string{"STUNNER_PORT": "tcp://10.0.0.1:3478"}, 6000, ""},
		"no port of any kind":  {map[string]string{"STUNNER_PORT": "", "STUNNER_PUBLIC_PORT": ""}, 3478, ""},
		"no port, and a public port in words": {
			map[string]string{"STUNNER_PORT": "many", "STUNNER_PUBLIC_PORT": "many"}, 0,
			`listeners[0].public_port: "STUNNER_PUBLIC_PORT" has a value that is no whole number`,
		},
		"no realm": {
			map[string]string{"STUNNER_REALM": ""}, 0, `auth.realm: "STUNNER_REALM" is not set`,
		},
		"a public port in words": {
			map[string]string{"STUNNER_PUBLIC_PORT": "many"}, 0,
			`listeners[0].public_port: "STUNNER_PUBLIC_PORT" has a value that is no whole number`,
		},
		"an unknown type of auth": {
			map[string]string{"STUNNER_AUTH_TYPE": "kerberos"}, 0, `auth.type: "kerberos" is unknown`,
		},
	} {
		c, err := read(tc.env)
		if tc.want == "" && (err != nil || c.Listeners[0].Port != tc.port) || tc.want != "" &&
			(err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, listeners %v", name, err, c.Listeners)
		}
	}
}
