package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/cli"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// options are the validated settings of the command line and the environment.
type options struct {
	address            string
	port               uint
	tlsCert, tlsKey    string
	healthAddress      string
	config, clusters   string
	discoveryTokenFile string
	discoveryCAFile    string
	access             access.Config
	policy             string
	gateways           access.Gateways
	defaultTTL, maxTTL time.Duration
	publicAddr         string
	maxURLs            uint
	origins            []string
	rates              rest.Rates
	capToToken         bool
	shutdownDelay      time.Duration
	demo               bool
	demoEcho           *url.URL
	showUsers          bool
	revocations        string
	revocationsToken   string
	revocationsCA      string
	version            bool
	logFormat          string
	levels             *telemetry.Levels
	warnings           []string // about settings of the existing auth service that are ignored
}

// raw are the settings before they are validated.
type raw struct {
	options
	algorithms         string
	corsOrigins        string
	clusterNetworks    string
	trustedProxies     string
	gateways           lists
	defaultTTL, maxTTL int64
	maxAge             int64
	shutdownDelay      int64
	demoEcho, logLevel string
	getenv             func(string) string
}

// serviceAccount is the folder in which Kubernetes mounts the token of a pod.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

// envNames maps flags to environment variables that other programs use too. The variables of all other flags are
// derived from the names of the flags.
var envNames = map[string]string{
	"config":      "STUNNER_CONFIG_ORIGIN",
	"public-addr": "STUNNER_PUBLIC_ADDR",
	"version":     "",
}

// envName returns the environment variable of a flag.
func envName(name string) string {
	if env, ok := envNames[name]; ok {
		return env
	}
	return cli.EnvName("STUNNER_AUTH_", name)
}

