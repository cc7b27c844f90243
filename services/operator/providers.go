package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stunner-gateway/stunner/services/api/cli"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/file"
	"github.com/stunner-gateway/stunner/services/operator/internal/kube"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// translation returns the options of the translation that result from the flags.
func (o options) translation() translate.Options {
	return translate.Options{
		ControllerName: o.controllerName, EndpointDiscovery: o.endpoints, ClusterDomain: o.clusterDomain,
		DiscoveryAddress: o.discoveryURL, DiscoverySecured: o.secured(), ScalerAddress: o.scalerURL, Image: o.image,
		OwnConfigs: translate.OwnConfigs(o.ownConfigs), TrustClassSecrets: o.trustClass,
	}
}

func (o options) logger() *slog.Logger {
	return telemetry.Scope(telemetry.NewLog(os.Stderr, o.logFormat, o.levels), "operator")
}

// fileProvider returns the file provider, configured according to the flags.
func (o options) fileProvider() file.Provider {
	return file.Provider{
		Input: o.input, Output: o.output, Addresses: cli.List(o.address), Stunnerd: o.stunnerd, Watch: o.watch,
		DiscoveryAddress: o.discoveryAddress, HealthAddress: o.healthAddress, DiscoveryAuth: o.discoveryAuth,
		Bound: o.childLifetime == "bound", LeaveDataplanes: o.leaveDataplanes, StopGrace: o.stopGrace,
		Options: o.translation(), Log: o.logger(),
	}
}

// kubeProvider returns the provider for a cluster, configured according to the flags. It also sends the logs of
// Kubernetes libraries to the operator's log.
func (o options) kubeProvider() (*kube.Provider, error) {
	p := &kube.Provider{Settings: kube.Settings{
		Namespace: o.namespace, Identity: o.identity, Namespaces: cli.List(o.namespaces), Address: o.address,
		TokenFile:        o.tokenFile,
		DiscoveryAddress: o.discoveryAddress, HealthAddress: o.healthAddress, ScalerAddress: o.scalerAddress,
		DiscoveryAuth: o.discoveryAuth, DiscoveryReaders: o.accounts(), Credentials: o.credentials,
		Options: o.translation(), Log: o.logger(),
	}}
	if p.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return p, fmt.Errorf("name this replica: %w: use --identity", err)
		}
		p.Identity = host
	}
	klog.SetSlogLogger(slog.New(noTrace{p.Log.Handler()}))
	ctrllog.SetLogger(klog.Background())
	var err error
	if p.Config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
		return p, fmt.Errorf("reach API server: %w: use --kubeconfig outside of a cluster", err)
	}
	p.Config.UserAgent = "stunner-operator"
	// QPS -1 disables the rate limit of the client: with the default of five requests a second, a start of the operator
	// would take minutes. API Priority and Fairness protects the API server.
	p.Config.QPS = -1
	return p, nil
}

// noTrace is the log handler for Kubernetes libraries. It always drops records below level debug, because they contain
// complete requests and responses, including Secrets.
type noTrace struct{ slog.Handler }

func (d noTrace) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && d.Handler.Enabled(ctx, level)
}

func (d noTrace) WithAttrs(attrs []slog.Attr) slog.Handler {
	return noTrace{d.Handler.WithAttrs(attrs)}
}

func (d noTrace) WithGroup(name string) slog.Handler { return noTrace{d.Handler.WithGroup(name)} }
