// Package probe sends packets to a Gateway as its clients do, and returns the answers.
//
// Rules on declarations and states do not detect a firewall, a wrong certificate of a proxy, or a media server that
// does not run. For each public URL a probe sends STUN Binding requests (RFC 8489), over UDP, TCP, TLS or DTLS; where
// they are answered it makes an allocation (RFC 8656), and through it sends a few datagrams to the backends of the
// routes. It also connects to the pods directly, which distinguishes a dead pod from a broken path to it.
//
// The number of packets and the time are bounded. The result is a diagnose.Probe, which the rules of package diagnose
// turn into findings.
//
// # Files
//
//	probe.go        the order of the tests, and their bounds
//	url.go          public URLs
//	stun.go         connections and STUN transactions
//	certificate.go  the certificates that a server sends
//	train.go        requests at an even pace that are not repeated
//	allocation.go   allocations, permissions and backends
//	pod.go          pods directly
package probe

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// Bounds of a probe.
const (
	// MaxURLs is the maximum number of addresses of public URLs that are tested.
	MaxURLs = 20
	// MaxBackends is the maximum number of backends that are tested.
	MaxBackends = 20
	// maxPods is the maximum number of pods that are tested directly.
	maxPods = 20
	// flows is the number of new connections to each address, or over UDP of source ports, because a load balancer may
	// send each to another pod. With a handshake it is secureFlows.
	flows       = 8
	secureFlows = 2
	// Limit is the longest time that a probe of one Gateway takes.
	Limit = 16 * time.Second
	// longTimeout is how long a probe waits for the answer to a long request after a short one was answered. It is
	// enough for three requests.
	longTimeout = 3500 * time.Millisecond
	// pauseOfClient is the maximum time between two packets of an ICE agent (RFC 7675 §5.1). A NAT must keep its
	// mapping that long.
	pauseOfClient = 6 * time.Second
	// parallelPods is the number of pods that are tested at a time, and podsLimit bounds the time for all of them.
	parallelPods = 8
	podsLimit    = timeout + time.Second
)

// Options configure a probe.
type Options struct {
	// Config is the published config of the Gateway. Its secrets are not read.
	Config config.Config
	// Credential returns a credential for allocations; nil means that none are made.
	Credential func(context.Context) (credential.Credential, error)
	// Origin says where the credential is from, for messages.
	Origin string
	// Pods are the names of the pods. DialPod connects to a TCP port of a pod. Without DialPod no pod is tested by TCP.
	Pods    []string
	DialPod func(ctx context.Context, pod string, port int) (net.Conn, error)
	// PodsUntested says why DialPod is nil.
	PodsUntested string
	// Local are addresses of dataplanes that run on this host, which are tested directly.
	Local []Direct
	// Within are addresses of pods in their own network. Most machines do not reach them, so the tests count only if
	// one of them is answered.
	Within []Direct
	// Seen returns the packets at the relays of a client that the dataplanes have recorded since a time. It may be nil.
	Seen func(ctx context.Context, user string, client netip.Addr, since time.Time) Seen
}

// Seen contains the packets at relays that dataplanes have recorded.
type Seen struct {
	// Unexpected are the sources of datagrams that were dropped because the client has sent to other addresses.
	Unexpected []netip.AddrPort
	// Undelivered are the peers to which datagrams were not delivered, according to ICMP messages that are not
	// forwarded to clients.
	Undelivered []netip.AddrPort
}

// Direct is the address of a listener of a pod or of a dataplane on this host.
type Direct struct {
	Pod, Listener string
	Protocol      config.Protocol
	Address       netip.AddrPort
}

// Run tests a Gateway. If ctx ends, it returns soon with the results so far.
func Run(ctx context.Context, o Options) *diagnose.Probe {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	p := &diagnose.Probe{PodsUntested: o.PodsUntested}
	targets, omitted := o.targets(ctx)
	p.OmittedURLs = omitted
	p.URLs = make([]diagnose.ProbedURL, len(targets))
	var all sync.WaitGroup
	mapped := make([]*flow, len(targets))
	for i, t := range targets {
		all.Go(func() { p.URLs[i], mapped[i] = t.probe(ctx) })
	}
	all.Go(func() { p.Pods = o.pods(ctx) })
	all.Wait()
	answered := slices.ContainsFunc(p.URLs, func(u diagnose.ProbedURL) bool { return u.Result == diagnose.ProbeAnswered })
	var pauses sync.WaitGroup
	defer pauses.Wait()
	for i, f := range mapped {
		if f != nil {
			pauses.Go(func() { p.URLs[i].Mapping = f.pause(ctx, pauseOfClient) })
		}
	}
	if !answered || o.Credential == nil || ctx.Err() != nil {
		return p
	}
	p.Credential = o.Origin
	made, err := o.Credential(ctx)
	if err != nil {
		p.CredentialError = err.Error()
		return p
	}
	o.allocate(ctx, p, targets, made)
	return p
}

// name returns the name of a listener in its Gateway. Configs have NAMESPACE/GATEWAY/LISTENER.
func name(listener string) string { return listener[strings.LastIndexByte(listener, '/')+1:] }

// pods tests the pods directly.
func (o Options) pods(ctx context.Context) []diagnose.ProbedPod {
	ctx, cancel := context.WithTimeout(ctx, podsLimit)
	defer cancel()
	var tests []func() diagnose.ProbedPod
	for _, l := range slices.Concat(o.Local, o.Within) {
		tests = append(tests, func() diagnose.ProbedPod { return l.probe(ctx) })
	}
	if o.DialPod != nil {
		for _, pod := range o.Pods[:min(len(o.Pods), maxPods)] {
			if port := healthPort(o.Config); port > 0 {
				tests = append(tests, func() diagnose.ProbedPod { return o.health(ctx, pod, port) })
			}
			for _, l := range o.Config.Listeners {
				if l.Protocol.Stream() && len(l.ProxyProtocol) == 0 {
					tests = append(tests, func() diagnose.ProbedPod { return o.listener(ctx, pod, l) })
				}
			}
		}
	}
	found := make([]diagnose.ProbedPod, len(tests))
	var all errgroup.Group
	all.SetLimit(parallelPods)
	for i, test := range tests {
		all.Go(func() error { found[i] = test(); return nil })
	}
	_ = all.Wait()
	within := found[len(o.Local) : len(o.Local)+len(o.Within)]
	if !slices.ContainsFunc(within, func(p diagnose.ProbedPod) bool { return p.Result == diagnose.ProbeAnswered }) {
		found = slices.Delete(found, len(o.Local), len(o.Local)+len(o.Within))
	}
	return found
}
