package command

import (
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

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/probe"
)

const (
	// maxProbed is the maximum number of Gateways to which doctor sends packets.
	maxProbed = 20
	// probeTTL is the lifetime of the credential of a probe.
	probeTTL = 5 * time.Minute
	// probeUser is the user ID of the credential.
	probeUser = "stunnerctl"
)

// probeFlags are the flags of why and doctor for the packets that they send.
type probeFlags struct {
	turnFlags
	on bool
}

// addFlags adds the flags. on is the default: whether packets are sent.
func (f *probeFlags) addFlags(flags *pflag.FlagSet, on bool) {
	flags.BoolVar(&f.on, "probe", on, "also send packets: to the public URLs, to the pods, and through the Gateway to the backends")
	flags.StringVar(&f.secretFile, "secret-file", "", "file with the shared secret that signs the credential of the probe; "+
		"empty means the config in the folder, or else the auth service")
	flags.StringVar(&f.auth.tokenFile, "auth-token-file", "", "file with the JSON Web Token that the auth service needs, if any")
	flags.StringVar(&f.auth.address, "auth-server-address", "", "HOST, HOST:PORT or URL of the auth service, instead of a "+
		"forwarded port")
	flags.StringVar(&f.auth.serviceNamespace, "auth-service-namespace", "", "namespace of the auth service; empty means "+
		"that of the operator")
	flags.IntVar(&f.auth.servicePort, "auth-service-port", 8088, "port of the auth service")
}

