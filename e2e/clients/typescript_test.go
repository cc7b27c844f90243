package clients

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// node returns the path of Node.js.
func node(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("Node.js is not installed: run `sudo apt-get install --yes nodejs npm`")
	}
	return path
}

// tool returns a command of a tool that the lock file of the TypeScript client pins, in the folder of the client.
func tool(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	folder := filepath.Join(harnesstest.Root(t), "clients/typescript")
	path := filepath.Join(folder, "node_modules/.bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not installed: run `npm --prefix clients/typescript ci`", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = folder
	return cmd
}

// run runs a command, and fails the test if it fails.
func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
}

// compile compiles the client, for tests that use it.
func compile(t *testing.T) {
	t.Helper()
	node(t)
	run(t, tool(t, "tsc", "--project", "."))
}

// The unit tests of the client, in virtual time: each is a subtest.
func TestTypeScriptUnits(t *testing.T) {
	compile(t)
	files, err := filepath.Glob(filepath.Join(harnesstest.Root(t), "clients/typescript/test/*.test.mjs"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests found: %v", err)
	}
	result := regexp.MustCompile(`(?m)^(not ok|ok) \d+ - (.*)$`)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(node(t), "--test-reporter=tap", file)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			failed := cmd.Run()
			found := result.FindAllStringSubmatch(out.String(), -1)
			for _, match := range found {
				t.Run(match[2], func(t *testing.T) {
					if match[1] != "ok" || strings.Contains(match[2], "# ") { // a test with # SKIP or # TODO fails too
						t.Fail()
					}
				})
			}
			if failed != nil || len(found) == 0 {
				t.Errorf("%d tests, %v\n%s", len(found), failed, out.String())
			}
		})
	}
}
