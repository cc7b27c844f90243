package docs

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// TestLintSchema: the output of stunnerctl lint conforms to its schema, and the example for clusters passes.
func TestLintSchema(t *testing.T) {
	program := filepath.Join(harnesstest.Build(t, harness.Stunnerctl), "stunnerctl")
	for _, folder := range []string{"docs/examples/cluster", "docs/examples/quickstart"} {
		out, err := exec.Command(program, "lint", "-o", "json", filepath.Join(harnesstest.Root(t), folder)).Output()
		if err != nil {
			t.Errorf("%s: %v\n%s", folder, err, out)
		}
		harnesstest.Conforms(t, "docs/lint.schema.json", out)
	}
}
