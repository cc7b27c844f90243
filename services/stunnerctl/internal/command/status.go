package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// States of the config of a pod.
const (
	configSynced   = "synced"   // the pod runs the published config
	configStale    = "stale"    // the pod runs another config, or has lost its source
	configRejected = "rejected" // the pod has rejected the published config, and runs the one before
	configPartial  = "partial"  // the pod runs the published config, but not all listeners or fields of it
	configUnknown  = "unknown"
)

// gatewayStatus is the status of a Gateway in the output.
type gatewayStatus struct {
	Gateway string `json:"gateway"`
	// Revision is the revision of the published config.
	Revision   string           `json:"revision,omitempty"`
	Pods       []podStatus      `json:"pods"`
	Conditions []wrongCondition `json:"conditions"`
	Exposure   exposure         `json:"exposure"`
}

// podStatus is the status of a dataplane in the output.
type podStatus struct {
	Pod      string `json:"pod"`
	State    string `json:"state"`
	Config   string `json:"config"`
	Revision string `json:"revision,omitempty"`
	// AgeSeconds is the time since the last contact with the source of the config; 0 while the pod is connected to it.
	AgeSeconds float64 `json:"ageSeconds"`
	Calls      int     `json:"calls"`
	Capacity   int     `json:"capacity,omitempty"`
	// CertificateDays is the number of days until the first certificate expires.
	CertificateDays *int      `json:"certificateDays,omitempty"`
	Version         string    `json:"version,omitempty"`
	Started         time.Time `json:"started,omitzero"`
	// ClockSkewSeconds is the difference between the clocks of the pod and of this host.
	ClockSkewSeconds float64 `json:"clockSkewSeconds"`
	Problem          string  `json:"problem,omitempty"`
	// Drain is set while the pod drains and moves its sessions.
	Drain *inspection.DrainStatus `json:"drain,omitempty"`
}

