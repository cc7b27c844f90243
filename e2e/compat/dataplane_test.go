package compat

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// id is the name of the config that the discovery server of the tests serves.
const id = "media/edge"

// installation is a dataplane of an existing installation. In its texts <file> is the path of its file, <port> the port
// of its listener, <host> an address of this host, <peer> the endpoint of the echo peer, and <discovery> the address of
// a discovery server without authentication.
type installation struct {
	line     string // of the command, without the program
	env      []string
	file     string
	network  call.Network // UDP if empty
	user     string       // static, with the password pass-1; empty for an ephemeral credential of s3cret
	password string       // instead of pass-1
	warnings []string
}

// standalone is a file in the form of the existing dataplane. Each setting in it is a variable.
const standalone = `version: v1alpha1
admin:
  name: default-stunnerd
  loglevel: $STUNNER_LOGLEVEL
  healthcheck_endpoint: ""
auth:
  type: $STUNNER_AUTH_TYPE
  realm: "$STUNNER_REALM"
  credentials:
    username: $STUNNER_USERNAME
    password: $STUNNER_PASSWORD
    secret: $STUNNER_SHARED_SECRET
listeners:
  - name: stunnerd-udp
    address: "$STUNNER_ADDR"
    protocol: udp
    port: $STUNNER_PORT
    public_address: $STUNNER_PUBLIC_ADDR
    public_port: $STUNNER_PUBLIC_PORT
    min_relay_port: $STUNNER_MIN_PORT
    max_relay_port: $STUNNER_MAX_PORT
    routes: [peers]
clusters:
  - {name: peers, type: STATIC, endpoints: [<peer>]}
`

// short is a file without variables. The other lines of its listener are added.
const short = `{version: v1, admin: {name: media/edge, healthcheck_endpoint: ""},
auth: {type: plaintext, credentials: {username: user-1, password: pass-1}},
clusters: [{name: peers, endpoints: [<peer>]}], listeners: [{name: media/edge/l, port: <port>, routes: [peers], `

