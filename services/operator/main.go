// Command operator turns Gateway API objects into dataplane configs and keeps the dataplanes running that serve them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/file"
	"github.com/stunner-gateway/stunner/services/operator/internal/kube"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Exit codes: 1 when running failed, 2 when the command line is wrong.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	o, err := parse(os.Args[1:], os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "operator: %v\n\"operator --help\" lists the flags\n", err)
		os.Exit(exitUsage)
	case o.version:
		fmt.Println(telemetry.Version("operator"))
		return
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(exitFailed)
	}
}

// run serves until a signal comes. The first one stops in order, the second one at once.
func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	defer stop()
	if o.provider == providerKubernetes {
		p, err := o.kubeProvider()
		if err != nil {
			return err
		}
		p.Memory = limitMemory(memlimit.FromCgroup, os.Getenv, p.Log)
		return within(ctx, stopTime, p.Run, p.Running)
	}
	return o.fileProvider().Run(ctx)
}

// share of the memory that the process may have, in percent, from which on the garbage collector works harder: the rest is for what is not on its heap.
const memoryShare = 90

// limitMemory tells the garbage collector how much memory the cgroup of the process has, and returns it: 0 if nobody says. GOMEMLIMIT wins.
func limitMemory(cgroup func() (uint64, error), env func(string) string, log *slog.Logger) int64 {
	if env("GOMEMLIMIT") != "" {
		if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
			return limit / memoryShare * 100
		}
		return 0
	}
	limit, err := cgroup()
	if err != nil || limit == 0 || limit >= math.MaxInt64/2 {
		log.Debug("no memory limit", "error", err)
		return 0
	}
	debug.SetMemoryLimit(int64(limit / 100 * memoryShare))
	return int64(limit)
}

// stopTime is how long an operator in a cluster may take to end: dataplanes run on without it, and nothing that it holds is worth waiting for.
const stopTime = 4500 * time.Millisecond

// within runs until ctx ends, and then waits no longer than it may. Running names what it does not wait for.
func within(ctx context.Context, grace time.Duration, run func(context.Context) error, running func() string) error {
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(grace):
		return fmt.Errorf("stop: given up after %s, still running: %s", grace, running())
	}
}

// The values of --provider.
const (
	providerFile       = "file"
	providerKubernetes = "kubernetes"
)

// options are the command line and the environment.
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

	levels *telemetry.Levels
}

const envPrefix = "STUNNER_OPERATOR_"

const usage = `operator turns Gateway API objects into TURN gateways.

  operator --provider=file --input DIR --output DIR --stunnerd PATH
      reads *.yaml and *.yml in a folder and its direct subfolders, runs one stunnerd process per Gateway on this host,
      and writes status.txt, problems.yaml, statuses and rendered Kubernetes objects into the output folder
  operator --provider=file --input DIR --output DIR --watch=false
      writes the output folder once and exits; exit code 1 when a document is not in force
  operator --provider=kubernetes
      watches the cluster that it runs in, serves configs to dataplane pods, and, on the replica that leads, writes objects and statuses
  operator version

With --provider=file a broken file takes nothing away: what it held stays in force until all of it can be read again. An empty file counts as one that is being
written. To remove objects, delete them from a file that can be read, or delete the file.

Each flag has an environment variable, ` + envPrefix + ` followed by its name in capitals with underscores: --stop-grace is
` + envPrefix + `STOP_GRACE. The command line wins.

flags:
`