// wrongCondition is a condition that is not good.
type wrongCondition struct {
	Object    string `json:"object"`
	Condition string `json:"condition"`
	Status    string `json:"status"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
}

func newStatus(g *globals) *cobra.Command {
	var watching bool
	var pod, address, port string
	c := &cobra.Command{
		Use:   "status [GATEWAY...]",
		Short: "Show the state of Gateways and of their pods",
		Long: `Shows a row for each dataplane pod of each Gateway, and the conditions of the
Gateway and of its listeners that are not good.

  STATE    READY, NOT-READY, or TERMINATING: the pod drains
  CONFIG   synced: the pod runs the published config
           partial: some listeners or fields of it are not in force
           stale: the pod runs an older config, or lost the operator AGE ago
           rejected: the pod rejected the published config and runs an older one
  CALLS    TURN allocations, and their maximum
  CERT     days until the first certificate of a TLS or DTLS listener expires

A second table says what a firewall must let through:

  PORTS OF CLIENTS  the ports of the listeners, at the addresses of the Gateway
  TRAFFIC POLICY    externalTrafficPolicy of the Services: with Local only nodes
                    with a pod accept clients, and pods see their addresses
  PORTS OF PEERS    the ports of relays at the nodes, for media servers, if the
                    pods are in the network of their node, or else their range

The exit code is 1 if a pod gave no answer.`,
		Example: `  # The Gateways of the current namespace
  stunnerctl status

  # One Gateway, with clocks, start times and revisions, again every 2 s
  stunnerctl status media/frankfurt -o wide -w

  # The pods of all Gateways whose config is not in force, as JSON
  stunnerctl status -A -o json | jq '.[].pods[] | select(.config != "synced")'`,
		RunE: func(c *cobra.Command, names []string) error {
			if address != "" || port != "" {
				return usagef("--pod-address and --pod-port: the operator asks the pods, so leave them out; " +
					"curl http://ADDRESS:8086/status asks one process without the operator")
			}
			s, err := g.open()
			if err != nil {
				return err
			}
			return g.watch(c.Context(), watching, func(ctx context.Context, p *output.Printer) error {
				return g.status(ctx, s, p, names, pod)
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&watching, "watch", "w", false, "show the status again every 2 s, until Ctrl-C")
	f.StringVar(&pod, "pod", "", "only this pod")
	f.StringVar(&pod, "pod-name", "", "same as --pod")
	f.StringVar(&address, "pod-address", "", "of the existing system; not supported")
	f.StringVar(&port, "pod-port", "", "of the existing system; not supported")
	for _, name := range []string{"pod-name", "pod-address", "pod-port"} {
		_ = f.MarkHidden(name)
	}
	return g.completesGateways(c, 0)
}

func (g *globals) status(ctx context.Context, s connect.Source, p *output.Printer, names []string, pod string) error {
	gateways, err := g.gateways(ctx, s, names)
	if err != nil {
		return err
	}
	answers, err := ask[inspection.Status](ctx, g, s, gateways, connect.Request{Path: "status"})
	if err != nil && !errors.Is(err, errChecksFailed) {
		return err
	}
	conditions, readErr := wrongConditions(ctx, s, gateways)
	if readErr != nil {
		g.note("conditions are not shown: %v", readErr)
	}
	exposures, readErr := serviceExposure(ctx, s, gateways)
	if readErr != nil {
		g.note("Services and ports of peers are not shown: %v", readErr)
	}
	all := make([]gatewayStatus, len(gateways))
	for i, gateway := range gateways {
		published, _ := readConfig(ctx, s, gateway) // without a published config the revision is empty
		revision := published.Revision
		all[i] = gatewayStatus{
			Gateway: gateway.String(), Revision: revision, Pods: []podStatus{}, Conditions: []wrongCondition{},
			Exposure: exposures[gateway],
		}
		all[i].Exposure.Ports = exposedPorts(published)
		all[i].Conditions = append(all[i].Conditions, conditions[gateway]...)
		for _, a := range answers {
			if a.gateway != gateway.String() || pod != "" && a.pod != pod {
				continue
			}
			status := podStatusOf(a, revision, g.now())
			if a.problem != "" {
				err = errChecksFailed
			}
			all[i].Pods = append(all[i].Pods, status)
		}
		slices.SortFunc(all[i].Pods, func(a, b podStatus) int { return cmp.Compare(a.Pod, b.Pod) })
	}
	if !p.IsTable() {
		return cmp.Or(p.Value(all), err)
	}
	return cmp.Or(g.printStatus(p, all), err)
}

func podStatusOf(a answer[inspection.Status], published string, now time.Time) podStatus {
	st := a.value
	if a.problem != "" {
		return podStatus{Pod: a.pod, State: "UNKNOWN", Config: configUnknown, Problem: a.problem}
	}
	out := podStatus{
		Pod: a.pod, State: st.Status, Revision: st.Revision, AgeSeconds: st.Config.Age, Calls: st.AllocationCount,
		Capacity: st.Capacity, Version: programVersion(st.Program), Started: st.Started, Problem: cmp.Or(st.Problem, st.Lost),
		Drain: st.Drain,
	}
	if !st.Now.IsZero() {
		out.ClockSkewSeconds = math.Round(st.Now.Sub(now).Seconds()) + 0 // adding 0 avoids a negative zero
	}
	switch {
	case st.Config.Rejected != "":
		out.Config, out.Problem = configRejected, st.Config.Rejected
	case st.Config.Lost != "" || st.Lost != "" || published != "" && st.Revision != published:
		out.Config = configStale
	case len(st.Failures) > 0 || st.Problem != "":
		out.Config = configPartial
	case published == "":
		out.Config = configUnknown
	default:
		out.Config = configSynced
	}
	if out.Problem == "" && len(st.Failures) > 0 {
		for _, name := range slices.Sorted(maps.Keys(st.Failures)) {
			out.Problem = st.Failures[name]
			break
		}
	}
	for _, l := range st.Listeners {
		for _, certificate := range l.AllCertificates() {
			days := int(math.Floor(certificate.NotAfter.Sub(now).Hours() / 24))
			if out.CertificateDays == nil || days < *out.CertificateDays {
				out.CertificateDays = &days
			}
		}
	}
	return out
}

// programVersion returns the version in the line of telemetry.Version: PROGRAM VERSION GO COMMIT.
func programVersion(line string) string {
	if fields := strings.Fields(line); len(fields) > 1 {
		return fields[1]
	}
	return line
}

func (g *globals) printStatus(p *output.Printer, all []gatewayStatus) error {
	table := output.Table{Columns: []output.Column{
		{
			Name: "GATEWAY",
		}, {Name: "POD"}, {Name: "STATE", Drop: 1}, {Name: "CONFIG"}, {Name: "AGE", Drop: 3, Right: true},
		{Name: "CALLS", Right: true}, {Name: "CERT", Drop: 2, Right: true}, {Name: "VERSION", Drop: 4},
		{Name: "UPTIME", Wide: true, Right: true}, {Name: "CLOCK", Wide: true, Right: true},
		{Name: "REVISION", Wide: true},
	}}
	problems := output.Table{Columns: []output.Column{
		{Name: "OBJECT"}, {Name: "PROBLEM"}, {Name: "MESSAGE", Wrap: true},
	}}
	for _, gateway := range all {
		if len(gateway.Pods) == 0 {
			table.Add(
				output.T(gateway.Gateway),
				output.Cell{Text: "no pod", Color: output.Warning},
				output.T(""),
				output.T(""),
				output.T(
					"",
				),
				output.T(""),
				output.T(""),
				output.T(""),
				output.T(""),
				output.T(""),
				output.T(gateway.Revision),
			)
		}
		for _, pod := range gateway.Pods {
			table.Add(podRow(gateway.Gateway, pod, g.now())...)
			if pod.Problem != "" {
				problems.Add(output.T("pod "+pod.Pod), output.Cell{Text: pod.Config, Color: colorOfConfig(pod.Config)},
					output.T(pod.Problem))
			}
			if pod.Drain != nil {
				problems.Add(output.T("pod "+pod.Pod), output.Cell{Text: "draining", Color: output.Warning},
					output.T(pod.Drain.String()))
			}
		}
		for _, c := range gateway.Conditions {
			problems.Add(output.T(c.Object), output.Cell{Text: c.Reason, Color: output.Warning}, output.T(c.Message))
		}
	}
	if err := p.Table(table); err != nil {
		return err
	}
	for _, more := range []output.Table{exposureTable(all), problems} {
		if len(more.Rows) == 0 {
			continue
		}
		if err := cmp.Or(p.Text("\n"), p.Table(more)); err != nil {
			return err
		}
	}
	return nil
}

func podRow(gateway string, pod podStatus, now time.Time) []output.Cell {
	if pod.Config == configUnknown && pod.State == "UNKNOWN" {
		row := []output.Cell{output.T(gateway), output.T(pod.Pod), {Text: pod.State, Color: output.Bad}}
		return append(row, make([]output.Cell, 8)...)
	}
	age := output.Duration(time.Duration(pod.AgeSeconds * float64(time.Second)))
	calls := strconv.Itoa(pod.Calls)
	if pod.Capacity > 0 {
		calls += "/" + strconv.Itoa(pod.Capacity)
	}
	var certificate output.Cell
	if days := pod.CertificateDays; days != nil {
		certificate = output.Cell{Text: fmt.Sprintf("%dd", *days), Color: colorOfDays(*days)}
	}
	clock := output.Cell{Text: fmt.Sprintf("%+.0fs", pod.ClockSkewSeconds)}
	if math.Abs(pod.ClockSkewSeconds) > 5 {
		clock.Color = output.Warning
	}
	return []output.Cell{
		output.T(gateway), output.T(pod.Pod), {Text: pod.State, Color: colorOfState(pod.State)},
		{Text: pod.Config, Color: colorOfConfig(pod.Config)}, output.T(age), output.T(calls), certificate,
		output.T(pod.Version), output.T(output.Age(pod.Started, now)), clock, output.T(pod.Revision),
	}
}

func colorOfState(state string) output.Color {
	switch state {
	case inspection.Ready:
		return output.Good
	case inspection.Terminating:
		return output.Warning
	}
	return output.Bad
}

func colorOfConfig(state string) output.Color {
	switch state {
	case configSynced:
		return output.Good
	case configStale, configPartial:
		return output.Warning
	case configRejected:
		return output.Bad
	}
	return output.Plain
}

// Days before the expiry of a certificate at which its cell is coloured. cert-manager renews 30 days before.
const (
	certificateWarning = 21
	certificateBad     = 3
)

func colorOfDays(days int) output.Color {
	switch {
	case days < certificateBad:
		return output.Bad
	case days < certificateWarning:
		return output.Warning
	}
	return output.Plain
}

// wrongConditions returns the conditions of Gateways and their listeners that are not good.
func wrongConditions(
	ctx context.Context, s connect.Source, gateways []types.NamespacedName,
) (map[types.NamespacedName][]wrongCondition, error) {
	if connect.HasNoObjects(s) {
		return nil, nil
	}
	objects, err := objectsOf(ctx, s, gateways, connect.KindGateway)
	if err != nil {
		return nil, err
	}
	found := map[types.NamespacedName][]wrongCondition{}
	for _, o := range objects {
		name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
		if slices.Contains(gateways, name) {
			found[name] = wrongConditionsOf(o, name.String())
		}
	}
	return found, nil
}

// objectsOf returns the objects of kinds in the namespaces of Gateways. It returns an error if one kind cannot be read.
func objectsOf(
	ctx context.Context, s connect.Source, gateways []types.NamespacedName, kinds ...schema.GroupKind,
) ([]unstructured.Unstructured, error) {
	objects, err := s.Objects(ctx, commonNamespace(gateways), kinds...)
	if err != nil {
		return nil, err
	}
	for _, unread := range objects.Unread {
		if unread.Err != nil {
			return nil, unread.Err
		}
	}
	return objects.Items, nil
}

func wrongConditionsOf(gateway unstructured.Unstructured, name string) (wrong []wrongCondition) {
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
		Listeners  []struct {
			Name       string             `json:"name"`
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"listeners"`
	}
	data, err := json.Marshal(gateway.Object["status"])
	if err != nil || json.Unmarshal(data, &status) != nil {
		return nil
	}
	add := func(object string, conditions []metav1.Condition) {
		for _, c := range conditions {
			if diagnose.IsWrong(c) {
				wrong = append(wrong, wrongCondition{object, c.Type, string(c.Status), c.Reason, c.Message})
			}
		}
	}
	add(name, status.Conditions)
	for _, l := range status.Listeners {
		add(name+"/"+l.Name, l.Conditions)
	}
	return wrong
}
