package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
)

// options are the command line and the environment.
type options struct {
	config    string
	watch     bool
	id        string
	log       string
	logFormat string
	sockets   int
	icmp      bool
	// relayPorts are the ports that relays may have; the zero range leaves the choice to the kernel.
	relayPorts config.PortRange
	dryRun     bool
	stateDir   string
	standby    string
	tokenFile  string
	caFile     string
	node       string
	pod        string
	drain      time.Duration
	// nonceLifetime is for how long clients may use a nonce.
	nonceLifetime time.Duration
	probes        string
	forced        bool // --force-ready-status: accepted, because it is how draining works anyway
	unready       bool
	from          string // who may ask for sessions
	showUsers     bool
	version       bool
	warnings      []string // about flags that are accepted and mean little or nothing here
	// uri is the quick server's.
	uri *config.URI
	// addresses are those of this pod or host, at most one a family; there is at least one.
	addresses []netip.Addr
	env       func(string) string
}

// The values of --sessions-from.
const (
	fromLoopback = "loopback"
	fromAny      = "any"
)

var errHelp = errors.New("help")

const usage = `stunnerd runs a TURN server whose clients reach what the routes of its config allow.

  stunnerd [flags]                          run a config
  stunnerd [flags] turn://USER:PASSWORD@ADDRESS:PORT?transport=udp|tcp|tls|dtls
                                            run one listener that reaches every peer

flags:
`

// parseFlags reads the command line; the environment gives defaults.
func parseFlags(args []string, env func(string) string, out io.Writer) (options, error) {
	o := options{env: env}
	fs := flag.NewFlagSet("stunnerd", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.Usage = func() {
		fmt.Fprint(out, usage)
		fs.PrintDefaults()
	}
	text := func(p *string, value, help string, names ...string) {
		for _, n := range names {
			fs.StringVar(p, n, value, help)
		}
	}
	flags := func(p *bool, help string, names ...string) {
		for _, n := range names {
			fs.BoolVar(p, n, false, help)
		}
	}
	text(&o.config, or(env("STUNNER_CONFIG_ORIGIN"), ":13478"), "where the config comes from: a file, file://PATH, HOST:PORT or http(s)://, ws(s):// of a config discovery server (env STUNNER_CONFIG_ORIGIN)", "c", "config")
	flags(&o.watch, "follow the origin instead of reading it once", "w", "watch")
	text(&o.id, defaultID(env), "NAMESPACE/NAME of the config to ask for (env STUNNER_NAMESPACE, STUNNER_NAME)", "i", "id")
	text(&o.log, "", "log level SCOPE:LEVEL[,SCOPE:LEVEL…]; overrides the config's for as long as the process lives", "l", "log")
	text(&o.logFormat, "text", "log format: text or json", "log-format")
	verbose := fs.Bool("v", false, "same as -l all:DEBUG")
	fs.BoolVar(verbose, "verbose", false, "same as -l all:DEBUG")
	for _, n := range []string{"u", "udp-thread-num"} {
		fs.IntVar(&o.sockets, n, 0, "sockets of a UDP listener; 0, or more than the process has cores, means one for each core")
	}
	flags(&o.icmp, "tell clients of datagrams that did not reach a peer, as RFC 8656 §11.5 says; clients that follow RFC 5766 alone may end their sessions over it, those of pion do", "icmp-indications")
	ports := fs.String("relay-ports", env("STUNNER_RELAY_PORTS"), "ports of relays as MIN-MAX, such as 40000-49999, for firewalls; empty leaves the choice to the kernel (env STUNNER_RELAY_PORTS)")
	flags(&o.dryRun, "read the config, say what it would do, and exit", "d", "dry-run")
	text(&o.stateDir, env("STUNNER_STATE_DIR"), "folder for the last good config; empty keeps none (env STUNNER_STATE_DIR)", "state-dir")
	text(&o.standby, env("STUNNER_STANDBY_CONFIG"), "file of a config to start with where the origin is away and there is no last good config (env STUNNER_STANDBY_CONFIG)", "standby-config")
	text(&o.tokenFile, env("STUNNER_DISCOVERY_TOKEN_FILE"), "file with the bearer token for config discovery (env STUNNER_DISCOVERY_TOKEN_FILE)", "discovery-token-file")
	text(&o.caFile, env("STUNNER_DISCOVERY_CA_FILE"), "file with the CA of the config discovery server (env STUNNER_DISCOVERY_CA_FILE)", "discovery-ca-file")
	text(&o.node, env("STUNNER_NODENAME"), "node that this process runs on (env STUNNER_NODENAME)", "node")
	text(&o.pod, env("STUNNER_POD"), "name of this process in reports to config discovery; empty means that of the host (env STUNNER_POD)", "pod")
	text(&o.probes, or(env("STUNNER_HEALTHCHECK_ENDPOINT"), config.DefaultHealthcheck), "URL of the probes until a followed config names one, or none (env STUNNER_HEALTHCHECK_ENDPOINT)", "healthcheck-endpoint")
	drain := fs.String("drain-timeout", or(env("STUNNER_DRAIN_TIMEOUT"), "1h"), "how long live sessions may go on after SIGTERM, such as 90s or 2h (env STUNNER_DRAIN_TIMEOUT)")
	lifetime := fs.String("nonce-lifetime", or(env("STUNNER_NONCE_LIFETIME"), "1h"), "how long a client may use a nonce, from 10m to 1h (env STUNNER_NONCE_LIFETIME)")
	flags(&o.forced, "accepted for compatibility: a draining process stays ready unless told otherwise", "force-ready-status")
	flags(&o.unready, "fail the readiness probe while draining; kube-proxy then cuts the UDP calls that are still up", "unready-on-drain")
	text(&o.from, fromLoopback, "who may read /sessions, /refusals and the whole of /status: loopback, or any for everybody who reaches the port", "sessions-from")
	flags(&o.showUsers, "show user names and client addresses in /sessions and /refusals instead of hashes", "show-users")
	flags(&o.version, "print the version and exit", "version")
	former := acceptFormer(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, errHelp
		}
		return o, err
	}
	if *verbose && o.log == "" {
		o.log = "all:DEBUG"
	}
	var err error
	if o.drain, err = time.ParseDuration(*drain); err != nil || o.drain < 0 {
		return o, fmt.Errorf("--drain-timeout or STUNNER_DRAIN_TIMEOUT %q: use a time such as 90s or 2h", *drain)
	}
	if *ports != "" {
		if o.relayPorts, err = config.ParseRelayPorts(*ports); err != nil {
			return o, fmt.Errorf("--relay-ports or STUNNER_RELAY_PORTS: %w", err)
		}
	}
	o.nonceLifetime, err = time.ParseDuration(*lifetime)
	if err != nil || o.nonceLifetime < nonce.MinLifetime || o.nonceLifetime > nonce.MaxLifetime {
		return o, fmt.Errorf("--nonce-lifetime or STUNNER_NONCE_LIFETIME %q: use a time between 10m and 1h", *lifetime)
	}
	return o, cmp.Or(o.takeOver(former), o.check(fs.Args()))
}

