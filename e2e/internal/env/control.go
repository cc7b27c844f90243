package env

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// get returns the body of a URL in the network of the control plane. A status other than 200 is an error.
func (e *Env) get(ctx context.Context, url string) ([]byte, error) { return e.getAs(ctx, url, "") }

// getAs is get with a bearer token.
func (e *Env) getAs(ctx context.Context, url, token string) ([]byte, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			e.input.host(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
			return conn, err
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	code, body, err := harness.DoBy(client, req)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("get %s: status %d: %s", url, code, body)
	}
	return body, err
}

// Metric returns the sum of the series of a metric of a dataplane.
func (e *Env) Metric(ctx context.Context, d Dataplane, name string) (float64, error) {
	page, err := e.get(ctx, d.Metrics)
	if err != nil {
		return 0, err
	}
	return harness.Sum(string(page), name)
}

// Output is the output of a run of stunnerctl.
type Output struct {
	Text, Errors string
	Code         int
}

// Ctl runs stunnerctl.
func (e *Env) Ctl(ctx context.Context, args ...string) (Output, error) {
	return e.ctlIn(ctx, e.input.host, nil, args...)
}

// Icetest runs `stunnerctl icetest` with a media server of its own, for a Gateway or with a name for one listener.
func (e *Env) Icetest(ctx context.Context, g *Gateway, listener string, args ...string) (o Output, err error) {
	flags, err := e.callerFlags(ctx, g)
	if err != nil {
		return o, err
	}
	at := netip.AddrPortFrom(e.families(e.input.ctlPeer())[0], mediaPort+1)
	args = append(append([]string{"icetest", g.ID() + listener, "--echo-address", at.String()}, args...), flags...)
	return e.ctlIn(ctx, e.input.ctlHost, nil, args...)
}

// ctlIn runs stunnerctl in a network. input is its standard input, or nil.
func (e *Env) ctlIn(ctx context.Context, network func(func()), input io.Reader, args ...string) (o Output, err error) {
	flags, err := e.input.ctl(ctx)
	if err != nil {
		return o, err
	}
	cmd := exec.CommandContext(ctx, e.program("stunnerctl"), append(args, flags...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &stdout, &stderr
	network(func() { err = cmd.Start() })
	if err != nil {
		return o, err
	}
	err = cmd.Wait()
	o = Output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil
	}
	return o, err
}

// Drain returns the state of the sessions of a draining dataplane, as printed by stunnerctl status.
func (e *Env) Drain(ctx context.Context, g *Gateway, d Dataplane) (st inspection.DrainStatus, err error) {
	o, err := e.Ctl(ctx, "status", g.ID(), "-o", "json")
	if err != nil {
		return st, err
	}
	var answer []struct {
		Pods []struct {
			Pod   string
			Drain *inspection.DrainStatus
		}
	}
	if err := json.Unmarshal([]byte(o.Text), &answer); err != nil {
		return st, fmt.Errorf("status of %s: exit code %d: %w: %s%s", g.ID(), o.Code, err, o.Text, o.Errors)
	}
	for _, of := range answer {
		for _, p := range of.Pods {
			if p.Pod == d.Name && p.Drain != nil {
				return *p.Drain, nil
			}
		}
	}
	return st, fmt.Errorf("status of %s: %s does not drain: %s%s", g.ID(), d.Name, o.Text, o.Errors)
}

// StatusOf returns the complete status of a dataplane. The request comes from the network of the dataplane, because
// other callers get a reduced status.
func (e *Env) StatusOf(ctx context.Context, d Dataplane) (st inspection.Status, err error) {
	admin, err := url.Parse(d.Admin)
	if err != nil {
		return st, err
	}
	host := "127.0.0.1"
	if d.Addrs[0].Is6() {
		host = "::1"
	}
	client := &http.Client{
		Timeout: wait, Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.Net.Dial},
	}
	code, body, err := harness.GetBy(ctx, client, "http://"+net.JoinHostPort(host, admin.Port())+"/status")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status %d: %s", code, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &st)
	}
	if err != nil {
		return st, fmt.Errorf("status of %s: %w", d.Name, err)
	}
	return st, nil
}

// Finding is a finding of `stunnerctl doctor` and `why`.
type Finding struct{ Severity, Stage, Object, Field, Problem, Remedy string }

