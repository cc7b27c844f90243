package shapes

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

const (
	// movers is the number of calls with ICE at each address of a UDP listener that a pod has before it drains or is
	// lost.
	movers = 2
	// dials is the maximum number of calls that are started until enough of them are at one pod, because nodes
	// distribute calls at random, or by their source.
	dials = 6
	// settled is the number of echoes after which the copies of a session contain the latest check of its client,
	// because a pod makes at most one copy a second.
	settled = 200
	// longestSilence is the longest time until calls of a lost pod continue at the pods that their clients use: two
	// seconds, and the rest for a busy machine.
	longestSilence = 6 * time.Second
)

// placed contains the calls of a test through one Gateway, grouped by their pod.
type placed struct {
	gateway *env.Gateway
	// pod is the pod of the first call. ice are its calls over UDP whose peers accept another relay, and plain are its
	// other calls.
	pod        env.Dataplane
	ice, plain env.Calls
	// others are calls at other pods.
	others env.Calls
	// stay are the calls of the pod that a drain does not move, by reason.
	stay map[string]int
	// allocations is the number of allocations of the Gateway before these calls.
	allocations float64
	// takenOver is the number of sessions that pods of the Gateway had taken over before these calls. bindings is the
	// number of bindings that the kernel of the pod had.
	takenOver float64
	bindings  int
	// left is the time when the nodes began to send the last client of the pod to another pod.
	left time.Time
	// ports are the ports of the client that the nodes send to the pod.
	ports []pinned
}

// pinned is a port of the client that the nodes send to one pod.
type pinned struct {
	listener *env.Listener
	port     uint16
}

func (p *placed) all() env.Calls { return slices.Concat(p.ice, p.plain, p.others) }

// hangUp ends calls.
func hangUp(lists ...*env.Calls) (err error) {
	for _, calls := range lists {
		for i, s := range calls.HangUp() {
			if s.Err != nil {
				err = errors.Join(err, fmt.Errorf("call %s: %w", (*calls)[i].Name, s.Err))
			}
		}
		*calls = nil
	}
	return err
}

// place starts calls through each listener of a Gateway that one pod has. If the test can select the pod of a client
// over UDP, this pod has calls of each UDP listener and family. Otherwise it is the pod of the first call: because of
// sessionAffinity, the nodes may send all calls through another Service, or of another family, to another pod.
func place(ctx context.Context, e *env.Env, g *env.Gateway, port *uint16) (p *placed, err error) {
	p = &placed{gateway: g, stay: map[string]int{}}
	pods, err := g.Dataplanes()
	if err != nil {
		return p, err
	}
	if p.allocations, err = g.Sum(ctx, telemetry.AllocationsActive); err != nil {
		return p, err
	}
	if err := awaitPeers(ctx, e, g, len(pods)); err != nil {
		return p, err
	}
	const user = "drained"
	told := severalPodsSeeClients(e.Shape)
	if told {
		p.pod = pods[0]
		err := p.pin(ctx, e, port, func(l *env.Listener, dial pinnedDial) error {
			for range movers {
				if err := dial(p.pod, true, &p.ice); err != nil {
					return err
				}
			}
			p.stay[reason(l)]++
			return dial(p.pod, false, &p.plain)
		})
		for _, c := range p.ports {
			err = errors.Join(err, e.Release(c.port))
		}
		if err != nil {
			return p, err
		}
	}
	for _, l := range g.Served() {
		for _, at := range l.Addresses() {
			if l.Network == call.UDP {
				if told {
					continue
				}
				if _, err := p.dial(pods, movers, &p.ice, func() (*env.Call, error) { return e.DialICE(ctx, l, at, user) }); err != nil {
					return p, err
				}
			}
			n, err := p.dial(pods, 1, &p.plain, func() (*env.Call, error) { return e.Dial(ctx, l, at, l.Peers()[0], user) })
			if p.stay[reason(l)] += n; err != nil {
				return p, err
			}
		}
	}
	maps.DeleteFunc(p.stay, func(_ string, n int) bool { return n == 0 })
	return p, p.all().AwaitEchoes(ctx)
}