// check validates everything before anything starts.
func (o *options) check(args []string) error {
	switch {
	case len(args) > 1:
		return fmt.Errorf("unexpected argument %q: give flags first, then at most one TURN URI", args[1])
	case len(args) == 1:
		uri, err := config.ParseURI(args[0])
		if err != nil {
			return fmt.Errorf("read TURN URI: %w", err)
		}
		o.uri = &uri
	}
	if o.from != fromLoopback && o.from != fromAny {
		return fmt.Errorf("--sessions-from %q: use %s or %s", o.from, fromLoopback, fromAny)
	}
	if o.unready && o.forced {
		return errors.New("--unready-on-drain and --force-ready-status contradict each other: use one")
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return fmt.Errorf("--log-format %q: use text or json", o.logFormat)
	}
	if namespace, name, ok := strings.Cut(o.id, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("--id %q: use NAMESPACE/NAME", o.id)
	}
	if o.probes == "none" {
		o.probes = ""
	}
	if o.sockets < 0 {
		return fmt.Errorf("--udp-thread-num %d: use 0 or more", o.sockets)
	}
	return o.findAddresses()
}

// findAddresses reads where this process can be reached: STUNNER_ADDR first, then STUNNER_ADDRS, a list, for the other family. Without
// either the host is asked.
func (o *options) findAddresses() error {
	for _, name := range []string{"STUNNER_ADDR", "STUNNER_ADDRS"} {
		for _, text := range strings.FieldsFunc(o.env(name), func(r rune) bool { return r == ',' }) {
			addr, err := netip.ParseAddr(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("environment %s %q: use an IP address", name, text)
			}
			if !slices.ContainsFunc(o.addresses, func(a netip.Addr) bool { return a.Is4() == addr.Unmap().Is4() }) {
				o.addresses = append(o.addresses, addr.Unmap())
			}
		}
	}
	if len(o.addresses) == 0 {
		o.addresses = hostAddresses()
	}
	return nil
}

// defaultID is the identity that the pod's environment gives, or one made of the host's name.
func defaultID(env func(string) string) string {
	if namespace, name := env("STUNNER_NAMESPACE"), env("STUNNER_NAME"); namespace != "" && name != "" {
		return namespace + "/" + name
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return "default/stunnerd-" + host
}

func or(value, otherwise string) string {
	if value != "" {
		return value
	}
	return otherwise
}