// Findings runs stunnerctl with the output -o json and returns its findings.
func (e *Env) Findings(ctx context.Context, args ...string) ([]Finding, error) {
	o, err := e.Ctl(ctx, append(args, "-o", "json")...)
	if err != nil {
		return nil, err
	}
	var report struct{ Findings []Finding }
	if err := json.Unmarshal([]byte(o.Text), &report); err != nil {
		return nil, fmt.Errorf("stunnerctl %v: %w: %s%s", args, err, o.Text, o.Errors)
	}
	return report.Findings, nil
}

// CredentialFlags returns the flags of stunnerctl for a credential of a Gateway, of the kind that the shape has.
func (e *Env) CredentialFlags(ctx context.Context, g *Gateway) ([]string, error) {
	write := func(name, content string) (string, error) {
		file := filepath.Join(e.Dir, name)
		return file, os.WriteFile(file, []byte(content), 0o600)
	}
	switch e.Shape[Credentials] {
	case Static:
		file, err := write("password", e.secret)
		return []string{"--user", e.user, "--password-file", file}, err
	case Ephemeral:
		file, err := write("shared-secret", e.secret)
		return []string{"--user", "ctl", "--secret-file", file}, err
	}
	// stunnerctl sends a token only over TLS, and a proxy ends TLS in front of the auth service.
	username, password, err := g.Credential(ctx, "ctl")
	if err != nil {
		return nil, err
	}
	file, err := write("password", password)
	return []string{"--user", username, "--password-file", file}, err
}

// callerFlags returns CredentialFlags. If TLS ends at a load balancer, it adds the flag with the CAs, because the
// certificate of the load balancer is not in the config.
func (e *Env) callerFlags(ctx context.Context, g *Gateway) ([]string, error) {
	flags, err := e.CredentialFlags(ctx, g)
	if err != nil || !e.Shape.place().tls {
		return flags, err
	}
	file := filepath.Join(e.Dir, "ca-"+g.Name+".pem")
	return append(flags, "--turn-ca-file", file), os.WriteFile(file, slices.Concat(g.proxy.ca, g.ca), 0o600)
}

// Turncat sends a line through a listener to a peer and back, by `stunnerctl turncat`.
func (e *Env) Turncat(ctx context.Context, l *Listener) error {
	flags, err := e.callerFlags(ctx, l.Gateway)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	const line = "a line through the gateway\n"
	args := append([]string{
		"turncat", "-", "k8s://" + l.Gateway.ID() + ":" + l.Name, "udp://" + l.Peers()[0].String(), "--pace=echo", "--linger=5s",
	}, flags...)
	o, err := e.ctlIn(ctx, e.input.ctlHost, strings.NewReader(line), args...)
	if err == nil && (o.Code != 0 || o.Text != line) {
		err = fmt.Errorf("exit code %d, output %q: %s", o.Code, o.Text, o.Errors)
	}
	return err
}

// Namespaces returns the namespaces of the Gateways.
func (e *Env) Namespaces() []string { return e.namespaces() }

// ControlPlane has the addresses of the programs of a product in a cluster.
type ControlPlane struct {
	// Discovery is the URL of config discovery, CAFile the file with its CA, and Health the URL of the operator's
	// probes.
	Discovery, CAFile, Health string
	// Auth is the URL of the auth service.
	Auth                         string
	OperatorProcess, AuthProcess *harness.Process
	// AuthPod is the name of the pod of the auth service.
	AuthPod string
}

// ControlPlane returns the addresses of the programs. The shape has Input APIServer.
func (e *Env) ControlPlane(ctx context.Context) (p ControlPlane, err error) {
	c := e.input.(*inCluster)
	p = ControlPlane{
		Discovery: "https://" + c.home(c.ports.discovery), Health: "http://" + c.home(c.ports.health),
		Auth: "http://" + e.auth.address,
	}
	for name, process := range map[string]**harness.Process{operatorName: &p.OperatorProcess,
		authName: &p.AuthProcess} {
		pods := c.kubelet.Pods(c.system, "app", name)
		if len(pods) != 1 {
			return p, fmt.Errorf("%s has %d pods", name, len(pods))
		}
		*process = pods[0].Process()
		if name == authName {
			p.AuthPod = pods[0].Name()
		}
	}
	p.CAFile, err = c.caFile(ctx)
	return p, err
}

// PatchStatus merges JSON into the status of an object, KIND/NAME, as its controller does. The shape has Input
// APIServer.
func (e *Env) PatchStatus(ctx context.Context, namespace, object, text string) error {
	return e.Cluster.Patch(ctx, namespace, object, types.MergePatchType, text, "status")
}