func newFlags(r *raw) *cli.Flags {
	f := cli.New("auth", envName)
	f.StringVar(&r.address, "address", "", "`ADDRESS` to serve the API on; empty means all")
	f.UintVar(&r.port, "port", 8088, "`PORT` to serve the API on; 0 takes a free one")
	f.StringVar(&r.tlsCert, "tls-cert", "",
		"`FILE` with the certificate chain of the API in PEM, read again when it changes; without it the API is plain HTTP")
	f.StringVar(&r.tlsKey, "tls-key", "", "`FILE` with the private key of --tls-cert in PEM")
	f.StringVar(&r.healthAddress, "health-address", ":8086",
		"`ADDRESS:PORT` of /live, /ready and /metrics; keep it inside the cluster, apart from the API")
	f.StringVar(&r.config, "config", "",
		"`ORIGIN` of gateway configs: a discovery server (http, https, ws, wss) or a file")
	f.StringVar(&r.clusters, "clusters", "",
		"`FILE` in YAML with the clusters whose gateway configs to read, and the regions of their clients, read again when it "+
			"changes; instead of --config and the --discovery-… flags")
	f.StringVar(&r.discoveryTokenFile, "discovery-token-file", "",
		"`FILE` with the bearer token for the discovery server")
	f.StringVar(&r.discoveryCAFile, "discovery-ca-file", "",
		"`FILE` with the CA certificates of the discovery server; empty means those of the system")
	f.StringVar(&r.access.Issuer, "jwt-issuer", "", "`ISSUER` that tokens must have (claim iss), compared exactly")
	f.StringVar(&r.access.Audience, "jwt-audience", "",
		"`AUDIENCE` that tokens must have (claim aud), compared exactly")
	f.StringVar(&r.access.SecretFile, "jwt-secret-file", "",
		"`FILE` with the secret that tokens are signed with (HMAC), at least 32 bytes for HS256, 48 for HS384, 64 for HS512")
	f.StringVar(&r.access.JWKSFile, "jwt-jwks-file", "", "`FILE` with the JWK set that tokens are signed with")
	f.StringVar(&r.access.JWKSURL, "jwt-jwks-url", "", "`URL` of the JWK set that tokens are signed with, https")
	f.StringVar(&r.algorithms, "jwt-algorithms", "",
		"`LIST` of algorithms that tokens may use, separated by commas; empty means HS256 with a secret, all "+
			"asymmetric ones with a JWK set")
	f.Int64Var(&r.maxAge, "jwt-max-age", 0,
		"`SECONDS` that may have passed since a token was issued (claim iat); 0 means any number")
	f.StringVar(&r.policy, "policy", "",
		"`FILE` with the policy in YAML: issuers of tokens, API keys, and what each caller may get; instead of the --jwt-… "+
			"flags")
	f.Var(&r.gateways, "gateways",
		"`LIST` of gateways to give credentials for, NAMESPACE/NAME, separated by commas; * matches any "+
			"characters; the flag may be repeated; without it, all gateways")
	f.Int64Var(&r.defaultTTL, "default-ttl", 86400,
		"`SECONDS` until credentials expire if the request does not set it; the lifetime of a gateway takes "+
			"precedence")
	f.Int64Var(&r.maxTTL, "max-ttl", 86400,
		"maximum `SECONDS` until credentials expire; the lifetime of a gateway takes precedence")
	f.StringVar(&r.publicAddr, "public-addr", "", "`HOST` that replaces the public address of every gateway")
	f.UintVar(&r.maxURLs, "max-urls", 5,
		"`NUMBER` of URLs of a gateway: the first public address of each listener has one, and further addresses have one "+
			"while there are fewer; answers of POST /v1/ice-servers and /compat/ never have more; 0 means no maximum")
	f.BoolVar(&r.capToToken, "cap-to-token", false, "let credentials expire no later than the token of the request")
	f.StringVar(&r.corsOrigins, "cors-origins", "",
		"`LIST` of origins, https://HOST[:PORT], whose pages may call the API from a browser (CORS), separated by "+
			"commas; empty means none")
	f.Float64Var(&r.rates.PerSecond, "rate-limit", 10,
		"rate limit in `REQUESTS` a second of one subject, and of one address (IPv6: one /64) outside of the "+
			"cluster; 0 means no limit")
	f.IntVar(&r.rates.Burst, "rate-burst", 50, "burst in `REQUESTS`")
	f.Float64Var(&r.rates.Inside.PerSecond, "cluster-rate-limit", 500,
		"rate limit in `REQUESTS` a second of one address inside of the cluster, such as the pod of a web app; 0 "+
			"means no limit")
	f.IntVar(&r.rates.Inside.Burst, "cluster-rate-burst", 1000, "burst in `REQUESTS`")
	f.StringVar(&r.clusterNetworks, "cluster-networks", "",
		"`LIST` of addresses and prefixes inside of the cluster, in addition to private ones, separated by commas")
	f.StringVar(&r.trustedProxies, "trusted-proxies", "",
		"`LIST` of addresses and prefixes of proxies that are trusted to name the client, separated by commas")
	f.StringVar(&r.rates.Header, "forwarded-header", rest.XForwardedFor,
		"`HEADER` in which trusted proxies name the client, X-Forwarded-For or Forwarded; the other one is ignored")
	f.BoolVar(&r.demo, "demo", false, "serve the test page at /demo/")
	f.StringVar(&r.demoEcho, "demo-echo", "",
		"`URL` of the echo peer of the test page; it answers an SDP offer with an SDP answer")
	f.BoolVar(&r.showUsers, "show-users", false,
		"show user names and source addresses instead of hashes in the credentials that the operator asks for")
	f.StringVar(&r.revocations, "revocations", "",
		"where POST /v1/revocations stores revocations: a `FOLDER` that the operator reads, kubernetes for the API server of "+
			"the pod, or an API server https://HOST:PORT; empty means nowhere")
	f.StringVar(&r.revocationsToken, "revocations-token-file", serviceAccount+"token",
		"`FILE` with the bearer token for the API server of --revocations")
	f.StringVar(&r.revocationsCA, "revocations-ca-file", serviceAccount+"ca.crt",
		"`FILE` with the CA certificates of the API server of --revocations")
	f.Int64Var(&r.shutdownDelay, "shutdown-delay", 5,
		"`SECONDS` to keep serving after SIGTERM while /ready answers 503, so that load balancers stop sending "+
			"requests before the service ends")
	f.StringVar(&r.logFormat, "log-format", "text", "`FORMAT` of the log, text or json")
	f.StringVar(&r.logLevel, "log-level", "all:INFO",
		"`LEVELS` of the log as SCOPE:LEVEL[,SCOPE:LEVEL…]; scopes: all access audit demo discovery gateway rest")
	f.BoolVar(&r.version, "version", false, "print the version and exit")
	f.Shorten(map[string]string{"c": "config", "p": "port", "l": "log-level"})
	f.AcceptFormer(formerSettings(f, r.getenv))
	return f
}

