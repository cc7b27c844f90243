// Package scenario runs the built programs through calls, config changes, mistakes and crashes. Each scenario is a file
// in testdata whose name states what it proves. commands_test.go lists the commands of scenarios.
package scenario

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
)

func TestMain(m *testing.M) {
	bedtest.Parallel(4)
	os.Exit(m.Run())
}

// TestScenario runs every scenario; TestScenario/NAME runs one.
func TestScenario(t *testing.T) {
	root := bedtest.Root(t)
	bin := bedtest.Build(t, bed.Operator, bed.Stunnerd, bed.Auth, bed.Echo)
	testscript.Run(t, testscript.Params{
		Dir:                "testdata",
		Cmds:               commands(),
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			s, err := newStage(env, bin)
			if err != nil {
				return err
			}
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			return s.stack.Prepare(filepath.Join(root, "docs/examples/quickstart"))
		},
	})
}