// probe sends packets to the Gateways, one after another, and adds the results to the snapshot. It skips a Gateway for
// which the diagnosis already has an error: the packets would only show the effect of that error.
func (g *globals) probe(ctx context.Context, s *diagnose.Snapshot, f probeFlags, reports []diagnose.Report, names []types.NamespacedName) error {
	source, err := g.open()
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	for i, gateway := range names {
		switch {
		case slices.ContainsFunc(reports[i].Findings, func(f diagnose.Finding) bool { return f.Severity == diagnose.Error }):
			s.Probes[gateway.String()] = &diagnose.Probe{Error: "an error was found before"}
		case i >= maxProbed:
			s.Probes[gateway.String()] = &diagnose.Probe{Error: fmt.Sprintf("only %d Gateways are tested: use why", maxProbed)}
		default:
			g.progress("sending packets to " + gateway.String())
			s.Probes[gateway.String()] = g.probeGateway(ctx, s, f, source, gateway)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// probeAll sends packets to the Gateways of a namespace, or of all namespaces, and returns the new reports.
func (g *globals) probeAll(
	ctx context.Context,
	s *diagnose.Snapshot,
	f probeFlags,
	namespace string,
) ([]diagnose.Report, error) {
	s.Probes = map[string]*diagnose.Probe{}
	var reports []diagnose.Report
	var names []types.NamespacedName
	for _, r := range diagnose.Doctor(s, namespace) {
		of, isGateway := strings.CutPrefix(r.Subject, "Gateway ")
		if gatewayNamespace, gateway, ok := strings.Cut(of, "/"); ok && isGateway {
			reports, names = append(reports, r), append(names, types.NamespacedName{Namespace: gatewayNamespace, Name: gateway})
		}
	}
	if err := g.probe(ctx, s, f, reports, names); err != nil {
		return nil, err
	}
	return diagnose.Doctor(s, namespace), nil
}

// probeGateway sends packets to one Gateway.
func (g *globals) probeGateway(
	ctx context.Context,
	s *diagnose.Snapshot,
	f probeFlags,
	source connect.Source,
	gateway types.NamespacedName,
) *diagnose.Probe {
	published, err := readConfig(ctx, source, gateway)
	if err != nil {
		return &diagnose.Probe{Error: "the config was not read: " + err.Error()}
	}
	o := probe.Options{}
	if err := json.Unmarshal(published.Config, &o.Config); err != nil {
		return &diagnose.Probe{Error: "the config was not read: " + err.Error()}
	}
	o.Credential, o.Origin = g.probeCredential(f, source, gateway)
	live := s.Live[gateway.String()]
	switch source := source.(type) {
	case *connect.Cluster:
		o.Pods = podsOf(live)
		o.DialPod = func(ctx context.Context, pod string, port int) (net.Conn, error) {
			return source.DialPod(ctx, types.NamespacedName{Namespace: gateway.Namespace, Name: pod}, int32(port))
		}
	case *connect.Folder:
		o.Local = direct(live, func(string) (netip.Addr, bool) { return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true })
	default:
		o.PodsUntested = "an operator's URL gives no access to them"
	}
	o.Seen = func(ctx context.Context, user string, client netip.Addr, since time.Time) probe.Seen {
		if name, err := credential.ParseUsername(user); err == nil {
			user = name.UserID
		}
		return seen(ctx, source, gateway, url.Values{"user": {user}, "client": {client.String()}}, since)
	}
	o.Within = direct(live, func(pod string) (netip.Addr, bool) { return podIP(s, gateway.Namespace, pod) })
	return probe.Run(ctx, o)
}

// seen returns the packets that the pods have received at the relays of a client. If no pod answers, the result is
// empty.
func seen(ctx context.Context, source connect.Source, gateway types.NamespacedName, client url.Values, since time.Time) (found probe.Seen) {
	for _, answer := range answersOf[inspection.SessionList](ctx, source, connect.Request{Gateway: gateway, Path: "sessions", Query: client}) {
		for _, s := range answer.Sessions {
			for _, p := range s.Peers {
				if peer, err := netip.ParseAddrPort(p.Peer); err == nil && p.ICMPErrors > 0 && p.Received == 0 {
					found.Undelivered = append(found.Undelivered, peer)
				}
			}
		}
	}
	client.Set("since", (time.Since(since) + time.Second).Round(time.Second).String())
	for _, answer := range answersOf[inspection.RefusalList](ctx, source, connect.Request{Gateway: gateway, Path: "refusals", Query: client}) {
		for _, r := range answer.Refusals {
			if peer, err := netip.ParseAddrPort(r.Peer); err == nil && !r.Answered &&
				slices.Contains([]string{"no_permission", "peer_denied", "port_denied"}, r.Reason) {
				found.Unexpected = append(found.Unexpected, peer)
			}
		}
	}
	return found
}

// answersOf returns the answers of the pods that have answered.
func answersOf[T any](ctx context.Context, source connect.Source, r connect.Request) (all []T) {
	list, err := source.Ask(ctx, r)
	if err != nil {
		return nil
	}
	for _, item := range list.Items {
		var one T
		if item.Status == http.StatusOK && json.Unmarshal(item.Body, &one) == nil {
			all = append(all, one)
		}
	}
	return all
}

// probeCredential returns the mint for a probe, and the origin of the credential: a shared secret, the config of a
// folder, or the auth service. The user is always stunnerctl, and never a user of an application.
func (g *globals) probeCredential(
	f probeFlags,
	source connect.Source,
	gateway types.NamespacedName,
) (mint, string) {
	folder, inFolder := source.(*connect.Folder)
	switch {
	case f.secretFile != "":
		return func(context.Context) (credential.Credential, error) {
			secret, err := readSecret(f.secretFile, g.In)
			if err != nil {
				return credential.Credential{}, fmt.Errorf("--secret-file: %w", err)
			}
			return credential.Authority{SharedSecret: secret}.Mint(probeUser, probeTTL, time.Now())
		}, "--secret-file"
	case inFolder && f.auth.address == "":
		return func(ctx context.Context) (credential.Credential, error) {
			c, err := folder.Config(ctx, gateway)
			if err != nil {
				return credential.Credential{}, err
			}
			if c.Auth.Type == config.AuthNone {
				return credential.Credential{}, errors.New("the Gateway has no authentication, so it makes no allocations")
			}
			return c.Auth.Authority().Mint(probeUser, probeTTL, time.Now())
		}, "the published config"
	}
	return func(ctx context.Context) (credential.Credential, error) {
		f.user, f.instead = probeUser, "--secret-file"
		mint, err := g.credentials(f.turnFlags, gateway)
		if err != nil {
			return credential.Credential{}, err
		}
		return mint(ctx)
	}, "the auth service"
}

// podsOf returns the names of the pods in the answers of the operator.
func podsOf(live *diagnose.Live) (pods []string) {
	if live == nil || live.Status == nil {
		return nil
	}
	for _, item := range live.Status.Items {
		if item.Kind == inspection.Dataplane && !slices.Contains(pods, item.Pod) {
			pods = append(pods, item.Pod)
		}
	}
	return pods
}

// direct returns the listeners of the dataplanes at the addresses of their pods, or of their host. Their sockets have
// the wildcard address, so this path has no load balancer and no NAT.
func direct(live *diagnose.Live, at func(pod string) (netip.Addr, bool)) (all []probe.Direct) {
	if live == nil || live.Status == nil {
		return nil
	}
	for _, item := range live.Status.Items {
		var status inspection.Status
		a, known := at(item.Pod)
		if !known || item.Kind != inspection.Dataplane || item.Status != http.StatusOK ||
			json.Unmarshal(item.Body, &status) != nil {
			continue
		}
		for _, l := range status.Listeners {
			if len(l.ProxyProtocol) > 0 {
				continue // the listener may treat this machine as a load balancer, and require a header
			}
			all = append(all, probe.Direct{
				Pod: item.Pod, Listener: l.Name, Protocol: l.Protocol, Address: netip.AddrPortFrom(a, uint16(l.Port)),
			})
		}
	}
	return all
}

// podIP returns the address of a pod.
func podIP(s *diagnose.Snapshot, namespace, name string) (netip.Addr, bool) {
	for _, o := range s.Objects {
		if o.GetKind() == "Pod" && o.GetNamespace() == namespace && o.GetName() == name {
			text, _, _ := unstructured.NestedString(o.Object, "status", "podIP")
			a, err := netip.ParseAddr(text)
			return a, err == nil
		}
	}
	return netip.Addr{}, false
}
