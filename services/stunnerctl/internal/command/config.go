package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

const noSecrets = "--show-secrets: the operator gives no secrets: read the Secret that the GatewayConfig names with " +
	"kubectl get secret, if you may"

func newConfig(g *globals) *cobra.Command {
	var watching bool
	var node string
	c := &cobra.Command{
		Use:   "config [GATEWAY...]",
		Short: "Show the dataplane configs of Gateways",
		Long: `Shows a summary of the config that the operator publishes for the pods of each
Gateway. Secrets are <redacted>, because the operator does not send them.

"config dump" prints whole configs, "config diff" compares the published config
with that of each running pod.`,
		Example: `  # A summary of the configs in the current namespace
  stunnerctl config

  # One config, whenever it changes, as JSON
  stunnerctl config frankfurt -w -o json

  # The public address of each listener
  stunnerctl config frankfurt -o jsonpath='{.listeners[*].public_address}'`,
		RunE: func(c *cobra.Command, names []string) error {
			switch {
			case node != "":
				return usagef(
					"--node: the config is the same on each node, and a pod fills in the addresses of its node: " +
						"use config dump --running, which shows them",
				)
			case g.showSecrets:
				return usagef(noSecrets)
			}
			s, err := g.open()
			if err != nil {
				return err
			}
			return g.watch(c.Context(), watching, func(ctx context.Context, p *output.Printer) error {
				return g.showConfigs(ctx, s, p, names, (*globals).printSummary)
			})
		},
	}
	c.Flags().BoolVarP(&watching, "watch", "w", false, "print a config again whenever it changes, until Ctrl-C")
	c.Flags().StringVar(&node, "node", "", "of the existing system; not supported")
	_ = c.Flags().MarkHidden("node")
	c.AddCommand(newConfigDump(g), newConfigDiff(g))
	return g.completesGateways(c, 0)
}

