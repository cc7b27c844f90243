package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/cli"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
)

// options are the validated settings of the command line and the environment.
type options struct {
	config    string
	watch     bool
	id        string
	log       string
	logFormat string
	sockets   int
	icmp      bool
	// relayPorts is the range of ports for relays. If it is the zero range, the kernel selects the ports.
	relayPorts config.PortRange
	dryRun     bool
	stateDir   string
	journalDir string
	handOver   bool
	move       bool // --move-sessions
	standby    string
	tokenFile  string
	caFile     string
	node       string
	pod        string
	drain      time.Duration
	drainLeast time.Duration // --drain-minimum
	// nonceLifetime is how long a client may use a nonce.
	nonceLifetime time.Duration
	probes        string
	// keepsProbes means that --pod is set: the endpoint of --healthcheck-endpoint stays open, see probesFor.
	keepsProbes  bool
	forced       bool   // --force-ready-status: has no effect, because a draining process stays ready anyway
	unready      bool   // --unready-on-drain
	from         string // --sessions-from
	showUsers    bool
	supervise    bool
	usageRecords string
	usageKeyFile string
	version      bool
	warnings     []string // about flags that have no effect
	// uri is the TURN URI of the quick server, or nil.
	uri *config.URI
	// addresses are the addresses of this pod or host: one or two, of different families.
	addresses []netip.Addr
	env       func(string) string
}

// raw are the settings before they are validated.
type raw struct {
	options
	verbose                                      bool
	relayPorts, drain, drainLeast, nonceLifetime string
}

// The values of --sessions-from.
const (
	fromLoopback = "loopback"
	fromAny      = "any"
)

const synopsis = `stunnerd runs a TURN server whose clients reach the peers that the routes of its config allow.

  stunnerd [flags]                          run a config
  stunnerd [flags] turn://USER:PASSWORD@ADDRESS:PORT?transport=udp|tcp|tls|dtls
                                            run one listener that reaches every peer

Flags, some with an environment variable. The command line takes precedence.
`

// envNames maps flags to environment variables.
var envNames = map[string]string{
	"config":               "STUNNER_CONFIG_ORIGIN",
	"relay-ports":          "STUNNER_RELAY_PORTS",
	"state-dir":            "STUNNER_STATE_DIR",
	"journal-dir":          "STUNNER_JOURNAL_DIR",
	"hand-over":            "STUNNER_HAND_OVER",
	"move-sessions":        "STUNNER_MOVE_SESSIONS",
	"standby-config":       "STUNNER_STANDBY_CONFIG",
	"discovery-token-file": "STUNNER_DISCOVERY_TOKEN_FILE",
	"discovery-ca-file":    "STUNNER_DISCOVERY_CA_FILE",
	"node":                 "STUNNER_NODENAME",
	"pod":                  "STUNNER_POD",
	"healthcheck-endpoint": "STUNNER_HEALTHCHECK_ENDPOINT",
	"drain-timeout":        "STUNNER_DRAIN_TIMEOUT",
	"drain-minimum":        "STUNNER_DRAIN_MINIMUM",
	"nonce-lifetime":       "STUNNER_NONCE_LIFETIME",
	"supervise":            "STUNNER_SUPERVISE",
	"usage-records":        "STUNNER_USAGE_RECORDS",
	"usage-user-key":       "STUNNER_USAGE_USER_KEY",
}

