package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/collect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/icetest"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

const icetestHelp = `Tests with WebRTC whether the listeners of a Gateway relay. For each listener it makes
  an asymmetric call: a client calls an echo peer through the gateway,
  a symmetric call:   two clients call each other, both through the gateway,
and prints loss, the longest gap between two returned messages, rate and
round-trip times.

In a cluster it deploys the echo peer in the namespace of the Gateway: a Job, a
Service and a UDPRoute, which also allows the relayed addresses of the Gateway as
peers. They are deleted at the end, also after Ctrl-C, SIGTERM or SIGHUP. If
icetest is killed, they are deleted after --timeout plus one minute, or by icetest
--cleanup. It needs the rights to create and delete them, and to create
pods/portforward, which the role edit of the namespace contains.

With --folder or --operator the echo peer runs in this process, at an address of
this host that a route allows, or is the one of the auth service's demo page.

A call that no route allows is skipped. The exit code is 1 if a test failed, or if
none passed. The JSON schema of -o json is docs/icetest.schema.json.`

type icetestFlags struct {
	turnFlags
	rate                            int
	duration, timeout, gap          time.Duration
	loss                            float64
	echoURL, echoAddress, echoImage string
	cleanup, allowNodePort          bool
	offload                         string
}

// deletionTimeout bounds the deletion of the echo peer.
const deletionTimeout = 30 * time.Second

func newIcetest(g *globals) *cobra.Command {
	var f icetestFlags
	c := &cobra.Command{
		Use:   "icetest GATEWAY[/LISTENER] [udp|tcp|tls|dtls...]",
		Short: "Call an echo peer through each listener of a Gateway",
		Long:  icetestHelp,
		Example: `  stunnerctl icetest media/front-door
  stunnerctl icetest media/front-door udp tcp -o json
  stunnerctl icetest meet/front-door --folder OUTPUT --auth-server-address 127.0.0.1:8088
  stunnerctl icetest --cleanup -n media`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error { return g.icetest(c.Context(), f, args) },
	}
	flags := c.Flags()
	f.addFlags(flags)
	flags.IntVarP(&f.rate, "packet-rate", "r", 50, "messages per second, 1 to 1000")
	flags.DurationVar(&f.duration, "duration", 3*time.Second, "time for which each test sends")
	flags.DurationVarP(&f.timeout, "timeout", "t", 5*time.Minute, "time for all tests")
	flags.Float64Var(&f.loss, "max-loss", 5, "highest loss with which a test passes, in percent")
	flags.DurationVar(&f.gap, "max-gap", time.Second, "longest time without a returned message with which a test passes")
	flags.StringVar(
		&f.echoURL,
		"echo-url",
		"",
		"URL of an echo peer that answers SDP offers, instead of one of icetest",
	)
	flags.StringVar(&f.echoAddress, "echo-address", "", "IP:PORT of this host for an echo peer in this process")
	flags.StringVar(&f.echoImage, "echo-image", "", "image of the echo peer; empty means the image echo beside "+
		"the image stunnerd of the dataplane pods")
	flags.BoolVar(
		&f.cleanup,
		"cleanup",
		false,
		"delete what killed runs have left in the namespace, or with -A in all namespaces",
	)
	_ = c.MarkFlagFilename("password-file")

	// Flags of the existing system.
	flags.StringVar(&f.echoImage, "ice-tester-image", "", "same as --echo-image")
	flags.BoolVar(&f.cleanup, "force-cleanup", false, "same as --cleanup")
	flags.StringVar(&f.offload, "offload-mode", "", "of the existing system; not supported")
	flags.BoolVar(
		&f.allowNodePort,
		"allow-nodeport",
		false,
		"has no effect: the address in the config of the Gateway is tested",
	)
	for _, name := range []string{"ice-tester-image", "force-cleanup", "offload-mode", "allow-nodeport"} {
		_ = flags.MarkHidden(name) // the flag exists
	}
	return g.completesGateways(c, 1)
}

func (f *icetestFlags) check() error {
	switch {
	case f.offload != "":
		return usagef("--offload-mode: icetest tests a Gateway as it is: set the mode in its Dataplane")
	case f.rate < 1 || f.rate > 1000:
		return usagef("--packet-rate: use 1 to 1000")
	case f.duration <= 0 || f.duration > time.Hour || f.timeout <= 0 || f.timeout > 24*time.Hour:
		return usagef("--duration and --timeout: use positive durations, at most 1h and 24h")
	case f.loss < 0 || f.loss > 100:
		return usagef("--max-loss: use 0 to 100")
	case f.gap <= 0:
		return usagef("--max-gap: use a positive duration")
	case f.echoURL != "" && f.echoAddress != "":
		return usagef("--echo-url and --echo-address: use one of them")
	}
	return nil
}

