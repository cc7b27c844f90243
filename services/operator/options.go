package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stunner-gateway/stunner/services/api/cli"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The values of --provider.
const (
	providerFile       = "file"
	providerKubernetes = "kubernetes"
)

// options are the settings from the command line and from the environment.
type options struct {
	provider         string
	input            string
	output           string
	address          string
	stunnerd         string
	watch            bool
	discoveryAddress string
	discoveryAuth    string
	healthAddress    string
	childLifetime    string
	leaveDataplanes  bool
	stopGrace        time.Duration
	controllerName   string
	endpoints        bool
	clusterDomain    string
	image            string
	discoveryURL     string
	scalerURL        string
	scalerAddress    string
	log              string
	logFormat        string
	version          bool
	kubeconfig       string
	namespace        string
	identity         string
	readers          string
	namespaces       string
	tokenFile        string
	credentials      string
	ownConfigs       string
	trustClass       bool

	levels   *telemetry.Levels
	warnings []string // warnings about settings that are ignored
}

const envPrefix = "STUNNER_OPERATOR_"

const usage = `operator translates Gateway API objects into TURN gateways.

  operator --provider=file --input DIR --output DIR --stunnerd PATH
      reads *.yaml and *.yml in a folder and its direct subfolders, runs one stunnerd process per Gateway on this host,
      and writes status.txt, problems.yaml, statuses and rendered Kubernetes objects into the output folder
  operator --provider=file --input DIR --output DIR --watch=false
      writes the output folder once and exits; exit code 1 when a document is invalid
  operator --provider=kubernetes
      watches its cluster, serves configs to dataplane pods, and on the leader writes objects and statuses
  operator version

With --provider=file a file that cannot be read removes nothing: its previous objects stay in use until all of it can
be read again. An empty file counts as one that is being written. To remove objects, delete them from a file that can be
read, or delete the file.

Flags, each with its environment variable. The command line takes precedence.
`

// flags defines the flags and their defaults.
func (o *options) flags(fs *flag.FlagSet) {
	d := translate.DefaultOptions()
	fs.StringVar(&o.provider, "provider", "file", "where objects are read from: file or kubernetes")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "",
		"with kubernetes: kubeconfig file; empty uses the ServiceAccount of the pod")
	fs.StringVar(&o.namespace, "namespace", "stunner-system",
		"with kubernetes: namespace of the operator, with the Lease of the leader election")
	fs.StringVar(&o.identity, "identity", "", "with kubernetes: name of this replica; empty means the host name")
	fs.StringVar(&o.tokenFile, "discovery-token-file", "", tokenFileUsage)
	fs.StringVar(&o.namespaces, "watch-namespaces", "",
		"with kubernetes: comma-separated namespaces to watch, for which Roles suffice; empty means all")
	fs.StringVar(&o.credentials, "credentials", "", credentialsUsage)
	fs.StringVar(&o.readers, "discovery-readers", "", readersUsage)
	fs.StringVar(&o.ownConfigs, "own-gateway-configs", string(d.OwnConfigs), ownConfigsUsage)
	fs.BoolVar(&o.trustClass, "trust-class-secret-refs", false, trustClassUsage)
	fs.StringVar(&o.input, "input", "", "with file: folder of YAML")
	fs.StringVar(&o.output, "output", "", "with file: folder for statuses, rendered objects, logs and state")
	fs.StringVar(&o.address, "address", "127.0.0.1", addressUsage)
	fs.StringVar(&o.stunnerd, "stunnerd", "", "program that serves a Gateway; empty renders only")
	fs.BoolVar(&o.watch, "watch", true, "watch the folder; false reads it once")
	fs.StringVar(&o.discoveryAddress, "discovery-address", "127.0.0.1:13478", "HOST:PORT of config discovery")
	fs.StringVar(&o.discoveryAuth, "discovery-auth", "", discoveryAuthUsage)
	fs.StringVar(&o.healthAddress, "health-address", "127.0.0.1:0",
		"HOST:PORT of /live, /ready and /metrics; port 0 is any free port, which is logged")
	fs.StringVar(&o.childLifetime, "child-lifetime", "free", childLifetimeUsage)
	fs.BoolVar(&o.leaveDataplanes, "leave-dataplanes", false, "do not stop stunnerd processes when the operator stops")
	fs.DurationVar(&o.stopGrace, "stop-grace", 5*time.Second, "how long stunnerd may take to end before it is killed")
	fs.StringVar(&o.controllerName, "controller-name", d.ControllerName,
		"controller name of the GatewayClasses to reconcile")
	fs.BoolVar(&o.endpoints, "endpoint-discovery", d.EndpointDiscovery, endpointsUsage)
	fs.StringVar(&o.clusterDomain, "cluster-domain", d.ClusterDomain, "DNS domain of the cluster")
	fs.StringVar(&o.image, "image", d.Image, "image in rendered objects for a Dataplane without image")
	fs.StringVar(&o.discoveryURL, "discovery-url", "", discoveryURLUsage)
	fs.StringVar(&o.scalerAddress, "scaler-address", "127.0.0.1:13480", scalerAddressUsage)
	fs.StringVar(&o.scalerURL, "scaler-url", "", scalerURLUsage)
	fs.StringVar(&o.log, "log", "all:INFO", "log level SCOPE:LEVEL[,SCOPE:LEVEL…]")
	fs.StringVar(&o.logFormat, "log-format", "text", "log format: text or json")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
}