func installations() map[string]installation {
	static := []string{
		"STUNNER_LOGLEVEL=all:INFO", "STUNNER_AUTH_TYPE=plaintext", "STUNNER_REALM=stunner.l7mp.io",
		"STUNNER_USERNAME=user-1", "STUNNER_PASSWORD=pass-1", "STUNNER_ADDR=<host>", "STUNNER_PORT=<port>",
		"STUNNER_PUBLIC_ADDR=<host>", "STUNNER_PUBLIC_PORT=<port>", "STUNNER_MIN_PORT=10000", "STUNNER_MAX_PORT=20000",
	}
	relayPorts := []string{
		"environment variable STUNNER_MIN_PORT is ignored: use --relay-ports",
		"environment variable STUNNER_MAX_PORT is ignored: use --relay-ports",
	}
	pod := []string{"STUNNER_NAMESPACE=media", "STUNNER_NAME=edge", "STUNNER_ADDR=<host>", "STUNNER_NODENAME=worker"}
	with := func(in []string, more ...string) []string { return append(append([]string(nil), in...), more...) }
	return map[string]installation{
		// Standalone files.
		"static": {line: "-c <file>", env: static, file: standalone, user: "user-1", warnings: relayPorts},
		"ephemeral": {line: "--config <file> --watch", file: standalone, warnings: relayPorts, env: with(
			static, "STUNNER_AUTH_TYPE=longterm", "STUNNER_SHARED_SECRET=s3cret",
			"STUNNER_USERNAME=", "STUNNER_PASSWORD=",
		)},
		"port of a Service": {line: "-wv -c file://<file>", file: standalone, user: "user-1", env: with(
			static, "STUNNER_PORT=tcp://10.96.0.9:3478", "STUNNER_PUBLIC_ADDR=",
		), warnings: relayPorts},
		"no public address": {line: "-u4 -lall:DEBUG -c <file>", file: standalone, user: "user-1", env: with(
			static, "STUNNER_PUBLIC_ADDR=", "STUNNER_PUBLIC_PORT=",
		), warnings: relayPorts},
		"literal dollar signs": {
			line: "-c <file>", user: "user-1", password: "$STUNNER_REALM$", env: static, warnings: relayPorts,
			file: strings.Replace(short, "pass-1", `"$STUNNER_REALM$"`, 1) + `address: $STUNNER_ADDR}]}`,
		},
		"short protocol": {line: "-c <file>", file: short + `protocol: UDP, address: <host>}]}`, user: "user-1"},
		"TCP": {
			line: "--udp-thread-num=16 -c <file>", file: short + `protocol: tcp, address: <host>}]}`, user: "user-1",
			network: call.TCP,
		},
		"TLS": {
			line: "-c <file> --log=all:INFO,turn:DEBUG", network: call.TLS, user: "user-1",
			file: short + `protocol: TURN-TLS, address: <host>, cert: <certificate>, key: <key>}]}`,
		},
		"DTLS": {
			line: "-c <file> --log-format json", network: call.DTLS, user: "user-1",
			file: short + `protocol: dtls, address: <host>, cert: <certificate>, key: <key>}]}`,
		},
		"invalid log level": {
			line: "-l all:INFO,turn:LOUD -c <file>", file: short + `address: <host>}]}`, user: "user-1",
			warnings: []string{"--log: a part is ignored"},
		},

		// Quick servers.
		"quick":     {line: "turn://user-1:pass-1@<host>:<port>", user: "user-1"},
		"quick TCP": {line: "turn://user-1:pass-1@<host>:<port>?transport=tcp -v", user: "user-1", network: call.TCP},
		"quick with flags": {
			line: "--kubeconfig=/none -w turn://user-1:pass-1@<host>:<port>?transport=udp --force-ready-status -u 2",
			user: "user-1", warnings: []string{"flag --kubeconfig is ignored"},
		},

		// Config discovery.
		"pod": {
			line: "-w --udp-thread-num=16", env: with(pod, "STUNNER_CONFIG_ORIGIN=http://<discovery>"),
		},
		"pod that stays ready": {
			line: "-wu 16 --force-ready-status -v", env: with(pod, "STUNNER_CONFIG_ORIGIN=ws://<discovery>"),
		},
		"pod with its own discovery": {
			line: "-w -c k8s -n media --token secret", env: with(pod, "STUNNER_CONFIG_ORIGIN=http://<discovery>"),
			warnings: []string{
				"flag --config k8s: the config comes from http://<discovery>, as set by STUNNER_CONFIG_ORIGIN",
				"flag -n is ignored", "flag --token is ignored: use --discovery-token-file",
			},
		},
		"once": {line: "-c <discovery> -i media/edge", env: pod},
		"path": {line: "-w -i media/edge -c ws://<discovery>/api/v1/configs/media/edge?watch=true", env: pod},
		"kubeconfig": {
			line: "-w -i media/edge --config=k8s --cds-server-address=<discovery> --context kind", env: pod[2:],
			warnings: []string{
				"flag --config k8s: the config comes from <discovery>, as set by --cds-server-address",
				"flag --context is ignored",
			},
		},
		"variable": {
			line: "-w -i media/edge -c k8s",
			env:  with(pod, "CDS_SERVER_ADDR=<discovery>", "CDS_SERVER_NAMESPACE=stunner"),
			warnings: []string{
				"flag --config k8s: the config comes from <discovery>, as set by CDS_SERVER_ADDR",
				"environment variable CDS_SERVER_NAMESPACE is ignored: use --config",
			},
		},
	}
}

