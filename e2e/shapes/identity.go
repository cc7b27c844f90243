package shapes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

const (
	// revokedWithin is the time in which the calls of a revoked user must end.
	revokedWithin = 2 * time.Second
	// silent is the time without an echo after which a call counts as ended.
	silent = 300 * time.Millisecond
	// quota is the number of allocations that a user may have.
	quota = 3
	// usedUp is the number of datagrams after which the bytes of a credential are used up. datagram is the size of
	// each.
	usedUp, datagram = 50, 160
)

// Ports of clients with a call at each pod. They have the same meaning as the ports in faults.go.
const (
	firstNarrow = 30301 + 100*iota
	firstWide
	firstRevoked
	firstOther
	firstBilled
	firstRestored
	firstKept
	firstGreedy
	_
	firstLimited
)

// withCaveats reports whether credentials can have caveats, and can be revoked.
func withCaveats(s env.Shape) bool { return s[env.Credentials] != env.Static }

// of returns credentials of a user with caveats, which may depend on the listener; nil means no caveats.
func of(user string, caveats func(*env.Listener) credential.Caveats) env.Login {
	return func(ctx context.Context, l *env.Listener) (username, password string, err error) {
		if caveats == nil {
			return l.Gateway.Credential(ctx, user)
		}
		return l.Gateway.CredentialWith(ctx, user, caveats(l))
	}
}

// ownRoute are caveats with the route of the listener.
func ownRoute(l *env.Listener) credential.Caveats {
	return credential.Caveats{Routes: []string{l.Route()}}
}

// dialEach starts a call through each listener at each of its addresses. If the test can select the pod to which the
// nodes send a client, it also starts one call through each pod, from the local port `port` and the following ports.
func dialEach(ctx context.Context, e *env.Env, port uint16, login env.Login) (calls env.Calls, err error) {
	if calls, err = e.DialAllAs(ctx, login); err != nil || !severalPodsSeeClients(e.Shape) {
		return calls, err
	}
	for _, g := range e.Gateways {
		pods, err := g.Dataplanes()
		if err != nil {
			return calls, err
		}
		l := g.Listeners[0]
		username, password, err := login(ctx, l)
		if err != nil {
			return calls, err
		}
		for _, d := range pods {
			c, err := e.DialFromAs(ctx, nil, l, port, d, username, password, env.Stream{})
			if err != nil {
				return calls, err
			}
			calls, port = append(calls, c), port+1
		}
	}
	return calls, calls.AwaitEchoes(ctx)
}

// refused returns nil if the error of a call is that the gateway has refused it with a code.
func refused(err error, code string) error {
	if errors.Is(err, call.ErrRefused) && strings.Contains(err.Error(), "error "+code) {
		return nil
	}
	return fmt.Errorf("want error %s, not: %w", code, err)
}

// isRefused tries a call with a credential at each address of a listener.
func isRefused(ctx context.Context, e *env.Env, l *env.Listener, code, username, password string) (err error) {
	for _, at := range l.Addresses() {
		c, dialErr := e.DialAs(ctx, l, at, l.Peers()[0], username, password)
		if dialErr == nil {
			c.End(0)
			dialErr = errors.New("the call works")
		}
		if dialErr := refused(dialErr, code); dialErr != nil {
			err = errors.Join(err, fmt.Errorf("%s at %s: %w", l, at, dialErr))
		}
	}
	return err
}

// aCaveatOnlyNarrows makes calls with credentials that name the route of their listener. Meanwhile the media servers of
// the listener are moved to another route and back.
func aCaveatOnlyNarrows(ctx context.Context, e *env.Env) error {
	if err := errors.Join(otherRoutesAreRefused(ctx, e), otherGatewaysRefuse(ctx, e)); err != nil {
		return err
	}
	narrow, err := dialEach(ctx, e, firstNarrow, of("narrow", ownRoute))
	defer func() { narrow.HangUp() }()
	if err != nil {
		return fmt.Errorf("calls that name their route: %w", err)
	}
	wide, err := dialEach(ctx, e, firstWide, of("wide", nil))
	defer func() { wide.HangUp() }()
	if err != nil {
		return err
	}
	err = e.AddRoute(ctx)
	if err == nil {
		err = followsItsRoute(ctx, e, narrow, wide)
	}
	return errors.Join(err, e.FillRoutes(ctx), e.RemoveRoute(ctx),
		e.Await(ctx, "end of the route", func(context.Context) error { return permits(wide, e.UnroutedPeer(), false) }))
}

