package file

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestProviderRendersOnce(t *testing.T) {
	s := newSite(t)
	s.provider.Watch = false
	s.write("scaler.yaml", scalerYAML)
	if err := s.provider.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"status.txt":                           "scaler.yaml:1 Scaler calls/more passed through",
		"problems.yaml":                        "severity: Info",
		"status/gateway/calls_door.yaml":       "type: Accepted",
		"status/gatewayclass/turn.yaml":        "status: \"True\"",
		"status/gatewayconfig/calls_turn.yaml": "conditions:",
		"status/udproute/calls_media.yaml":     "controllerName: stunner.l7mp.io/gateway-operator",
		"objects/calls/deployment-door.yaml":   "kind: Deployment",
		"objects/calls/configmap-door.yaml":    "<redacted>",
		"objects/calls/scaler-more.yaml":       "max: 7",
	} {
		if !strings.Contains(s.output(name), want) {
			t.Errorf("%s does not hold %q:\n%s", name, want, s.output(name))
		}
	}
	first := snapshot(t, s.provider.Output)
	if err := s.provider.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, info := range snapshot(t, s.provider.Output) {
		if filepath.Base(path) != "status.txt" && !info.Equal(first[path]) {
			t.Errorf("%s was written anew by a second run over the same input", path)
		}
	}
	s.write("bad.yaml", "kind: Gateway\n")
	if err := s.provider.Run(t.Context()); !errors.Is(err, ErrNotInForce) {
		t.Errorf("with a fragment the run ended with %v, want %v", err, ErrNotInForce)
	}
	secretFree(t, s.provider.Output)
}

// A folder that is read once is checked like manifests before their deployment.
func TestProviderRendersOnce_NotInForce(t *testing.T) {
	for name, c := range map[string]struct {
		old, text string
		want      string // in status.txt, after NOT IN FORCE
	}{
		"a misspelt protocol": {"TURN-UDP", "TURN-UPD", `protocol: "TURN-UPD" is not supported: use `},
		"no certificate":      {"TURN-UDP", "TURN-DTLS", "tls.certificateRefs: is empty: name a Secret"},
		"no class":            {"gatewayClassName: turn", "gatewayClassName: trun", "spec.gatewayClassName: GatewayClass trun is not in the files"},
		"an old API version":  {"gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2", "v1alpha2 of kind Gateway is not served: use "},
	} {
		s := newSite(t)
		s.provider.Watch = false
		s.write("gateway.yaml", strings.Replace(gatewayYAML, c.old, c.text, 1))
		if err := s.provider.Run(t.Context()); !errors.Is(err, ErrNotInForce) {
			t.Errorf("%s: the run ended with %v, want %v", name, err, ErrNotInForce)
		}
		_, status, _ := strings.Cut(s.output("status.txt"), "NOT IN FORCE")
		if !strings.Contains(status, c.want) || !strings.Contains(s.output("problems.yaml"), "severity: Error") {
			t.Errorf("%s: no %q in\n%s", name, c.want, s.output("status.txt"))
		}
	}
}

// Without a Dataplane, the Dataplane of the chart is used, and a remark says so.
func TestProviderRendersOnce_SuppliedDataplane(t *testing.T) {
	s := newSite(t)
	s.provider.Watch = false
	class, _, _ := strings.Cut(classYAML, "---\n")
	s.write("class.yaml", class)
	if err := s.provider.Run(t.Context()); err != nil {
		t.Errorf("%v\n%s", err, s.output("status.txt"))
	}
	for _, want := range []string{"Dataplane default is not in the files", "1 configs published"} {
		if !strings.Contains(s.output("status.txt"), want) {
			t.Errorf("no %q in\n%s", want, s.output("status.txt"))
		}
	}
}

