package command

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/collect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/report"
)

func newWhy(g *globals) *cobra.Command {
	var asked diagnose.Asked
	var probing probeFlags
	c := &cobra.Command{
		Use:   "why GATEWAY",
		Short: "Find out why a Gateway does not work",
		Long: `Checks a Gateway in the order in which a call uses its parts: class, parameters,
conditions, Services and their events, address, pods, the config in force in each
pod, listeners and certificates, credentials, routes, backends and limits.
It stops at the first error, and prints the object, the field and the remedy.

With --folder it first checks that all documents of the input folder are in force.

If the operator cannot be reached, one finding says why, and the stages that need
the answers of running pods are listed as not checked.

If no error is found, it sends packets, in at most 20 seconds: STUN requests to the
public URLs over each transport, short ones and ones as long as media, and to the
pods directly; an allocation with a credential of the user stunnerctl; and six
datagrams to each of at most 20 backends. Each step says what it proves.
--probe=false sends none.

With --peer it also asks the running pods whether a route allows the peer, and
with --user or --client what happened to this client: sessions, refusals, and
the credentials that the auth service gave.

The exit code is 1 if something is wrong.`,
		Example: `  stunnerctl why front-door -n meet
  stunnerctl why meet/front-door --peer 10.0.0.9:20000
  stunnerctl why meet/front-door --user ada`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			gateway, err := g.parseName(args[0])
			if err != nil {
				return err
			}
			if err := checkAsked(&asked); err != nil {
				return err
			}
			s, err := g.snapshot(c.Context(), collect.Options{Gateway: gateway, Asked: asked})
			if err != nil {
				return err
			}
			why := func() diagnose.Report { return diagnose.Why(s, gateway.Namespace, gateway.Name) }
			if probing.on {
				s.Probes = map[string]*diagnose.Probe{}
				if err := g.probe(c.Context(), s, probing, []diagnose.Report{why()}, []types.NamespacedName{gateway}); err != nil {
					return err
				}
			}
			r := why()
			if !g.printer().IsTable() {
				err = g.printer().Value(r)
			} else {
				err = g.printReports([]diagnose.Report{r})
			}
			return failedIf(r.Wrong(), err)
		},
	}
	c.Flags().StringVar(&asked.Peer, "peer", "", "address of a peer, IP:PORT")
	c.Flags().StringVar(&asked.User, "user", "", "user name, as it was given to the auth service, or its hash")
	c.Flags().StringVar(&asked.Client, "client", "", "IP address of a client, or its hash")
	probing.addFlags(c.Flags(), true)
	return g.completesGateways(c, 1)
}

func checkAsked(asked *diagnose.Asked) error {
	if asked.Peer == "" {
		return nil
	}
	peer, err := netip.ParseAddrPort(asked.Peer)
	if err != nil || peer.Port() == 0 {
		return usagef("--peer %q: use IP:PORT, or [IP]:PORT for IPv6", asked.Peer)
	}
	return nil
}

func newDoctor(g *globals) *cobra.Command {
	var probing probeFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation and all Gateways",
		Long: `Checks everything that why checks, for all Gateways of the namespace or with -A of
the cluster, and what they share: versions and owners of the CRDs, the operator
and config discovery, the auth services, admission policies, clocks, and the
implementation of Services on the nodes. Each finding has a severity and a remedy.

With --probe it also sends the packets of why, to at most 20 Gateways.

Objects that you may not read are left out, and one finding names the rights. If
you may not list Gateways, this is an error.
The exit code is 1 if a finding is an error or a warning.`,
		Example: `  stunnerctl doctor -A
  stunnerctl doctor -n meet -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			namespace := g.namespace()
			if g.allNamespaces || g.folder != "" && *g.kube.Namespace == "" {
				namespace = ""
			}
			s, err := g.snapshot(c.Context(), collect.Options{Namespace: namespace, Installation: true})
			if err != nil {
				return err
			}
			reports := diagnose.Doctor(s, namespace)
			if probing.on {
				if reports, err = g.probeAll(c.Context(), s, probing, namespace); err != nil {
					return err
				}
			}
			findings := diagnose.All(reports)
			if !g.printer().IsTable() {
				err = g.printer().Value(struct {
					Reports  []diagnose.Report  `json:"reports"`
					Findings []diagnose.Finding `json:"findings"`
				}{reports, findings})
			} else {
				err = g.printReports(reports)
			}
			return failedIf(diagnose.Wrong(findings), err)
		},
	}
	probing.addFlags(c.Flags(), false)
	return c
}

// snapshot reads the snapshot of a diagnosis. With --operator, objects are read only if a flag names their cluster,
// because the default kubeconfig may name another cluster.
func (g *globals) snapshot(ctx context.Context, o collect.Options) (*diagnose.Snapshot, error) {
	answers, err := g.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = answers.Close() }()
	o.Answers, o.Objects, o.OperatorNamespace, o.Now = answers, answers, g.operatorNamespace, g.now
	o.ControllerName = g.controllerName
	if g.operatorURL != "" {
		o.Objects = nil
		if *g.kube.KubeConfig != "" || *g.kube.Context != "" || *g.kube.APIServer != "" {
			cluster, err := connect.Open(connect.Options{
				Kube: g.kube, OperatorNamespace: g.operatorNamespace, ControllerName: g.controllerName, Progress: g.progress,
			})
			if err != nil {
				return nil, usageError{err}
			}
			o.Objects = cluster
		} else if o.Gateway.Name == "" {
			return nil, usagef("doctor reads objects: add --kubeconfig or --context to --operator")
		}
	}
	g.progress("reading objects and asking the operator")
	s, err := collect.Snapshot(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", answers, err)
	}
	return s, nil
}

func (g *globals) printReports(reports []diagnose.Report) error {
	p := g.printer()
	return report.Print(p.Out, reports, g.style(p))
}

// style returns how reports are printed.
func (g *globals) style(p *output.Printer) report.Style {
	return report.Style{Width: p.Width, Color: p.Color, ASCII: !report.UTF8(os.Getenv), Steps: p.IsWide()}
}

// failedIf returns err if it is not nil. Otherwise it returns errChecksFailed if wrong is true.
func failedIf(wrong bool, err error) error {
	if err == nil && wrong {
		return errChecksFailed
	}
	return err
}
