package command

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// session is a session in the output.
type session struct {
	Gateway string `json:"gateway"`
	Pod     string `json:"pod"`
	inspection.Session
}

// sessionList is the output of sessions and kick.
type sessionList struct {
	Sessions []session `json:"sessions"`
	// Total is the number of all matching sessions.
	Total int `json:"total"`
}

func newSessions(g *globals) *cobra.Command {
	var watching bool
	var f filters
	c := &cobra.Command{
		Use:     "sessions [GATEWAY...]",
		Aliases: []string{"session"},
		Short:   "List the calls of all pods of a Gateway",
		Long: `Lists the live TURN sessions of all pods of the Gateways, the oldest first.

User names and client addresses are printed as hashes, unless the dataplane
shows them (--show-users of stunnerd). --user and --client accept the plain name
and address nevertheless.

RX is traffic from peers to the client, TX traffic from the client to peers. With
-o wide, PEER is the last active peer, TO/FROM are the packets to it and from it,
LAST FROM is the time since the last packet from it, and ICMP counts errors that
its host or a router has reported. -o json lists up to eight peers of a call.

Needs the right to get gateways/sessions, which the ClusterRole stunner-viewer
and the role view contain.`,
		Example: `  # The calls of one Gateway, again every 2 s
  stunnerctl sessions frankfurt -w

  # The calls of a user, by the plain name, on all Gateways
  stunnerctl sessions -A --user ada

  # The calls of one client that started in the last ten minutes
  stunnerctl sessions media/frankfurt --client 203.0.113.7 --since 10m`,
		RunE: func(c *cobra.Command, names []string) error {
			if err := f.check(g, "listener", "user", "client", "since", "limit"); err != nil {
				return err
			}
			return listAnswers(c, g, names, "sessions", &f, watching,
				func(p *output.Printer, answers []answer[inspection.SessionList], several bool) error {
					var all sessionList
					for _, a := range answers {
						all.add(a.gateway, a.pod, a.value.Sessions, a.value.Total)
					}
					return g.printSessions(p, all, several)
				})
		},
	}
	c.Flags().BoolVarP(&watching, "watch", "w", false, "list the sessions again every 2 s, until Ctrl-C")
	f.addFlags(g, c, "sessions", false)
	return g.completesGateways(c, 0)
}

func (l *sessionList) add(gateway, pod string, sessions []inspection.Session, total int) {
	l.Total += total
	for _, s := range sessions {
		l.Sessions = append(l.Sessions, session{gateway, pod, s})
	}
}

func (g *globals) printSessions(p *output.Printer, list sessionList, severalGateways bool) error {
	slices.SortStableFunc(list.Sessions, func(a, b session) int {
		return cmp.Or(cmp.Compare(a.Gateway, b.Gateway), a.Started.Compare(b.Started), cmp.Compare(a.Pod, b.Pod))
	})
	if !p.IsTable() {
		if list.Sessions == nil {
			list.Sessions = []session{}
		}
		return p.Value(list)
	}
	if len(list.Sessions) == 0 {
		g.note("No sessions.")
		return nil
	}
	table := output.Table{Columns: []output.Column{
		{Name: "GATEWAY", Wide: !severalGateways, Clip: true}, {Name: "SESSION"}, {Name: "USER", Clip: true},
		{Name: "CLIENT", Clip: true}, {Name: "LISTENER", Drop: 3}, {Name: "AGE", Right: true, Drop: 1},
		{Name: "RX", Right: true, Drop: 2}, {Name: "TX", Right: true, Drop: 2}, {Name: "RELAY", Drop: 5},
		{Name: "POD", Drop: 4}, {Name: "PROTOCOL", Wide: true},
		{Name: "CHANNELS", Wide: true, Right: true}, {Name: "PACKETS", Wide: true, Right: true},
		{Name: "FRONT", Wide: true}, {Name: "PEER", Wide: true}, {Name: "TO/FROM", Wide: true, Right: true},
		{Name: "LAST FROM", Wide: true, Right: true}, {Name: "ICMP", Wide: true, Right: true},
	}}
	for _, s := range list.Sessions {
		peer, counts, last, icmp := g.lastPeer(s.Peers)
		packets := strconv.FormatUint(s.Stats.Rx.Packets, 10) + "/" + strconv.FormatUint(s.Stats.Tx.Packets, 10)
		table.Add(
			output.T(s.Gateway),
			output.T(s.ID),
			output.T(s.User),
			output.T(s.Client),
			output.T(listenerOf(s.Gateway, s.Listener)),
			output.T(output.Age(s.Started, g.now())),
			output.T(output.Bytes(s.Stats.Rx.Bytes)),
			output.T(output.Bytes(s.Stats.Tx.Bytes)),
			output.T(s.Relay),
			output.T(s.Pod),
			output.T(s.Protocol),
			output.T(s.Channels),
			output.T(packets),
			output.T(cmp.Or(s.Front, "-")),
			peer, counts, last, icmp,
		)
	}
	if err := p.Table(table); err != nil {
		return err
	}
	if list.Total > len(list.Sessions) {
		g.note("%d of %d sessions: use a filter or --limit (at most %d of each pod)", len(list.Sessions), list.Total,
			inspection.MaxLimit)
	}
	return nil
}

// lastPeer returns the cells of the last active peer of a session.
func (g *globals) lastPeer(peers []inspection.PeerTraffic) (peer, counts, last, icmp output.Cell) {
	if len(peers) == 0 {
		none := output.T("-")
		return none, none, none, none
	}
	p := peers[0]
	last = output.T("never")
	if !p.LastReceived.IsZero() {
		last = output.T(output.Age(p.LastReceived, g.now()))
	}
	return output.T(p.Peer), output.T(fmt.Sprintf("%d/%d", p.Sent, p.Received)), last, output.T(p.ICMPErrors)
}
