package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// verdict is the answer of the pods of a Gateway about a peer on one listener. Pods with the same answer share a
// verdict.
type verdict struct {
	inspection.ListenerReach
	Pods []string `json:"pods"`
}

func newCanReach(g *globals) *cobra.Command {
	var listener string
	c := &cobra.Command{
		Use:   "can-reach GATEWAY[/LISTENER] PEER:PORT",
		Short: "Tell which route lets clients reach a peer",
		Long: `Tells for each listener of a Gateway whether its clients may exchange media with
a peer, and which route and endpoint allows it, or why not. The running pods
answer, with the code that judges real packets.

The exit code is 1 if a pod denies the peer on a listener.

A/B is Gateway B in namespace A, or with -n listener B of Gateway A. A:LISTENER
and --listener are listeners always.`,
		Example: `  # All listeners
  stunnerctl can-reach media/frankfurt 10.0.3.17:40000

  # One listener
  stunnerctl can-reach media/frankfurt/udp 10.0.3.17:40000
  stunnerctl can-reach frankfurt/udp '[fd00::17]:40000' -n media`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			gateway, named, err := g.parseListener(args[0])
			if err != nil {
				return err
			}
			peer, err := netip.ParseAddrPort(args[1])
			if err != nil || peer.Port() == 0 {
				return usagef("peer %q: use IP:PORT, or [IP]:PORT for IPv6; resolve a name first", args[1])
			}
			query := url.Values{"peer": {peer.String()}}
			if named = cmp.Or(listener, named); named != "" {
				query.Set("listener", named)
			}
			s, err := g.open()
			if err != nil {
				return err
			}
			answers, err := askAll[inspection.Reach](c.Context(), g, s, []types.NamespacedName{gateway},
				connect.Request{Path: "reach", Query: query})
			if err != nil && !errors.Is(err, errChecksFailed) {
				return err
			}
			if len(answers) == 0 {
				return cmp.Or(
					err,
					fmt.Errorf("gateway %s has no pods that answer: see stunnerctl status %[1]s", gateway),
				)
			}
			verdicts := verdictsOf(answers)
			if slices.ContainsFunc(verdicts, func(v verdict) bool { return !v.Allowed }) {
				err = errChecksFailed
			}
			return cmp.Or(g.printVerdicts(gateway.String(), peer, verdicts, len(answers)), err)
		},
	}
	c.Flags().StringVar(&listener, "listener", "", "only this listener")
	_ = c.RegisterFlagCompletionFunc("listener", g.completeListeners)
	return g.completesGateways(c, 1)
}

// parseListener parses GATEWAY, GATEWAY/LISTENER and GATEWAY:LISTENER.
func (g *globals) parseListener(text string) (gateway types.NamespacedName, listener string, err error) {
	name, listener, found := strings.Cut(text, ":")
	if parts := strings.Split(name, "/"); !found && (len(parts) == 3 || len(parts) == 2 && *g.kube.Namespace != "") {
		name, listener = strings.Join(parts[:len(parts)-1], "/"), parts[len(parts)-1]
	}
	gateway, err = g.parseName(name)
	return gateway, listener, err
}

func verdictsOf(answers []answer[inspection.Reach]) (verdicts []verdict) {
	for _, a := range answers {
		for _, l := range a.value.Listeners {
			i := slices.IndexFunc(verdicts, func(v verdict) bool { return v.ListenerReach == l })
			if i < 0 {
				verdicts = append(verdicts, verdict{ListenerReach: l})
				i = len(verdicts) - 1
			}
			verdicts[i].Pods = append(verdicts[i].Pods, a.pod)
		}
	}
	return verdicts
}

func (g *globals) printVerdicts(gateway string, peer netip.AddrPort, verdicts []verdict, pods int) error {
	p := g.printer()
	if !p.IsTable() {
		if verdicts == nil {
			verdicts = []verdict{}
		}
		return p.Value(map[string]any{"gateway": gateway, "peer": peer.String(), "listeners": verdicts})
	}
	table := output.Table{Columns: []output.Column{
		{
			Name: "LISTENER",
		}, {Name: "VERDICT"}, {Name: "ROUTE", Clip: true}, {Name: "ENDPOINT", Drop: 1}, {Name: "PODS", Drop: 2, Right: true},
		{Name: "REASON"}, {Name: "EXPLANATION", Wrap: true},
	}}
	for _, v := range verdicts {
		word := output.Cell{Text: "denied", Color: output.Bad}
		if v.Allowed {
			word = output.Cell{Text: "allowed", Color: output.Good}
		}
		table.Add(output.T(listenerOf(gateway, v.Listener)), word, output.T(v.Cluster), output.T(v.Endpoint),
			output.T(strconv.Itoa(len(v.Pods))+"/"+strconv.Itoa(pods)), output.T(v.Reason), output.T(v.Text))
	}
	return p.Table(table)
}
