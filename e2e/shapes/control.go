package shapes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// checkStatus compares the status of a Gateway with the addresses and listeners that clients use.
func checkStatus(e *env.Env, g *env.Gateway, s env.Status) (err error) {
	err = errors.Join(env.IsTrue(s.Conditions, "Accepted"), isProgrammed(g.Unserved, s.Conditions, "no public address: listener "))
	for _, l := range g.Listeners {
		i := slices.IndexFunc(s.Listeners, func(of env.ListenerStatus) bool { return of.Name == l.Name })
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("no status of listener %s", l.Name))
			continue
		}
		var unserved *env.Listener
		if l == g.Unserved {
			unserved = l
		}
		of := s.Listeners[i].Conditions
		if conditionErr := errors.Join(env.IsTrue(of, "Accepted"), env.IsTrue(of, "ResolvedRefs"),
			isProgrammed(unserved, of, "does not serve port")); conditionErr != nil {
			err = errors.Join(err, fmt.Errorf("listener %s: %w", l.Name, conditionErr))
		}
		if s.Listeners[i].AttachedRoutes != 1 {
			err = errors.Join(err, fmt.Errorf("listener %s has %d routes", l.Name, s.Listeners[i].AttachedRoutes))
		}
		if l == g.Unserved {
			continue
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

// isProgrammed returns nil if the condition Programmed is True. If the load balancer does not serve a listener, it
// returns nil if Programmed is False with a message that contains a text.
func isProgrammed(unserved *env.Listener, conditions []metav1.Condition, text string) error {
	err := env.IsTrue(conditions, "Programmed")
	if unserved == nil {
		return err
	}
	if err == nil || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("of listener %s the load balancer serves no port, but: %v", unserved.Name, err)
	}
	return nil
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
		total, err := allocations(ctx, e)
		if err == nil && int(total) != len(calls) {
			err = fmt.Errorf("stunner_allocations_active adds up to %v during %d calls", total, len(calls))
		}
		return err
	})
}