// otherRoutesAreRefused tries credentials that name another route: a route of another listener, a route of another
// Gateway, or a route that does not exist.
func otherRoutesAreRefused(ctx context.Context, e *env.Env) (err error) {
	for _, l := range e.Listeners() {
		others := []string{l.Gateway.ID() + "-absent"}
		for _, other := range e.Listeners() {
			if name := other.Route(); name != l.Route() && !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
		username, password, credentialErr := l.Gateway.CredentialWith(ctx, "elsewhere", credential.Caveats{Routes: others})
		if credentialErr != nil {
			return credentialErr
		}
		err = errors.Join(err, isRefused(ctx, e, l, "403", username, password))
	}
	return err
}

// otherGatewaysRefuse tries credentials with a caveat at the listeners of other Gateways.
func otherGatewaysRefuse(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		for _, l := range e.Listeners() {
			if l.Gateway == g {
				continue
			}
			username, password, credentialErr := g.CredentialWith(ctx, "elsewhere", ownRoute(l))
			if credentialErr != nil {
				return credentialErr
			}
			err = errors.Join(err, isRefused(ctx, e, l, "401", username, password))
		}
	}
	return err
}

// followsItsRoute compares calls whose credential names a route with calls whose credential names none, while the
// listeners have one more route.
func followsItsRoute(ctx context.Context, e *env.Env, narrow, wide env.Calls) error {
	err := e.Await(ctx, "one more route", func(context.Context) error { return permits(wide, e.UnroutedPeer(), true) })
	if err != nil {
		return err
	}
	if err := errors.Join(permits(narrow, e.UnroutedPeer(), false), unroutedPeerGetsNothing(ctx, e)); err != nil {
		return fmt.Errorf("a peer of a route that is not named: %w", err)
	}
	if err := e.EmptyRoutes(ctx); err != nil {
		return err
	}
	if err := e.Await(ctx, "end of calls whose peers have left the named route", func(context.Context) error {
		return areOver(narrow)
	}); err != nil {
		return err
	}
	if err := wide.AwaitEchoes(ctx); err != nil {
		return fmt.Errorf("calls whose peers have moved to another route of the listener: %w", err)
	}
	if err := e.FillRoutes(ctx); err != nil {
		return err
	}
	if err := narrow.AwaitEchoes(ctx); err != nil {
		return fmt.Errorf("calls whose peers are back: %w", err)
	}
	return nil
}

// permits returns nil if calls get a permission for a peer. If allowed is false, it returns nil if they get error 403.
func permits(calls env.Calls, peer netip.AddrPort, allowed bool) (err error) {
	for _, c := range calls {
		permitErr := c.Permit(net.UDPAddrFromAddrPort(peer))
		if !allowed {
			if permitErr == nil {
				permitErr = errors.New("a permission is given")
			}
			permitErr = refused(permitErr, "403")
		}
		if permitErr != nil {
			err = errors.Join(err, fmt.Errorf("call %s: peer %s: %w", c.Name, peer, permitErr))
		}
	}
	return err
}

// areOver returns nil if calls have had no echo for a while.
func areOver(calls env.Calls) error {
	for _, c := range calls {
		if since := time.Since(c.LastEcho()); since < silent {
			return fmt.Errorf("call %s: the last echo has arrived %s ago", c.Name, since.Round(time.Millisecond))
		}
	}
	return nil
}

// unroutedPeerGetsNothing sends from the unrouted peer to clients, and from clients to the unrouted peer, while the
// clients exchange media with the peer of the named route.
func unroutedPeerGetsNothing(ctx context.Context, e *env.Env) (err error) {
	for _, l := range e.Listeners() {
		if l.Network != call.UDP {
			continue // the relay does not depend on the transport
		}
		for _, at := range l.Addresses() {
			if oneErr := exchangesOnlyWithItsRoute(ctx, e, l, at); oneErr != nil {
				err = errors.Join(err, fmt.Errorf("%s at %s: %w", l, at, oneErr))
			}
		}
	}
	return err
}

