package file

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// roleVariable makes the test binary act as the dataplane.
const roleVariable = "DATAPLANE_TEST_ROLE"

// G-02: no test of the package leaks a goroutine.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		<-signals
		return
	}
	goleak.VerifyTestMain(m)
}

// The files of the tests: a Gateway with everything that it needs, and a kind that is passed through.
const (
	classYAML = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: turn}
spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: turn, namespace: calls}
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: default}
spec: {enableMetricsEndpoint: true}
`
	configYAML = `apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: turn, namespace: calls}
spec: {realm: calls.example.net, authRef: {name: turn-auth}}
---
apiVersion: v1
kind: Secret
metadata: {name: turn-auth, namespace: calls}
stringData: {type: ephemeral, secret: correct-horse-battery}
`
	gatewayYAML = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: calls}
spec:
  gatewayClassName: turn
  listeners:
    - {name: udp, port: 17478, protocol: TURN-UDP}
    - {name: tcp, port: 443, protocol: TURN-TCP}
`
	routeYAML = `apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: media, namespace: calls}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{group: stunner.l7mp.io, kind: StaticService, name: farm}]}]
---
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: farm, namespace: calls}
spec: {prefixes: [198.51.100.0/24]}
`
	scalerYAML = `apiVersion: scaling.example.org/v1
kind: Scaler
metadata: {name: more, namespace: calls}
spec: {max: 7}
`
)

// site has an input folder, an output folder, and an operator.
type site struct {
	t        *testing.T
	provider Provider
	stop     func() error
}

func newSite(t *testing.T) *site {
	s := &site{t: t, stop: func() error { return nil }}
	s.provider = Provider{Input: t.TempDir(), Output: t.TempDir(), Addresses: []string{"127.0.0.1"}, Watch: true,
		DiscoveryAddress: freeAddress(t), HealthAddress: freeAddress(t), DiscoveryAuth: AuthToken,
		StopGrace: 2 * time.Second,
		Options:   translate.DefaultOptions(), Log: slog.New(slog.DiscardHandler)}
	for name, text := range map[string]string{
		"class.yaml": classYAML, "config.yml": configYAML, "gateway.yaml": gatewayYAML, "routes/media.yaml": routeYAML,
	} {
		s.write(name, text)
	}
	t.Cleanup(func() {
		s.end()
		if found := pidInStatus.FindStringSubmatch(s.output("status.txt")); found != nil &&
			s.provider.LeaveDataplanes && alive(found[1]) {
			s.kill(found[1])
		}
	})
	return s
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func (s *site) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.provider.Input, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) remove(name string) {
	s.t.Helper()
	if err := os.Remove(filepath.Join(s.provider.Input, name)); err != nil {
		s.t.Fatal(err)
	}
}

// run starts the operator and waits until it is ready.
func (s *site) run() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var ended error
	done := make(chan struct{})
	go func() { defer close(done); ended = s.provider.Run(ctx) }()
	s.stop = func() error { cancel(); <-done; return ended }
	until(s.t, "the operator is ready", func() bool {
		select {
		case <-done:
			s.t.Fatalf("operator ended: %v", ended)
		default:
		}
		answer, err := http.Get("http://" + s.provider.HealthAddress + "/ready")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

func (s *site) end() {
	s.t.Helper()
	if err := s.stop(); err != nil {
		s.t.Errorf("operator ended with %v", err)
	}
	s.stop = func() error { return nil }
	http.DefaultClient.CloseIdleConnections()
}

// config returns the config that discovery serves to the dataplane of the Gateway.
func (s *site) config() (config.Config, bool) {
	source, err := discovery.Open(
		"http://"+s.provider.DiscoveryAddress, discovery.Options{ID: "calls/door", TokenFile: s.provider.TokenFile()},
	)
	if err != nil {
		s.t.Fatal(err)
	}
	configs, err := source.Load(s.t.Context())
	if err != nil || len(configs) != 1 {
		return config.Config{}, false
	}
	return configs[0].Config, true
}

func (s *site) output(name string) string {
	data, err := os.ReadFile(filepath.Join(s.provider.Output, name))
	if err != nil {
		return ""
	}
	return string(data)
}

func (s *site) awaitStatus(text string) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("status.txt:\n%s", s.output("status.txt"))
		}
	}()
	until(s.t, fmt.Sprintf("status.txt says %q", text), func() bool {
		return strings.Contains(s.output("status.txt"), text)
	})
}

func (s *site) awaitConfig(what string, is func(config.Config) bool) config.Config {
	s.t.Helper()
	var c config.Config
	until(s.t, what, func() (ok bool) {
		c, ok = s.config()
		return ok && is(c)
	})
	return c
}

func routes(c config.Config) string { return strings.Join(c.Listeners[0].Routes, ",") }

// snapshot returns when each file was written.
func snapshot(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	all := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			info, infoErr := entry.Info()
			if infoErr != nil {
				return infoErr
			}
			all[path] = info.ModTime()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// secretFree checks that no output file has a secret of the input.
func secretFree(t *testing.T, dir string) {
	t.Helper()
	for path := range snapshot(t, dir) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte("correct-horse")) || bytes.Contains(data, []byte("Y29ycmVjdC1ob3JzZ")) {
			t.Errorf("%s holds a secret", path)
		}
	}
}

var pidInStatus = regexp.MustCompile(`process running, pid (\d+)`)

// pid returns the process of the Gateway. It reads status.txt once, because a process that restarts has no line there.
func (s *site) pid() (pid string) {
	s.t.Helper()
	until(s.t, "a dataplane is running", func() bool {
		found := pidInStatus.FindStringSubmatch(s.output("status.txt"))
		if found != nil {
			pid = found[1]
		}
		return found != nil
	})
	return pid
}

// kill ends a process and waits until it has ended.
func (s *site) kill(pid string) {
	s.t.Helper()
	if err := syscall.Kill(number(pid), syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, "the killed dataplane is gone", func() bool { return !alive(pid) })
}

func alive(pid string) bool { return syscall.Kill(number(pid), 0) == nil }

func number(pid string) int {
	n, _ := strconv.Atoi(pid)
	return n
}

// until polls until a condition holds. The limit is long because other processes may use the cores.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