// flags declares the flags with their defaults.
func (o *options) flags(fs *flag.FlagSet) {
	defaults := translate.DefaultOptions()
	fs.StringVar(&o.provider, "provider", "file", "where objects come from: file or kubernetes")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "with kubernetes: file that says how to reach the API server; empty means the pod's own account")
	fs.StringVar(&o.namespace, "namespace", "stunner-system", "with kubernetes: namespace of the operator, where replicas agree on a leader")
	fs.StringVar(&o.identity, "identity", "", "with kubernetes: name of this replica; empty means the host name")
	fs.StringVar(&o.tokenFile, "discovery-token-file", "", "with kubernetes: file with a token of an account in --discovery-readers, by which replicas tell each other what dataplanes report")
	fs.StringVar(&o.namespaces, "watch-namespaces", "", "with kubernetes: comma-separated namespaces to look after, for which Roles are enough; empty means all of them")
	fs.StringVar(&o.credentials, "credentials", "", "with kubernetes: Secret in --namespace that is made, with a shared secret drawn by lot, where there is none; empty means that nobody wants it")
	fs.StringVar(&o.readers, "discovery-readers", "", "with kubernetes: comma-separated accounts that may read what an auth service needs of all configs, NAMESPACE/SERVICEACCOUNT; NAMESPACE/SERVICEACCOUNT:whole reads whole configs, private keys included")
	fs.StringVar(&o.ownConfigs, "own-gateway-configs", string(defaults.OwnConfigs), "what the GatewayConfig may do that a Gateway names itself: deny (nothing), restricted (narrow that of its GatewayClass) or allow (replace it)")
	fs.BoolVar(&o.trustClass, "trust-class-secret-refs", false, "let a GatewayConfig that a GatewayClass names read Secrets of other namespaces without a ReferenceGrant")
	fs.StringVar(&o.input, "input", "", "with file: folder of YAML")
	fs.StringVar(&o.output, "output", "", "with file: folder for statuses, rendered objects, logs and state")
	fs.StringVar(&o.address, "address", "127.0.0.1", "IP address: with file that of this host, to which clients connect and which peers see; with kubernetes that of the pod")
	fs.StringVar(&o.stunnerd, "stunnerd", "", "program that serves a Gateway; empty renders only")
	fs.BoolVar(&o.watch, "watch", true, "follow changes of the folder; false reads it once")
	fs.StringVar(&o.discoveryAddress, "discovery-address", "127.0.0.1:13478", "HOST:PORT of config discovery")
	fs.StringVar(&o.discoveryAuth, "discovery-auth", "", discoveryAuthUsage)
	fs.StringVar(&o.healthAddress, "health-address", "127.0.0.1:0", "HOST:PORT of /live, /ready and /metrics; port 0 is any free one, which the log names")
	fs.StringVar(&o.childLifetime, "child-lifetime", "free", "what a crash of the operator means for stunnerd: free (it goes on, and the next operator takes it over) or bound (it ends)")
	fs.BoolVar(&o.leaveDataplanes, "leave-dataplanes", false, "let stunnerd go on when the operator is told to stop")
	fs.DurationVar(&o.stopGrace, "stop-grace", 5*time.Second, "how long stunnerd may take to end before it is killed")
	fs.StringVar(&o.controllerName, "controller-name", defaults.ControllerName, "controller name of the GatewayClasses to take care of")
	fs.BoolVar(&o.endpoints, "endpoint-discovery", defaults.EndpointDiscovery, "let clients reach the endpoints of a Service; false: what its DNS name stands for")
	fs.StringVar(&o.clusterDomain, "cluster-domain", defaults.ClusterDomain, "DNS domain of the cluster")
	fs.StringVar(&o.image, "image", defaults.Image, "image in rendered objects when the Dataplane names none")
	fs.StringVar(&o.discoveryURL, "discovery-url", "", discoveryURLUsage)
	fs.StringVar(&o.scalerAddress, "scaler-address", "127.0.0.1:13480", scalerAddressUsage)
	fs.StringVar(&o.scalerURL, "scaler-url", "", scalerURLUsage)
	fs.StringVar(&o.log, "log", "all:INFO", "log level SCOPE:LEVEL[,SCOPE:LEVEL…]")
	fs.StringVar(&o.logFormat, "log-format", "text", "log format: text or json")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
}

// parse reads environment and command line and checks everything before anything starts.
func parse(args []string, env func(string) string, out io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("operator", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.flags(fs)
	fs.VisitAll(func(f *flag.Flag) {
		name := envName(f.Name)
		if value := env(name); value != "" && err == nil {
			if bad := fs.Set(f.Name, value); bad != nil {
				err = fmt.Errorf("%s %q: %w", name, value, bad)
			}
		}
	})
	if err != nil {
		return o, err
	}
	if len(args) > 0 && args[0] == "version" {
		o.version = true
		return o, nil
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, usage)
			fs.SetOutput(out)
			fs.PrintDefaults()
		}
		return o, err
	}
	if o.version {
		return o, nil
	}
	return o, o.check(fs.Args())
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// check says what is wrong with the first flag that is.
func (o *options) check(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: everything is said with flags", args[0])
	}
	needed := map[string][]struct{ name, value string }{
		providerFile:       {{"--input", o.input}, {"--output", o.output}, {"--controller-name", o.controllerName}},
		providerKubernetes: {{"--namespace", o.namespace}, {"--controller-name", o.controllerName}},
	}
	if needed[o.provider] == nil {
		return fmt.Errorf("--provider %q: use %s or %s", o.provider, providerFile, providerKubernetes)
	}
	for _, f := range needed[o.provider] {
		if f.value == "" {
			return fmt.Errorf("%s is missing", f.name)
		}
	}
	if err := o.checkDiscovery(); err != nil {
		return err
	}
	if err := o.checkScaler(); err != nil {
		return err
	}
	for _, namespace := range list(o.namespaces) {
		if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
			return fmt.Errorf("--watch-namespaces %q: %s", namespace, wrong[0])
		}
	}
	if wrong := validation.IsDNS1123Subdomain(o.credentials); o.credentials != "" && len(wrong) > 0 {
		return fmt.Errorf("--credentials %q: %s", o.credentials, wrong[0])
	}
	if err := o.checkPlaces(); err != nil {
		return err
	}
	for _, f := range []struct {
		name, value string
		words       []string
	}{
		{"--child-lifetime", o.childLifetime, []string{"free", "bound"}},
		{"--log-format", o.logFormat, []string{"text", "json"}},
		{"--own-gateway-configs", o.ownConfigs, []string{string(translate.OwnConfigsDeny), string(translate.OwnConfigsRestricted), string(translate.OwnConfigsAllow)}},
	} {
		if !slices.Contains(f.words, f.value) {
			return fmt.Errorf("%s %q: use %s", f.name, f.value, strings.Join(f.words, " or "))
		}
	}
	if o.stopGrace <= 0 {
		return fmt.Errorf("--stop-grace %s: must be more than 0s", o.stopGrace)
	}
	levels, err := telemetry.ParseLevels(o.log)
	if err != nil {
		return fmt.Errorf("--log: %w", err)
	}
	o.levels = levels
	return nil
}