func exchangesOnlyWithItsRoute(ctx context.Context, e *env.Env, l *env.Listener, at netip.AddrPort) error {
	username, password, err := of("bound", ownRoute)(ctx, l)
	if err != nil {
		return err
	}
	c, err := e.AllocateAs(ctx, at, netip.Addr{}, username, password)
	if err != nil {
		return err
	}
	defer c.Release(ctx)
	channel, err := c.Bind(ctx, l.Peers()[0])
	if err != nil {
		return err
	}
	if _, err := c.Bind(ctx, e.UnroutedPeer()); !errors.Is(err, env.ErrForbidden) {
		return fmt.Errorf("a channel to %s: %v, want error 403", e.UnroutedPeer(), err)
	}
	for range 3 {
		err := errors.Join(c.Indicate(e.UnroutedPeer(), "from a client"), e.SendFrom(e.UnroutedPeer(), c.Relay, "from another peer"),
			c.Exchange(channel, "media"))
		if err != nil {
			return err
		}
	}
	return nil
}

// aCaveatOfBytesEndsCalls makes calls with a credential for each listener. The credential has the bytes of some
// datagrams and their echoes. Each pod counts by itself.
func aCaveatOfBytesEndsCalls(ctx context.Context, e *env.Env) (err error) {
	byListener := map[*env.Listener]env.Calls{}
	var all env.Calls
	defer func() { all.HangUp() }()
	for _, l := range e.Listeners() {
		username, password, err := l.Gateway.CredentialWith(ctx, "pays-"+l.Name, credential.Caveats{Bytes: 2 * usedUp * datagram})
		if err != nil {
			return err
		}
		for _, at := range l.Addresses() {
			c, err := e.DialAs(ctx, l, at, l.Peers()[0], username, password)
			if err != nil {
				return err
			}
			all, byListener[l] = append(all, c), append(byListener[l], c)
		}
	}
	begun := func(context.Context) error {
		for _, c := range all {
			if c.LastEcho().IsZero() {
				return fmt.Errorf("call %s has had no echo", c.Name)
			}
		}
		return areOver(all)
	}
	if err := e.Await(ctx, "end of calls whose bytes are used up", begun); err != nil {
		return err
	}
	for l, calls := range byListener {
		echoes := 0
		for _, c := range calls {
			echoes += c.Stats().Received
		}
		if most := usedUp * e.Shape.PodCount(); echoes > most {
			err = errors.Join(err, fmt.Errorf("%s: %d echoes, want at most %d", l, echoes, most))
		}
	}
	return err
}

// revocationEndsItsUserOnly revokes a user during calls of this user and of another user.
func revocationEndsItsUserOnly(ctx context.Context, e *env.Env) (err error) {
	const user = "dismissed"
	issued := map[*env.Gateway][2]string{}
	login := func(ctx context.Context, l *env.Listener) (username, password string, err error) {
		if known, ok := issued[l.Gateway]; ok {
			return known[0], known[1], nil
		}
		username, password, err = l.Gateway.Credential(ctx, user)
		issued[l.Gateway] = [2]string{username, password}
		return username, password, err
	}
	calls, err := dialEach(ctx, e, firstRevoked, login)
	defer func() { calls.HangUp() }()
	if err != nil {
		return err
	}
	others, err := dialEach(ctx, e, firstOther, of("stays", nil))
	defer func() { others.HangUp() }()
	if err != nil {
		return err
	}
	id, err := revoke(ctx, e, user, calls, others)
	others = nil
	lifted := id == ""
	defer func() {
		if !lifted {
			err = errors.Join(err, e.Lift(ctx, id))
		}
	}()
	if err != nil {
		return err
	}
	for _, l := range e.Listeners() {
		err = errors.Join(err, isRefused(ctx, e, l, "401", issued[l.Gateway][0], issued[l.Gateway][1]))
	}
	if err != nil {
		return fmt.Errorf("with the revoked credential: %w", err)
	}
	// The revocation also ends credentials without a time of issue. From now on, the auth service adds this time to the
	// credentials of the user, so credentials that the test makes need it too.
	now := credential.Caveats{}
	if e.Shape[env.Credentials] == env.Ephemeral {
		now.IssuedAt = time.Now().Unix() + 1
	}
	again, err := e.DialAllAs(ctx, of(user, func(*env.Listener) credential.Caveats { return now }))
	again.HangUp()
	if err != nil {
		return fmt.Errorf("with a credential of afterwards: %w", err)
	}
	if err := e.Lift(ctx, id); err != nil {
		return err
	}
	lifted = true
	if ids, err := e.Revocations(ctx); err != nil || slices.Contains(ids, id) {
		return fmt.Errorf("the auth service lists %v after it has lifted %s: %w", ids, id, err)
	}
	return e.Await(ctx, "calls with the credential whose revocation is lifted", func(ctx context.Context) error {
		calls, err := e.DialAllAs(ctx, login)
		calls.HangUp()
		return err
	})
}

