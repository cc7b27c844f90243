package shapes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// callsSurviveEvent makes the event of the shape happen during calls through each listener, and corrects a mistake.
func callsSurviveEvent(ctx context.Context, e *env.Env) error {
	err := during(ctx, e, surviving(e.Shape, e.Shape[env.Event]), e.CauseEvent)
	if e.Shape[env.Event] == env.Mistake {
		err = errors.Join(err, e.Repair(ctx))
	}
	return err
}

// surviving returns the calls that an event must not end. Connections end with their process. An update in the network
// of a host replaces the process: in a folder at once, and in a pod when its connections have ended or its grace period
// is over.
func surviving(s env.Shape, event env.Value) func(env.Calls) env.Calls {
	if event == env.Crash || event == env.Update && s.InHostNetwork() {
		return env.Calls.OverUDP
	}
	return env.Calls.All
}

// under returns a behaviour: a disturbance happens during calls through each listener, and afterwards all calls
// continue.
func under(happen func(*env.Env, context.Context) error) func(context.Context, *env.Env) error {
	return func(ctx context.Context, e *env.Env) error {
		return during(ctx, e, env.Calls.All, func(ctx context.Context) error { return happen(e, ctx) })
	}
}

// during causes a disturbance during calls through each listener. Afterwards the surviving calls continue, and new
// calls succeed.
func during(ctx context.Context, e *env.Env, survive func(env.Calls) env.Calls, happen func(context.Context) error) error {
	calls, err := e.DialAll(ctx, "during")
	defer func() { calls.HangUp() }()
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	if err := happen(ctx); err != nil {
		return err
	}
	if err := survive(calls).AwaitEchoes(ctx); err != nil {
		return fmt.Errorf("calls of before: %w", err)
	}
	later, err := e.DialAll(ctx, "later")
	later.HangUp()
	if err != nil {
		return fmt.Errorf("calls of afterwards: %w", err)
	}
	return nil
}

// crowd is the number of calls in the test of a shared address.
const crowd = 24

// sharedAddressServesEachClient makes many calls from one public address.
func sharedAddressServesEachClient(ctx context.Context, e *env.Env) error {
	var calls env.Calls
	defer func() { calls.HangUp() }()
	for i := 0; len(calls) < crowd; i++ {
		more, err := e.DialAll(ctx, fmt.Sprintf("neighbour%d", i))
		calls = append(calls, more...)
		if err != nil {
			return fmt.Errorf("with %d calls of one address: %w", len(calls), err)
		}
	}
	return calls.AwaitEchoes(ctx)
}

func callsReachTheirPeers(ctx context.Context, e *env.Env) error {
	calls, err := e.DialAll(ctx, "reaches")
	for _, s := range calls.HangUp() {
		if s.Err != nil {
			err = errors.Join(err, s.Err)
		}
	}
	return err
}

func bothRelayFamiliesWork(ctx context.Context, e *env.Env) (err error) {
	for _, l := range e.Listeners() {
		if l.Network != call.UDP {
			continue // the relay does not depend on the transport
		}
		for _, peer := range l.Peers() {
			if echoErr := e.Echo(ctx, l, peer); echoErr != nil {
				err = errors.Join(err, fmt.Errorf("%s to %s: %w", l, peer, echoErr))
			}
		}
	}
	return err
}

func peersWithoutRouteAreRefused(ctx context.Context, e *env.Env) (err error) {
	for _, l := range e.Listeners() {
		for _, peer := range l.ForeignPeers() {
			if tryErr := l.TryPeer(ctx, peer); !errors.Is(tryErr, env.ErrForbidden) {
				err = errors.Join(err, fmt.Errorf("%s to %s: %v, want error 403", l, peer, tryErr))
			}
		}
	}
	return err
}

func wrongCredentialsAreRefused(ctx context.Context, e *env.Env) (err error) {
	for _, l := range e.Listeners() {
		username, _, credentialErr := l.Gateway.Credential(ctx, "wrong")
		if credentialErr != nil {
			return credentialErr
		}
		c, dialErr := e.DialAs(ctx, l, l.Addresses()[0], l.Peers()[0], username, "not-the-password")
		if dialErr == nil {
			c.End(0)
		}
		if !errors.Is(dialErr, call.ErrRefused) {
			err = errors.Join(err, fmt.Errorf("%s with a wrong password: %v", l, dialErr))
		}
	}
	return err
}

// toldAddressesAreReachable makes a call at each address that the auth service returns, and compares the addresses with
// the listeners.
func toldAddressesAreReachable(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		told, askErr := g.Endpoints(ctx, "asks")
		if askErr != nil {
			return fmt.Errorf("%s: %w", g.ID(), askErr)
		}
		if l := g.Unserved; l != nil && slices.ContainsFunc(told, func(t env.Endpoint) bool {
			return t.Addr.Port() == l.Port() && t.URI.Protocol() == l.ClientProtocol()
		}) {
			err = errors.Join(err, fmt.Errorf("clients are told %v, also %s, which the load balancer does not serve", addresses(told), l))
		}
		for _, l := range g.Served() {
			for _, want := range l.Addresses() {
				at := slices.IndexFunc(told, func(t env.Endpoint) bool { return t.Addr == want && t.URI.Protocol() == l.ClientProtocol() })
				if at < 0 {
					err = errors.Join(err, fmt.Errorf("clients are not told %s of %s, but %v", want, l, addresses(told)))
					continue
				}
				c, dialErr := e.DialAs(ctx, l, want, l.Peers()[0], told[at].Secret.Username, string(told[at].Secret.Password))
				if dialErr != nil {
					err = errors.Join(err, dialErr)
					continue
				}
				if flowErr := (env.Calls{c}).AwaitEchoes(ctx); flowErr != nil {
					err = errors.Join(err, flowErr)
				}
				c.End(0)
			}
		}
	}
	return err
}

func addresses(told []env.Endpoint) (list []netip.AddrPort) {
	for _, t := range told {
		list = append(list, t.Addr)
	}
	return list
}

// clientsCallEachOther sends from the relay of one client to the relay of another and back.
func clientsCallEachOther(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		if meetErr := e.CallBetweenClients(ctx, g.Listeners[0]); meetErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", g.ID(), meetErr))
		}
	}
	return err
}

// nestedAllocationsAreRefused requests permissions for each dataplane at the ports of the listeners, and sends an
// Allocate request through a relay to each of them. These requests must not be answered.
func nestedAllocationsAreRefused(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		list, listErr := g.Dataplanes()
		if listErr != nil {
			return listErr
		}
		for _, l := range g.Listeners {
			if l.Network != call.UDP {
				continue
			}
			for _, d := range list {
				for _, a := range d.Addrs {
					answered, nestErr := e.AllocateThroughRelay(ctx, l, netip.AddrPortFrom(a, l.Port()))
					if nestErr == nil && answered {
						nestErr = errors.New("it answers an Allocate request that comes from a relay")
					}
					if nestErr != nil {
						err = errors.Join(err, fmt.Errorf("listener %s of %s at %s: %w", l, d.Name, a, nestErr))
					}
				}
			}
		}
	}
	return err
}
