package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
	"github.com/stunner-gateway/stunner/services/api/config"
)

const (
	flowing = 25 // number of echoes after which a call counts as flowing
	watch   = 500 * time.Millisecond
)

// verb is an action on a running call.
type verb struct {
	do    func(s *stage, c *call.Call, args []string) error
	usage string
	args  int
	last  bool // ends the call
}

// verbs returns the actions of `call NAME VERB` on a call that `call NAME start [TRANSPORT] [USER PASSWORD]` has
// started.
func verbs() map[string]verb {
	return map[string]verb{
		"flows": {do: flows},                             // datagrams are echoed
		"stops": {do: stops, usage: "DURATION", args: 1}, // no echo later than DURATION from now
		// the gateway refuses a new permission for the peer of the call
		"renew": {do: renew, usage: "REGEXP", args: 1},
		"ends":  {do: ends, last: true},  // ends the call without a lost datagram
		"drops": {do: drops, last: true}, // ends the call, with or without loss
	}
}

// dispatch runs the command `call`.
func dispatch(s *stage, _ *testscript.TestScript, args []string) error {
	name, what, rest := args[0], args[1], args[2:]
	switch what {
	case "start":
		return begin(s, name, rest)
	case "refused": // REGEXP [TRANSPORT] [USER PASSWORD]: the gateway refuses the call
		return refused(s, rest)
	}
	v, ok := verbs()[what]
	if !ok || len(rest) != v.args {
		return fmt.Errorf(
			"usage: call NAME %s %s; the verbs are start, refused, %s", what, v.usage,
			slices.Sorted(maps.Keys(verbs())),
		)
	}
	c, ok := s.calls[name]
	if !ok {
		return fmt.Errorf("no call %q was started", name)
	}
	if v.last {
		delete(s.calls, name)
	}
	if err := v.do(s, c, rest); err != nil {
		return fmt.Errorf("call %s: %w", name, err)
	}
	return nil
}

// begin starts a call and waits until datagrams are echoed.
func begin(s *stage, name string, args []string) error {
	c, err := place(s, args)
	if err != nil {
		return err
	}
	s.calls[name] = c
	return flows(s, c, nil)
}

// protocols maps the transports of calls to listener protocols.
func protocols() map[call.Network]config.Protocol {
	return map[call.Network]config.Protocol{
		call.UDP: config.TURNUDP, call.TCP: config.TURNTCP, call.TLS: config.TURNTLS, call.DTLS: config.TURNDTLS,
	}
}

// place starts a call; args are [TRANSPORT] [USER PASSWORD]. Without a user, address and credential come from the auth
// service.
func place(s *stage, args []string) (*call.Call, error) {
	o := call.Options{Gateway: s.stack.Gateway(), Network: call.UDP, Peer: s.stack.Datagrams(), Roots: s.roots}
	if len(args) > 0 && protocols()[call.Network(args[0])] != "" {
		o.Network, args = call.Network(args[0]), args[1:]
	}
	switch len(args) {
	case 0:
		ctx, cancel := s.within(patience)
		defer cancel()
		server, err := s.server(ctx)
		if err != nil {
			return nil, err
		}
		o.Username, o.Password = server.Username, server.Credential
		if o.Gateway, err = server.Address(protocols()[o.Network]); err != nil {
			return nil, err
		}
	case 2:
		o.Username, o.Password = args[0], args[1]
	default:
		return nil, errors.New("usage: call NAME start|refused … [TRANSPORT] [USER PASSWORD]")
	}
	return call.Start(s.ctx, o)
}

// server requests the ICE server of one gateway from the auth service. Without a name there must be exactly one.
func (s *stage) server(ctx context.Context, gateway ...string) (bed.ICEServer, error) {
	ice, err := s.stack.ICEServers(ctx, gateway...)
	if err != nil {
		return bed.ICEServer{}, err
	}
	if len(ice.Servers) != 1 {
		return bed.ICEServer{}, fmt.Errorf("%d ICE servers, want 1: %v", len(ice.Servers), ice)
	}
	return ice.Servers[0], nil
}

// refused waits until the gateway refuses a call; args are REGEXP [TRANSPORT] [USER PASSWORD].
func refused(s *stage, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: call NAME refused REGEXP [TRANSPORT] [USER PASSWORD]")
	}
	ctx, cancel := s.within(patience)
	defer cancel()
	return bed.Until(ctx, func(context.Context) error {
		c, err := place(s, args[1:])
		if err == nil {
			c.End(0)
		}
		return refusal(err, args[0])
	})
}

// refusal checks that an error is a refusal of the gateway that matches a pattern.
func refusal(err error, pattern string) error {
	expected, bad := regexp.Compile(pattern)
	switch {
	case bad != nil:
		return bad
	case err == nil:
		return errors.New("the gateway did not refuse")
	case !errors.Is(err, call.ErrRefused) || !expected.MatchString(err.Error()):
		return fmt.Errorf("not refused with %s: %w", pattern, err)
	}
	return nil
}

func flows(s *stage, c *call.Call, _ []string) error {
	ctx, cancel := s.within(patience)
	defer cancel()
	return c.AwaitMore(ctx, flowing)
}

// stops checks that no echo arrives later than a duration from now, without stalls of the machine. It observes for
// slightly longer than that.
func stops(s *stage, c *call.Call, args []string) error {
	limit, err := time.ParseDuration(args[0])
	if err != nil {
		return fmt.Errorf("read duration: %w", err)
	}
	p := stall.Start()
	defer p.Stop()
	deadline := time.Now().Add(limit)
	ctx, cancel := s.within(limit + watch)
	defer cancel()
	<-ctx.Done()
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if late := c.LastEcho().Sub(deadline) - p.Worst(); late > 0 {
		return fmt.Errorf("an echo arrived %s too late", late)
	}
	return nil
}

func renew(_ *stage, c *call.Call, args []string) error {
	return refusal(c.Renew(), args[0])
}

func ends(_ *stage, c *call.Call, _ []string) error {
	if stats := c.End(patience); stats.Lost > 0 || stats.Err != nil {
		return fmt.Errorf("datagrams lost: %s", stats)
	}
	return nil
}

func drops(_ *stage, c *call.Call, _ []string) error {
	c.End(0)
	return nil
}