// revoke revokes a user. It returns an error if a call of the user does not end in time, or if one of the other calls
// loses datagrams. It ends the other calls. The id is empty if there is no revocation.
func revoke(ctx context.Context, e *env.Env, user string, calls, others env.Calls) (id string, err error) {
	before := make([]call.Stats, len(others))
	for i, c := range others {
		before[i] = c.Stats()
	}
	sent := time.Now()
	id, err = e.Revoke(ctx, user)
	if err == nil {
		err = e.Await(ctx, "end of the calls of a revoked user", func(context.Context) error { return areOver(calls) })
	}
	if err == nil {
		err = others.AwaitEchoes(ctx)
	}
	for i, s := range others.End(silent) {
		if s.Lost-before[i].Lost > (s.Sent-before[i].Sent)*tolerated/100 {
			err = errors.Join(err, fmt.Errorf("%w: call %s: %s, before: %s", errDisturbed, others[i].Name, s, before[i]))
		}
	}
	for _, c := range calls {
		if after := c.LastEcho().Sub(sent); after > revokedWithin {
			err = errors.Join(err, fmt.Errorf("call %s ends %s after the revocation, want %s", c.Name, after, revokedWithin))
		}
	}
	for _, c := range calls.OverUDP() { // a connection may be closed
		if c.Renew() == nil {
			err = errors.Join(err, fmt.Errorf("call %s: its permission is renewed", c.Name))
		}
	}
	return id, err
}

// usageAddsUp compares the usage of a user, during calls and after them, with the datagrams that the calls have sent
// and received. Lost datagrams may be counted or not.
func usageAddsUp(ctx context.Context, e *env.Env) error {
	const user = "billed"
	if err := e.Await(ctx, "end of all calls", func(ctx context.Context) error {
		n, err := allocations(ctx, e)
		if err == nil && n != 0 {
			err = fmt.Errorf("%v allocations are left", n)
		}
		return err
	}); err != nil {
		return err
	}
	before, err := e.Usage(ctx, user)
	if err != nil {
		return err
	}
	calls, err := dialEach(ctx, e, firstBilled, of(user, nil))
	defer func() { calls.HangUp() }()
	if err != nil {
		return err
	}
	pausing, cancel := context.WithTimeout(ctx, silent)
	defer cancel()
	var all []call.Stats
	for _, c := range calls {
		_ = c.Pause(pausing) // an echo that has not arrived is lost
		all = append(all, c.Stats())
	}
	err = billed(ctx, e, user, before, all)
	for _, c := range calls {
		c.Resume()
	}
	if err != nil {
		return fmt.Errorf("during the calls: %w", err)
	}
	if err := calls.AwaitEchoes(ctx); err != nil {
		return err
	}
	all = calls.End(silent)
	calls = nil
	return billed(ctx, e, user, before, all)
}

// billed waits until the usage of a user has grown by the datagrams that calls have sent and received. Packets that the
// kernel has forwarded are counted a moment later.
func billed(ctx context.Context, e *env.Env, user string, before env.Usage, calls []call.Stats) error {
	sent, received := 0, 0
	for _, s := range calls {
		sent, received = sent+s.Sent, received+s.Received
	}
	grown := func(now, before env.Count) (packets int, err error) {
		packets = now.Packets - before.Packets
		if bytes := now.Bytes - before.Bytes; bytes != datagram*packets {
			err = fmt.Errorf("%d bytes in %d datagrams of %d", bytes, packets, datagram)
		}
		return packets, err
	}
	return e.Await(ctx, "usage", func(ctx context.Context) error {
		now, err := e.Usage(ctx, user)
		if err != nil {
			return err
		}
		up, upErr := grown(now.Total.Sent, before.Total.Sent)
		down, downErr := grown(now.Total.Received, before.Total.Received)
		err = errors.Join(upErr, downErr)
		if up < received || up > sent || down < received || down > up {
			err = errors.Join(err, fmt.Errorf("clients have sent %d and received %d, but usage is %d and %d",
				sent, received, up, down))
		}
		if n := now.Total.Sessions - before.Total.Sessions; n != len(calls) {
			err = errors.Join(err, fmt.Errorf("%d sessions of %d calls", n, len(calls)))
		}
		if pods := len(e.Gateways) * e.Shape.PodCount(); now.PodsAsked != pods || now.PodsAnswered != pods || !now.Complete {
			err = errors.Join(err, fmt.Errorf("%d of %d pods have answered, want %d; complete: %v", now.PodsAnswered, now.PodsAsked,
				pods, now.Complete))
		}
		return err
	})
}