func (g *globals) icetest(ctx context.Context, f icetestFlags, args []string) error {
	if err := f.check(); err != nil {
		return err
	}
	var protocols []config.Protocol
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		p, ok := config.ParseProtocol(arg)
		if ok {
			protocols = append(protocols, p)
		}
		return ok
	})
	s, err := g.open()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if f.cleanup {
		return g.icetestCleanup(ctx, s)
	}
	if len(args) != 1 {
		return usagef("icetest tests an existing Gateway and creates none: name it, " +
			"stunnerctl icetest GATEWAY [udp|tcp|tls|dtls...]")
	}
	gateway, listener, err := g.parseListener(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, errors.New("--timeout is over"))
	defer cancel()
	t := &icetestRun{
		globals: g,
		flags:   f,
		source:  s,
		gateway: gateway,
		only: func(name string, p config.Protocol) bool {
			return (listener == "" || listener == name) && (protocols == nil || slices.Contains(protocols, p))
		},
	}
	defer t.close()
	p := g.printer()
	report := icetest.Run(ctx, icetest.Options{
		Gateway: gateway.String(),
		Setup: []icetest.Setup{
			{Name: "gateway", Do: t.config},
			{Name: "credentials", Do: t.ice},
			{Name: "echo peer", Do: t.echo},
		},
		Listeners: func() []icetest.Listener { return t.listeners },
		Peer:      func() (icetest.Peer, error) { return t.peer, t.noPeer },
		Denied:    t.denied,
		Why:       t.why,
		Rate:      f.rate, Duration: f.duration, MaxLoss: f.loss / 100, MaxGap: f.gap,
		Progress: func(done any) { g.icetestProgress(p, done) },
	})
	if err := t.close(); err != nil {
		return fmt.Errorf("delete the echo peer: %w: use stunnerctl icetest --cleanup -n %s", err, gateway.Namespace)
	}
	if p.IsTable() {
		err = p.Table(icetestTable(report))
	} else {
		err = p.Value(report)
	}
	if err == nil && report.Verdict != icetest.Pass {
		err = errChecksFailed
	}
	return err
}

// icetestRun is one run of icetest.
type icetestRun struct {
	*globals
	flags   icetestFlags
	source  connect.Source
	gateway types.NamespacedName
	only    func(name string, p config.Protocol) bool

	found     []gatewayListener
	listeners []icetest.Listener
	peer      icetest.Peer
	noPeer    error // the error if there is no peer
	deployed  *icetest.Deployment
}

// config reads the listeners of the Gateway.
func (t *icetestRun) config(ctx context.Context) (string, error) {
	var err error
	if t.found, err = t.gatewayListeners(ctx, t.gateway, t.only); err != nil {
		return "", err
	}
	if len(t.found) == 0 {
		return "", fmt.Errorf("gateway %s has no such listener: see stunnerctl config %[1]s", t.gateway)
	}
	var text string
	t.found, text = leaveUnroutable(t.found)
	return text, nil
}

// leaveUnroutable returns the listeners to whose addresses this host has a route, and a text that names all listeners.
// If there is no such listener, it returns all, so that the tests report the error.
func leaveUnroutable(all []gatewayListener) (kept []gatewayListener, text string) {
	var names, left []string
	for _, l := range all {
		if l.unroutable {
			left = append(left, l.uri.String())
			continue
		}
		kept, names = append(kept, l), append(names, l.uri.String())
	}
	switch {
	case len(kept) == 0:
		return all, strings.Join(left, " ")
	case len(left) == 0:
		return kept, strings.Join(names, " ")
	}
	return kept, fmt.Sprintf("%s; left out, because this host has no route there: %s",
		strings.Join(names, " "), strings.Join(left, " "))
}