func TestProviderFollowsTheFolder(t *testing.T) {
	s := newSite(t)
	s.run()
	c := s.awaitConfig("the first config", func(config.Config) bool { return true })
	if routes(c) != "calls/media" || c.Listeners[0].PublicAddress != "127.0.0.1" {
		t.Errorf("listener %+v", c.Listeners[0])
	}
	if tcp := c.Listeners[1]; tcp.Port < firstSubstitute || tcp.PublicPort != tcp.Port {
		t.Errorf("privileged listener got port %d, public %d, want a substitute for both", tcp.Port, tcp.PublicPort)
	}
	s.write("routes/media.yaml", strings.Replace(routeYAML, "198.51.100.0/24", "203.0.113.0/24", 1))
	s.awaitConfig(
		"the new prefix",
		func(c config.Config) bool { return strings.Contains(fmt.Sprint(c.Clusters), "203.0.113.0/24") },
	)
	s.write("config.yml", strings.Replace(configYAML, "correct-horse", "wrong-horse", 1))
	s.awaitStatus(`auth.credentials`)
	s.remove("routes/media.yaml")
	s.awaitConfig("no route", func(c config.Config) bool { return routes(c) == "" })
	s.write("later/media.yaml", routeYAML)
	s.awaitConfig("a route in a new subfolder", func(c config.Config) bool { return routes(c) == "calls/media" })
	s.remove("gateway.yaml")
	until(t, "the config is withdrawn", func() bool { _, ok := s.config(); return !ok })
	until(t, "its objects are gone", func() bool { return s.output("objects/calls/deployment-door.yaml") == "" })
	s.end() // the process writes to the folder until its end
	secretFree(t, s.provider.Output)
}