// aCrashWidensNothing runs widensNothing with the crash of a dataplane of each Gateway.
func aCrashWidensNothing(ctx context.Context, e *env.Env) error {
	dial := func(user string, port uint16, caveats func(*env.Listener) credential.Caveats) (env.Calls, error) {
		return dialEach(ctx, e, port, of(user, caveats))
	}
	return widensNothing(ctx, e, dial, surviving(e.Shape, env.Crash), e.CrashOne)
}

// aDrainWidensNothing runs widensNothing with the deletion of a pod of each Gateway. The test does not select the pods
// of the calls, because the nodes send the clients of a pod to another pod when it has ended.
func aDrainWidensNothing(ctx context.Context, e *env.Env) error {
	dial := func(user string, _ uint16, caveats func(*env.Listener) credential.Caveats) (env.Calls, error) {
		return e.DialAllAs(ctx, of(user, caveats))
	}
	return widensNothing(ctx, e, dial, env.Calls.All, func(ctx context.Context) error { return drain(e, ctx) })
}

// widensNothing causes an event during calls whose credentials have limits. Calls that must survive the event must have
// the same limits afterwards, and a revocation must end them.
func widensNothing(
	ctx context.Context, e *env.Env,
	dial func(user string, port uint16, caveats func(*env.Listener) credential.Caveats) (env.Calls, error),
	survive func(env.Calls) env.Calls, happen func(context.Context) error,
) error {
	const user = "restored"
	narrow, err := dial(user, firstRestored, ownRoute)
	defer func() { narrow.HangUp() }()
	if err != nil {
		return err
	}
	wide, err := dial("kept", firstKept, nil)
	defer func() { wide.HangUp() }()
	if err != nil {
		return err
	}
	full, err := fillQuota(ctx, e)
	defer func() { full.HangUp() }()
	if err != nil {
		return err
	}
	if err := happen(ctx); err != nil {
		return err
	}
	limited, kept := continuing(ctx, survive(narrow)), continuing(ctx, survive(wide))
	if len(limited) == 0 || len(kept) == 0 {
		return fmt.Errorf("%d of %d limited calls and %d of %d others continue",
			len(limited), len(narrow), len(kept), len(wide))
	}
	if err := keepLimits(ctx, e, limited, kept); err != nil {
		return err
	}
	wide = slices.DeleteFunc(slices.Clone(wide), func(c *env.Call) bool { return slices.Contains(kept, c) })
	id, err := revoke(ctx, e, user, limited, kept)
	if id != "" {
		err = errors.Join(err, e.Lift(ctx, id))
	}
	return err
}

// continuing returns the calls that continue. Another test covers calls that end with a crash: nodes that find no ready
// pod for a moment may give a client another port.
func continuing(ctx context.Context, calls env.Calls) env.Calls {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	_ = calls.AwaitEchoes(ctx)
	return slices.DeleteFunc(slices.Clone(calls), func(c *env.Call) bool { return time.Since(c.LastEcho()) > silent })
}

// keepLimits checks two limits: narrow calls get no permission for a peer of one more route, and a user whose quota is
// used up gets no other call. Another pod may decide about the quota from now on. It learns the use of the quota within
// a second.
func keepLimits(ctx context.Context, e *env.Env, narrow, wide env.Calls) error {
	if err := e.AddRoute(ctx); err != nil {
		return err
	}
	err := e.Await(ctx, "one more route", func(context.Context) error { return permits(wide, e.UnroutedPeer(), true) })
	if err == nil {
		err = permits(narrow, e.UnroutedPeer(), false)
	}
	if err := errors.Join(err, e.RemoveRoute(ctx)); err != nil {
		return err
	}
	for _, g := range e.Gateways {
		if err := e.Await(ctx, "use of the quota of "+g.ID(), func(ctx context.Context) error {
			oneErr := one(ctx, e, g.Listeners[0], ofQuota("full"))
			if oneErr == nil {
				oneErr = errors.New("one more call works")
			}
			return refused(oneErr, "486")
		}); err != nil {
			return err
		}
	}
	return nil
}

// ofQuota returns credentials of a user with a caveat about allocations.
func ofQuota(user string) env.Login {
	return of(user, func(*env.Listener) credential.Caveats { return credential.Caveats{Allocations: quota} })
}

