package stunnerctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Each mistake in the input folder of a file provider is an error of doctor and why, which names the document or the
// object. After its correction there are no findings. e2e/diagnose has all mistakes in objects.
func TestMistakesInAFolder(t *testing.T) {
	c := ctl{t, harnesstest.Quickstart(t, "", harness.Stunnerctl)}
	commands := [][]string{{"doctor"}, {"why", "-n", "meet", "front-door"}}
	for _, m := range []struct{ name, file, old, mistake, finding string }{
		{"type of a field", "gateway.yaml", "protocol: TURN-UDP", "protocol: [TURN-UDP]", "ERROR gateway.yaml:13"},
		{"unknown field", "gateway.yaml", "gatewayClassName:", "gatewayClassname:", "ERROR gateway.yaml:"},
		{"not YAML", "udproute.yaml", "spec:", "spec: }", "ERROR udproute.yaml:"},
		{
			"Secret", "gatewayconfig.yaml", "    name: turn-credentials", "    name: credentials",
			"Secret meet/credentials does not exist",
		},
		{"parent", "udproute.yaml", "name: front-door", "name: front-dor", "UDPRoute meet/to-echo names Gateway meet/front-dor"},
		{"prefix", "echo.yaml", "- 127.0.0.1", "- 127.0.0.300", "ERROR echo.yaml:"},
	} {
		t.Run(m.name, func(t *testing.T) {
			c.T = t
			sound, err := os.ReadFile(filepath.Join(c.Input(), m.file))
			harnesstest.NoError(t, err)
			broken := strings.Replace(string(sound), m.old, m.mistake, 1)
			if broken == string(sound) {
				t.Fatalf("no %q in %s", m.old, m.file)
			}
			t.Cleanup(func() { _ = c.Put(m.file, sound) })
			with := func(text string, want int) {
				t.Helper()
				harnesstest.NoError(t, c.Put(m.file, []byte(text)))
				for _, command := range commands {
					c.until(func() error {
						out, errs, code := c.try(command...)
						found := strings.Contains(strings.Join(strings.Fields(out), " "), m.finding)
						if code != want || found != (want == 1) {
							return fmt.Errorf("%s: exit code %d, want %d for %q: %s%s", command, code, want, m.finding, out, errs)
						}
						return nil
					})
				}
			}
			with(broken, 1)
			with(string(sound), 0)
		})
	}
}