func newFlags(r *raw) *cli.Flags {
	f := cli.New("stunnerd", func(flag string) string { return envNames[flag] })
	f.StringVar(&r.config, "config", ":13478",
		"`ORIGIN` of the config: a file, file://PATH, or HOST:PORT, http(s)://, ws(s):// of a config discovery "+
			"server")
	f.BoolVar(&r.watch, "watch", false, "follow the origin instead of reading it once")
	f.StringVar(&r.id, "id", defaultID(r.env),
		"`NAMESPACE/NAME` of the config to request; $STUNNER_NAMESPACE and $STUNNER_NAME set the default")
	f.StringVar(&r.log, "log", "", "log `LEVELS` SCOPE:LEVEL[,SCOPE:LEVEL…]; they override those of the config")
	f.StringVar(&r.logFormat, "log-format", "text", "`FORMAT` of the log, text or json")
	f.BoolVar(&r.verbose, "verbose", false, "same as -l all:DEBUG")
	f.IntVar(&r.sockets, "udp-thread-num", 0,
		"`SOCKETS` of a UDP listener; 0, or more than the process has cores, means one for each core")
	f.BoolVar(&r.icmp, "icmp-indications", false,
		"tell clients of datagrams that did not reach a peer (RFC 8656 §11.5); clients that only implement RFC "+
			"5766, such as pion, may end their sessions")
	f.StringVar(&r.relayPorts, "relay-ports", "",
		"ports of relays as `MIN-MAX`, such as 40000-49999, for firewalls; empty lets the kernel choose")
	f.BoolVar(&r.dryRun, "dry-run", false, "read the config, print what it would do, and exit")
	f.StringVar(&r.stateDir, "state-dir", "", "`FOLDER` for the last good config and the session journal; "+
		"empty stores none")
	f.StringVar(&r.journalDir, "journal-dir", "",
		"`FOLDER` for the journal of sessions, which may be shared with other users; empty means --state-dir")
	f.BoolVar(&r.handOver, "hand-over", false,
		"after SIGTERM, leave the sessions in the journal to the next process instead of waiting for their end")
	f.BoolVar(&r.move, "move-sessions", true,
		"after SIGTERM, move the sessions over UDP to the other pods of the Gateway, if there are any, hand sessions over to "+
			"the pods at which their datagrams arrive, and continue those of lost pods; not with --hand-over")
	f.StringVar(&r.standby, "standby-config", "",
		"`FILE` with a config to start with if the origin is unreachable and there is no last good config")
	f.StringVar(&r.tokenFile, "discovery-token-file", "", "`FILE` with the bearer token for config discovery")
	f.StringVar(&r.caFile, "discovery-ca-file", "", "`FILE` with the CA certificates of the config discovery server")
	f.StringVar(&r.node, "node", "", "`NODE` that this process runs on")
	f.StringVar(&r.pod, "pod", "", "`NAME` of this process in reports to config discovery; empty means the host name")
	f.StringVar(&r.probes, "healthcheck-endpoint", config.DefaultHealthcheck,
		"`URL` of the probes until a followed config sets one, or none; with --pod it stays open beside another port of the config")
	f.StringVar(&r.drain, "drain-timeout", "1h",
		"`TIME` that live sessions may continue after SIGTERM, such as 90s or 2h")
	f.StringVar(&r.drainLeast, "drain-minimum", "3s",
		"`TIME` for which new clients are passed to the other pods of the Gateway, or admitted, after SIGTERM, if there "+
			"are other pods, also without sessions: load balancers may send clients to a pod that ends")
	f.StringVar(&r.nonceLifetime, "nonce-lifetime", "1h", "`TIME` that a client may use a nonce, from 10m to 1h")
	f.BoolVar(&r.forced, "force-ready-status", false,
		"accepted for compatibility: a draining process stays ready without it")
	f.BoolVar(&r.unready, "unready-on-drain", false,
		"fail the readiness probe while draining; kube-proxy then cuts the UDP calls that are still up")
	f.StringVar(&r.from, "sessions-from", fromLoopback,
		"`CLIENTS` that may read /sessions, /refusals, /reach and the whole /status: loopback or any")
	f.BoolVar(&r.showUsers, "show-users", false,
		"show user names and client addresses in /sessions and /refusals instead of hashes")
	f.BoolVar(&r.supervise, "supervise", false,
		"run as a child process and start it again when a signal or a panic has ended it")
	f.StringVar(&r.usageRecords, "usage-records", "",
		"`FILE` to which usage records are appended as lines of JSON, or - for standard output; empty means an "+
			"OpenTelemetry collector if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_LOGS_ENDPOINT is set, else none")
	f.StringVar(&r.usageKeyFile, "usage-user-key", "",
		"`FILE` with a key of 16 bytes or more; usage records then show users as hashes with this key")
	f.BoolVar(&r.version, "version", false, "print the version and exit")
	f.Shorten(map[string]string{"c": "config", "w": "watch", "i": "id", "l": "log", "v": "verbose", "u": "udp-thread-num",
		"d": "dry-run"})
	f.AcceptFormer(formerSettings)
	return f
}