// parseOptions reads the flags. A flag that is not given takes its value from the environment, or else from a setting
// of the existing auth service (formerSettings). An unknown flag, a flag with an unreadable value or an extra argument
// is returned as the only error. All other errors are returned together.
func parseOptions(args []string, getenv func(string) string) (options, error) {
	r := raw{getenv: getenv}
	f := newFlags(&r)
	if err := f.Parse(args); err != nil {
		return options{}, err
	}
	if r.version {
		return r.options, nil
	}
	if f.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: every setting is a flag", f.Arg(0))
	}
	envErr := f.SetFromEnv(getenv)
	warnings, formerErr := f.SetFromFormer(getenv)
	o, err := r.check()
	o.warnings = warnings
	return o, errors.Join(envErr, formerErr, err)
}

// check validates and converts the settings.
func (r raw) check() (options, error) {
	o := r.options
	var errs cli.Errors
	switch alone := cmp.Or(o.config, o.discoveryTokenFile, o.discoveryCAFile) != ""; {
	case o.clusters != "" && alone:
		errs.Addf("--clusters excludes --config, --discovery-token-file and --discovery-ca-file: write them into the file")
	case o.clusters == "" && o.config == "":
		errs.Addf("--config is missing: name a discovery server or a config file, or several with --clusters")
	}
	if o.clusters != "" && o.revocations != "" {
		errs.Addf("--revocations and --clusters exclude each other: create Revocation objects in each cluster")
	}
	if r.port > 65535 {
		errs.Addf("--port: %d is out of range: use 0 to 65535", r.port)
	}
	if _, err := netip.ParseAddr(o.address); o.address != "" && err != nil {
		errs.Addf("--address: %q is no IP address", o.address)
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		errs.Addf("--tls-cert and --tls-key need each other: give both, or none for plain HTTP")
	}
	if o.publicAddr != "" && !rest.ValidHost(o.publicAddr) {
		errs.Addf("--public-addr: %q is no IP address or host name", o.publicAddr)
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		errs.Addf("--log-format: %q is unknown: use text or json", o.logFormat)
	}
	if r.algorithms != "" {
		o.access.Algorithms = strings.Split(r.algorithms, ",")
	}
	var err error
	if o.levels, err = telemetry.ParseLevels(r.logLevel); err != nil {
		errs.Addf("--log-level: %w", err)
	}
	o.demoEcho, err = parseEcho(r.demoEcho)
	errs.Add(err)
	o.origins, err = parseOrigins(r.corsOrigins)
	errs.Add(err)
	if o.rates.Proxies, err = parsePrefixes(r.trustedProxies); err != nil {
		errs.Addf("--trusted-proxies: %w", err)
	}
	if o.rates.Networks, err = parsePrefixes(r.clusterNetworks); err != nil {
		errs.Addf("--cluster-networks: %w", err)
	}
	switch strings.ToLower(o.rates.Header) {
	case "forwarded":
		o.rates.Header = rest.Forwarded
	case "x-forwarded-for":
		o.rates.Header = rest.XForwardedFor
	default:
		errs.Addf("--forwarded-header: %q is unknown: use %s or %s", o.rates.Header, rest.XForwardedFor, rest.Forwarded)
	}
	errs.Add(checkRate("rate", o.rates.Rate))
	errs.Add(checkRate("cluster-rate", o.rates.Inside))
	o.gateways, err = parseGateways(r.gateways)
	errs.Add(err)
	o.defaultTTL, o.maxTTL, err = parseTTL(r.defaultTTL, r.maxTTL)
	errs.Add(err)
	if r.shutdownDelay < 0 || r.shutdownDelay > 3600 {
		errs.Addf("--shutdown-delay: %d is out of range: use 0 to 3600", r.shutdownDelay)
	}
	o.shutdownDelay = time.Duration(r.shutdownDelay) * time.Second
	o.access.MaxAge = time.Duration(max(-1, min(r.maxAge, int64(credential.MaxTTL/time.Second)))) * time.Second
	if given := o.access.Given(); o.policy != "" && len(given) > 0 {
		errs.Addf("--policy and %s exclude each other: write the issuer into the policy file", strings.Join(given, ", "))
	} else {
		errs.Add(o.access.Validate())
	}
	return o, errs.Join()
}