// awaitPeers waits until the pods of a Gateway have the list of all of them. Before that, a new pod makes nonces with a
// separate key.
func awaitPeers(ctx context.Context, e *env.Env, g *env.Gateway, pods int) error {
	return e.Await(ctx, "lists of the pods of "+g.ID(), func(ctx context.Context) error {
		n, err := g.Sum(ctx, telemetry.ForwardPeers)
		if want := pods * (pods - 1); err == nil && int(n) < want {
			err = fmt.Errorf("%v entries, want %d", n, want)
		}
		return err
	})
}

// reason returns the reason why a call through a listener stays at a draining pod.
func reason(l *env.Listener) string {
	if l.Network == call.UDP {
		return inspection.StaysForPeer
	}
	return strings.TrimPrefix(l.Protocol, "TURN-")
}

// dial starts calls until the given number of them is at the pod, at most `dials` calls. It returns how many are at the
// pod. The first call at another pod continues.
func (p *placed) dial(pods []env.Dataplane, number int, here *env.Calls, start func() (*env.Call, error)) (n int, err error) {
	elsewhere := false
	for i := 0; i < dials && n < number; i++ {
		c, err := start()
		if err != nil {
			return n, err
		}
		owner, err := c.Owner(pods)
		if p.pod.ID == "" {
			p.pod = owner
		}
		if err == nil && owner.ID == p.pod.ID {
			*here = append(*here, c)
			n++
			continue
		}
		if elsewhere || err != nil {
			c.End(0)
		} else {
			p.others = append(p.others, c)
		}
		if elsewhere = true; err != nil {
			return n, err
		}
	}
	return n, nil
}

// pinnedDial starts a call that the nodes send to a pod, with ICE or without.
type pinnedDial func(to env.Dataplane, ice bool, here *env.Calls) error