// checkPlaces checks addresses and folders.
func (o *options) checkPlaces() error {
	if a, err := netip.ParseAddr(o.address); err != nil || a.IsUnspecified() {
		return fmt.Errorf("--address %q: use an IP address of this host", o.address)
	}
	for _, f := range []struct{ name, value string }{{"--discovery-address", o.discoveryAddress}, {"--health-address", o.healthAddress}} {
		if _, _, err := net.SplitHostPort(f.value); err != nil {
			return fmt.Errorf("%s %q: use HOST:PORT", f.name, f.value)
		}
	}
	if o.provider == providerFile && filepath.Clean(o.input) == filepath.Clean(o.output) {
		return fmt.Errorf("--output %s: is the input folder as well: name another", o.output)
	}
	return nil
}

// translation are the options of the translation.
func (o options) translation() translate.Options {
	return translate.Options{ControllerName: o.controllerName, EndpointDiscovery: o.endpoints, ClusterDomain: o.clusterDomain,
		DiscoveryAddress: o.discoveryURL, DiscoverySecured: o.secured(), ScalerAddress: o.scalerURL, Image: o.image,
		OwnConfigs: translate.OwnConfigs(o.ownConfigs), TrustClassSecrets: o.trustClass}
}

func (o options) logger() *slog.Logger {
	return telemetry.Scope(telemetry.NewLog(os.Stderr, o.logFormat, o.levels), "operator")
}

// accounts are the accounts in --discovery-readers.
func (o options) accounts() []string { return list(o.readers) }

// list reads a flag of several values.
func list(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}

// fileProvider is what the options ask for.
func (o options) fileProvider() file.Provider {
	return file.Provider{
		Input: o.input, Output: o.output, Address: o.address, Stunnerd: o.stunnerd, Watch: o.watch,
		DiscoveryAddress: o.discoveryAddress, HealthAddress: o.healthAddress, DiscoveryAuth: o.discoveryAuth,
		Bound: o.childLifetime == "bound", LeaveDataplanes: o.leaveDataplanes, StopGrace: o.stopGrace,
		Options: o.translation(), Log: o.logger(),
	}
}

// kubeProvider is what the options ask for.
func (o options) kubeProvider() (*kube.Provider, error) {
	p := &kube.Provider{Settings: kube.Settings{
		Namespace: o.namespace, Identity: o.identity, Namespaces: list(o.namespaces), Address: o.address,
		TokenFile: o.tokenFile, DiscoveryAddress: o.discoveryAddress, HealthAddress: o.healthAddress,
		ScalerAddress: o.scalerAddress, DiscoveryAuth: o.discoveryAuth, DiscoveryReaders: o.accounts(), Credentials: o.credentials,
		Options: o.translation(), Log: o.logger(),
	}}
	if p.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return p, fmt.Errorf("name this replica: %w: use --identity", err)
		}
		p.Identity = host
	}
	klog.SetSlogLogger(slog.New(discreet{p.Log.Handler()}))
	ctrllog.SetLogger(klog.Background())
	var err error
	if p.Config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
		return p, fmt.Errorf("reach API server: %w: use --kubeconfig outside of a cluster", err)
	}
	p.Config.UserAgent = "stunner-operator"
	p.Config.QPS = -1 // the API server shares itself out (API priority and fairness); five requests a second would make a start take minutes
	return p, nil
}

// discreet is the log of libraries. Below debug, they log what they send and receive word for word, Secrets and keys too: that nobody gets to see,
// whatever the log level.
type discreet struct{ slog.Handler }

func (d discreet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && d.Handler.Enabled(ctx, level)
}

func (d discreet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return discreet{d.Handler.WithAttrs(attrs)}
}

func (d discreet) WithGroup(name string) slog.Handler { return discreet{d.Handler.WithGroup(name)} }
