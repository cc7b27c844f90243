package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// errHelp is returned when the user asks for help.
var errHelp = errors.New("help")

// options is the command line, checked.
type options struct {
	address            string
	port               uint
	healthAddress      string
	config             string
	discoveryTokenFile string
	discoveryCAFile    string
	access             access.Config
	gateways           access.Gateways
	defaultTTL, maxTTL time.Duration
	publicAddr         string
	origins            []string
	rates              rest.Rates
	capToToken         bool
	shutdownDelay      time.Duration
	demo               bool
	demoEcho           *url.URL
	logFormat          string
	levels             *telemetry.Levels
}

// raw is the command line as it stands.
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
}

// envNames are the environment twins that are not called after their flag: other parts of the system know them by these names.
var envNames = map[string]string{
	"config":      "STUNNER_CONFIG_ORIGIN",
	"public-addr": "STUNNER_PUBLIC_ADDR",
}

// envName is the variable that stands for a flag that is not given.
func envName(name string) string {
	if env, ok := envNames[name]; ok {
		return env
	}
	return "STUNNER_AUTH_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// short are the one-letter forms.
var short = map[string]string{"c": "config", "p": "port", "l": "log-level"}

func newFlags(r *raw) *flag.FlagSet {
	f := flag.NewFlagSet("auth", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&r.address, "address", "", "`ADDRESS` to serve the API on; empty means all")
	f.UintVar(&r.port, "port", 8088, "`PORT` to serve the API on; 0 takes a free one")
	f.StringVar(&r.healthAddress, "health-address", ":8086", "`ADDRESS:PORT` of /live, /ready and /metrics; keep it inside the cluster, apart from the API")
	f.StringVar(&r.config, "config", "", "`ORIGIN` of gateway configs: a discovery server (http, https, ws, wss) or a file")
	f.StringVar(&r.discoveryTokenFile, "discovery-token-file", "", "`FILE` with the bearer token for the discovery server")
	f.StringVar(&r.discoveryCAFile, "discovery-ca-file", "", "`FILE` with the certificates that the discovery server is checked against; empty means those of the system")
	f.StringVar(&r.access.Issuer, "jwt-issuer", "", "`ISSUER` that tokens must come from, compared exactly")
	f.StringVar(&r.access.Audience, "jwt-audience", "", "`AUDIENCE` that tokens must be meant for, compared exactly")
	f.StringVar(&r.access.SecretFile, "jwt-secret-file", "", "`FILE` with the secret that tokens are signed with (HMAC), at least 32 bytes")
	f.StringVar(&r.access.JWKSFile, "jwt-jwks-file", "", "`FILE` with the JWK set that tokens are signed with")
	f.StringVar(&r.access.JWKSURL, "jwt-jwks-url", "", "`URL` of the JWK set that tokens are signed with, https")
	f.StringVar(&r.algorithms, "jwt-algorithms", "", "`LIST` of algorithms that tokens may use, separated by commas; empty means HS256 with a secret, all asymmetric ones with a JWK set")
	f.Int64Var(&r.maxAge, "jwt-max-age", 0, "`SECONDS` that may have passed since a token was issued (claim iat); 0 means any number")
	f.Var(&r.gateways, "gateways", "`LIST` of gateways that credentials are given for, NAMESPACE/NAME, in which * stands for any characters, separated by commas; may be given several times, and not given means every gateway")
	f.Int64Var(&r.defaultTTL, "default-ttl", 86400, "`SECONDS` that credentials are good for when the request does not say; gateways with a lifetime use that")
	f.Int64Var(&r.maxTTL, "max-ttl", 86400, "`SECONDS` that credentials are good for at most; gateways with a lifetime use that")
	f.StringVar(&r.publicAddr, "public-addr", "", "`HOST` that replaces the public address of every gateway")
	f.BoolVar(&r.capToToken, "cap-to-token", false, "let credentials end with the token that they were asked for with")
	f.StringVar(&r.corsOrigins, "cors-origins", "", "`LIST` of origins, https://HOST[:PORT], whose pages may call from a browser, separated by commas; empty means none")
	f.Float64Var(&r.rates.PerSecond, "rate-limit", 10, "`REQUESTS` a second that are answered to one subject, and to one address outside of the cluster (of IPv6, one /64); 0 means any number")
	f.IntVar(&r.rates.Burst, "rate-burst", 50, "`REQUESTS` of them that may come at once after a silence")
	f.Float64Var(&r.rates.Inside.PerSecond, "cluster-rate-limit", 500, "`REQUESTS` a second that are answered to one address inside of the cluster, such as the pod of a web app; 0 means any number")
	f.IntVar(&r.rates.Inside.Burst, "cluster-rate-burst", 1000, "`REQUESTS` of them that may come at once after a silence")
	f.StringVar(&r.clusterNetworks, "cluster-networks", "", "`LIST` of addresses and prefixes that are inside of the cluster, beside private ones, separated by commas")
	f.StringVar(&r.trustedProxies, "trusted-proxies", "", "`LIST` of addresses and prefixes of proxies that are believed for whom they ask, separated by commas")
	f.StringVar(&r.rates.Header, "forwarded-header", rest.XForwardedFor, "`HEADER` in which trusted proxies say for whom they ask, X-Forwarded-For or Forwarded; the other one is not read")
	f.BoolVar(&r.demo, "demo", false, "serve the test page at /demo/")
	f.StringVar(&r.demoEcho, "demo-echo", "", "`URL` of the echo peer that the test page calls: SDP offer in, SDP answer out")
	f.Int64Var(&r.shutdownDelay, "shutdown-delay", 5, "`SECONDS` for which the service goes on to serve after SIGTERM, while /ready says 503, so that nobody is sent to it any more when it ends")
	f.StringVar(&r.logFormat, "log-format", "text", "`FORMAT` of the log, text or json")
	f.StringVar(&r.logLevel, "log-level", "all:INFO", "`LEVELS` of the log as SCOPE:LEVEL[,SCOPE:LEVEL…]; scopes: all access audit demo discovery gateway rest")
	for letter, name := range short {
		long := f.Lookup(name)
		f.Var(long.Value, letter, long.Usage)
	}
	return f
}

// parseOptions reads flags, and for those that are not given the environment.
func parseOptions(args []string, getenv func(string) string) (options, error) {
	var r raw
	f := newFlags(&r)
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return options{}, errHelp
	} else if err != nil {
		return options{}, err
	}
	if f.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: every setting is a flag", f.Arg(0))
	}
	if err := fromEnv(f, getenv); err != nil {
		return options{}, err
	}
	return r.check()
}