// allocations returns the number of allocations of all dataplanes.
func allocations(ctx context.Context, e *env.Env) (total float64, err error) {
	for _, g := range e.Gateways {
		n, err := g.Sum(ctx, "stunner_allocations_active")
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
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

// findsNothing waits until a command has no findings except infos, because earlier events are reported for some time.
// If the load balancer does not serve a listener, there must be a finding about it.
func findsNothing(ctx context.Context, e *env.Env, args ...string) error {
	return e.Await(ctx, strings.Join(args, " "), func(ctx context.Context) error {
		list, err := e.Findings(ctx, args...)
		list = slices.DeleteFunc(list, func(f env.Finding) bool { return f.Severity == "info" })
		others := slices.DeleteFunc(slices.Clone(list), func(f env.Finding) bool { return isUnserved(e, f) })
		switch {
		case err != nil:
			return err
		case len(others) > 0:
			return fmt.Errorf("findings %+v", others)
		case len(others) == len(list) && e.Shape.Is(env.PortError):
			return errors.New("the listener that the load balancer does not serve is not found")
		}
		return nil
	})
}

// isUnserved reports whether a finding is about a listener that the load balancer does not serve: the error in the
// status of its Service.
func isUnserved(e *env.Env, f env.Finding) bool {
	return slices.ContainsFunc(e.Gateways, func(g *env.Gateway) bool {
		return g.Unserved != nil && strings.HasPrefix(f.Object, "Service "+g.ID()) && f.Stage == "service" &&
			strings.Contains(f.Problem, fmt.Sprintf("port %d: ", g.Unserved.Port()))
	})
}

// fault is a fault of the first Gateway. It is possible in each shape.
type fault struct {
	make, undo func(context.Context) error
	// object is the object of the finding, and problem is a part of the problem of the finding.
	object, problem string
}

func faultOf(e *env.Env) (fault, error) {
	g := e.Gateways[0]
	list, err := g.Dataplanes()
	if err != nil || len(list) == 0 {
		return fault{}, errors.Join(err, fmt.Errorf("%s has %d dataplanes", g.ID(), len(list)))
	}
	signal := func(s syscall.Signal) func(context.Context) error {
		return func(context.Context) error { return list[0].Signal(s) }
	}
	hangs := fault{signal(syscall.SIGSTOP), signal(syscall.SIGCONT), "Pod " + g.Namespace + "/" + list[0].Name, "does not answer the operator"}
	if e.Shape.Is(env.Folder) {
		hangs.object, hangs.problem = "Gateway "+g.ID(), "hangs"
	}
	apply := func(text string) func(context.Context) error {
		return func(ctx context.Context) error { return e.Apply(ctx, g.Namespace, text) }
	}
	absent := strings.Replace(g.RouteYAML(), "backendRefs: [{name: "+g.Name, "backendRefs: [{name: absent", 1)
	all := []fault{
		hangs,
		{e.MakeMistake, e.Repair, "Secret " + e.System() + "/turn", "is missing"},
		{apply(absent), apply(g.RouteYAML()), "UDPRoute " + g.ID() + "-first", "there is no such Service"},
	}
	return all[choose(e, len(all))], nil
}

// aFaultIsNamed causes the fault of the shape, waits until stunnerctl why reports it, and repairs it.
func aFaultIsNamed(ctx context.Context, e *env.Env) error {
	f, err := faultOf(e)
	if err != nil {
		return err
	}
	why := []string{"why", e.Gateways[0].ID()}
	if err := f.make(ctx); err != nil {
		return errors.Join(err, f.undo(ctx))
	}
	err = e.Await(ctx, "finding", func(ctx context.Context) error {
		list, err := e.Findings(ctx, why...)
		if err == nil && !slices.ContainsFunc(list, func(got env.Finding) bool {
			return got.Severity == "error" && got.Object == f.object && strings.Contains(got.Problem, f.problem) && got.Remedy != ""
		}) {
			err = fmt.Errorf("no error about %s, %q: %+v", f.object, f.problem, list)
		}
		return err
	})
	if err := errors.Join(err, f.undo(ctx)); err != nil {
		return err
	}
	return findsNothing(ctx, e, why...)
}

// icetestPasses calls an echo peer through each listener.
func icetestPasses(ctx context.Context, e *env.Env) (err error) {
	for _, g := range e.Gateways {
		o, ctlErr := e.Icetest(ctx, g, "", "--duration=500ms", "-o", "json")
		if ctlErr != nil {
			return ctlErr
		}
		if passes := o.Code == 0; passes != (g.Unserved == nil) {
			err = errors.Join(err, fmt.Errorf("icetest %s: exit code %d: %s%s", g.ID(), o.Code, o.Text, o.Errors))
			continue
		}
		if g.Unserved != nil {
			err = errors.Join(err, icetestWithout(ctx, e, g, o))
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

// icetestWithout checks that icetest of a Gateway has failed because of the listener that its load balancer does not
// serve, and that icetest of each other listener passes.
func icetestWithout(ctx context.Context, e *env.Env, g *env.Gateway, whole env.Output) (err error) {
	if !strings.Contains(whole.Text+whole.Errors, "listener "+g.Unserved.Name+" ") {
		err = fmt.Errorf("icetest %s does not fail because of listener %s: %s%s", g.ID(), g.Unserved.Name, whole.Text, whole.Errors)
	}
	for _, l := range g.Served() {
		o, ctlErr := e.Icetest(ctx, g, ":"+l.Name, "--duration=500ms", "-o", "json")
		if ctlErr == nil && o.Code != 0 {
			ctlErr = fmt.Errorf("icetest of listener %s: exit code %d: %s%s", l, o.Code, o.Text, o.Errors)
		}
		err = errors.Join(err, ctlErr)
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
