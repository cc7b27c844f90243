package shapes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

const (
	// window is the time in which losses are counted: with a disturbance, and as control without a disturbance.
	window = 2 * time.Second
	// tolerated is how many more datagrams, in percent, may be lost with a disturbance than without a disturbance.
	tolerated = 5
	// vanished is the number of clients, or of pods, that are unplugged.
	vanished = 3
	// bystanders is the number of unrelated calls, which must not be disturbed.
	bystanders = 4
	// pause is the time between two new calls during an update. It is shorter than the time in which nodes still send new
	// clients to a pod that has got SIGTERM.
	pause = 200 * time.Millisecond
	// inPlace is the longest time without new calls during the replacement of a dataplane in the network of a host. It
	// includes the grace period of its pod, if the pod has calls over connections, and the start of the next process.
	inPlace = 20 * time.Second
)

// Ports of clients whose datagrams move between pods. Each behaviour has its own port: a client that returns to a pod
// within half a minute is not found, because conntrack entries of the nodes remain.
const (
	firstMoved     = 30001
	firstBystander = 30101
	firstHeavy     = 30201
	firstPassed    = 30301
	firstLost      = 30401
	firstDrained   = 30501
)

// errDisturbed reports that a disturbance caused losses in unrelated calls.
var errDisturbed = errors.New("other calls are disturbed")

// undisturbed compares the losses of calls before and during a disturbance. The disturbance returns the function that
// ends it.
func undisturbed(ctx context.Context, calls env.Calls, disturb func() (end func(), err error)) error {
	control := calls.Losses(ctx, window)
	end, err := disturb()
	if err != nil {
		return err
	}
	lost := calls.Losses(ctx, window)
	end()
	if lost > control+tolerated {
		return fmt.Errorf("%w: they lose %.0f%% of their datagrams, and %.0f%% without the disturbance", errDisturbed, lost, control)
	}
	if err := calls.AwaitEchoes(ctx); err != nil {
		return fmt.Errorf("%w: %w", errDisturbed, err)
	}
	return nil
}

func noisyClientDisturbsNobody(ctx context.Context, e *env.Env) error {
	calls, err := e.DialAll(ctx, "bystander")
	defer calls.HangUp()
	if err != nil {
		return err
	}
	return undisturbed(ctx, calls, func() (func(), error) {
		return e.FloodRequests(5*time.Millisecond, e.Gateways[0].Listeners[0].Addresses()[0])
	})
}

// callsSurviveACrash kills a dataplane of each Gateway. Clients over streams and DTLS connect again.
func callsSurviveACrash(ctx context.Context, e *env.Env) error {
	return during(ctx, e, surviving(e.Shape, env.Crash), e.CrashOne)
}

// movedClientsContinue moves each of some clients to the next dataplane.
func movedClientsContinue(ctx context.Context, e *env.Env) error {
	l := e.Gateways[0].Listeners[0]
	pods, err := l.Gateway.Dataplanes()
	if err != nil {
		return err
	}
	var calls env.Calls
	defer func() { calls.HangUp() }()
	for i := range pods {
		c, err := e.DialFrom(ctx, nil, l, firstMoved+uint16(i), pods[i], "moved", env.Stream{})
		if err != nil {
			return err
		}
		calls = append(calls, c)
	}
	if err := calls.AwaitEchoes(ctx); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	for i := range pods {
		if err := e.Move(nil, l, firstMoved+uint16(i), pods[(i+1)%len(pods)]); err != nil {
			return err
		}
	}
	return calls.AwaitEchoes(ctx)
}

// vanishedPodsHurtNobody unplugs pods to which another pod forwards the datagrams of heavy clients. The other pod also
// forwards for bystanders, to a remaining pod. Pods are added before, so that several can vanish.
func vanishedPodsHurtNobody(ctx context.Context, e *env.Env) error {
	if err := e.Scale(ctx, 2+vanished); err != nil {
		return err
	}
	return errors.Join(unplugPods(ctx, e), e.Scale(ctx, e.Shape.PodCount()))
}

func unplugPods(ctx context.Context, e *env.Env) error {
	l := e.Gateways[0].Listeners[0]
	pods, err := l.Gateway.Dataplanes()
	if err != nil {
		return err
	}
	ingress, owner, vanishing := pods[0], pods[1], pods[2:]
	calls, err := forwarded(ctx, e, nil, l, firstBystander, bystanders, owner, ingress, env.Stream{})
	defer func() { calls.HangUp() }()
	if err != nil {
		return err
	}
	for i, d := range vanishing {
		heavy, err := forwarded(ctx, e, nil, l, firstHeavy+uint16(i), 1, d, ingress, env.Heavy)
		defer func() { heavy.HangUp() }()
		if err != nil {
			return err
		}
	}
	return undisturbed(ctx, calls, func() (func(), error) {
		var err error
		for _, d := range vanishing {
			err = errors.Join(err, d.Net.Unplug())
		}
		return func() {
			for _, d := range vanishing {
				_ = d.Net.Plug() // Scale detects errors
			}
		}, errors.Join(err, ingress.Net.Unresolve())
	})
}

