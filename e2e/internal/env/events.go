package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// CauseEvent causes the event of the shape, and waits until the product has reacted.
func (e *Env) CauseEvent(ctx context.Context) error {
	happen := map[Value]func(context.Context) error{
		Nothing:  func(context.Context) error { return nil },
		Change:   e.ChangeRoutes,
		Rotation: e.Rotate,
		Crash:    e.CrashOne,
		Update:   e.Update,
		Restart:  e.RestartAll,
		Mistake:  func(ctx context.Context) error { return errors.Join(e.MakeMistake(ctx), e.RestartAll(ctx)) },
	}[e.Shape[Event]]
	if err := happen(ctx); err != nil {
		return fmt.Errorf("event %s: %w", e.Shape[Event], err)
	}
	return nil
}

// ChangeRoutes adds a media server to the first route of each Gateway, waits until clients reach it, and removes it
// again.
func (e *Env) ChangeRoutes(ctx context.Context) error {
	for _, g := range e.Gateways {
		if err := e.input.apply(ctx, g.Namespace, g.routeBackendYAML(firstRoute, e.Net.Peer(extraPeer))); err != nil {
			return err
		}
		if err := g.awaitEndpoint(ctx, extraPeer, true); err != nil {
			return err
		}
		if err := e.input.apply(ctx, g.Namespace, g.routeBackendYAML(firstRoute)); err != nil {
			return err
		}
		if err := g.awaitEndpoint(ctx, extraPeer, false); err != nil {
			return err
		}
	}
	return nil
}

// Numbers of media servers in addition to those of peerNumber: a media server that no Gateway has at the start, and a
// media server that stunnerctl creates.
const (
	extraPeer = 6
	ctlPeer   = 7
)

// Rotate replaces the static password or the shared secret, and waits until the dataplanes use it.
func (e *Env) Rotate(ctx context.Context) error {
	e.secret = "another-" + e.secret
	return e.reconfigure(ctx, "new credentials", e.secretYAML())
}

// SetUserQuota sets the quota of allocations of a user, 0 for none, and waits until the dataplanes use it.
func (e *Env) SetUserQuota(ctx context.Context, quota int) error {
	e.userQuota = quota
	return e.reconfigure(ctx, "user quota", e.classYAML())
}

// reconfigure writes objects in the namespace of the operator, and waits until each dataplane runs another config.
func (e *Env) reconfigure(ctx context.Context, what, text string) error {
	before := map[string]string{}
	for _, g := range e.Gateways {
		if err := g.revisions(ctx, func(d Dataplane, revision string) error { before[d.ID] = revision; return nil }); err != nil {
			return err
		}
	}
	if err := e.input.apply(ctx, e.system, text); err != nil {
		return err
	}
	for _, g := range e.Gateways {
		if err := e.Await(ctx, what+" of "+g.ID(), func(ctx context.Context) error {
			return g.revisions(ctx, func(d Dataplane, revision string) error {
				if before[d.ID] == revision {
					return fmt.Errorf("%s runs revision %s of before", d.Name, revision)
				}
				return nil
			})
		}); err != nil {
			return err
		}
	}
	return nil
}

