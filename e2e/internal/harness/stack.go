package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stack runs the product on this host from a folder of YAML: an operator, the dataplanes that it starts, the auth
// service and an echo peer.
type Stack struct {
	Bin   string // folder with the built programs
	Dir   string // for all files that the stack writes
	Ports Ports
	// Host is the address of the Gateway, of its relays, and of the echo peer for media; empty means Loopback.
	Host string
	// Free lets dataplanes continue when the operator is killed. A later operator must stop them.
	Free bool

	Operator *Process
	Auth     *Process
	Echo     *Process
}

// Input returns the folder of YAML that the operator reads.
func (s *Stack) Input() string { return filepath.Join(s.Dir, "in") }

// Output returns the folder that the operator writes to.
func (s *Stack) Output() string { return filepath.Join(s.Dir, "out") }

// Logs returns the folder with the logs of operator, auth service and echo peer.
func (s *Stack) Logs() string { return filepath.Join(s.Dir, "logs") }

// DataplaneLog returns the log file of the Gateway's dataplane, which the operator writes.
func (s *Stack) DataplaneLog() string {
	return filepath.Join(s.Output(), "logs", strings.ReplaceAll(GatewayID, "/", "_")+".log")
}

// stopGrace is the time that each process has to exit after SIGTERM.
const stopGrace = 10 * time.Second

// Prepare makes the folders and copies the YAML of the quickstart with the ports of the stack.
func (s *Stack) Prepare(quickstartDir string) error {
	for _, dir := range []string{s.Input(), s.Output(), s.Logs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("prepare folders: %w", err)
		}
	}
	files, err := filepath.Glob(filepath.Join(quickstartDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("read quickstart: no YAML in %s", quickstartDir)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read quickstart: %w", err)
		}
		if err := s.Put(filepath.Base(file), data); err != nil {
			return err
		}
	}
	return nil
}

// Put writes a file into the operator's input folder, with the quickstart's ports replaced by the ports of the stack.
// It writes a temporary file and renames it, so the operator never reads an incomplete file.
func (s *Stack) Put(name string, yaml []byte) error {
	draft := filepath.Join(s.Dir, name+".draft")
	if err := os.WriteFile(draft, s.withHost(s.withPorts(yaml)), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(draft, filepath.Join(s.Input(), name)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

var portField = regexp.MustCompile(`(\b(?:port|endPort): )(\d+)\b`)

// withPorts replaces the ports of the quickstart by the ports of the stack.
func (s *Stack) withPorts(yaml []byte) []byte {
	usual := quickstart()
	return portField.ReplaceAllFunc(yaml, func(field []byte) []byte {
		parts := portField.FindSubmatch(field)
		for i, port := range usual.each() {
			if string(parts[2]) == strconv.Itoa(*port) {
				return strconv.AppendInt(slices.Clone(parts[1]), int64(*s.Ports.each()[i]), 10)
			}
		}
		return field
	})
}

// withHost replaces the address of the echo peer by Host.
func (s *Stack) withHost(yaml []byte) []byte {
	if s.Host == "" {
		return yaml
	}
	text := strings.ReplaceAll(string(yaml), "- "+Loopback, "- '"+s.Host+"'")
	if strings.Contains(s.Host, ":") {
		text = strings.ReplaceAll(text, "addressType: IPv4", "addressType: IPv6")
	}
	return []byte(text)
}

// Start starts all programs and waits until each is ready.
func (s *Stack) Start(ctx context.Context) error {
	for _, start := range []func(context.Context) error{s.StartEcho, s.StartOperator, s.StartAuth} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// StartEcho starts the echo peer.
func (s *Stack) StartEcho(ctx context.Context) (err error) {
	s.Echo, err = s.start(
		"echo", "--http", s.signalling(), "--media", s.at(s.Ports.Media), "--udp", s.at(s.Ports.Datagrams),
	)
	if err != nil {
		return err
	}
	_, err = s.Echo.AwaitOutput(ctx, regexp.MustCompile(`(?m)^\{"http":.*\}$`))
	return err
}

// StartOperator starts the operator and waits until the dataplane of the quickstart's Gateway is ready.
func (s *Stack) StartOperator(ctx context.Context) (err error) {
	lifetime := "bound"
	if s.Free {
		lifetime = "free"
	}
	s.Operator, err = s.start("operator", "--provider=file", "--input", s.Input(), "--output", s.Output(),
		"--address", s.host(), "--discovery-address", at(s.Ports.Discovery), "--stunnerd", filepath.Join(s.Bin, "stunnerd"),
		"--child-lifetime", lifetime, "--stop-grace", "1s")
	if err != nil {
		return err
	}
	return s.Operator.Until(ctx, s.served)
}

// StartAuth starts the auth service and waits until it returns ICE servers.
func (s *Stack) StartAuth(ctx context.Context) (err error) {
	s.Auth, err = s.start("auth", "--address", Loopback, "--port", strconv.Itoa(s.Ports.Auth),
		"--health-address", at(s.Ports.AuthHealth), "--config", s.DiscoveryURL(),
		"--discovery-token-file", s.tokenFile(), "--shutdown-delay", "0", "--demo", "--demo-echo", "http://"+s.signalling()+"/")
	if err != nil {
		return err
	}
	return s.Auth.Until(ctx, Answers("http://"+at(s.Ports.AuthHealth)+"/ready", http.StatusOK))
}

func (s *Stack) start(name string, args ...string) (*Process, error) {
	return Start(Command{Name: name, Path: filepath.Join(s.Bin, name), Args: args, Logs: s.Logs()})
}

// Stop stops every program: the auth service first, then the operator with its dataplanes.
func (s *Stack) Stop() error {
	var errs []error
	for _, p := range []*Process{s.Auth, s.Operator, s.Echo} {
		if p != nil {
			errs = append(errs, p.Stop(stopGrace))
		}
	}
	return errors.Join(errs...)
}

// Parts returns the processes that were started.
func (s *Stack) Parts() []*Process {
	return slices.DeleteFunc([]*Process{s.Echo, s.Operator, s.Auth}, func(p *Process) bool { return p == nil })
}

func at(port int) string { return Loopback + ":" + strconv.Itoa(port) }

func (s *Stack) host() string { return cmp.Or(s.Host, Loopback) }

// at returns the address of a port of Host.
func (s *Stack) at(port int) string { return net.JoinHostPort(s.host(), strconv.Itoa(port)) }

func (s *Stack) signalling() string { return at(s.Ports.Signalling) }

// DiscoveryURL returns the base URL of the operator's config discovery.
func (s *Stack) DiscoveryURL() string { return "http://" + at(s.Ports.Discovery) }

// tokenFile returns the file with the bearer token for config discovery.
func (s *Stack) tokenFile() string { return filepath.Join(s.Output(), "discovery.token") }

// AuthURL returns the base URL of the auth service.
func (s *Stack) AuthURL() string { return "http://" + at(s.Ports.Auth) }

// Gateway returns the address of both listeners of the quickstart's Gateway.
func (s *Stack) Gateway() netip.AddrPort { return netip.MustParseAddrPort(s.at(s.Ports.TURN)) }

// Datagrams returns the address of the UDP echo peer.
func (s *Stack) Datagrams() netip.AddrPort { return netip.MustParseAddrPort(s.at(s.Ports.Datagrams)) }