// forwarded starts calls that a dataplane owns and whose datagrams arrive at another dataplane.
func forwarded(
	ctx context.Context, e *env.Env, n *env.Neighbour, l *env.Listener, port uint16, count int, owner, ingress env.Dataplane,
	s env.Stream,
) (calls env.Calls, err error) {
	for i := range uint16(count) {
		c, err := e.DialFrom(ctx, n, l, port+i, owner, "forwarded", s)
		if err != nil {
			return calls, err
		}
		calls = append(calls, c)
	}
	if err := calls.AwaitEchoes(ctx); err != nil {
		return calls, err
	}
	if owner.ID == ingress.ID {
		return calls, nil
	}
	for i := range uint16(count) {
		if err := e.Move(n, l, port+i, ingress); err != nil {
			return calls, err
		}
	}
	return calls, calls.AwaitEchoes(ctx)
}

// vanishedClientsHurtNobody unplugs neighbours to which a media server sends much data. The pod at which their
// datagrams arrive forwards for them, and also for the bystanders of another client network.
func vanishedClientsHurtNobody(ctx context.Context, e *env.Env) error {
	l := e.Gateways[0].Listeners[0]
	pods, err := l.Gateway.Dataplanes()
	if err != nil {
		return err
	}
	owner, ingress := pods[0], pods[1]
	stays, err := e.NewNeighbour()
	if err != nil {
		return err
	}
	calls, err := forwarded(ctx, e, stays, l, firstBystander, bystanders, owner, ingress, env.Stream{})
	defer func() { calls.HangUp() }()
	if err != nil {
		return err
	}
	var vanishing []*env.Neighbour
	var relays []netip.AddrPort
	for range vanished {
		n, err := e.NewNeighbour()
		if err != nil {
			return err
		}
		c, err := forwarded(ctx, e, n, l, firstHeavy, 1, owner, ingress, env.Stream{})
		defer func() { c.HangUp() }()
		if err != nil {
			return err
		}
		relay, err := netip.ParseAddrPort(c[0].Relay().String())
		if err != nil {
			return err
		}
		vanishing, relays = append(vanishing, n), append(relays, relay)
	}
	peer := l.Peers()[0]
	return undisturbed(ctx, calls, func() (func(), error) {
		for _, n := range vanishing {
			if err := n.Unplug(); err != nil {
				return nil, err
			}
		}
		if err := ingress.Net.Unresolve(); err != nil {
			return nil, err
		}
		return e.Flood(netip.AddrPortFrom(peer.Addr(), peer.Port()+2), env.Heavy, relays...)
	})
}

// drain deletes a pod of each Gateway, and waits until another pod is ready.
func drain(e *env.Env, ctx context.Context) error {
	for _, g := range e.Gateways {
		pods, err := g.Dataplanes()
		if err != nil {
			return err
		}
		if err := pods[0].Stop(ctx); err != nil {
			return err
		}
		if err := g.AwaitEnd(ctx, pods[0]); err != nil {
			return err
		}
	}
	return e.AwaitReady(ctx)
}

// updateAdmitsNewCalls updates the dataplanes while clients repeatedly make new calls.
func updateAdmitsNewCalls(ctx context.Context, e *env.Env) error {
	var gap time.Duration
	if e.Shape.InHostNetwork() {
		gap = inPlace
	}
	return during(ctx, e, surviving(e.Shape, env.Update), func(ctx context.Context) error {
		calling, stop := context.WithCancel(ctx)
		refused := make(chan error)
		for _, l := range e.Listeners() {
			go func() { refused <- callRepeatedly(calling, l, gap) }()
		}
		err := e.Update(ctx)
		stop()
		for range e.Listeners() {
			err = errors.Join(err, <-refused)
		}
		return err
	})
}

// callRepeatedly makes new calls until ctx ends. It returns an error if a call fails later than gap after the latest
// success.
func callRepeatedly(ctx context.Context, l *env.Listener, gap time.Duration) (err error) {
	succeeded := time.Now()
	for ctx.Err() == nil {
		now := l.TryPeer(ctx, l.Peers()[0])
		switch {
		case now == nil:
			succeeded = time.Now()
		case time.Since(succeeded) > gap && ctx.Err() == nil:
			err = fmt.Errorf("a new call during the update fails, %s after the latest success: %w", time.Since(succeeded).Round(time.Millisecond), now)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return err
}

// restartAfterAMistakeKeepsServing empties the Secret of the class, restarts operator and auth service, and corrects
// the mistake in the end.
func restartAfterAMistakeKeepsServing(ctx context.Context, e *env.Env) error {
	err := under(func(e *env.Env, ctx context.Context) error {
		if err := e.MakeMistake(ctx); err != nil {
			return err
		}
		return e.RestartAll(ctx)
	})(ctx, e)
	if err == nil {
		_, err = e.ICEServers(ctx, "mistaken", e.Gateways...)
	}
	return errors.Join(err, e.Repair(ctx))
}

// removalLeavesNothing deletes the last Gateway. Calls through the others continue.
func removalLeavesNothing(ctx context.Context, e *env.Env) error {
	last := e.Gateways[len(e.Gateways)-1]
	var calls env.Calls
	defer func() { calls.HangUp() }()
	for _, g := range e.Gateways[:len(e.Gateways)-1] {
		l := g.Listeners[0]
		c, err := e.Dial(ctx, l, l.Addresses()[0], l.Peers()[0], "stays")
		if err != nil {
			return err
		}
		calls = append(calls, c)
	}
	if err := e.Remove(ctx, last); err != nil {
		return err
	}
	return calls.AwaitEchoes(ctx)
}
