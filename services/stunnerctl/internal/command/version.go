package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// versions is the output of version.
type versions struct {
	Client   string `json:"client"`
	Operator string `json:"operator,omitempty"`
	// Pods are the versions of the dataplane pods.
	Pods []podVersion `json:"pods,omitempty"`
}

type podVersion struct {
	Gateway string `json:"gateway"`
	Pod     string `json:"pod"`
	Version string `json:"version"`
}

func newVersion(g *globals) *cobra.Command {
	var client bool
	c := &cobra.Command{
		Use:   "version [GATEWAY...]",
		Short: "Print the versions of stunnerctl, the operator and the pods",
		Long: `Prints the version of stunnerctl, that of the operator, and those of the dataplane
pods of the Gateways. Without the right to read them it prints that of stunnerctl
with a note, and the exit code is 1.`,
		Example: `  stunnerctl version --client
  stunnerctl version -A`,
		RunE: func(c *cobra.Command, names []string) error {
			v := versions{Client: telemetry.Version("stunnerctl")}
			var err error
			if !client {
				err = g.serverVersions(c.Context(), &v, names)
			}
			return cmp.Or(g.printVersions(v), err)
		},
	}
	c.Flags().BoolVar(&client, "client", false, "only the version of stunnerctl")
	return g.completesGateways(c, 0)
}

func (g *globals) serverVersions(ctx context.Context, v *versions, names []string) error {
	s, err := g.open()
	if err != nil {
		g.note("The versions of operator and pods are unknown: %v", err)
		return errChecksFailed
	}
	var operator inspection.Operator
	if err = s.Get(ctx, "/api/v1/operator", &operator); err != nil {
		g.note("The version of the operator is unknown: %v", err)
	}
	v.Operator = operator.Version
	if len(names) == 0 && connect.HasNoObjects(s) {
		return failed(err)
	}
	gateways, listErr := g.gateways(ctx, s, names)
	if listErr == nil {
		var answers []answer[inspection.Status]
		answers, listErr = askAll[inspection.Status](ctx, g, s, gateways, connect.Request{Path: "status"})
		for _, a := range answers {
			v.Pods = append(v.Pods, podVersion{a.gateway, a.pod, a.value.Program})
		}
	}
	if listErr != nil && !errors.Is(listErr, errChecksFailed) {
		g.note("The versions of the pods are unknown: %v", listErr)
	}
	return failed(cmp.Or(err, listErr))
}

// failed returns errChecksFailed for an error that was printed already.
func failed(err error) error {
	if err != nil {
		return errChecksFailed
	}
	return nil
}

func (g *globals) printVersions(v versions) error {
	p := g.printer()
	if !p.IsTable() {
		return p.Value(v)
	}
	text := fmt.Sprintf("Client:    %s\n", v.Client)
	if v.Operator != "" {
		text += fmt.Sprintf("Operator:  %s\n", v.Operator)
	}
	if err := p.Text(text); err != nil || len(v.Pods) == 0 {
		return err
	}
	table := output.Table{Columns: []output.Column{{Name: "GATEWAY"}, {Name: "POD"}, {Name: "VERSION"}}}
	for _, pod := range v.Pods {
		table.Add(output.T(pod.Gateway), output.T(pod.Pod), output.T(pod.Version))
	}
	return cmp.Or(p.Text("\n"), p.Table(table))
}
