package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/services/api/config"
)

const (
	stepTimeout = 20 * time.Second
	datagrams   = 100 // number of datagrams of the call
	endGrace    = 2 * time.Second
	tailLines   = 8
)

// step is one line on the screen.
type step struct {
	name string
	do   func(context.Context) (result string, err error)
	log  string // log file whose last lines are shown when the step fails
	hint string
}

// outcome holds the figures for the verdict.
type outcome struct {
	ice         harness.ICE
	stats       call.Stats
	allocations float64
}

// steps runs all steps and prints the verdict.
func (d *demo) steps(ctx context.Context, example string, once bool) error {
	var o outcome
	s := &d.stack
	log := func(part string) string { return filepath.Join(s.Logs(), part+".log") }
	for _, step := range []step{
		{"work folder", func(context.Context) (string, error) { return d.prepare(example) }, "",
			"run `make demo` at the root of the repository, or name the folder with --quickstart"},
		{"echo peer", d.echo, log("echo"),
			"has another program just taken its port? `ss -lunp` shows"},
		{"operator", d.operator, log("operator"),
			"status.txt lists what is not in force, and the reason: " + s.Output()},
		{"auth service", d.auth, log("auth"),
			"has another program just taken its port? `ss -ltnp` shows"},
		{"credentials", func(ctx context.Context) (string, error) { return d.credentials(ctx, &o) }, log("auth"),
			"the auth service returns gateways that the operator publishes; see status.txt: " + s.Output()},
		{"relayed call", func(ctx context.Context) (string, error) { return d.call(ctx, &o) }, s.DataplaneLog(),
			"a call needs a credential, a listener and a route; status.txt shows the last two: " + s.Output()},
	} {
		if err := d.step(ctx, step); err != nil {
			return err
		}
	}
	if !once {
		d.places()
	}
	d.verdict(o)
	return nil
}

// step runs one step and prints its result.
func (d *demo) step(ctx context.Context, s step) error {
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	result, err := s.do(bounded)
	if err == nil {
		d.screen.success(s.name, result)
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	d.screen.failure(s.name, err, s.hint, harness.Tail(s.log, tailLines))
	return err
}

func (d *demo) prepare(example string) (result string, err error) {
	taken := 0
	if d.stack.Ports, taken, err = harness.UsualPorts(); err != nil {
		return "", err
	}
	result = d.stack.Dir
	if taken > 0 {
		result += fmt.Sprintf(", with %d ports changed because the usual ones are taken", taken)
	}
	return result, d.stack.Prepare(example)
}

func (d *demo) echo(ctx context.Context) (string, error) {
	p := d.stack.Ports
	return fmt.Sprintf(
		"WebRTC on %s:%d/udp, datagrams on %d/udp", harness.Loopback, p.Media, p.Datagrams,
	), d.stack.StartEcho(ctx)
}

func (d *demo) operator(ctx context.Context) (string, error) {
	if err := d.stack.StartOperator(ctx); err != nil {
		return "", err
	}
	c, err := d.stack.Config(ctx)
	if err != nil {
		return "", err
	}
	var urls []string
	for _, l := range c.Listeners {
		for _, uri := range l.URIs() {
			urls = append(urls, uri.String())
		}
	}
	return fmt.Sprintf("%s serves %s", c.Admin.Name, strings.Join(urls, " and ")), nil
}

func (d *demo) auth(ctx context.Context) (string, error) {
	return d.stack.AuthURL(), d.stack.StartAuth(ctx)
}

func (d *demo) credentials(ctx context.Context, o *outcome) (result string, err error) {
	if o.ice, err = d.stack.ICEServers(ctx); err != nil {
		return "", err
	}
	if len(o.ice.Servers) == 0 {
		return "", errors.New("the auth service returns no gateway")
	}
	result = "user " + o.ice.Servers[0].Username
	if !o.ice.Expires.IsZero() { // static credentials do not expire
		result += ", valid until " + o.ice.Expires.Local().Format("Jan 2 15:04")
	}
	return result, nil
}

// call makes the call and reads the number of allocations during the call.
func (d *demo) call(ctx context.Context, o *outcome) (string, error) {
	server := o.ice.Servers[0]
	gateway, err := server.Address(config.TURNUDP)
	if err != nil {
		return "", err
	}
	c, err := call.Start(ctx, call.Options{
		Gateway: gateway, Network: call.UDP, Username: server.Username, Password: server.Credential,
		Peer: d.stack.Datagrams(),
	})
	if err != nil {
		return "", err
	}
	err = c.Await(ctx, datagrams)
	if err == nil {
		o.allocations, err = d.stack.Metric(ctx, "stunner_allocations_active")
	}
	o.stats = c.End(endGrace)
	if err == nil && (o.stats.Lost > 0 || o.allocations < 1) {
		err = fmt.Errorf("%s; allocations during the call: %g", o.stats, o.allocations)
	}
	return fmt.Sprintf("%d datagrams to the echo peer and back, %d lost", o.stats.Sent, o.stats.Lost), err
}

// places prints the URLs and files that a user can inspect while the demo runs.
func (d *demo) places() {
	d.screen.gap()
	d.screen.note("test page", d.stack.AuthURL()+"/demo/")
	d.screen.note("YAML", d.stack.Input()+"   edit and save: the gateway is updated")
	d.screen.note("status", filepath.Join(d.stack.Output(), "status.txt"))
}

// verdict prints the result in three lines that scripts can parse.
func (d *demo) verdict(o outcome) {
	d.screen.gap()
	d.screen.result("verdict", "media flows through the gateway", green)
	d.screen.result(
		"relayed RTT",
		fmt.Sprintf("%.2f ms median, %.2f ms p95", milliseconds(o.stats.Median), milliseconds(o.stats.P95)), "",
	)
	d.screen.result("allocations", fmt.Sprintf("%g", o.allocations), "")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
