package command

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// refusal is a refusal in the output.
type refusal struct {
	Gateway string `json:"gateway"`
	Pod     string `json:"pod"`
	inspection.Refusal
}

// refusalList is the output of refusals.
type refusalList struct {
	Refusals []refusal `json:"refusals"`
	// Suppressed is the number of refusals that the pods have not recorded, because they were too frequent.
	Suppressed uint64 `json:"suppressed"`
}

func newRefusals(g *globals) *cobra.Command {
	var watching bool
	var f filters
	c := &cobra.Command{
		Use:     "refusals [GATEWAY...]",
		Aliases: []string{"refusal"},
		Short:   "List the requests that the pods refused, with reasons",
		Long: `Lists the last requests that the pods of the Gateways refused, and the datagrams
that they dropped, with the reason and its explanation; the newest first.

User names and client addresses are printed as hashes, unless the dataplane
shows them (--show-users of stunnerd). --user and --client accept the plain name
and address nevertheless.

Needs the right to get gateways/refusals, which the ClusterRole stunner-viewer
and the role view contain.`,
		Example: `  # Why can ada not call?
  stunnerctl refusals frankfurt --user ada

  # Peers that no route allows, in the last ten minutes, on all Gateways
  stunnerctl refusals -A --reason peer_denied --since 10m`,
		RunE: func(c *cobra.Command, names []string) error {
			if err := f.check(g, "listener", "user", "client", "reason", "since", "limit"); err != nil {
				return err
			}
			return listAnswers(c, g, names, "refusals", &f, watching,
				func(p *output.Printer, answers []answer[inspection.RefusalList], several bool) error {
					all := refusalList{Refusals: []refusal{}}
					for _, a := range answers {
						all.Suppressed += a.value.Suppressed
						for _, r := range a.value.Refusals {
							all.Refusals = append(all.Refusals, refusal{a.gateway, a.pod, r})
						}
					}
					return g.printRefusals(p, all, several)
				})
		},
	}
	c.Flags().BoolVarP(&watching, "watch", "w", false, "list the refusals again every 2 s, until Ctrl-C")
	f.addFlags(g, c, "refusals", true)
	return g.completesGateways(c, 0)
}

func (g *globals) printRefusals(p *output.Printer, list refusalList, severalGateways bool) error {
	slices.SortStableFunc(list.Refusals, func(a, b refusal) int { return b.Last.Compare(a.Last) })
	if !p.IsTable() {
		return p.Value(list)
	}
	if len(list.Refusals) == 0 {
		g.note("No refusals.")
		return nil
	}
	table := output.Table{Columns: []output.Column{
		{Name: "GATEWAY", Wide: !severalGateways, Clip: true}, {Name: "LAST", Right: true},
		{Name: "TIMES", Right: true, Drop: 1}, {Name: "REASON"}, {Name: "LISTENER", Drop: 3},
		{Name: "USER", Drop: 2, Clip: true}, {Name: "CLIENT", Drop: 4, Clip: true}, {Name: "PEER", Drop: 5, Clip: true},
		{Name: "POD", Drop: 6}, {Name: "FIRST", Wide: true, Right: true},
		{Name: "EXPLANATION", Wrap: true},
	}}
	for _, r := range list.Refusals {
		table.Add(
			output.T(r.Gateway),
			output.T(output.Age(r.Last, g.now())),
			output.T(r.Times),
			output.T(r.Reason),
			output.T(
				listenerOf(r.Gateway, r.Listener),
			),
			output.T(r.User),
			output.T(r.Client),
			output.T(r.Peer),
			output.T(r.Pod),
			output.T(output.Age(r.First, g.now())),
			output.T(r.Text),
		)
	}
	if err := p.Table(table); err != nil {
		return err
	}
	if list.Suppressed > 0 {
		g.note(
			"%d more were too frequent to be recorded since the pods started; the metrics count all.",
			list.Suppressed,
		)
	}
	return nil
}
