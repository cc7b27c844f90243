package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Command lines and environments of existing installations have the same effect here, or a warning names each flag and
// variable without an effect and its replacement.
func TestContractCommandLinesOfExistingDataplanes(t *testing.T) {
	const (
		useDiscovery = " is ignored: use --config, or STUNNER_CONFIG_ORIGIN"
		useRange     = " is ignored: use --relay-ports, or STUNNER_RELAY_PORTS"
		noKubernetes = " is ignored: this program does not talk to the Kubernetes API"
	)
	pod := map[string]string{
		"STUNNER_CONFIG_ORIGIN": "http://10.1.2.3:13478", "STUNNER_NAMESPACE": "media", "STUNNER_NAME": "edge",
		"STUNNER_ADDR": "10.1.2.4", "STUNNER_NODENAME": "worker",
	}
	for line, tc := range map[string]struct {
		env      map[string]string
		want     func(options) bool
		warnings []string
	}{
		"": {nil, func(o options) bool { return o.config == ":13478" && !o.watch && o.sockets == 0 }, nil},
		"-w --udp-thread-num=16": {pod, func(o options) bool {
			return o.watch && o.sockets == 16 && o.id == "media/edge" && o.config == "http://10.1.2.3:13478" &&
				o.node == "worker" && o.addresses[0].String() == "10.1.2.4"
		}, nil},
		"-wu16 -vc stunnerd.yaml": {nil, func(o options) bool {
			return o.watch && o.sockets == 16 && o.log == "all:DEBUG" && o.config == "stunnerd.yaml"
		}, nil},
		"-wvd": {nil, func(o options) bool { return o.watch && o.dryRun && o.log == "all:DEBUG" }, nil},
		"-lall:INFO,turn:DEBUG -imedia/edge -u=4": {nil, func(o options) bool {
			return o.log == "all:INFO,turn:DEBUG" && o.id == "media/edge" && o.sockets == 4
		}, nil},
		"-l all:WARN --log-format json -u 2 --force-ready-status": {nil, func(o options) bool {
			return o.log == "all:WARN" && o.logFormat == "json" && o.sockets == 2 && o.forced
		}, nil},
		"--watch=false --verbose=true --dry-run": {nil, func(o options) bool {
			return !o.watch && o.log == "all:DEBUG" && o.dryRun
		}, nil},
		"-c ws://10.1.2.3:13478 -i media/edge -w": {nil, func(o options) bool {
			return o.config == "ws://10.1.2.3:13478" && o.id == "media/edge"
		}, nil},
		"-c file:///etc/stunnerd/stunnerd.conf -w": {nil, func(o options) bool {
			return o.config == "file:///etc/stunnerd/stunnerd.conf"
		}, nil},
		"turn://user:pass@127.0.0.1:3478?transport=tls -v --udp-thread-num 2": {nil, func(o options) bool {
			return o.uri.String() == "turns:127.0.0.1:3478?transport=tcp" && o.uri.Username == "user" &&
				o.log == "all:DEBUG" && o.sockets == 2
		}, nil},
		"turns://user:pass@127.0.0.1": {nil, func(o options) bool { return o.uri.Protocol() == config.TURNTLS },
			[]string{"TURN URI turns without a transport means TLS: for DTLS add ?transport=dtls"}},
		"turns://user:pass@127.0.0.1?transport=udp": {nil, func(o options) bool {
			return o.uri.Protocol() == config.TURNDTLS
		}, nil},
		"-l all:TRACE -- turn://user:pass@127.0.0.1": {nil, func(o options) bool {
			return o.uri.String() == "turn:127.0.0.1:3478?transport=udp" && o.log == "all:TRACE"
		}, nil},
		"-w -c k8s -n media --kubeconfig /root/.kube/config --context=kind --token secret": {
			pod, func(o options) bool { return o.config == "http://10.1.2.3:13478" && o.id == "media/edge" },
			[]string{
				"flag --config k8s: the config comes from http://10.1.2.3:13478, as set by STUNNER_CONFIG_ORIGIN",
				"flag -n is ignored: use --id, or STUNNER_NAMESPACE and STUNNER_NAME",
				"flag --token is ignored: use --discovery-token-file for config discovery",
				"flag --context" + noKubernetes, "flag --kubeconfig" + noKubernetes,
			},
		},
		"--cds-server-address=10.9.9.9 --cds-server-namespace=stunner --cds-server-port=1": {
			pod, func(o options) bool { return o.config == "http://10.1.2.3:13478" },
			[]string{
				"flag --cds-server-address" + useDiscovery, "flag --cds-server-namespace" + useDiscovery,
				"flag --cds-server-port" + useDiscovery,
			},
		},
		"-c stunnerd.conf": {
			map[string]string{
				"CDS_SERVER_ADDR": "10.9.9.9", "CDS_SERVER_NAMESPACE": "stunner", "CDS_SERVER_PORT": "13478",
				"STUNNER_MIN_PORT": "10000", "STUNNER_MAX_PORT": "20000", "STUNNER_PORT": "3478",
				"STUNNER_REALM": "stunner.l7mp.io", "STUNNER_USERNAME": "user-1", "STUNNER_PASSWORD": "pass-1",
			},
			func(o options) bool { return o.config == "stunnerd.conf" && o.relayPorts.Len() == 0 },
			[]string{
				"environment variable CDS_SERVER_ADDR" + useDiscovery, "environment variable CDS_SERVER_NAMESPACE" + useDiscovery,
				"environment variable CDS_SERVER_PORT" + useDiscovery, "environment variable STUNNER_MIN_PORT" + useRange,
				"environment variable STUNNER_MAX_PORT" + useRange,
			},
		},
	} {
		t.Run(line, func(t *testing.T) {
			o, err := parseFlags(strings.Fields(line), func(name string) string { return tc.env[name] }, io.Discard)
			if err != nil || !tc.want(o) {
				t.Errorf("%+v, %v", o, err)
			}
			if !slices.Equal(o.warnings, tc.warnings) {
				t.Errorf("warnings\n%s\nwant\n%s", strings.Join(o.warnings, "\n"), strings.Join(tc.warnings, "\n"))
			}
		})
	}
}

// An argument with a letter that is not a flag is an error that names the letter. A missing value is an error too.
func TestUnknownLetterFlagsAreErrors(t *testing.T) {
	for line, want := range map[string]string{
		"-wx": "-wx", "-watchh": "-watchh", "-hw": "-hw", "-w -ux": "parse error", "turn://a:b@127.0.0.1 -c": "-c",
		"-wc": "-c", "-vn default": "-vn",
	} {
		_, err := parseFlags(strings.Fields(line), func(string) string { return "" }, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v does not name %s", line, err, want)
		}
	}
}