// ice gets a credential and makes the list of listeners.
func (t *icetestRun) ice(ctx context.Context) (string, error) {
	mint, err := t.credentials(t.flags.turnFlags, t.gateway)
	if err != nil {
		return "", err
	}
	credential, err := mint(ctx)
	if err != nil {
		return "", err
	}
	for _, l := range t.found {
		e, err := t.flags.endpoint(l)
		if err != nil {
			return "", err
		}
		e.Credential = credential
		t.listeners = append(t.listeners, icetest.Listener{Name: l.name, URI: l.uri.String(), Endpoint: e})
	}
	text := "user " + credential.Username
	if !credential.Expires.IsZero() {
		text += ", valid until " + credential.Expires.UTC().Format(time.RFC3339)
	}
	return text, nil
}

// echo chooses the peer of asymmetric tests. Without one they are skipped.
func (t *icetestRun) echo(ctx context.Context) (string, error) {
	switch cluster, inCluster := t.source.(*connect.Cluster); {
	case t.flags.echoURL != "":
		t.peer = icetest.HTTPPeer{URL: t.flags.echoURL, Client: http.DefaultClient}
		return t.flags.echoURL, nil
	case t.flags.echoAddress != "":
		conn, err := net.ListenPacket("udp", t.flags.echoAddress)
		if err != nil {
			return "", fmt.Errorf("--echo-address: %w", err)
		}
		return t.local(conn)
	case inCluster:
		return t.deploy(ctx, cluster)
	}
	var endpoints []string
	for _, l := range t.found {
		endpoints = append(endpoints, l.endpoints...)
	}
	conn, err := icetest.ListenAllowed(endpoints, localAddresses())
	if err == nil {
		return t.local(conn)
	}
	if demo := t.demoEcho(ctx); demo != "" {
		t.peer = icetest.HTTPPeer{URL: demo, Client: http.DefaultClient}
		return demo, nil
	}
	t.noPeer = err
	return err.Error(), nil
}

// denied asks the running pods whether they deny a peer. It returns the explanation of the first pod that does.
func (t *icetestRun) denied(ctx context.Context, listener string, peer netip.AddrPort) string {
	list, err := t.source.Ask(ctx, connect.Request{
		Gateway: t.gateway, Path: "reach", Query: url.Values{"peer": {peer.String()}},
	})
	if err != nil {
		return ""
	}
	for _, item := range list.Items {
		var reach inspection.Reach
		if item.Error != "" || json.Unmarshal(item.Body, &reach) != nil {
			continue
		}
		for _, l := range reach.Listeners {
			// The pods know a listener as NAMESPACE/GATEWAY/LISTENER.
			if name := l.Listener[strings.LastIndexByte(l.Listener, '/')+1:]; name == listener && !l.Allowed {
				return fmt.Sprintf("%s: %s", l.Reason, l.Text)
			}
		}
	}
	return ""
}

// why diagnoses the Gateway.
func (t *icetestRun) why(ctx context.Context, peer netip.AddrPort) []diagnose.Finding {
	o := collect.Options{
		Answers: t.source, Objects: t.source, Gateway: t.gateway, OperatorNamespace: t.operatorNamespace, Now: t.now,
	}
	if t.operatorURL != "" {
		o.Objects = nil
	}
	if peer.IsValid() {
		o.Asked.Peer = peer.String()
	}
	s, err := collect.Snapshot(ctx, o)
	if err != nil {
		return nil
	}
	found := diagnose.Why(s, t.gateway.Namespace, t.gateway.Name).Findings
	return slices.DeleteFunc(found, func(f diagnose.Finding) bool { return !f.Wrong() })
}

// local uses a peer in this process.
func (t *icetestRun) local(conn net.PacketConn) (string, error) {
	t.peer = icetest.NewLocalPeer(conn)
	return "in this process at " + conn.LocalAddr().String(), nil
}

// demoEcho returns the URL of the echo peer behind the demo page of the auth service, or "" if the service has none.
func (t *icetestRun) demoEcho(ctx context.Context) string {
	if t.flags.auth.address == "" {
		return ""
	}
	base, _, err := t.authService(t.flags.auth)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, authTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("/demo/").String(), http.NoBody)
	if err != nil {
		return ""
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return ""
	}
	return base.JoinPath("/demo/echo").String()
}

// permitTimeout bounds the time until the dataplane has the route to the echo peer.
const permitTimeout = 30 * time.Second

