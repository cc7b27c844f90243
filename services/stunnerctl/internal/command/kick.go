package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
)

func newKick(g *globals) *cobra.Command {
	var user, client string
	c := &cobra.Command{
		Use:   "kick GATEWAY [SESSION...]",
		Short: "End calls",
		Long: `Ends TURN sessions of a Gateway: the named ones, or all of a user or of a client.
A session ends within a second, on whichever pod it is. The client gets no
message, and it may call again as long as its credential is valid.

If a running pod does not answer, its sessions continue: the command names the
pod, and its exit code is 1.

Needs the right to delete gateways/sessions, which the ClusterRole
stunner-session-manager and the role edit contain.`,
		Example: `  # One session, as "sessions" prints it
  stunnerctl kick media/frankfurt 5d41402abc4b2a76

  # All calls of a user, by the plain name
  stunnerctl kick media/frankfurt --user ada`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			gateway, err := g.parseName(args[0])
			if err != nil {
				return err
			}
			requests := kickRequests(args[1:], user, client)
			if len(requests) == 0 || len(args) > 1 && user+client != "" {
				return usagef("name the sessions to end, or use --user or --client")
			}
			s, err := g.open()
			if err != nil {
				return err
			}
			var list sessionList
			var failed error
			for _, r := range requests {
				err := g.kick(c.Context(), s, gateway, r, &list)
				switch {
				case err == nil:
					continue
				case !errors.Is(err, errChecksFailed) && len(requests) == 1:
					return err
				case !errors.Is(err, errChecksFailed):
					g.note("%v", err)
				}
				failed = errChecksFailed
			}
			g.note("Ended %d sessions.", list.Total)
			if len(list.Sessions) == 0 && g.printer().IsTable() {
				return failed
			}
			return cmp.Or(g.printSessions(g.printer(), list, false), failed)
		},
	}
	c.Flags().StringVarP(&user, "user", "u", "", "end the sessions of this user: the plain name, or its hash")
	c.Flags().StringVar(&client, "client", "", "end the sessions of this client: an IP address, or its hash")
	return g.completesGateways(c, 1)
}

func kickRequests(sessions []string, user, client string) (requests []connect.Request) {
	for _, id := range sessions {
		requests = append(requests, connect.Request{Method: http.MethodDelete, Path: "sessions/" + url.PathEscape(id)})
	}
	query := url.Values{}
	for name, value := range map[string]string{"user": user, "client": client} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) > 0 {
		requests = append(requests, connect.Request{Method: http.MethodDelete, Path: "sessions", Query: query})
	}
	return requests
}

func (g *globals) kick(
	ctx context.Context, s connect.Source, gateway types.NamespacedName, r connect.Request, into *sessionList,
) error {
	answers, err := ask[inspection.Kicked](ctx, g, s, []types.NamespacedName{gateway}, r)
	if err != nil && !errors.Is(err, errChecksFailed) {
		return err
	}
	before := into.Total
	for _, a := range answers {
		switch {
		case a.code == http.StatusNotFound: // the session is on another pod
		case a.problem != "":
			g.note("pod %s: %s", a.pod, a.problem)
			err = errChecksFailed
		default:
			into.add(a.gateway, a.pod, a.value.Ended, max(a.value.Total, len(a.value.Ended)))
		}
	}
	if into.Total == before && err == nil && len(r.Query) == 0 {
		return fmt.Errorf("%s: no pod of Gateway %s has this session: see stunnerctl sessions", r.Path, gateway)
	}
	return err
}
