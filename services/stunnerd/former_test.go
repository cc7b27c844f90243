package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

// Pods of existing installations start with the flags of the former dataplane. Each flag without a meaning here causes
// a warning with its name. The warning does not contain its value, which may be a secret. The flag has the same number
// of arguments as before, so that the following flags are parsed.
func TestContractFlagsOfExistingDataplanes(t *testing.T) {
	inPod := map[string]string{
		"STUNNER_CONFIG_ORIGIN": "https://discovery:13478", "STUNNER_NAMESPACE": "media", "STUNNER_NAME": "edge",
	}
	flags := 0
	for _, f := range formerSettings {
		for _, name := range f.Flags {
			flags++
			forms := [][]string{{cli.Dashed(name), "a-value"}, {cli.Dashed(name) + "=a-value"}}
			if f.IsBool {
				forms = [][]string{{cli.Dashed(name)}, {cli.Dashed(name) + "=false"}}
			}
			for _, form := range forms {
				args := append([]string{"-w"}, append(form, "--udp-thread-num=16", "-i", "a/b")...)
				o, err := parseFlags(args, func(n string) string { return inPod[n] }, io.Discard)
				if err != nil || !o.watch || o.sockets != 16 || o.id != "a/b" || o.config != "https://discovery:13478" {
					t.Errorf("%v: %+v, %v", args, o, err)
					continue
				}
				if len(o.warnings) != 1 ||
					!strings.HasPrefix(o.warnings[0], "flag "+cli.Dashed(name)+" is ignored: ") ||
					strings.Contains(o.warnings[0], "a-value") {
					t.Errorf("%v: warnings %q", args, o.warnings)
				}
			}
		}
	}
	if flags < 20 {
		t.Errorf("%d flags looked at", flags)
	}
}

// The origin k8s means the origin in the environment, which the operator sets. Otherwise it means the address or the
// Service in the former flags and variables.
func TestContractOriginKubernetes(t *testing.T) {
	for name, tc := range map[string]struct {
		args         []string
		env          map[string]string
		want, warned string
	}{
		"in a pod": {
			[]string{"-w", "-c", "k8s"}, map[string]string{"STUNNER_CONFIG_ORIGIN": "https://discovery:13478"},
			"https://discovery:13478",
			"flag --config k8s: the config comes from https://discovery:13478, as set by STUNNER_CONFIG_ORIGIN",
		},
		"in a pod, with an address of the operator before": {
			[]string{"--config=k8s", "--cds-server-address", "10.0.0.1:13478"},
			map[string]string{"STUNNER_CONFIG_ORIGIN": "https://discovery:13478"},
			"https://discovery:13478", "flag --cds-server-address is ignored: use --config, or STUNNER_CONFIG_ORIGIN",
		},
		"with an address": {
			[]string{"-c", "k8s", "--cds-server-address", "10.0.0.1:5000"}, nil, "10.0.0.1:5000",
			"as set by --cds-server-address",
		},
		"with an address without port": {
			[]string{"-c", "k8s", "--cds-server-address", "10.0.0.1"}, nil, "10.0.0.1:13478", "",
		},
		"with an IPv6 address": {
			[]string{"-c", "k8s", "--cds-server-address", "fd00::1"}, nil, "[fd00::1]:13478", "",
		},
		"with address and port": {
			[]string{"-c", "k8s", "--cds-server-address", "10.0.0.1", "--cds-server-port=5000"}, nil, "10.0.0.1:5000",
			"as set by --cds-server-address and --cds-server-port",
		},
		"with a namespace": {
			[]string{"-c", "k8s", "--cds-server-namespace", "stunner-system"}, nil,
			"stunner-config-discovery.stunner-system.svc:13478", "as set by --cds-server-namespace",
		},
		"with variables for namespace and port": {
			[]string{"-c", "k8s"}, map[string]string{"CDS_SERVER_NAMESPACE": "stunner", "CDS_SERVER_PORT": "5000"},
			"stunner-config-discovery.stunner.svc:5000", "as set by CDS_SERVER_NAMESPACE and CDS_SERVER_PORT",
		},
		"with address and namespace": {
			[]string{"-c", "k8s", "--cds-server-address", "10.0.0.1", "--cds-server-namespace", "stunner"}, nil,
			"10.0.0.1:13478", "flag --cds-server-namespace is ignored: use --config",
		},
		"with a variable": {
			[]string{"-c", "k8s"}, map[string]string{"CDS_SERVER_ADDR": "10.0.0.2"}, "10.0.0.2:13478",
			"as set by CDS_SERVER_ADDR",
		},
		"by the environment": {
			nil, map[string]string{"STUNNER_CONFIG_ORIGIN": "k8s", "CDS_SERVER_ADDR": "10.0.0.2"}, "10.0.0.2:13478", "",
		},
		"an address beside another origin": {
			[]string{"-c", "gateway.yaml", "--cds-server-address", "10.0.0.1"}, nil, "gateway.yaml",
			"flag --cds-server-address is ignored",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parseFlags(tc.args, func(n string) string { return tc.env[n] }, io.Discard)
			if err != nil || o.config != tc.want || !strings.Contains(strings.Join(o.warnings, "\n"), tc.warned) {
				t.Errorf("origin %q, warnings %q, %v", o.config, o.warnings, err)
			}
		})
	}
	for name, args := range map[string][]string{
		"--config k8s": {"-c", "k8s"},
		"use --config, or STUNNER_CONFIG_ORIGIN, such as https://stunner-config-discovery.NAMESPACE.svc:13478": {
			"-c", "k8s",
		},
		"--cds-server-port": {"-c", "k8s", "--cds-server-address", "10.0.0.1", "--cds-server-port", "many"},
	} {
		if _, err := parseFlags(args, func(string) string { return "" }, io.Discard); err == nil || !strings.Contains(
			err.Error(), name,
		) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// An unknown flag is an error that names it, also together with former flags.
func TestMisspeltFlagIsAnError(t *testing.T) {
	for _, name := range []string{"-watchh", "--udp-thread-numm", "--cds-server", "--kubeconfigs", "--sessions-form"} {
		_, err := parseFlags([]string{"--kubeconfig", "x", name}, func(string) string { return "" }, io.Discard)
		if err == nil || !strings.Contains(err.Error(), strings.TrimLeft(name, "-")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