// deploy starts the echo peer in the cluster. It waits until the first listener with a working allocation allows the
// peer.
func (t *icetestRun) deploy(ctx context.Context, cluster *connect.Cluster) (string, error) {
	t.progress("deploying the echo peer")
	t.deployed = &icetest.Deployment{
		Client: cluster.Client, Dynamic: cluster.Dynamic, Gateway: t.gateway, Image: t.flags.echoImage,
		Timeout: t.flags.timeout, Dial: cluster.Dial,
	}
	if err := t.deployed.Start(ctx); err != nil {
		return "", err
	}
	var media []netip.AddrPort
	t.peer, media = t.deployed.Peer()
	limited, cancel := context.WithTimeout(ctx, permitTimeout)
	defer cancel()
	for _, l := range t.listeners {
		relay, address, err := l.RelayTo(limited, media)
		if err != nil {
			continue // the test of the listener reports the error
		}
		for relay.Permit(address) != nil && limited.Err() == nil {
			time.Sleep(200 * time.Millisecond)
		}
		_ = relay.Close()
		break
	}
	return fmt.Sprintf("%s at %s", t.deployed.Image, media), nil
}

// close ends the peer. In a cluster it deletes the objects, even if the run was interrupted.
func (t *icetestRun) close() error {
	if t.peer != nil {
		_ = t.peer.Close()
		t.peer = nil
	}
	if t.deployed == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), deletionTimeout)
	defer cancel()
	deployed := t.deployed
	t.deployed = nil
	return deployed.Stop(ctx)
}

// icetestCleanup deletes the objects of runs that were killed.
func (g *globals) icetestCleanup(ctx context.Context, s connect.Source) error {
	cluster, err := connect.AsCluster(s, "icetest --cleanup", "without a cluster, icetest leaves nothing behind")
	if err != nil {
		return usageError{err}
	}
	namespace := g.namespace()
	if g.allNamespaces {
		namespace = ""
	}
	deleted, err := icetest.Cleanup(ctx, cluster.Client, cluster.Dynamic, namespace, icetest.Label)
	g.note("deleted %d objects", deleted)
	return err
}

// localAddresses returns the addresses of this host.
func localAddresses() (addresses []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			addresses = append(addresses, prefix.Addr().Unmap())
		}
	}
	return addresses
}

// icetestProgress prints a finished step or test. It prints to the error output, if the format is a table or the error
// output is a terminal.
func (g *globals) icetestProgress(p *output.Printer, done any) {
	if !p.IsTable() && !isTerminal(g.ErrOut) {
		return
	}
	var findings []diagnose.Finding
	switch done := done.(type) {
	case icetest.Step:
		g.note("%-4s  %s: %s", done.Result, done.Name, done.Text)
		findings = done.Findings
	case icetest.Test:
		text := cmp.Or(done.Reason, fmt.Sprintf("%d of %d messages returned", done.Received, done.Sent))
		g.note("%-4s  %s %s: %s", done.Result, done.Listener, done.Mode, text)
		findings = done.Findings
	}
	for _, f := range findings {
		g.note("      %s %s: %s: %s", f.Severity, f.Object, f.Problem, f.Remedy)
	}
}

func icetestTable(r icetest.Report) output.Table {
	t := output.Table{Columns: []output.Column{
		{
			Name: "LISTENER",
		}, {Name: "MODE"}, {Name: "VERDICT"}, {Name: "LOSS", Right: true},
		{Name: "GAP", Right: true}, {Name: "RATE", Right: true, Drop: 2},
		{
			Name:  "MEDIAN",
			Right: true,
		}, {Name: "P95", Right: true, Drop: 1}, {Name: "P99", Right: true, Drop: 1}, {Name: "REASON", Wrap: true},
	}}
	colors := map[icetest.Result]output.Color{icetest.Pass: output.Good, icetest.Fail: output.Bad}
	for _, test := range r.Tests {
		figures := []output.Cell{{}, {}, {}, {}, {}, {}}
		if test.Received > 0 {
			ms := func(v float64) output.Cell { return output.T(fmt.Sprintf("%.2f ms", v)) }
			figures = []output.Cell{
				output.T(fmt.Sprintf("%.1f%%", 100*test.Loss)),
				output.T(fmt.Sprintf("%.0f ms", test.Gap)),
				output.T(fmt.Sprintf("%.0f/s", test.Rate)),
				ms(test.RTT.Median),
				ms(test.RTT.P95),
				ms(test.RTT.P99),
			}
		}
		cells := []output.Cell{
			output.T(test.Listener),
			output.T(test.Mode),
			{Text: string(test.Result), Color: colors[test.Result]},
		}
		t.Add(append(append(cells, figures...), output.T(test.Reason))...)
	}
	return t
}