func parseTTL(standard, most int64) (time.Duration, time.Duration, error) {
	limit := int64(credential.MaxTTL / time.Second)
	switch {
	case most < 1 || most > limit:
		return 0, 0, fmt.Errorf("--max-ttl: %d is out of range: use 1 to %d", most, limit)
	case standard < 1 || standard > most:
		return 0, 0, fmt.Errorf("--default-ttl: %d is out of range: use 1 to --max-ttl, %d", standard, most)
	}
	return time.Duration(standard) * time.Second, time.Duration(most) * time.Second, nil
}

// maxRate is the highest value of the flags for rates and bursts. The service cannot answer at this rate.
const maxRate = 1_000_000

// lists is the value of a flag with a list that may be given several times.
type lists []string

func (l *lists) String() string { return strings.Join(*l, ",") }

func (l *lists) Set(text string) error {
	*l = append(*l, text)
	return nil
}

// parseGateways parses --gateways. Without the flag every gateway is allowed. An empty list is an error.
func parseGateways(given lists) (access.Gateways, error) {
	if given == nil {
		return access.Gateways{}, nil
	}
	gateways, err := access.ParseGateways(cli.List(given.String()))
	switch {
	case err != nil:
		return gateways, fmt.Errorf("--gateways: %w", err)
	case gateways.Empty():
		return gateways, errors.New("--gateways: names no gateway: use NAMESPACE/NAME, or */* for every gateway")
	}
	return gateways, nil
}

// parseOrigins parses the values of --cors-origins in the form that browsers send (RFC 6454 §6.2). Patterns are not
// allowed: each origin is trusted explicitly.
func parseOrigins(s string) ([]string, error) {
	origins := cli.List(s)
	for _, o := range origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+u.Host != o ||
			strings.Contains(o, "*") {
			return nil, fmt.Errorf("--cors-origins: %q is no origin: use https://HOST[:PORT]", o)
		}
	}
	return origins, nil
}

func checkRate(flags string, r rest.Rate) (err error) {
	if !(r.PerSecond >= 0) || r.PerSecond > maxRate {
		err = fmt.Errorf("--%s-limit: %g is out of range: use 0 to %d", flags, r.PerSecond, maxRate)
	}
	if r.Burst < 1 || r.Burst > maxRate {
		err = errors.Join(err, fmt.Errorf("--%s-burst: %d is out of range: use 1 to %d", flags, r.Burst, maxRate))
	}
	return err
}

func parsePrefixes(s string) (prefixes []netip.Prefix, err error) {
	for _, text := range cli.List(s) {
		p, err := netip.ParsePrefix(text)
		if addr, single := netip.ParseAddr(text); single == nil {
			p, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("%q is no address or prefix", text)
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}

func parseEcho(s string) (*url.URL, error) {
	if s == "" {
		return nil, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("--demo-echo must be http://HOST:PORT/PATH")
	}
	return u, nil
}

func (o options) publicEndpoint() string {
	return net.JoinHostPort(o.address, strconv.FormatUint(uint64(o.port), 10))
}

// usage returns the text of --help.
func usage() string {
	var b strings.Builder
	b.WriteString(`Usage: auth --config ORIGIN [flags]
       auth --clusters FILE [flags]
       auth check URL
       auth version

Serves ICE servers with TURN credentials for the gateways of config discovery:
POST /v1/ice-servers, and for older clients GET / and GET /ice.

Without --policy and without --jwt-… flags the service answers every caller.

check requests a URL until it is answered with a status below 500, for at most 30 seconds. It exits with 1 otherwise.

Flags, each with its environment variable. The command line takes precedence.
`)
	newFlags(&raw{}).PrintHelp(&b)
	return b.String()
}
