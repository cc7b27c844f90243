package scenario

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// callCommand runs the command `call NAME VERB ARG…`:
//
//	start [tcp] [USER PASSWORD]           start a call and wait until datagrams are echoed
//	refused REGEXP [tcp] [USER PASSWORD]  wait until the gateway refuses a new call
//	flows                                 wait until more datagrams are echoed
//	stops DURATION                        no echo arrives later than DURATION from now
//	forbidden REGEXP                      the gateway refuses a new permission for the peer of the call
//	ends                                  end the call, without a lost datagram
//
// Without USER, address and credential come from the auth service.
func callCommand(s *scenario, _ *testscript.TestScript, args []string) (err error) {
	name, verb, rest := args[0], args[1], args[2:]
	c, started := s.calls[name]
	if !started && verb != "start" && verb != "refused" {
		return fmt.Errorf("no call %q was started", name)
	}
	switch verb {
	case "start":
		if c, err = s.call(rest); err == nil {
			s.calls[name], err = c, s.flows(c)
		}
	case "refused":
		err = s.until(func(context.Context) error {
			c, err := s.call(rest[1:])
			if err == nil {
				c.End(0)
			}
			return refusal(err, rest[0])
		})
	case "flows":
		err = s.flows(c)
	case "stops":
		err = s.stops(c, rest[0])
	case "forbidden":
		delete(s.calls, name)
		err = refusal(c.Renew(), rest[0])
		c.End(0)
	case "ends":
		delete(s.calls, name)
		if stats := c.End(timeout); stats.Lost > 0 || stats.Err != nil {
			err = fmt.Errorf("datagrams lost: %s", stats)
		}
	default:
		err = errors.New("unknown verb")
	}
	if err != nil {
		return fmt.Errorf("call %s %s: %w", name, verb, err)
	}
	return nil
}

// call starts a call; args are [TRANSPORT] [USER PASSWORD].
func (s *scenario) call(args []string) (*call.Call, error) {
	o := call.Options{Gateway: s.stack.Gateway(), Network: call.UDP, Peer: s.stack.Datagrams(), Roots: s.roots}
	protocol := config.TURNUDP
	if len(args)%2 == 1 {
		o.Network, protocol, args = call.Network(args[0]), config.TURNTCP, args[1:]
	}
	if len(args) == 2 {
		o.Username, o.Password = args[0], args[1]
		return call.Start(s.ctx, o)
	}
	server, err := s.server(s.ctx)
	if err != nil {
		return nil, err
	}
	o.Username, o.Password = server.Username, server.Credential
	if o.Gateway, err = server.Address(protocol); err != nil {
		return nil, err
	}
	return call.Start(s.ctx, o)
}

// server requests the ICE server of one gateway from the auth service. Without a name there must be exactly one.
func (s *scenario) server(ctx context.Context, gateway ...string) (harness.ICEServer, error) {
	ice, err := s.stack.ICEServers(ctx, gateway...)
	if err == nil && len(ice.Servers) != 1 {
		err = fmt.Errorf("%d ICE servers, want 1: %v", len(ice.Servers), ice)
	}
	if err != nil {
		return harness.ICEServer{}, err
	}
	return ice.Servers[0], nil
}

// refusal checks that an error is a refusal of the gateway that matches a pattern.
func refusal(err error, pattern string) error {
	if !errors.Is(err, call.ErrRefused) || !regexp.MustCompile(pattern).MatchString(err.Error()) {
		return fmt.Errorf("not refused with %s: %v", pattern, err)
	}
	return nil
}

// flows waits until enough datagrams are echoed to see that the call flows.
func (s *scenario) flows(c *call.Call) error {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	return c.AwaitMore(ctx, 10)
}

// stops checks that no echo arrives later than a duration from now, without stalls of the machine. It observes for
// slightly longer than that.
func (s *scenario) stops(c *call.Call, duration string) error {
	limit, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	machine := stall.Start()
	defer machine.Stop()
	deadline := time.Now().Add(limit)
	select {
	case <-time.After(limit + 500*time.Millisecond):
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	if late := c.LastEcho().Sub(deadline) - machine.Worst(); late > 0 {
		return fmt.Errorf("an echo arrived %s too late", late)
	}
	return nil
}
