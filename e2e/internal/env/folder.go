package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// inFolder is the product with a folder of YAML. Everything runs in the network of the first node.
type inFolder struct {
	*Env
	operator, auth    *harness.Process
	discovery, health int // ports of the operator
	// admin are the endpoints of the dataplanes, by the id of their Gateway. They do not change.
	admin map[string]config.Admin
}

func newFolder(e *Env) *inFolder { return &inFolder{Env: e, admin: map[string]config.Admin{}} }

func (f *inFolder) in() string  { return filepath.Join(f.Dir, "in") }
func (f *inFolder) out() string { return filepath.Join(f.Dir, "out") }

// stunnerd returns the path of the program of dataplanes, which update replaces.
func (f *inFolder) stunnerd() string { return filepath.Join(f.Dir, "dataplane") }

func (f *inFolder) prepare(context.Context) (err error) {
	for _, dir := range []string{f.in(), f.out()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for _, port := range []*int{&f.discovery, &f.health} {
		if *port, err = harness.FreePort(); err != nil {
			return err
		}
	}
	return f.installProgram()
}

// installProgram replaces the file of the program by a new file.
func (f *inFolder) installProgram() error {
	data, err := os.ReadFile(f.Env.program("stunnerd"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.stunnerd()+".new", data, 0o700); err != nil {
		return err
	}
	return os.Rename(f.stunnerd()+".new", f.stunnerd())
}

// address returns the address of the host. For programs of the test process, it is the address of the node.
func (f *inFolder) address() netip.Addr { return f.families(f.Net.Nodes[0].Internal)[0] }

// clientAddresses returns the addresses of the host that clients reach, directly or by a NAT, one of each family.
func (f *inFolder) clientAddresses() []netip.Addr {
	if f.Shape.translated() {
		return f.families(f.Net.Nodes[0].Internal)
	}
	return f.families(f.Net.Nodes[0].External)
}

// at returns a port of the loopback address of the host. stunnerctl can read a folder only on the host of the operator.
func at(port int) string { return net.JoinHostPort(harness.Loopback, strconv.Itoa(port)) }

func (f *inFolder) startOperator(ctx context.Context) (err error) {
	var addresses []string
	for _, a := range f.clientAddresses() {
		addresses = append(addresses, a.String())
	}
	f.host(func() {
		f.operator, err = harness.Start(harness.Command{Name: "operator", Path: f.Env.program("operator"), Logs: f.Dir,
			Args: []string{
				"--provider=file", "--input", f.in(), "--output", f.out(), "--address", strings.Join(addresses, ","),
				"--controller-name", f.controller, "--discovery-address", at(f.discovery),
				"--health-address", at(f.health), "--stunnerd", f.stunnerd(),
				"--stop-grace", "1s", "--log=all:DEBUG",
			}})
	})
	if err != nil {
		return err
	}
	return f.Await(ctx, "start of the operator", func(ctx context.Context) error {
		return f.operator.Until(ctx, func(ctx context.Context) error { _, err := f.get(ctx, "http://"+at(f.health)+"/ready"); return err })
	})
}

func (f *inFolder) startAuth(ctx context.Context, a *authService) (err error) {
	arguments := append([]string{
		"--config", "http://" + at(f.discovery), "--discovery-token-file", f.tokenFile(), "--revocations", f.in(),
	}, a.arguments...)
	f.host(func() {
		f.auth, err = harness.Start(harness.Command{Name: "auth", Path: f.Env.program("auth"), Args: arguments,
			Logs: f.Dir})
	})
	if err != nil {
		return err
	}
	return f.Await(ctx, "start of the auth service", func(ctx context.Context) error {
		return f.auth.Until(ctx, func(ctx context.Context) error { _, err := f.get(ctx, "http://"+a.health+"/ready"); return err })
	})
}

func (f *inFolder) restart(ctx context.Context, operator, auth bool) error {
	if operator {
		if err := f.operator.Kill(); err != nil {
			return err
		}
	}
	if auth {
		if err := f.auth.Kill(); err != nil {
			return err
		}
	}
	if operator {
		if err := f.startOperator(ctx); err != nil {
			return err
		}
	}
	if auth {
		return f.startAuth(ctx, &f.Env.auth)
	}
	return nil
}

func (f *inFolder) config(ctx context.Context, g *Gateway) (c config.Config, err error) {
	token, err := os.ReadFile(f.tokenFile())
	if err != nil {
		return c, err
	}
	body, err := f.getAs(ctx, "http://"+at(f.discovery)+"/api/v1/configs/"+g.ID(), strings.TrimSpace(string(token)))
	if err == nil {
		err = json.Unmarshal(body, &c)
	}
	return c, err
}

// endpoints returns the endpoints of the dataplane of a Gateway.
func (f *inFolder) endpoints(g *Gateway) (config.Admin, error) {
	if known, ok := f.admin[g.ID()]; ok {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	c, err := f.config(ctx, g)
	if err == nil && (c.Admin.HealthcheckEndpoint == nil || c.Admin.MetricsEndpoint == "") {
		err = fmt.Errorf("the dataplane of %s has no endpoints for health and metrics", g.ID())
	}
	if err != nil {
		return config.Admin{}, err
	}
	f.admin[g.ID()] = c.Admin
	return c.Admin, nil
}

func (f *inFolder) tokenFile() string { return filepath.Join(f.out(), "discovery.token") }

// apply writes each document into a file of its own.
func (f *inFolder) apply(_ context.Context, namespace, text string) error {
	for _, document := range strings.Split(text, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return fmt.Errorf("read YAML: %w", err)
		}
		if o.Kind == "" {
			continue
		}
		path := f.file(namespace, strings.ToLower(o.Kind)+"/"+o.Metadata.Name)
		if err := os.WriteFile(path+".draft", []byte(document), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".draft", path); err != nil {
			return err
		}
	}
	return nil
}

// file returns the path of an object, KIND/NAME.
func (f *inFolder) file(namespace, object string) string {
	return filepath.Join(f.in(), namespace+"_"+strings.ReplaceAll(object, "/", "_")+".yaml")
}

func (f *inFolder) remove(_ context.Context, namespace, object string) error {
	return os.Remove(f.file(namespace, object))
}

func (f *inFolder) status(_ context.Context, namespace, object string) (string, error) {
	kind, name, _ := strings.Cut(object, "/")
	files, err := filepath.Glob(filepath.Join(f.out(), "status", "*", namespace+"_"+name+".yaml"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if !strings.EqualFold(filepath.Base(filepath.Dir(file)), kind) {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var o struct{ Status map[string]any }
		if err := yaml.Unmarshal(data, &o); err != nil {
			return "", err
		}
		text, err := yaml.Marshal(o.Status)
		if err == nil {
			text, err = yaml.YAMLToJSON(text)
		}
		return string(text), err
	}
	return "", nil
}

func (f *inFolder) dataplanes(g *Gateway) ([]Dataplane, error) {
	admin, err := f.endpoints(g)
	if err != nil {
		return nil, err
	}
	pid := f.worker(g)
	if pid == 0 {
		return nil, nil
	}
	return []Dataplane{{
		Name: g.ID(), ID: strconv.Itoa(pid), Admin: strings.TrimSuffix(*admin.HealthcheckEndpoint, "/"), Metrics: admin.MetricsEndpoint,
		Addrs:  f.clientAddresses(),
		Crash:  func() error { return syscall.Kill(pid, syscall.SIGKILL) },
		Signal: func(s syscall.Signal) error { return syscall.Kill(pid, s) },
		Stop:   func(context.Context) error { return syscall.Kill(pid, syscall.SIGTERM) },
		Log: func() []string {
			return harness.Tail(filepath.Join(f.out(), "logs", g.Namespace+"_"+g.Name+".log"), 20)
		},
	}}, nil
}

// worker returns the process of the dataplane of a Gateway that serves clients, and not its supervisor. It returns 0 if
// there is none.
func (f *inFolder) worker(g *Gateway) int {
	var list []int
	for _, pid := range f.started() {
		if arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil &&
			slices.Contains(strings.Split(string(arguments), "\x00"), g.ID()) {
			list = append(list, pid)
		}
	}
	if len(list) == 0 {
		return 0
	}
	return slices.Max(list) // the child has the higher process id
}

// started returns the dataplane processes of this environment.
func (f *inFolder) started() (list []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, file := range files {
		arguments, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(arguments), f.stunnerd()+"\x00") {
			continue // the process has ended, or is another program
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

func (f *inFolder) removed(ctx context.Context, g *Gateway) error {
	if pid := f.worker(g); pid != 0 {
		return fmt.Errorf("process %d is left", pid)
	}
	if c, err := f.config(ctx, g); err == nil && len(c.Listeners) > 0 {
		return fmt.Errorf("the config of %s is left", g.ID())
	}
	return nil
}

// update replaces the program. The operator detects this.
func (f *inFolder) update(context.Context) error { return f.installProgram() }

func (f *inFolder) ctl(context.Context) ([]string, error) { return []string{"--folder", f.out()}, nil }

// applyDataplane does nothing: a file provider starts one process for each Gateway.
func (f *inFolder) applyDataplane(context.Context) error { return nil }

// ctlPeer returns the addresses of the host, because stunnerctl runs there.
func (f *inFolder) ctlPeer() topology.Both[netip.Addr] { return f.Net.Nodes[0].Internal }

func (f *inFolder) ctlHost(call func()) { f.host(call) }

func (f *inFolder) host(call func()) { f.Net.Nodes[0].Do(call) }

// close stops the operator with its dataplanes. Dataplanes that still run are killed.
func (f *inFolder) close() (err error) {
	if f.auth != nil {
		err = f.auth.Kill()
	}
	if f.operator != nil {
		err = errors.Join(err, f.operator.Stop(Limit))
	}
	for _, pid := range f.started() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the process may have ended meanwhile
	}
	return err
}
