package stunnerctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each mistake in the input folder of a file provider is an error of doctor and why, which names the document or the
// object. After its correction they find no problem.
func TestMistakesInAFolder(t *testing.T) {
	c := start(t)
	why := []string{"why", "-n", "meet", "front-door"}
	finds := func(command []string, parts ...string) bool {
		out, _, code := c.try(command...)
		for _, part := range parts {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), part) {
				return false
			}
		}
		return code == 1
	}
	for _, m := range []struct{ name, file, old, mistake, finding string }{
		{"type of a field", "gateway.yaml", "protocol: TURN-UDP", "protocol: [TURN-UDP]", "ERROR gateway.yaml:13"},
		{"unknown field", "gateway.yaml", "gatewayClassName:", "gatewayClassname:", "ERROR gateway.yaml:"},
		{"not YAML", "udproute.yaml", "spec:", "spec: }", "ERROR udproute.yaml:"},
		{"class", "gateway.yaml", "gatewayClassName: calls", "gatewayClassName: calls2", "GatewayClass calls2 does not exist"},
		{"GatewayConfig", "gatewayclass.yaml", "    name: calls", "    name: call", "GatewayConfig meet/call does not exist"},
		{"Dataplane", "gatewayconfig.yaml", "dataplane: default", "dataplane: big", `Dataplane "big" does not exist`},
		{
			"Secret", "gatewayconfig.yaml", "    name: turn-credentials", "    name: credentials",
			"Secret meet/credentials does not exist",
		},
		{"parent", "udproute.yaml", "name: front-door", "name: front-dor", "UDPRoute meet/to-echo names Gateway meet/front-dor"},
		{"backend", "udproute.yaml", "name: echo", "name: ecko", "backend meet/ecko: there is no such Service"},
		{"prefix", "echo.yaml", "- 127.0.0.1", "- 127.0.0.300", "ERROR echo.yaml:"},
	} {
		t.Run(m.name, func(t *testing.T) {
			c := c
			c.T = t
			path := filepath.Join(c.stack.Input(), m.file)
			sound, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			broken := strings.Replace(string(sound), m.old, m.mistake, 1)
			if broken == string(sound) {
				t.Fatalf("no %q in %s", m.old, m.file)
			}
			if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.WriteFile(path, sound, 0o600) })
			for _, command := range [][]string{{"doctor"}, why} {
				c.until(command[0]+" finds "+m.finding, func() bool { return finds(command, m.finding) })
			}
			if err := os.WriteFile(path, sound, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, command := range [][]string{{"doctor"}, why} {
				c.until(command[0]+" finds no problem", func() bool { _, _, code := c.try(command...); return code == 0 })
			}
		})
	}
}