// pin calls a function for each UDP listener and address family of a client.
func (p *placed) pin(ctx context.Context, e *env.Env, port *uint16, each func(*env.Listener, pinnedDial) error) error {
	families := 1
	if e.Shape.Is(env.DualStack) {
		families = 2
	}
	for _, l := range p.gateway.Served() {
		for family := 0; l.Network == call.UDP && family < families; family++ {
			if err := each(l, func(to env.Dataplane, ice bool, here *env.Calls) error {
				c, err := e.DialFrom(ctx, nil, l, *port, to, "pinned", env.Stream{ICE: ice, Family: family})
				if err != nil {
					return err
				}
				*here = append(*here, c)
				if to.ID == p.pod.ID {
					p.ports = append(p.ports, pinned{l, *port})
				}
				*port++
				return nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// drainedPodPassesItsCallsOn deletes a pod of each Gateway during calls. If pods see the addresses of clients, calls
// with ICE move without a lost datagram. The other calls stay until they end. New clients use other pods, also new
// clients that a load balancer still sends to the pod.
func drainedPodPassesItsCallsOn(ctx context.Context, e *env.Env) (err error) {
	var all []*placed
	defer func() {
		for _, p := range all {
			p.all().HangUp()
		}
	}()
	port := uint16(firstDrained)
	for _, g := range e.Gateways {
		p, err := place(ctx, e, g, &port)
		if all = append(all, p); err != nil {
			return err
		}
	}
	if e.Shape[env.Credentials] != env.Static { // successors have the new secret, and the sessions have an earlier one
		if err := e.Rotate(ctx); err != nil {
			return err
		}
	}
	for _, p := range all {
		if err := p.pod.Stop(ctx); err != nil {
			return err
		}
	}
	for _, p := range all {
		err = errors.Join(err, p.drains(ctx, e))
	}
	if err = errors.Join(err, e.AwaitReady(ctx)); err != nil {
		return err
	}
	for _, p := range all {
		stay := []*env.Calls{&p.plain}
		if !severalPodsSeeClients(e.Shape) {
			stay = append(stay, &p.ice)
		}
		if err := hangUp(stay...); err != nil {
			return err
		}
		p.ice.Laps()
	}
	for _, p := range all {
		if err := p.drained(ctx, e); err != nil {
			return err
		}
	}
	return e.AwaitReady(ctx)
}

// drains waits until the pod has moved all calls that can move. Then it makes new calls to this pod and to the others.
func (p *placed) drains(ctx context.Context, e *env.Env) error {
	moves := severalPodsSeeClients(e.Shape)
	want := inspection.DrainStatus{Stay: maps.Clone(p.stay)}
	if moves {
		want.Moved = len(p.ice)
	} else {
		want.Stay[inspection.StaysForPeer] += len(p.ice)
	}
	if err := p.gateway.AwaitEnd(ctx, p.pod); err != nil {
		return err
	}
	if err := e.Await(ctx, "drain of "+p.pod.Name, func(ctx context.Context) error {
		got, err := e.Drain(ctx, p.gateway, p.pod)
		if err == nil && got.String() != want.String() {
			err = fmt.Errorf("%s, want %s", got, want)
		}
		return err
	}); err != nil {
		return err
	}
	n, err := e.Metric(ctx, p.pod, telemetry.SessionsHandedOver)
	if err == nil && int(n) != want.Moved {
		err = fmt.Errorf("%s of %s is %v, want %d", telemetry.SessionsHandedOver, p.pod.Name, n, want.Moved)
	}
	if err != nil {
		return err
	}
	if err := p.all().OverUDP().AwaitAll(ctx); err != nil {
		return fmt.Errorf("while %s drains, datagrams are lost: %w", p.pod.Name, err)
	}
	st, err := e.StatusOf(ctx, p.pod)
	if err != nil {
		return err
	}
	if most := want.Stay[inspection.StaysForPeer]; st.Offload.Bindings > most {
		return fmt.Errorf("the kernel of %s has %d bindings, and %d sessions stay that may have one", p.pod.Name, st.Offload.Bindings, most)
	}
	if moves { // a load balancer may still send new clients to the pod, which forwards them to other pods
		others, err := p.besides()
		if err == nil {
			err = callAt(ctx, e, p.gateway, p.pod, others)
		}
		if err != nil {
			return fmt.Errorf("%s drains: %w", p.pod.Name, err)
		}
	}
	for _, l := range p.gateway.Served() {
		if err := e.Await(ctx, "new call to "+l.String(), func(ctx context.Context) error {
			return l.TryPeer(ctx, l.Peers()[0])
		}); err != nil {
			return err
		}
	}
	return p.all().AwaitEchoes(ctx)
}

// drained waits until the pod has ended, after the end of the calls that have stayed. The other calls continue.
func (p *placed) drained(ctx context.Context, e *env.Env) error {
	select {
	case <-p.pod.Done:
	case <-time.After(env.Limit):
		return fmt.Errorf("%s does not end, %s after its last call", p.pod.Name, env.Limit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := p.all().AwaitEchoes(ctx); err != nil {
		return fmt.Errorf("after the end of %s: %w", p.pod.Name, err)
	}
	e.Logf("%s: %d calls have moved, and were silent for %s at most at its end", p.pod.Name, len(p.ice), p.ice.Laps())
	return p.ended(ctx, e)
}

// ended ends the calls, and waits until no pod has one of their sessions.
func (p *placed) ended(ctx context.Context, e *env.Env) error {
	if err := hangUp(&p.ice, &p.plain, &p.others); err != nil {
		return err
	}
	return e.Await(ctx, "end of all sessions of "+p.gateway.ID(), func(ctx context.Context) error {
		n, err := p.gateway.Sum(ctx, telemetry.AllocationsActive)
		if err == nil && n > p.allocations {
			err = fmt.Errorf("%v allocations, and %v before the calls", n, p.allocations)
		}
		return err
	})
}

// inKernel waits until the kernel has forwarded more packets of a Gateway, if there is an offload engine.
func inKernel(ctx context.Context, e *env.Env, g *env.Gateway) error {
	if e.Shape[env.MediaPath] == env.UserSpace {
		return nil
	}
	before, err := g.Sum(ctx, telemetry.OffloadPackets)
	if err != nil {
		return err
	}
	return e.Await(ctx, "packets of "+g.ID()+" in the kernel", func(ctx context.Context) error {
		n, err := g.Sum(ctx, telemetry.OffloadPackets)
		if err == nil && n <= before {
			err = fmt.Errorf("%v, as before", n)
		}
		return err
	})
}

// loss is a way to stop or isolate a pod without a signal that its process could handle, and to restore the pod.
type loss struct {
	name       string
	begin, end func(env.Dataplane) error
}

var losses = []loss{
	{
		"its link is down", func(d env.Dataplane) error { return d.Net.Unplug() }, func(d env.Dataplane) error { return d.Net.Plug() },
	},
	{
		"its process is stopped", func(d env.Dataplane) error { return d.Signal(syscall.SIGSTOP) },
		func(d env.Dataplane) error { return d.Signal(syscall.SIGCONT) },
	},
}

// callsOutliveALostPod stops or isolates a pod of each Gateway during calls with ICE, and restores it. The way depends
// on the shape. The nodes send the clients of the pod to the others.
func callsOutliveALostPod(ctx context.Context, e *env.Env) (err error) {
	how := losses[choose(e, len(losses))]
	var all []*placed
	defer func() {
		for _, p := range all {
			p.all().HangUp()
		}
	}()
	port := uint16(firstLost)
	for _, g := range e.Gateways {
		p, err := placeICE(ctx, e, g, &port)
		if all = append(all, p); err != nil {
			return err
		}
	}
	for _, p := range all {
		if err := p.copied(ctx); err != nil {
			return err
		}
	}
	for _, p := range all {
		err = errors.Join(err, how.begin(p.pod))
	}
	for _, step := range []func(*placed, context.Context, *env.Env) error{(*placed).leave, (*placed).lost, (*placed).called} {
		for _, p := range all {
			if err == nil {
				err = step(p, ctx, e)
			}
		}
	}
	for _, p := range all {
		err = errors.Join(err, how.end(p.pod))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", how.name, err)
	}
	if err := e.AwaitReady(ctx); err != nil {
		return err
	}
	for _, p := range all {
		if err := p.found(ctx, e); err != nil {
			return fmt.Errorf("%s, and then it is back: %w", how.name, err)
		}
	}
	return nil
}

// choose returns a number below n. Different shapes have different numbers, and a shape always has the same number.
func choose(e *env.Env, n int) int {
	hash := fnv.New32a()
	hash.Write([]byte(e.Shape.String()))
	return int(hash.Sum32() % uint32(n))
}

// placeICE starts calls with ICE through each UDP listener, of each address family: one call that the nodes send to a
// pod, and one call that they send to another pod.
func placeICE(ctx context.Context, e *env.Env, g *env.Gateway, port *uint16) (p *placed, err error) {
	p = &placed{gateway: g}
	pods, err := g.Dataplanes()
	if err != nil {
		return p, err
	}
	if err := awaitPeers(ctx, e, g, len(pods)); err != nil {
		return p, err
	}
	p.pod = pods[0]
	for _, sum := range []struct {
		name string
		to   *float64
	}{{telemetry.AllocationsActive, &p.allocations}, {telemetry.SessionsRescued, &p.takenOver}} {
		if *sum.to, err = g.Sum(ctx, sum.name); err != nil {
			return p, err
		}
	}
	st, err := e.StatusOf(ctx, p.pod)
	if err != nil {
		return p, err
	}
	p.bindings = st.Offload.Bindings
	return p, p.pin(ctx, e, port, func(_ *env.Listener, dial pinnedDial) error {
		for range movers {
			if err := dial(p.pod, true, &p.ice); err != nil {
				return err
			}
		}
		return dial(pods[1], true, &p.others)
	})
}

// copied waits until another pod can continue the calls.
func (p *placed) copied(ctx context.Context) error {
	for _, c := range p.all() {
		if err := c.Await(ctx, settled); err != nil {
			return fmt.Errorf("call %s: %w", c.Name, err)
		}
	}
	return nil
}

// besides returns the other pods of the Gateway.
func (p *placed) besides() ([]env.Dataplane, error) {
	pods, err := p.gateway.Dataplanes()
	return slices.DeleteFunc(pods, func(d env.Dataplane) bool { return d.ID == p.pod.ID }), err
}

// leave makes the nodes send the clients of the pod to others.
func (p *placed) leave(_ context.Context, e *env.Env) error {
	others, err := p.besides()
	for i, c := range p.ports {
		err = errors.Join(err, e.Move(nil, c.listener, c.port, others[i%len(others)]))
	}
	p.left = time.Now()
	return err
}

// lost waits until the calls of the pod continue. The others lose nothing.
func (p *placed) lost(ctx context.Context, e *env.Env) error {
	if err := p.all().AwaitEchoes(ctx); err != nil {
		return err
	}
	gap := time.Since(p.left)
	e.Logf("%s is lost: its %d calls continue %s after their clients have used other pods", p.pod.Name, len(p.ice), gap)
	if gap > longestSilence {
		return fmt.Errorf("calls of %s continue only %s after their clients have used other pods", p.pod.Name, gap)
	}
	if err := p.others.AwaitAll(ctx); err != nil {
		return fmt.Errorf("%w: calls of another pod: %w", errDisturbed, err)
	}
	return nil
}

// called makes new calls at another pod. Nodes also send new calls to a lost pod as long as it is ready.
func (p *placed) called(ctx context.Context, e *env.Env) error {
	others, err := p.besides()
	if err != nil {
		return err
	}
	return callAt(ctx, e, p.gateway, others[0], others)
}

// callAt makes the nodes send a new client of each UDP listener to a pod, and starts a call of each. The session must
// be at one of the owners.
func callAt(ctx context.Context, e *env.Env, g *env.Gateway, at env.Dataplane, owners []env.Dataplane) error {
	for i, l := range g.Served() {
		if l.Network != call.UDP {
			continue
		}
		c, err := e.DialFrom(ctx, nil, l, firstPassed+uint16(i), at, "new", env.Stream{})
		if err == nil {
			_, err = c.Owner(owners)
			err = errors.Join(err, env.Calls{c}.AwaitEchoes(ctx))
			c.End(0)
		}
		if err != nil {
			return fmt.Errorf("new call: %w", err)
		}
	}
	return nil
}

// found waits until the pod has no session of the calls. The sessions continue at other pods.
func (p *placed) found(ctx context.Context, e *env.Env) error {
	if err := e.Await(ctx, "one owner of each session of "+p.gateway.ID(), func(ctx context.Context) error {
		n, err := p.gateway.Sum(ctx, telemetry.AllocationsActive)
		calls := float64(len(p.all())) // earlier calls may have ended
		if err == nil && (n < calls || n > calls+p.allocations) {
			err = fmt.Errorf("%v allocations, of %v calls, and %v before them", n, calls, p.allocations)
		}
		return err
	}); err != nil {
		return err
	}
	takenOver, err := p.gateway.Sum(ctx, telemetry.SessionsRescued)
	if err == nil && takenOver-p.takenOver != float64(len(p.ice)) {
		err = fmt.Errorf("%s has grown by %v, want %d", telemetry.SessionsRescued, takenOver-p.takenOver, len(p.ice))
	}
	if err != nil {
		return err
	}
	st, err := e.StatusOf(ctx, p.pod)
	if err == nil && st.Offload.Bindings > p.bindings {
		err = fmt.Errorf("the kernel of %s has %d bindings, and %d before the calls", p.pod.Name, st.Offload.Bindings, p.bindings)
	}
	if err != nil {
		return err
	}
	if err := p.all().AwaitEchoes(ctx); err != nil {
		return err
	}
	// With more than two pods, a client may have sent to a pod that does not have its session.
	if e.Shape.Is(env.TwoPods) {
		if err := inKernel(ctx, e, p.gateway); err != nil {
			return err
		}
	}
	return p.ended(ctx, e)
}