// TestDataplane starts stunnerd with command lines, environments and files of existing installations. It relays a call,
// and logs the expected warnings.
func TestDataplane(t *testing.T) {
	stunnerd := filepath.Join(harnesstest.Build(t, harness.Stunnerd), "stunnerd")
	host := hostAddress(t)
	peer := harnesstest.Echo(t, host)
	chain, private, err := harness.Certificate(host)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(chain)
	for name, in := range installations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := harnesstest.Port(t)
			server := discovery.NewServer(discovery.ServerOptions{})
			server.Publish(served(port, peer))
			file := filepath.Join(t.TempDir(), "stunnerd.conf")
			fill := strings.NewReplacer(
				"<file>", file, "<port>", strconv.Itoa(port), "<host>", host.String(),
				"<peer>", fmt.Sprintf(`"%s:<%d-%[2]d>"`, peer.Addr(), peer.Port()),
				"<discovery>", strings.TrimPrefix(serve(t, server), "http://"),
				"<certificate>", base64.StdEncoding.EncodeToString(chain),
				"<key>", base64.StdEncoding.EncodeToString(private),
			).Replace
			if err := os.WriteFile(file, []byte(fill(in.file)), 0o600); err != nil {
				t.Fatal(err)
			}
			p := run(t, stunnerd, strings.Fields(fill(in.line)), strings.Split(fill(strings.Join(in.env, "\n")), "\n"))
			o := call.Options{
				Gateway: netip.AddrPortFrom(host, uint16(port)), Network: cmp.Or(in.network, call.UDP), Roots: roots,
				Peer: peer, Username: in.user, Password: cmp.Or(in.password, "pass-1"),
			}
			if in.user == "" {
				c, err := credential.Authority{SharedSecret: "s3cret"}.Mint("alice", time.Hour, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				o.Username, o.Password = c.Username, string(c.Password)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			c, err := call.Start(ctx, o)
			if err != nil {
				t.Fatalf("%v\n%s", err, p.Output())
			}
			if err := c.Await(ctx, 3); err != nil {
				t.Errorf("%v\n%s", err, p.Output())
			}
			c.End(0)
			for _, warning := range in.warnings {
				if !strings.Contains(p.Output(), fill(warning)) {
					t.Errorf("no warning %q in\n%s", fill(warning), p.Output())
				}
			}
			warned := regexp.MustCompile(`level"?[=:]"?WARN`).FindAllString(p.Output(), -1)
			if len(warned) != len(in.warnings) {
				t.Errorf("%d warnings, want %d in\n%s", len(warned), len(in.warnings), p.Output())
			}
		})
	}
}

// TestDataplaneRefuses: a command line without a usable origin ends the program with code 2, and the error says which
// setting is missing.
func TestDataplaneRefuses(t *testing.T) {
	stunnerd := filepath.Join(harnesstest.Build(t, harness.Stunnerd), "stunnerd")
	for line, want := range map[string]string{
		"-w -c k8s": "or STUNNER_CONFIG_ORIGIN, such as https://stunner-config-discovery.NAMESPACE.svc:13478",
		"-w -c k8s --cds-server-namespace=stunner --cds-server-port=x": "--cds-server-port \"x\": use 1 to 65535",
		"-i edge":       "--id \"edge\": use NAMESPACE/NAME",
		"--udp-threads": "-udp-threads",
	} {
		cmd := exec.Command(stunnerd, strings.Fields(line)...)
		said, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(said), want) {
			t.Errorf("%s: exit code %d, output %s, want %s", line, cmd.ProcessState.ExitCode(), said, want)
		}
	}
}

// run starts stunnerd and waits until a config is in force.
func run(t *testing.T, stunnerd string, args, env []string) *harness.Process {
	t.Helper()
	p := harnesstest.Start(t, harness.Command{
		Name: "stunnerd", Path: stunnerd, Args: args, Logs: t.TempDir(),
		// The default port of the probes may be in use on this host.
		Env: append(env, "STUNNER_HEALTHCHECK_ENDPOINT=none"),
	}, func(context.Context) error { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := p.AwaitOutput(ctx, regexp.MustCompile("config in force")); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	return p
}

// served is the config of id, as an existing operator serves it.
func served(port int, peer netip.AddrPort) config.Config {
	none := ""
	c := config.Config{
		Version: config.Version, Admin: config.Admin{Name: id, HealthcheckEndpoint: &none},
		Auth: config.Auth{
			Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: "s3cret"},
		},
		Listeners: []config.Listener{{
			Name: id + "/udp", Protocol: config.TURNUDP, Address: config.AddressPlaceholder, Port: port,
			Routes: []string{"media/peers"},
		}},
		Clusters: []config.Cluster{{Name: "media/peers", Endpoints: []string{peer.Addr().String()}}},
	}
	c.Default()
	return c
}

// hostAddress returns an IPv4 address of this host that the endpoint 0.0.0.0/0 of a quick server contains.
func hostAddress(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr()
		}
	}
	t.Fatal("quick servers do not relay to loopback addresses: give this host an IPv4 address, such as one of a dummy interface")
	return netip.Addr{}
}