// Without dataplanes the operator binds no ports, and a port that another program takes does not change its assignment.
func TestProviderThatOnlyRendersKeepsItsPorts(t *testing.T) {
	s := newSite(t)
	s.run()
	before := s.awaitConfig("the first config", func(config.Config) bool { return true })
	taken, err := net.ListenPacket("udp", net.JoinHostPort("", strconv.Itoa(before.Listeners[0].Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s.remove("routes/media.yaml")
	after := s.awaitConfig("a later round", func(c config.Config) bool { return routes(c) == "" })
	if after.Listeners[0].Port != before.Listeners[0].Port {
		t.Errorf("port %d, want %d as before", after.Listeners[0].Port, before.Listeners[0].Port)
	}
}

func TestProviderFollowsAMountedVolume(t *testing.T) {
	s := newSite(t)
	// As Kubernetes mounts a ConfigMap: files are symbolic links into a hidden folder, which is replaced atomically.
	s.remove("gateway.yaml")
	s.write("..1/gateway.yaml", gatewayYAML)
	s.write("..2/gateway.yaml", strings.Replace(gatewayYAML, "name: udp", "name: renamed", 1))
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(s.provider.Input, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..1", "..data")
	link("..data/gateway.yaml", "gateway.yaml")
	s.run()
	s.awaitConfig("the first version", func(c config.Config) bool { return c.Listeners[0].Name == "calls/door/udp" })
	link("..2", "..next")
	if err := os.Rename(
		filepath.Join(s.provider.Input, "..next"), filepath.Join(s.provider.Input, "..data"),
	); err != nil {
		t.Fatal(err)
	}
	s.awaitConfig(
		"the second version", func(c config.Config) bool { return c.Listeners[0].Name == "calls/door/renamed" },
	)
}

func TestProviderOutlivesItsInputFolder(t *testing.T) {
	s := newSite(t)
	s.run()
	before := s.awaitConfig("the first config", func(config.Config) bool { return true })
	away := s.provider.Input + ".away"
	if err := os.Rename(s.provider.Input, away); err != nil {
		t.Fatal(err)
	}
	until(t, "the operator says that it cannot read", func() bool {
		answer, err := http.Get("http://" + s.provider.HealthAddress + "/ready")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusServiceUnavailable
	})
	if c, ok := s.config(); !ok || c.Revision() != before.Revision() {
		t.Error("the config has changed together with the folder")
	}
	if err := os.Rename(away, s.provider.Input); err != nil {
		t.Fatal(err)
	}
	s.remove("routes/media.yaml")
	s.awaitConfig("a change after the folder came back", func(c config.Config) bool { return routes(c) == "" })
}

func TestProviderBrokenYAMLChangesNothing(t *testing.T) {
	s := newSite(t)
	s.run()
	before := s.awaitConfig("the first config", func(config.Config) bool { return true })
	for _, c := range []struct{ name, file, text, says string }{
		{"indentation", "gateway.yaml", strings.Replace(
			gatewayYAML, "  listeners:", "   listeners:", 1,
		), "gateway.yaml:6: Gateway calls/door: document is not YAML"},
		{"port 70000", "gateway.yaml", strings.Replace(
			gatewayYAML, "17478", "70000", 1,
		), "gateway.yaml:7: Gateway calls/door: spec.listeners[0].port"},
		{"unknown field", "gateway.yaml", strings.Replace(
			gatewayYAML, "gatewayClassName", "className", 1,
		), "gateway.yaml:5: Gateway calls/door: spec.className: is not known"},
		{"prefix", "routes/media.yaml", strings.Replace(
			routeYAML, "/24", "/33", 1,
		), "routes/media.yaml:11: StaticService calls/farm: spec.prefixes[0]"},
		{"cut short", "config.yml", configYAML[:len(configYAML)*2/3], "NOT IN FORCE"},
		{"empty", "class.yaml", "", "class.yaml:1: is empty"},
		{"Secret without its key", "config.yml", strings.Replace(
			configYAML, "secret: correct", "secrets: correct", 1,
		), "config and objects stay as they are"},
	} {
		good, err := os.ReadFile(filepath.Join(s.provider.Input, c.file))
		if err != nil {
			t.Fatal(err)
		}
		s.write(c.file, c.text)
		s.awaitStatus(c.says)
		if now, ok := s.config(); !ok || now.Revision() != before.Revision() {
			t.Errorf("%s: the config has changed: %v", c.name, config.Diff(before, now))
		}
		s.write(c.file, string(good))
		until(t, c.name+" is mended", func() bool { return !strings.Contains(s.output("status.txt"), c.says) })
	}
}

// After the end of the operator, status.txt states that it is not updated, and whether the dataplanes run. The next
// operator replaces it.
func TestProviderReportsItsEnd(t *testing.T) {
	t.Setenv(roleVariable, "serve")
	s := newSite(t)
	s.provider.Stunnerd, _ = os.Executable()
	for _, row := range []struct {
		leave bool
		says  string
	}{{true, " and left its dataplanes running. Its last report:\n\n"}, {false, " with its dataplanes. Its last report:\n\n"}} {
		s.provider.LeaveDataplanes = row.leave
		s.run()
		until(t, "the operator reports a running dataplane", func() bool {
			status := s.output("status.txt")
			return !strings.Contains(status, "THE OPERATOR ENDED") && pidInStatus.MatchString(status)
		})
		s.end()
		if status := s.output("status.txt"); !strings.HasPrefix(status, "THE OPERATOR ENDED at ") ||
			!strings.Contains(status, row.says) || !strings.Contains(status, "calls/door") {
			t.Errorf("after its end:\n%s", status)
		}
	}
}

// A listener whose protocol is misspelt stays in the config and keeps its host port and its Service, also after a
// restart.
func TestProviderKeepsAMisspeltListener(t *testing.T) {
	t.Setenv(roleVariable, "serve")
	s := newSite(t)
	s.provider.Stunnerd, _ = os.Executable()
	s.provider.LeaveDataplanes = true
	s.run()
	s.pid()
	before := s.awaitConfig("the first config", func(config.Config) bool { return true })
	service := s.output("objects/calls/service-door-tcp.yaml")

	typo := strings.Replace(gatewayYAML, "TURN-TCP", "TURN-TPC", 1)
	s.write("gateway.yaml", strings.Replace(
		typo, "    - {name: tcp", "    - {name: late, port: 24443, protocol: TURN-TCP}\n    - {name: tcp", 1,
	))
	s.awaitStatus(`"TURN-TPC" is not supported`)
	c := s.awaitConfig("the listener that was added", func(c config.Config) bool { return len(c.Listeners) == 3 })
	if diff := cmp.Diff(before.Listeners[1], c.Listeners[2]); diff != "" {
		t.Errorf("the misspelt listener has changed (-before +after):\n%s", diff)
	}
	s.write("gateway.yaml", typo)
	s.write("routes/media.yaml", strings.Replace(routeYAML, "media", "other", 1))
	c = s.awaitConfig(
		"the other route, without the listener that was added",
		func(c config.Config) bool { return routes(c) == "calls/other" && len(c.Listeners) == 2 },
	)
	if got := strings.Join(c.Listeners[1].Routes, ","); got != "calls/other" {
		t.Errorf("the misspelt listener has routes %s, want the new one", got)
	}
	if now := s.output("objects/calls/service-door-tcp.yaml"); now != service || now == "" {
		t.Errorf("the Service of the misspelt listener has changed:\n%s", cmp.Diff(service, now))
	}
	until(t, "the ConfigMap shows what is published", func() bool {
		shown := s.output("objects/calls/configmap-door.yaml")
		return strings.Contains(shown, "calls/other") && strings.Contains(shown, "calls/door/tcp")
	})
	s.write("routes/media.yaml", routeYAML)
	s.awaitConfig("the route as before", func(c config.Config) bool { return routes(c) == "calls/media" })
	s.end()

	s.write("config.yml", strings.Replace(configYAML, "correct-horse", "other-horse", 1))
	s.run()
	c = s.awaitConfig("the other password", func(c config.Config) bool {
		return strings.HasPrefix(string(c.Auth.Credentials[config.KeySecret]), "other-horse")
	})
	if len(c.Listeners) != 2 || cmp.Diff(before.Listeners[1], c.Listeners[1]) != "" {
		t.Errorf("the misspelt listener has changed with the restart: %v", config.Diff(before, c))
	}
	s.write("config.yml", configYAML)
	s.write("gateway.yaml", gatewayYAML)
	s.awaitConfig("the config after mending", func(c config.Config) bool { return c.Revision() == before.Revision() })
}

func TestProviderKeepsGatewaysWithoutTheirClass(t *testing.T) {
	t.Setenv(roleVariable, "serve")
	s := newSite(t)
	s.provider.Stunnerd, _ = os.Executable()
	s.run()
	pid := s.pid()
	before := s.awaitConfig("the first config", func(config.Config) bool { return true })
	s.remove("class.yaml")
	s.awaitStatus("GatewayClass turn does not exist: config and objects stay as they are")
	if c, ok := s.config(); !ok || c.Revision() != before.Revision() || s.pid() != pid ||
		s.output("objects/calls/deployment-door.yaml") == "" {
		t.Errorf("config, process or objects have changed: %v", config.Diff(before, c))
	}
	s.write("class.yaml", strings.Replace(classYAML, "stunner.l7mp.io/gateway-operator", "example.org/other", 1))
	until(t, "the dataplane of a Gateway that was given away ends", func() bool { return !alive(pid) })
}

func TestProviderIsLocked(t *testing.T) {
	s := newSite(t)
	s.run()
	if _, ok := s.config(); !ok {
		t.Error("the holder of the token is refused")
	}
	for _, header := range []string{"", "Bearer", "Bearer x", "Basic " + s.output("discovery.token")} {
		req, err := http.NewRequest(http.MethodGet, "http://"+s.provider.DiscoveryAddress+"/api/v1/configs", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", strings.TrimSpace(header))
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("authorization %q is answered with %d, want 401", header, answer.StatusCode)
		}
	}
	for _, name := range []string{"discovery.token", "state/operator.json"} {
		if info, err := os.Stat(filepath.Join(s.provider.Output, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", name, info, err)
		}
	}
}

func TestTokenStaysUnlessOthersCouldReadIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	read := func() string {
		t.Helper()
		secret, err := token(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || info.Mode().Perm() != 0o600 || len(secret) != tokenLength {
			t.Fatalf("token of %d characters, %v, file %v, %v", len(secret), err, info, statErr)
		}
		return string(secret)
	}
	first := read()
	if read() != first {
		t.Error("the token does not stay")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	second := read()
	if second == first {
		t.Error("a token that others could read is still in use")
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if read() == "short" {
		t.Error("a token that can be guessed is in use")
	}
}

func TestProviderErrorsNameTheFlag(t *testing.T) {
	s := newSite(t)
	s.run()
	for want, change := range map[string]func(*Provider){
		"another --output": func(*Provider) {},
		"--discovery-address": func(
			p *Provider,
		) {
			p.Output, p.DiscoveryAddress = t.TempDir(), s.provider.DiscoveryAddress
		},
		"--health-address": func(
			p *Provider,
		) {
			p.Output, p.HealthAddress = t.TempDir(), s.provider.HealthAddress
		},
		"--input /nowhere: is no folder": func(p *Provider) { p.Input = "/nowhere" },
		"is the input folder as well":    func(p *Provider) { p.Output = p.Input },
		"--stunnerd": func(p *Provider) {
			p.Output, p.Stunnerd = t.TempDir(), filepath.Join(
				p.Input, "class.yaml",
			)
		},
	} {
		other := s.provider
		other.DiscoveryAddress, other.HealthAddress = freeAddress(t), freeAddress(t)
		change(&other)
		if err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

func TestProviderAdoptsDataplanesAndKeepsTheirConfigs(t *testing.T) {
	t.Setenv(roleVariable, "serve")
	s := newSite(t)
	s.provider.Stunnerd, _ = os.Executable()
	s.provider.LeaveDataplanes = true
	s.run()
	pid := s.pid()
	before := s.awaitConfig("the first config", func(config.Config) bool { return true })
	s.end()

	s.write("routes/media.yaml", strings.Replace(routeYAML, "parentRefs:", " parentRefs:", 1))
	s.run()
	s.awaitStatus("UDPRoute calls/media: was in force before the operator started and cannot be read")
	s.awaitStatus("config is not published: ")
	if c, ok := s.config(); !ok || c.Revision() != before.Revision() {
		t.Errorf("published %t, without the route: %v", ok, config.Diff(before, c))
	}
	if now := s.pid(); now != pid {
		t.Errorf("the dataplane has pid %s, want %s as before", now, pid)
	}
	s.write("routes/media.yaml", routeYAML)
	after := s.awaitConfig("the config after mending", func(config.Config) bool { return true })
	if after.Revision() != before.Revision() {
		t.Errorf("the config has changed over the restart: %v", config.Diff(before, after))
	}
	s.end()

	s.kill(pid)
	s.write("gateway.yaml", strings.Replace(gatewayYAML, "spec:", " spec:", 1))
	s.run()
	s.awaitStatus("Gateway calls/door: was in force before the operator started and cannot be read")
	again := s.pid()
	if again == pid {
		t.Errorf("the dataplane of an unreadable Gateway has pid %s: it was killed", again)
	}
	s.write("gateway.yaml", gatewayYAML)
	last := s.awaitConfig("the config of the Gateway that can be read again", func(config.Config) bool { return true })
	if last.Revision() != before.Revision() {
		t.Errorf("the config has changed, although the Gateway was only unreadable: %v", config.Diff(before, last))
	}
	s.write("gateway.yaml", "# taken away\n")
	until(t, "the dataplane of a Gateway that is gone ends", func() bool { return !alive(again) })
	until(t, "its last good config is forgotten", func() bool {
		_, err := os.Stat(filepath.Join(s.provider.lastGood(), "calls_door"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// A dataplane process has the relay ports of its Dataplane, as a pod has.
func TestProviderGivesDataplanesTheirRelayPorts(t *testing.T) {
	t.Setenv(roleVariable, "serve")
	s := newSite(t)
	s.provider.Stunnerd, _ = os.Executable()
	s.run()
	for _, ports := range []string{"", "40000-40999"} {
		if ports != "" {
			s.write("class.yaml", strings.Replace(
				classYAML, "{enableMetricsEndpoint: true}", "{relayPortRange: {minPort: 40000, maxPort: 40999}}", 1,
			))
		}
		until(t, "a dataplane has the relay ports "+ports, func() bool {
			env, err := os.ReadFile(filepath.Join("/proc", s.pid(), "environ"))
			return err == nil && len(env) > 0 &&
				strings.Contains(string(env), "STUNNER_RELAY_PORTS="+ports) == (ports != "")
		})
	}
}

func TestProviderStopsItsDataplanes(t *testing.T) {
	t.Setenv(roleVariable, "serve")
	s := newSite(t)
	s.provider.Stunnerd, _ = os.Executable()
	s.run()
	s.kill(s.pid())
	s.awaitStatus("restarted 1 times, last because of: signal: killed")
	pid := s.pid()
	s.end()
	if alive(pid) {
		t.Errorf("left running: %s", pid)
	}
}

func TestOutputNamesLeadNowhereElse(t *testing.T) {
	o := output{dir: "/out"}
	for _, name := range []string{
		"../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b", "a\x00b", strings.Repeat("x", 5000),
	} {
		path := o.path("objects", name, name+".yaml")
		if rel, err := filepath.Rel("/out/objects", path); err != nil || strings.HasPrefix(rel, "..") ||
			strings.Count(rel, "/") != 1 || len(rel) > 500 {
			t.Errorf("name %.20q leads to %.60s", name, path)
		}
	}
}
