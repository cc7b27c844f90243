package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestContractCommandLine(t *testing.T) {
	env := map[string]string{"STUNNER_NAMESPACE": "media", "STUNNER_NAME": "edge", "STUNNER_CONFIG_ORIGIN": "http://discovery:13478", "STUNNER_DRAIN_TIMEOUT": "2h"}
	lookup := func(name string) string { return env[name] }
	cases := map[string]struct {
		args []string
		want func(options) bool
	}{
		"environment": {nil, func(o options) bool {
			return o.id == "media/edge" && o.config == "http://discovery:13478" && !o.watch && o.drain == 2*time.Hour
		}},
		"deployed arguments": {[]string{"-w", "--udp-thread-num=16"}, func(o options) bool { return o.watch && o.sockets == 16 }},
		"short flags": {[]string{"-c", "file.yaml", "-i", "a/b", "-l", "all:INFO,turn:DEBUG", "-u", "2"}, func(o options) bool {
			return o.config == "file.yaml" && o.id == "a/b" && o.log == "all:INFO,turn:DEBUG" && o.sockets == 2
		}},
		"long flags":   {[]string{"--config", "file://x", "--id", "a/b", "--log", "all:WARN", "--watch"}, func(o options) bool { return o.config == "file://x" && o.log == "all:WARN" && o.watch }},
		"verbose":      {[]string{"-v"}, func(o options) bool { return o.log == "all:DEBUG" }},
		"force ready":  {[]string{"--force-ready-status", "--drain-timeout=2m"}, func(o options) bool { return o.forced && o.drain == 2*time.Minute }},
		"admin":        {[]string{"--unready-on-drain", "--show-users", "--sessions-from=any"}, func(o options) bool { return o.unready && o.showUsers && o.from == fromAny }},
		"ICMP":         {[]string{"--icmp-indications"}, func(o options) bool { return o.icmp }},
		"quick server": {[]string{"turn://ann:pw@127.0.0.1:3478?transport=tcp"}, func(o options) bool { return o.uri != nil && o.uri.Port == 3478 && o.uri.Transport == "tcp" }},
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
		"--log-format":     {"--log-format", "xml"},
		"--drain-timeout":  {"--drain-timeout", "3600"},
		"NAMESPACE/NAME":   {"--id", "just-a-name"},
		"--udp-thread-num": {"-u", "-1"},
		"--sessions-from":  {"--sessions-from", "everywhere"},
		"contradict":       {"--unready-on-drain", "--force-ready-status"},
		"unexpected":       {"turn://a:b@127.0.0.1", "more"},
		"TURN URI":         {"http://a:b@127.0.0.1"},
		"not defined":      {"--no-such-flag"},
	}
	for want, args := range cases {
		if _, err := parseFlags(args, func(string) string { return "" }, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v does not say %q", args, err, want)
		}
	}
	for name, value := range map[string]string{"STUNNER_ADDR": "pod.example", "STUNNER_DRAIN_TIMEOUT": "-1s"} {
		bad := func(n string) string { return map[string]string{name: value}[n] }
		if _, err := parseFlags(nil, bad, io.Discard); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
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
	for transport, protocol := range map[string]config.Protocol{"udp": config.TURNUDP, "tcp": config.TURNTCP, "tls": config.TURNTLS, "dtls": config.TURNDTLS} {
		o, err := parseFlags([]string{"turn://ann:pw@127.0.0.1:5000?transport=" + transport}, func(string) string { return "" }, io.Discard)
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
		if l := configs[0].Listeners[0]; l.Port != 5000 || l.Protocol != protocol || configs[0].Clusters[0].Endpoints[0] != "0.0.0.0/0" {
			t.Errorf("%s: %+v", transport, configs[0])
		}
		o.uri.Password = ""
		if _, err := quickServer(*o.uri); err == nil {
			t.Error("a server without a password started")
		}
	}
}
