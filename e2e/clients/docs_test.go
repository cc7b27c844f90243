package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// blocks returns the code blocks of a language in a page.
func blocks(t *testing.T, page, language string) (all []string) {
	t.Helper()
	block := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$")
	for _, match := range block.FindAllStringSubmatch(harnesstest.Read(t, page), -1) {
		all = append(all, match[1])
	}
	if len(all) == 0 {
		t.Fatalf("%s has no code block of %s", page, language)
	}
	return all
}

// The TypeScript of the documentation compiles in strict mode with the package as npm packs it.
func TestTypeScriptOfTheDocumentation(t *testing.T) {
	compile(t)
	dir := t.TempDir()
	var files []string
	for _, page := range []string{"docs/client-typescript.md", "clients/typescript/README.md"} {
		for i, text := range blocks(t, page, "ts") {
			name := fmt.Sprintf("%s-%d.ts", filepath.Base(page), i)
			files = append(files, name)
			harnesstest.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
	}
	options, err := json.Marshal(map[string]any{
		"files": files,
		"compilerOptions": map[string]any{
			"strict": true, "noEmit": true, "target": "ES2022", "module": "ESNext", "moduleResolution": "bundler",
			"lib": []string{"ES2022", "DOM"}, "types": []string{},
			"paths": map[string][]string{
				"@stunner-gateway/ice-servers": {filepath.Join(harnesstest.Root(t),
					"clients/typescript/dist/index.d.ts")},
			},
		},
	})
	harnesstest.NoError(t, err)
	project := filepath.Join(dir, "tsconfig.json")
	harnesstest.NoError(t, os.WriteFile(project, options, 0o644))
	run(t, tool(t, "tsc", "--project", project))
}

// The programs of the page about the Go client compile.
func TestGoOfTheDocumentation(t *testing.T) {
	for i, text := range blocks(t, "docs/client-go.md", "go") {
		file := filepath.Join(t.TempDir(), fmt.Sprintf("program%d.go", i))
		harnesstest.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		vet := exec.Command("go", "vet", file)
		vet.Dir = filepath.Join(harnesstest.Root(t), "e2e")
		run(t, vet)
		if out, err := exec.Command("gofmt", "-l", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("program %d is not formatted by gofmt: %s %v", i, out, err)
		}
	}
}