func fromEnv(f *flag.FlagSet, getenv func(string) string) error {
	given := map[string]bool{}
	f.Visit(func(fl *flag.Flag) { given[fl.Name], given[short[fl.Name]] = true, true })
	var errs []error
	f.VisitAll(func(fl *flag.Flag) {
		value := getenv(envName(fl.Name))
		if _, letter := short[fl.Name]; letter || given[fl.Name] || value == "" {
			return
		}
		if err := f.Set(fl.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", envName(fl.Name), err))
		}
	})
	return errors.Join(errs...)
}

// check turns what was typed into what can be run, and names everything that is wrong at once.
func (r raw) check() (options, error) {
	o := r.options
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.config == "" {
		wrong("--config is missing: name a discovery server or a config file")
	}
	if r.port > 65535 {
		wrong("--port: %d is out of range: use 0 to 65535", r.port)
	}
	if _, err := netip.ParseAddr(o.address); o.address != "" && err != nil {
		wrong("--address: %q is no IP address", o.address)
	}
	if o.publicAddr != "" && !rest.ValidHost(o.publicAddr) {
		wrong("--public-addr: %q is no IP address or host name", o.publicAddr)
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		wrong("--log-format: %q is unknown: use text or json", o.logFormat)
	}
	if r.algorithms != "" {
		o.access.Algorithms = strings.Split(r.algorithms, ",")
	}
	var err error
	if o.levels, err = telemetry.ParseLevels(r.logLevel); err != nil {
		wrong("--log-level: %w", err)
	}
	if o.demoEcho, err = parseEcho(r.demoEcho); err != nil {
		errs = append(errs, err)
	}
	if o.origins, err = parseOrigins(r.corsOrigins); err != nil {
		errs = append(errs, err)
	}
	if o.rates.Proxies, err = parsePrefixes(r.trustedProxies); err != nil {
		wrong("--trusted-proxies: %w", err)
	}
	if o.rates.Networks, err = parsePrefixes(r.clusterNetworks); err != nil {
		wrong("--cluster-networks: %w", err)
	}
	switch strings.ToLower(o.rates.Header) {
	case "forwarded":
		o.rates.Header = rest.Forwarded
	case "x-forwarded-for":
		o.rates.Header = rest.XForwardedFor
	default:
		wrong("--forwarded-header: %q is unknown: use %s or %s", o.rates.Header, rest.XForwardedFor, rest.Forwarded)
	}
	errs = append(errs, checkRate("rate", o.rates.Rate), checkRate("cluster-rate", o.rates.Inside))
	if o.gateways, err = parseGateways(r.gateways); err != nil {
		errs = append(errs, err)
	}
	if o.defaultTTL, o.maxTTL, err = parseTTL(r.defaultTTL, r.maxTTL); err != nil {
		errs = append(errs, err)
	}
	if r.shutdownDelay < 0 || r.shutdownDelay > 3600 {
		wrong("--shutdown-delay: %d is out of range: use 0 to 3600", r.shutdownDelay)
	}
	o.shutdownDelay = time.Duration(r.shutdownDelay) * time.Second
	o.access.MaxAge = time.Duration(max(-1, min(r.maxAge, int64(credential.MaxTTL/time.Second)))) * time.Second
	errs = append(errs, o.access.Validate())
	return o, errors.Join(errs...)
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

// maxRate is more than a service could answer.
const maxRate = 1_000_000

// lists is a flag that may be given several times, each time with a list.
type lists []string

func (l *lists) String() string { return strings.Join(*l, ",") }

func (l *lists) Set(text string) error {
	*l = append(*l, text)
	return nil
}

// parseGateways reads --gateways. That the flag is not given means every gateway; an empty list is a mistake of whoever writes it.
func parseGateways(given lists) (access.Gateways, error) {
	if given == nil {
		return access.Gateways{}, nil
	}
	gateways, err := access.ParseGateways(list(given.String()))
	switch {
	case err != nil:
		return gateways, fmt.Errorf("--gateways: %w", err)
	case gateways.Empty():
		return gateways, errors.New("--gateways: names no gateway: use NAMESPACE/NAME, or */* for every gateway")
	}
	return gateways, nil
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// parseOrigins takes origins as browsers write them (RFC 6454 §6.2) and no patterns: each is one site that somebody has decided to trust.
func parseOrigins(s string) ([]string, error) {
	origins := list(s)
	for _, o := range origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Scheme+"://"+u.Host != o || strings.Contains(o, "*") {
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
	for _, text := range list(s) {
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

// usage is the text of --help.
func usage() string {
	var b strings.Builder
	b.WriteString(`Usage: auth --config ORIGIN [flags]
       auth version

Serves ICE servers with TURN credentials for the gateways that config discovery reports:
POST /v1/ice-servers, and for older clients GET / and GET /ice.

Without --jwt-… flags everyone who reaches the service may ask.

Flags, each with the environment variable that stands in for it:
`)
	f := newFlags(&raw{})
	letters := map[string]string{}
	for letter, name := range short {
		letters[name] = "-" + letter + ", "
	}
	f.VisitAll(func(fl *flag.Flag) {
		if _, letter := short[fl.Name]; letter {
			return
		}
		argument, text := flag.UnquoteUsage(fl)
		standard := ""
		if fl.DefValue != "" && fl.DefValue != "false" {
			standard = " (default " + fl.DefValue + ")"
		}
		fmt.Fprintf(&b, "\n  %s--%s %s  $%s\n      %s%s\n", letters[fl.Name], fl.Name, argument, envName(fl.Name), text, standard)
	})
	return b.String()
}