func newConfigDump(g *globals) *cobra.Command {
	var running bool
	c := &cobra.Command{
		Use:   "dump GATEWAY...",
		Short: "Print the whole config of a Gateway",
		Long: `Prints the config that the operator publishes for the pods of a Gateway, as YAML
or in the format of -o. Secrets are <redacted>.

With --running it prints the config of each pod: its listeners and clusters with
the addresses of its node, and the traffic of each.`,
		Example: `  stunnerctl config dump media/frankfurt
  stunnerctl config dump media/frankfurt --running -o json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			if g.showSecrets {
				return usagef(noSecrets)
			}
			s, err := g.open()
			if err != nil {
				return err
			}
			p := g.printer()
			if !running {
				return g.showConfigs(
					c.Context(),
					s,
					p,
					names,
					func(_ *globals, p *output.Printer, all []config.Config) error {
						return p.Value(oneOrAll(all))
					},
				)
			}
			gateways, err := g.gateways(c.Context(), s, names)
			if err != nil {
				return err
			}
			answers, err := askAll[map[string]json.RawMessage](c.Context(), g, s, gateways, connect.Request{Path: "status"})
			if err != nil && !errors.Is(err, errChecksFailed) {
				return err
			}
			pods := map[string]map[string]any{}
			for _, a := range answers {
				pods[a.pod] = map[string]any{"gateway": a.gateway}
				for _, field := range []string{"revision", "admin", "auth", "listeners", "clusters"} {
					pods[a.pod][field] = a.value[field]
				}
			}
			return cmp.Or(p.Value(pods), err)
		},
	}
	c.Flags().BoolVar(&running, "running", false, "the configs that run in the pods, instead of the published one")
	return g.completesGateways(c, 0)
}

func newConfigDiff(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "diff GATEWAY...",
		Short: "Compare the published config with that of each running pod",
		Long: `Lists the fields in which the config of a running pod differs from the config
that the operator publishes, with the reason, if the pod rejected the config.

It prints no fields of a pod that runs the published revision. The exit code is 1
if a pod runs another one.`,
		Example: `  stunnerctl config diff media/frankfurt`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			s, err := g.open()
			if err != nil {
				return err
			}
			return g.diffConfigs(c.Context(), s, names)
		},
	}
	return g.completesGateways(c, 0)
}

func oneOrAll[T any](all []T) any {
	if len(all) == 1 {
		return all[0]
	}
	return all
}

// showConfigs prints the published configs.
func (g *globals) showConfigs(
	ctx context.Context, s connect.Source, p *output.Printer, names []string,
	show func(*globals, *output.Printer, []config.Config) error,
) error {
	gateways, err := g.gateways(ctx, s, names)
	if err != nil {
		return err
	}
	all := []config.Config{}
	var failed error
	for _, gateway := range gateways {
		published, err := readConfig(ctx, s, gateway)
		var parsed config.Config
		if err == nil {
			err = json.Unmarshal(published.Config, &parsed)
		}
		switch {
		case err != nil && (len(gateways) == 1 || ctx.Err() != nil):
			return err
		case err != nil:
			g.note("%v", err)
			failed = errChecksFailed
		default:
			all = append(all, parsed)
		}
	}
	if !p.IsTable() {
		return cmp.Or(p.Value(oneOrAll(all)), failed)
	}
	return cmp.Or(show(g, p, all), failed)
}

// printSummary prints the most important parts of configs.
func (g *globals) printSummary(p *output.Printer, all []config.Config) error {
	var b strings.Builder
	line := func(indent int, name string, value any) {
		fmt.Fprintf(&b, "%s%-*s %v\n", strings.Repeat("  ", indent), 24-2*indent, name+":", value)
	}
	for i, c := range all {
		if i > 0 {
			b.WriteByte('\n')
		}
		line(0, "Gateway", c.Admin.Name)
		line(0, "Log level", c.Admin.LogLevel)
		line(0, "Authentication", c.Auth.Type)
		line(1, "Realm", c.Auth.Realm)
		for _, key := range slices.Sorted(maps.Keys(c.Auth.Credentials)) {
			line(1, strings.ToUpper(key[:min(1, len(key))])+key[min(1, len(key)):], c.Auth.Credentials[key])
		}
		b.WriteString("Listeners:\n")
		for _, l := range c.Listeners {
			fmt.Fprintf(&b, "  - %-20s %s\n", "Name:", l.Name)
			line(2, "Protocol", l.Protocol)
			if l.ClientProtocol() != l.Protocol {
				line(2, "Client protocol", string(l.ClientProtocol())+", TLS ends at the load balancer")
			}
			if len(l.ProxyProtocol) > 0 {
				line(2, "PROXY protocol from", strings.Join(l.ProxyProtocol, ", "))
			}
			var told []string
			for _, host := range l.AllPublicAddresses() {
				told = append(told, net.JoinHostPort(host, strconv.Itoa(l.PublicPort)))
			}
			line(2, "Public address", cmp.Or(strings.Join(told, ", "), "none"))
			if l.PublicHost != "" {
				line(2, "Public host", l.PublicHost+", which clients receive instead of the public address")
			}
			line(2, "Address", cmp.Or(l.Address, "-")+":"+strconv.Itoa(l.Port))
			line(2, "Routes", cmp.Or(strings.Join(l.Routes, ", "), "none"))
			line(2, "Endpoints", cmp.Or(strings.Join(endpointsOf(c, l.Routes), ", "), "none"))
		}
	}
	return p.Text(b.String())
}

// maxEndpoints is the maximum number of endpoints of a listener in a summary.
const maxEndpoints = 10

func endpointsOf(c config.Config, routes []string) (endpoints []string) {
	for _, cluster := range c.Clusters {
		if slices.Contains(routes, cluster.Name) {
			endpoints = append(endpoints, cluster.Endpoints...)
		}
	}
	if more := len(endpoints) - maxEndpoints; more > 0 {
		endpoints = append(endpoints[:maxEndpoints], fmt.Sprintf("and %d more", more))
	}
	return endpoints
}

// podDiff is the comparison of one pod in the output of config diff.
type podDiff struct {
	Gateway   string      `json:"gateway"`
	Pod       string      `json:"pod"`
	Published string      `json:"published"`
	Running   string      `json:"running"`
	Problem   string      `json:"problem,omitempty"`
	Fields    []fieldDiff `json:"fields,omitempty"`
}

type fieldDiff struct {
	Field     string `json:"field"`
	Published string `json:"published"`
	Running   string `json:"running"`
}

func (g *globals) diffConfigs(ctx context.Context, s connect.Source, names []string) error {
	gateways, err := g.gateways(ctx, s, names)
	if err != nil {
		return err
	}
	configs := map[string]inspection.Config{}
	for _, gateway := range gateways {
		if configs[gateway.String()], err = readConfig(ctx, s, gateway); err != nil {
			return err
		}
	}
	answers, err := askAll[json.RawMessage](ctx, g, s, gateways, connect.Request{Path: "status"})
	if err != nil && !errors.Is(err, errChecksFailed) {
		return err
	}
	diffs := []podDiff{}
	for _, a := range answers {
		d, parseErr := diffOf(a, configs[a.gateway])
		if parseErr != nil {
			return fmt.Errorf("gateway %s: pod %s: %w", a.gateway, a.pod, parseErr)
		}
		if d.Running != d.Published {
			err = errChecksFailed
		}
		diffs = append(diffs, d)
	}
	p := g.printer()
	if !p.IsTable() {
		return cmp.Or(p.Value(diffs), err)
	}
	return cmp.Or(g.printDiffs(p, diffs), err)
}

func diffOf(a answer[json.RawMessage], published inspection.Config) (podDiff, error) {
	var status inspection.Status
	var want, have map[string]any
	for _, parse := range []struct {
		data json.RawMessage
		into any
	}{{a.value, &status}, {a.value, &have}, {published.Config, &want}} {
		if err := json.Unmarshal(parse.data, parse.into); err != nil {
			return podDiff{}, fmt.Errorf("read config: %w", err)
		}
	}
	d := podDiff{
		Gateway: a.gateway, Pod: a.pod, Published: published.Revision, Running: status.Revision,
		Problem: cmp.Or(status.Config.Rejected, status.Problem, status.Config.Lost, status.Lost),
	}
	if d.Published == d.Running {
		return d, nil
	}
	wanted, running := map[string]string{}, map[string]string{}
	for _, field := range []string{"auth", "listeners", "clusters"} {
		flatten(field, want[field], wanted)
		flatten(field, have[field], running)
	}
	fields := slices.Collect(maps.Keys(wanted))
	for field := range running {
		if _, ok := wanted[field]; !ok {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	for _, field := range fields {
		// The pod replaces placeholders by their values.
		if w, r := wanted[field], running[field]; w != r && !strings.HasPrefix(w, "$") {
			d.Fields = append(d.Fields, fieldDiff{field, w, r})
		}
	}
	return d, nil
}

// notConfig are the fields of the status of a listener or a cluster that are not part of its config.
var notConfig = []string{"stats", "certificate", "otherCertificates"}

// flatten adds the values below a field of a config, by path. In paths, objects of a list have their names. A list of
// texts is one value.
func flatten(path string, value any, into map[string]string) {
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			if !slices.Contains(notConfig, name) {
				flatten(path+"."+name, v, into)
			}
		}
	case []any:
		texts := make([]string, 0, len(value))
		for i, v := range value {
			object, ok := v.(map[string]any)
			if !ok {
				texts = append(texts, fmt.Sprint(v))
				continue
			}
			name, ok := object["name"].(string)
			if !ok {
				name = strconv.Itoa(i)
			}
			flatten(path+"["+name+"]", object, into)
		}
		if len(texts) > 0 {
			slices.Sort(texts)
			into[path] = strings.Join(texts, ", ")
		}
	case nil:
	default:
		if text := fmt.Sprint(value); text != "" && text != "0" {
			into[path] = text
		}
	}
}

func (g *globals) printDiffs(p *output.Printer, diffs []podDiff) error {
	pods := output.Table{Columns: []output.Column{
		{
			Name: "GATEWAY",
			Drop: 1,
		}, {Name: "POD"}, {Name: "CONFIG"}, {Name: "PUBLISHED", Drop: 2}, {Name: "RUNNING", Drop: 3},
		{Name: "PROBLEM", Wrap: true},
	}}
	fields := output.Table{Columns: []output.Column{
		{Name: "POD", Clip: true}, {Name: "FIELD", Clip: true}, {Name: "PUBLISHED", Clip: true},
		{Name: "RUNNING", Wrap: true},
	}}
	for _, d := range diffs {
		state := output.Cell{Text: configSynced, Color: output.Good}
		if d.Published != d.Running {
			state = output.Cell{Text: "differs", Color: output.Warning}
		}
		pods.Add(output.T(d.Gateway), output.T(d.Pod), state, output.T(short(d.Published)), output.T(short(d.Running)),
			output.T(d.Problem))
		for _, f := range d.Fields {
			fields.Add(output.T(d.Pod), output.T(f.Field), output.T(f.Published), output.T(f.Running))
		}
	}
	if err := p.Table(pods); err != nil || len(fields.Rows) == 0 {
		return err
	}
	return cmp.Or(p.Text("\n"), p.Table(fields))
}

// short returns the start of a revision.
func short(revision string) string {
	return revision[:min(len(revision), 12)]
}

func readConfig(ctx context.Context, s connect.Source, gateway types.NamespacedName) (c inspection.Config, err error) {
	if err = s.Get(ctx, connect.Request{Gateway: gateway, Path: "config"}.URL(), &c); err != nil {
		return c, fmt.Errorf("gateway %s: %w", gateway, err)
	}
	return c, nil
}