// revisions calls a function with the revision of the config that each dataplane runs.
func (g *Gateway) revisions(ctx context.Context, of func(Dataplane, string) error) error {
	list, err := g.Dataplanes()
	if err != nil {
		return err
	}
	for _, d := range list {
		body, err := g.env.get(ctx, d.Admin+"/status")
		var status struct{ Revision string }
		if err == nil {
			err = json.Unmarshal(body, &status)
		}
		if err == nil {
			err = of(d, status.Revision)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// RenewCertificates replaces the certificates of the TLS and DTLS listeners, and waits until new connections get them.
func (e *Env) RenewCertificates(ctx context.Context) error {
	for _, g := range e.Gateways {
		text, err := g.newCertificate()
		if err != nil {
			return err
		}
		if err := e.input.apply(ctx, g.Namespace, text); err != nil {
			return err
		}
		for _, l := range g.Served() {
			if !l.Secure() {
				continue
			}
			if err := e.Await(ctx, "new certificate of "+l.String(), func(ctx context.Context) error {
				return l.TryPeer(ctx, l.Peers()[0])
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// CrashOne kills the process of one dataplane of each Gateway, and waits until all are ready again.
func (e *Env) CrashOne(ctx context.Context) error {
	for _, g := range e.Gateways {
		list, err := g.Dataplanes()
		if err != nil || len(list) == 0 {
			return errors.Join(err, fmt.Errorf("%s has %d dataplanes", g.ID(), len(list)))
		}
		if err := list[0].Crash(); err != nil {
			return err
		}
	}
	return e.AwaitReady(ctx)
}

// Update replaces the program of all dataplanes, and waits until as many as before run it.
func (e *Env) Update(ctx context.Context) error {
	before := map[string]bool{}
	for _, g := range e.Gateways {
		list, err := g.Dataplanes()
		if err != nil {
			return err
		}
		for _, d := range list {
			before[d.ID] = true
		}
	}
	if err := e.input.update(ctx); err != nil {
		return err
	}
	for _, g := range e.Gateways {
		if err := e.Await(ctx, "update of "+g.ID(), func(ctx context.Context) error {
			list, err := g.Dataplanes()
			if err != nil {
				return err
			}
			for _, d := range list {
				if before[d.ID] {
					return fmt.Errorf("%s is not updated", d.Name)
				}
			}
			return g.ready(ctx)
		}); err != nil {
			return err
		}
	}
	return nil
}

// Scale changes the number of pods of each Gateway, and waits until clients reach them.
func (e *Env) Scale(ctx context.Context, pods int) error {
	e.pods = pods
	if err := e.input.applyDataplane(ctx); err != nil {
		return err
	}
	return e.AwaitReady(ctx)
}

// RestartAll kills the operator, the auth service, and then both at once, and waits after each until they are ready
// again.
func (e *Env) RestartAll(ctx context.Context) error {
	for _, which := range []struct{ operator, auth bool }{{true, false}, {false, true}, {true, true}} {
		if err := e.input.restart(ctx, which.operator, which.auth); err != nil {
			return err
		}
	}
	return e.AwaitReady(ctx)
}

// MakeMistake empties the Secret with the credentials, and waits until the conditions of each Gateway have changed. In
// shapes without assigned addresses, some conditions are already False before.
func (e *Env) MakeMistake(ctx context.Context) error {
	before := map[*Gateway]string{}
	for _, g := range e.Gateways {
		conditions, err := g.conditions(ctx)
		if err != nil {
			return err
		}
		before[g] = conditions
	}
	if err := e.input.apply(ctx, e.system, e.secretOf(map[string]string{"type": "static"})); err != nil {
		return err
	}
	for g, old := range before {
		if err := e.Await(ctx, "condition for the mistake", func(ctx context.Context) error {
			now, err := g.conditions(ctx)
			if err == nil && now == old {
				err = fmt.Errorf("the conditions of %s are as before: %s", g.ID(), old)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// conditions returns status, reason and message of the conditions of the Gateway.
func (g *Gateway) conditions(ctx context.Context) (text string, err error) {
	s, err := g.Status(ctx)
	for _, c := range s.Conditions {
		text += fmt.Sprintf("%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	return text, err
}

// AwaitEnd waits until a dataplane accepts no new clients.
func (g *Gateway) AwaitEnd(ctx context.Context, d Dataplane) error {
	return g.env.Await(ctx, "end of "+d.Name, func(context.Context) error {
		list, err := g.Dataplanes()
		if err == nil && slices.ContainsFunc(list, func(of Dataplane) bool { return of.ID == d.ID }) {
			err = errors.New("it runs")
		}
		return err
	})
}

// Repair corrects the mistake, and waits until the product is healthy.
func (e *Env) Repair(ctx context.Context) error {
	if err := e.input.apply(ctx, e.system, e.secretYAML()); err != nil {
		return err
	}
	if err := e.AwaitReady(ctx); err != nil {
		return err
	}
	return e.Await(ctx, "new calls", func(ctx context.Context) error {
		calls, err := e.DialAll(ctx, "repaired")
		calls.HangUp()
		return err
	})
}

// Remove deletes a Gateway with its routes, and waits until none of its dataplanes runs.
func (e *Env) Remove(ctx context.Context, g *Gateway) error {
	objects := []string{"gateway/" + g.Name}
	for _, name := range g.routes() {
		objects = append(objects, "udproute/"+g.Name+"-"+name)
	}
	for _, o := range objects {
		if err := e.input.remove(ctx, g.Namespace, o); err != nil {
			return err
		}
	}
	return e.Await(ctx, "removal of "+g.ID(), func(ctx context.Context) error { return e.input.removed(ctx, g) })
}

// awaitEndpoint waits until a call to a media server works or is refused, at the first listener of the Gateway.
func (g *Gateway) awaitEndpoint(ctx context.Context, number int, allowed bool) error {
	l := g.Listeners[0]
	peer := g.env.peersOf(number)[0]
	return g.env.Await(ctx, fmt.Sprintf("route to %s", peer), func(ctx context.Context) error {
		err := l.TryPeer(ctx, peer)
		if refused := errors.Is(err, ErrForbidden); err != nil && !refused || refused == allowed {
			return fmt.Errorf("peer %s: %v", peer, err)
		}
		return nil
	})
}