// fillQuota makes as many calls over UDP as the quota of a user allows, at each Gateway.
func fillQuota(ctx context.Context, e *env.Env) (calls env.Calls, err error) {
	for _, g := range e.Gateways {
		l := g.Listeners[0]
		username, password, err := ofQuota("full")(ctx, l)
		if err != nil {
			return calls, err
		}
		for range quota {
			c, err := e.DialAs(ctx, l, l.Addresses()[0], l.Peers()[0], username, password)
			if err != nil {
				return calls, err
			}
			calls = append(calls, c)
		}
	}
	return calls, calls.AwaitEchoes(ctx)
}

// aQuotaCountsOverPods sets a quota of each user in the config.
func aQuotaCountsOverPods(ctx context.Context, e *env.Env) error {
	err := e.SetUserQuota(ctx, quota)
	if err == nil {
		err = allowsQuota(ctx, e, firstGreedy, of("greedy", nil))
	}
	return errors.Join(err, e.SetUserQuota(ctx, 0))
}

// aCaveatCountsOverPods sets a quota in the credentials of a user.
func aCaveatCountsOverPods(ctx context.Context, e *env.Env) error {
	return allowsQuota(ctx, e, firstLimited, ofQuota("limited"))
}

// allowsQuota makes calls of a user at once at all listeners and pods of each Gateway. As many as the quota allows must
// work. Meanwhile, calls of another user must work, and afterwards new calls of the first user too. For some seconds
// after a change of the pods, or after a pod has not answered another pod in time, each pod may allow the whole quota.
func allowsQuota(ctx context.Context, e *env.Env, port uint16, greedy env.Login) error {
	for _, g := range e.Gateways {
		var over error
		if err := e.Await(ctx, "quota of "+g.ID(), func(ctx context.Context) error {
			calls, tried, err := dialAtOnce(ctx, e, g, port, greedy)
			port += uint16(tried)
			defer func() { calls.HangUp() }()
			switch {
			case err != nil:
				return err
			case len(calls) > quota*e.Shape.PodCount():
				over = fmt.Errorf("%s: %d of %d calls work with a quota of %d", g.ID(), len(calls), tried, quota)
				return nil
			case len(calls) != quota:
				return fmt.Errorf("%d of %d calls work with a quota of %d", len(calls), tried, quota)
			case withCaveats(e.Shape): // without caveats, all clients are one user
				return one(ctx, e, g.Listeners[0], of("modest", nil))
			}
			return nil
		}); err != nil || over != nil {
			return errors.Join(err, over)
		}
		if err := e.Await(ctx, "a call after the end of the others", func(ctx context.Context) error {
			return one(ctx, e, g.Listeners[0], greedy)
		}); err != nil {
			return err
		}
	}
	return nil
}

// one makes a call and ends it.
func one(ctx context.Context, e *env.Env, l *env.Listener, login env.Login) error {
	username, password, err := login(ctx, l)
	if err != nil {
		return err
	}
	c, err := e.DialAs(ctx, l, l.Addresses()[0], l.Peers()[0], username, password)
	if err == nil {
		c.End(0)
	}
	return err
}

// dialAtOnce starts more calls than the quota allows: at each address of each listener, and at each pod if the test can
// select the pod to which the nodes send a client. It returns the calls that work and the number of tries. It returns
// an error if a call has failed for another reason than the quota.
func dialAtOnce(
	ctx context.Context, e *env.Env, g *env.Gateway, port uint16, login env.Login,
) (calls env.Calls, tried int, err error) {
	l := g.Listeners[0]
	username, password, err := login(ctx, l)
	if err != nil {
		return nil, 0, err
	}
	var dials []func() (*env.Call, error)
	for len(dials) < 2*quota {
		for _, l := range g.Served() {
			for _, at := range l.Addresses() {
				dials = append(dials, func() (*env.Call, error) {
					return e.DialAs(ctx, l, at, l.Peers()[0], username, password)
				})
			}
		}
	}
	if severalPodsSeeClients(e.Shape) {
		pods, err := g.Dataplanes()
		if err != nil {
			return nil, 0, err
		}
		for range quota {
			for _, d := range pods {
				from := port + uint16(len(dials))
				dials = append(dials, func() (*env.Call, error) {
					return e.DialFromAs(ctx, nil, l, from, d, username, password, env.Stream{})
				})
			}
		}
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, dial := range dials {
		running.Go(func() {
			c, dialErr := dial()
			mu.Lock()
			defer mu.Unlock()
			if dialErr == nil {
				calls = append(calls, c)
			} else {
				err = errors.Join(err, refused(dialErr, "486"))
			}
		})
	}
	running.Wait()
	return calls, len(dials), err
}
