package shapes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

func statusIsTrue(ctx context.Context, e *env.Env) error {
	return e.Await(ctx, "status", func(ctx context.Context) (err error) {
		for _, g := range e.Gateways {
			s, statusErr := g.Status(ctx)
			if statusErr != nil {
				return statusErr
			}
			err = errors.Join(err, checkStatus(e, g, s))
		}
		return err
	})
}

// checkStatus compares the status of a Gateway with what clients see.
func checkStatus(e *env.Env, g *env.Gateway, s env.Status) (err error) {
	for _, kind := range []string{"Accepted", "Programmed"} {
		err = errors.Join(err, env.IsTrue(s.Conditions, kind))
	}
	for _, l := range g.Listeners {
		i := slices.IndexFunc(s.Listeners, func(of env.ListenerStatus) bool { return of.Name == l.Name })
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("no status of listener %s", l.Name))
			continue
		}
		for _, kind := range []string{"Accepted", "Programmed", "ResolvedRefs"} {
			if conditionErr := env.IsTrue(s.Listeners[i].Conditions, kind); conditionErr != nil {
				err = errors.Join(err, fmt.Errorf("listener %s: %w", l.Name, conditionErr))
			}
		}
		if s.Listeners[i].AttachedRoutes != 1 {
			err = errors.Join(err, fmt.Errorf("listener %s has %d routes", l.Name, s.Listeners[i].AttachedRoutes))
		}
		for _, at := range l.Addresses() {
			if !slices.ContainsFunc(s.Addresses, func(a env.Address) bool { return a.Value == at.Addr().String() }) {
				err = errors.Join(err, fmt.Errorf("status.addresses %v has no %s", s.Addresses, at.Addr()))
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("status of %s: %w", g.ID(), err)
	}
	return err
}

// mediaPathIsInForce compares the packets that the kernel has forwarded before and after a call.
func mediaPathIsInForce(ctx context.Context, e *env.Env) (err error) {
	for _, l := range e.Listeners() {
		if l.Network != call.UDP {
			continue // the kernel forwards UDP only
		}
		c, dialErr := e.Dial(ctx, l, l.Addresses()[0], l.Peers()[0], "kernel")
		if dialErr != nil {
			return dialErr
		}
		err = errors.Join(err, e.Await(ctx, "packets of "+l.String()+" in the kernel", func(ctx context.Context) error {
			n, err := l.Gateway.Sum(ctx, "stunner_offload_packets_total")
			if err == nil && n == 0 {
				err = errors.New("there are none")
			}
			return err
		}))
		c.End(0)
	}
	return err
}

// sessions returns the sessions of a Gateway as stunnerctl lists them.
func sessions(ctx context.Context, e *env.Env, g *env.Gateway) (list []struct{ ID, User, Pod string }, err error) {
	o, err := e.Ctl(ctx, "sessions", g.ID(), "-o", "json")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Sessions []struct{ ID, User, Pod string }
	}
	if err := json.Unmarshal([]byte(o.Text), &answer); err != nil || o.Code != 0 {
		return nil, fmt.Errorf("sessions of %s: exit code %d: %w: %s%s", g.ID(), o.Code, err, o.Text, o.Errors)
	}
	return answer.Sessions, nil
}

func sessionsAreListed(ctx context.Context, e *env.Env) error {
	calls, err := e.DialAll(ctx, "listed")
	defer calls.HangUp()
	if err != nil {
		return err
	}
	return e.Await(ctx, "sessions", func(ctx context.Context) (err error) {
		total := 0
		for _, g := range e.Gateways {
			list, listErr := sessions(ctx, e, g)
			if listErr != nil {
				return listErr
			}
			total += len(list)
		}
		if total != len(calls) {
			err = fmt.Errorf("%d sessions are listed during %d calls", total, len(calls))
		}
		return err
	})
}

func kickEndsASession(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		l := g.Listeners[0]
		user, other := "kicked", "stays"
		kicked, dialErr := e.Dial(ctx, l, l.Addresses()[0], l.Peers()[0], user)
		if dialErr != nil {
			return dialErr
		}
		stays, dialErr := e.Dial(ctx, l, l.Addresses()[0], l.Peers()[0], other)
		if dialErr != nil {
			kicked.End(0)
			return dialErr
		}
		o, ctlErr := e.Ctl(ctx, "kick", g.ID(), "--user", user)
		if ctlErr != nil || o.Code != 0 {
			err = errors.Join(err, ctlErr, fmt.Errorf("kick: exit code %d: %s%s", o.Code, o.Text, o.Errors))
		}
		err = errors.Join(err, e.Await(ctx, "end of the session", func(context.Context) error {
			if kicked.Renew() == nil {
				return errors.New("its permission is renewed")
			}
			return nil
		}), env.Calls{stays}.AwaitEchoes(ctx))
		kicked.End(0)
		stays.End(0)
	}
	return err
}

func metricsAddUp(ctx context.Context, e *env.Env) error {
	calls, err := e.DialAll(ctx, "counted")
	defer calls.HangUp()
	if err != nil {
		return err
	}
	return e.Await(ctx, "metrics", func(ctx context.Context) error {
		total := 0.0
		for _, g := range e.Gateways {
			n, err := g.Sum(ctx, "stunner_allocations_active")
			if err != nil {
				return err
			}
			total += n
		}
		if int(total) != len(calls) {
			return fmt.Errorf("stunner_allocations_active adds up to %v during %d calls", total, len(calls))
		}
		return nil
	})
}

func doctorFindsNothing(ctx context.Context, e *env.Env) (err error) {
	for _, namespace := range e.Namespaces() {
		err = errors.Join(err, findsNothing(ctx, e, "doctor", "-n", namespace))
	}
	return err
}

func whyFindsNothing(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		err = errors.Join(err, findsNothing(ctx, e, "why", g.ID()))
	}
	return err
}

// findsNothing waits until a command has no finding but remarks, because what happened before is reported for a while.
func findsNothing(ctx context.Context, e *env.Env, args ...string) error {
	return e.Await(ctx, strings.Join(args, " "), func(ctx context.Context) error {
		list, err := e.Findings(ctx, args...)
		list = slices.DeleteFunc(list, func(f env.Finding) bool { return f.Severity == "info" })
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("findings %+v", list)
		}
		return err
	})
}

// icetestPasses calls an echo peer through each listener.
func icetestPasses(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		o, ctlErr := e.Icetest(ctx, g, "--duration=500ms", "-o", "json")
		if ctlErr != nil {
			return ctlErr
		}
		if o.Code != 0 {
			err = errors.Join(err, fmt.Errorf("icetest %s: exit code %d: %s%s", g.ID(), o.Code, o.Text, o.Errors))
			continue
		}
		for _, l := range g.Listeners {
			if l.Network == call.DTLS {
				continue // WebRTC has no TURN over DTLS
			}
			if !strings.Contains(o.Text+o.Errors, l.Name) {
				err = errors.Join(err, fmt.Errorf("icetest %s says nothing of listener %s: %s", g.ID(), l.Name, o.Text))
			}
		}
	}
	return err
}

func turncatCarriesData(ctx context.Context, e *env.Env) (err error) {
	for _, l := range e.Listeners() {
		if catErr := e.Turncat(ctx, l); catErr != nil {
			err = errors.Join(err, fmt.Errorf("turncat through %s: %w", l, catErr))
		}
	}
	return err
}