// parseFlags reads the flags, and the environment for flags that are not given. An unknown
// or malformed flag is returned as the only error. Otherwise the errors of all settings are returned together.
func parseFlags(args []string, env func(string) string, out io.Writer) (options, error) {
	r := raw{options: options{env: env}}
	f := newFlags(&r)
	if err := f.Parse(splitFormer(args, f)); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, synopsis)
			f.PrintHelp(out)
		}
		return r.options, err
	}
	envErr := f.SetFromEnv(env)
	formerErr := r.translateFormer(f)
	o, err := r.check(f.Args())
	o.warnings = append(o.warnings, o.warnIgnored(f)...)
	return o, errors.Join(envErr, formerErr, err)
}

// check validates and converts the settings.
func (r raw) check(args []string) (options, error) {
	o := r.options
	var errs cli.Errors
	var err error
	if r.verbose && o.log == "" {
		o.log = "all:DEBUG"
	}
	if o.drain, err = time.ParseDuration(r.drain); err != nil || o.drain < 0 {
		errs.Addf("--drain-timeout or STUNNER_DRAIN_TIMEOUT %q: use a time such as 90s or 2h", r.drain)
	}
	if o.drainLeast, err = time.ParseDuration(r.drainLeast); err != nil || o.drainLeast < 0 {
		errs.Addf("--drain-minimum or STUNNER_DRAIN_MINIMUM %q: use a time such as 3s or 1m", r.drainLeast)
	}
	if r.relayPorts != "" {
		if o.relayPorts, err = config.ParseRelayPorts(r.relayPorts); err != nil {
			errs.Addf("--relay-ports or STUNNER_RELAY_PORTS: %w", err)
		}
	}
	o.nonceLifetime, err = time.ParseDuration(r.nonceLifetime)
	if err != nil || o.nonceLifetime < nonce.MinLifetime || o.nonceLifetime > nonce.MaxLifetime {
		errs.Addf("--nonce-lifetime or STUNNER_NONCE_LIFETIME %q: use a time between 10m and 1h", r.nonceLifetime)
	}
	switch {
	case len(args) > 1:
		errs.Addf("unexpected argument %q: give at most one TURN URI", args[1])
	case len(args) == 1:
		uri, err := config.ParseURI(args[0])
		if err != nil {
			errs.Addf("read TURN URI: %w", err)
		}
		o.uri = &uri
		o.warnTransport(args[0])
	}
	errs.AddOneOf("--sessions-from", o.from, fromLoopback, fromAny)
	errs.AddOneOf("--log-format", o.logFormat, "text", "json")
	if o.unready && o.forced {
		errs.Addf("--unready-on-drain and --force-ready-status contradict each other: use one")
	}
	if namespace, name, ok := strings.Cut(o.id, "/"); !ok || namespace == "" || name == "" ||
		strings.Contains(name, "/") {
		errs.Addf("--id %q: use NAMESPACE/NAME", o.id)
	}
	if o.probes == "none" {
		o.probes = ""
	}
	if o.sockets < 0 {
		errs.Addf("--udp-thread-num %d: use 0 or more", o.sockets)
	}
	errs.Add(o.findAddresses())
	return o, errs.Join()
}

// findAddresses sets the addresses of this process: the first of each family among STUNNER_ADDR and then STUNNER_ADDRS,
// which are lists separated by commas. If both variables are empty, it takes the addresses of the host.
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

// defaultID returns the default of --id: NAMESPACE/NAME from the environment variables that the operator sets in its
// pods, or else an id with the host name.
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