const (
	tokenFileUsage = `with kubernetes: file with a token of an account in --discovery-readers, with which replicas read
each other's reports of dataplanes`
	credentialsUsage = `with kubernetes: Secret in --namespace that is created with a random shared secret if it does not
exist; empty creates none`
	readersUsage = `with kubernetes: comma-separated accounts, NAMESPACE/SERVICEACCOUNT, that may read the part of all
configs that an auth service needs; NAMESPACE/SERVICEACCOUNT:whole reads whole configs, private keys included`
	ownConfigsUsage = `what a GatewayConfig that a Gateway references itself may do: deny (nothing), restricted (narrow
that of its GatewayClass) or allow (replace it)`
	trustClassUsage = `let a GatewayConfig that a GatewayClass references read Secrets of other namespaces without a
ReferenceGrant`
	addressUsage = `IP address: with file that of this host, to which clients connect and from which relays send, or one of
each family, separated by a comma; with kubernetes that of the pod`
	childLifetimeUsage = `what a crash of the operator does to stunnerd: free (it continues, and the next operator adopts
it) or bound (it ends)`
	endpointsUsage = `let clients reach the endpoints of a Service; false: the addresses that its DNS name resolves to`
)

// newFlags returns the flags of the operator, together with their environment variables.
func (o *options) newFlags() *cli.Flags {
	f := cli.New("operator", func(name string) string { return cli.EnvName(envPrefix, name) })
	o.flags(f.FlagSet)
	f.AcceptFormer(formerSettings)
	return f
}

// parse reads the flags from the command line. A flag that is not given is read from its environment variable. An error
// in the syntax of the command line and an unknown --provider hide further errors. Other errors are returned together.
func parse(args []string, env func(string) string, out io.Writer) (o options, err error) {
	f := o.newFlags()
	if len(args) > 0 && args[0] == "version" {
		o.version = true
		return o, nil
	}
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, usage)
			f.PrintHelp(out)
		}
		return o, err
	}
	if o.version {
		return o, nil
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: use flags only", f.Arg(0))
	}
	envErr := f.SetFromEnv(env)
	var formerErr error
	o.warnings, formerErr = f.SetFromFormer(env)
	o.warnings = append(o.warnings, o.warnIgnored(f)...)
	return o, errors.Join(envErr, formerErr, o.check())
}

// check checks the values of flags, and sets defaults that depend on other flags.
func (o *options) check() error {
	var errs cli.Errors
	needed := map[string][]struct{ name, value string }{
		providerFile:       {{"--input", o.input}, {"--output", o.output}, {"--controller-name", o.controllerName}},
		providerKubernetes: {{"--namespace", o.namespace}, {"--controller-name", o.controllerName}},
	}
	if needed[o.provider] == nil {
		return fmt.Errorf("--provider %q: use %s or %s", o.provider, providerFile, providerKubernetes)
	}
	for _, f := range needed[o.provider] {
		if f.value == "" {
			errs.Addf("%s is missing", f.name)
		}
	}
	if err := o.checkDiscovery(); err != nil {
		errs.Add(err)
	} else { // the defaults of the scaler depend on config discovery
		errs.Add(o.checkScaler())
	}
	for _, namespace := range cli.List(o.namespaces) {
		if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
			errs.Addf("--watch-namespaces %q: %s", namespace, wrong[0])
		}
	}
	if wrong := validation.IsDNS1123Subdomain(o.credentials); o.credentials != "" && len(wrong) > 0 {
		errs.Addf("--credentials %q: %s", o.credentials, wrong[0])
	}
	errs.Add(o.checkAddresses())
	errs.AddOneOf("--child-lifetime", o.childLifetime, "free", "bound")
	errs.AddOneOf("--log-format", o.logFormat, "text", "json")
	errs.AddOneOf("--own-gateway-configs", o.ownConfigs,
		string(translate.OwnConfigsDeny), string(translate.OwnConfigsRestricted), string(translate.OwnConfigsAllow))
	if o.stopGrace <= 0 {
		errs.Addf("--stop-grace %s: must be more than 0s", o.stopGrace)
	}
	levels, err := telemetry.ParseLevels(o.log)
	if err != nil {
		errs.Addf("--log: %w", err)
	}
	o.levels = levels
	return errs.Join()
}

// checkAddress checks --address: one IP address, or with the file provider one of each family.
func (o *options) checkAddress() error {
	all := cli.List(o.address)
	families := map[bool]bool{}
	for _, text := range all {
		a, err := netip.ParseAddr(text)
		if err != nil || a.IsUnspecified() || families[a.Unmap().Is4()] {
			return fmt.Errorf("--address %q: use an IP address of this host, or one of each family", o.address)
		}
		families[a.Unmap().Is4()] = true
	}
	if len(all) == 0 || len(all) > 1 && o.provider != providerFile {
		return fmt.Errorf("--address %q: use an IP address of this host", o.address)
	}
	return nil
}

// checkAddresses checks --address, --discovery-address and --health-address, and that --input and --output differ.
func (o *options) checkAddresses() error {
	var errs cli.Errors
	errs.Add(o.checkAddress())
	type addressFlag struct{ name, value string }
	for _, f := range []addressFlag{
		{"--discovery-address", o.discoveryAddress}, {"--health-address", o.healthAddress},
	} {
		if _, _, err := net.SplitHostPort(f.value); err != nil {
			errs.Addf("%s %q: use HOST:PORT", f.name, f.value)
		}
	}
	if o.provider == providerFile && o.input != "" && filepath.Clean(o.input) == filepath.Clean(o.output) {
		errs.Addf("--output %s: is the input folder as well: name another", o.output)
	}
	return errs.Join()
}

// accounts returns the entries of --discovery-readers.
func (o options) accounts() []string { return cli.List(o.readers) }
