// Package docs compares the documentation with the code: flags, annotations, examples, links, the recipes for
// usual changes and the doc comments of packages.
package docs

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// TestFlags: the tables of flags list exactly the flags of the programs, with their defaults and environment variables.
func TestFlags(t *testing.T) {
	bin := harnesstest.Build(t, harness.Operator, harness.Stunnerd, harness.Auth)
	for _, program := range []string{"operator", "stunnerd", "auth"} {
		page := "docs/reference/" + program + "-flags.md"
		said := help(t, filepath.Join(bin, program))
		known := names(said, regexp.MustCompile(`(?m)^  (?:-([a-z]), )?--?([a-z-]+)`))
		var rows strings.Builder
		for _, row := range regexp.MustCompile("(?m)^\\| (`-.*?`) \\|").FindAllStringSubmatch(
			harnesstest.Read(t, page), -1,
		) {
			rows.WriteString(row[1] + "\n")
		}
		written := names(rows.String(), regexp.MustCompile("`--?([a-z-]+)`"))
		if !slices.Equal(known, written) {
			t.Errorf("%s:\nflags of the program %v\nflags in %s %v", program, known, page, written)
		}
		if len(known) == 0 {
			t.Errorf("%s: no flags found", program)
		}
		compared := 0
		for flag, documented := range documentedFlags(harnesstest.Read(t, page)) {
			entry := regexp.MustCompile(`(?m)^  (?:-[a-z], )?` + flag + `\b(.*)\n((?:      .*\n?)+)`).FindStringSubmatch(said)
			if entry == nil {
				continue // the missing flag is reported above
			}
			standard := regexp.MustCompile(`\(default (.*)\)\s*$`).FindStringSubmatch(entry[2])
			if code := regexp.MustCompile("^`([^`]*)`$").FindStringSubmatch(documented.standard); code != nil {
				compared++
				want := "false" // is not shown in the help
				if standard != nil {
					want = standard[1]
				}
				if host, err := os.Hostname(); err == nil {
					want = strings.ReplaceAll(want, host, "HOST")
				}
				if code[1] != want {
					t.Errorf("%s: %s has the default %s, the program %q", page, flag, documented.standard, want)
				}
			} else if documented.standard == "" && standard != nil {
				t.Errorf("%s: %s has no default, the program %q", page, flag, standard[1])
			}
			_, env, found := strings.Cut(entry[1], "$")
			if found && documented.hasEnv && !strings.Contains(documented.env, "`"+env+"`") {
				t.Errorf("%s: %s has the environment variable %s, the program %s", page, flag, documented.env, env)
			}
		}
		if compared < 5 {
			t.Errorf("%s has %d defaults that could be compared, want at least 5", page, compared)
		}
	}
}

// documentedFlag is the row of a flag in a table.
type documentedFlag struct {
	standard, env string
	hasEnv        bool // the table has a column for environment variables
}

// documentedFlags returns the rows of tables with a column "default" by flag.
func documentedFlags(page string) map[string]documentedFlag {
	cells := func(line string) (all []string) {
		for _, cell := range regexp.MustCompile(`(?:[^|\\]|\\.)*`).FindAllString(strings.Trim(line, "|"), -1) {
			all = append(all, strings.TrimSpace(cell))
		}
		return all
	}
	found := map[string]documentedFlag{}
	var head []string
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "| flag |") {
			head = cells(line)
		}
		if !strings.HasPrefix(line, "|") {
			head = nil
		}
		flag := regexp.MustCompile("^\\| `(--[a-z-]+)`").FindStringSubmatch(line)
		standard, env := slices.Index(head, "default"), slices.Index(head, "environment")
		if flag == nil || standard < 0 {
			continue
		}
		row := documentedFlag{standard: cells(line)[standard], hasEnv: env >= 0}
		if env >= 0 {
			row.env = cells(line)[env]
		}
		found[flag[1]] = row
	}
	return found
}

// TestAnnotations: the page about Gateways lists exactly the annotations that the operator reads.
func TestAnnotations(t *testing.T) {
	known := names(
		harnesstest.Read(t, "services/operator/internal/translate/annotations.go"),
		regexp.MustCompile(`"stunner\.l7mp\.io/([a-z-]+)"`),
	)
	written := names(
		harnesstest.Read(t, "docs/reference/annotations.md"),
		regexp.MustCompile("(?m)^\\| `stunner\\.l7mp\\.io/([a-z-]+)` \\|"),
	)
	if len(known) == 0 || !slices.Equal(known, written) {
		t.Errorf("annotations that are read %v\nannotations in docs/reference/annotations.md %v", known, written)
	}
}

// TestExamples: every document of an example folder is valid and in force on its own. e2e/node tests the examples for
// clusters.
func TestExamples(t *testing.T) {
	bin := harnesstest.Build(t, harness.Operator)
	folders, err := filepath.Glob(filepath.Join(harnesstest.Root(t), "docs/examples/*"))
	folders = slices.DeleteFunc(folders, func(folder string) bool { return filepath.Base(folder) == "cluster" })
	if err != nil || len(folders) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, folder := range folders {
		out := t.TempDir()
		cmd := exec.Command(
			filepath.Join(bin, "operator"), "--provider=file", "--input", folder, "--output", out, "--watch=false",
		)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", folder, err, said)
		}
		status, err := os.ReadFile(filepath.Join(out, "status.txt"))
		if err != nil || strings.Contains(string(status), "=False") {
			t.Errorf("%s: %v\n%s", folder, err, status)
		}
	}
}

// TestConfig: stunnerd accepts the config on its page.
func TestConfig(t *testing.T) {
	bin := harnesstest.Build(t, harness.Stunnerd)
	blocks := regexp.MustCompile("(?s)```yaml\n(version: v1\n.*?)```").FindAllStringSubmatch(
		harnesstest.Read(t, "docs/reference/config.md"), -1,
	)
	if len(blocks) == 0 {
		t.Fatal("docs/reference/config.md contains no config")
	}
	for _, block := range blocks {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(block[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := exec.Command(
			filepath.Join(bin, "stunnerd"), "--dry-run", "--config", file,
		).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, said)
		}
	}
}

// TestLinks: the targets of relative links and pictures exist, including their headings.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`(?:\]\(|(?:src|srcset|href)=")([^)"#:]*)(?:#([^)"]*))?[)"]`)
	count := 0
	for _, page := range pages(t) {
		text := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`").ReplaceAllString(harnesstest.Read(t, page), "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			count++
			target := page
			if match[1] != "" {
				target = filepath.Join(filepath.Dir(page), match[1])
			}
			if _, err := os.Stat(filepath.Join(harnesstest.Root(t), target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, match[1])
			} else if match[2] != "" && !slices.Contains(headings(harnesstest.Read(t, target)), match[2]) {
				t.Errorf("%s links to %s, which has no heading %q", page, target, match[2])
			}
		}
	}
	if count == 0 {
		t.Error("no link found")
	}
}

// TestSizing: the page about sizing has no figures of its own. Each number of a row is on the page that the row names,
// or follows from the limit of 64 KiB.
func TestSizing(t *testing.T) {
	const page = "docs/operate/sizing.md"
	number := regexp.MustCompile(`\d[\d,.]*\d|\d`)
	rows := regexp.MustCompile(`(?m)^\| [^|]+ \| ([^|]+) \| \[[^]]+\]\(([^)]+)\) \|$`).FindAllStringSubmatch(
		harnesstest.Read(t, page), -1)
	if len(rows) < 10 {
		t.Fatalf("%s has %d figures with their page, want at least 10", page, len(rows))
	}
	for _, row := range rows {
		source := filepath.Join(filepath.Dir(page), row[2])
		for _, figure := range number.FindAllString(strings.TrimSuffix(row[1], ", so 8,192 allocations"), -1) {
			if !slices.Contains(number.FindAllString(harnesstest.Read(t, source), -1), figure) {
				t.Errorf("%s: %s does not have the figure %s", page, source, figure)
			}
		}
	}
}

// TestRunbooks: every runbook names an existing command of stunnerctl. Commands of doctor name their namespaces,
// because the namespace of the kubeconfig is rarely the namespace of the alert.
func TestRunbooks(t *testing.T) {
	commands := headings(harnesstest.Read(t, "docs/stunnerctl.md"))
	line := regexp.MustCompile("(?m)(?:^|`)(stunnerctl ([a-z-]+)[^`\n]*)")
	for _, page := range pages(t) {
		if filepath.Dir(page) == "docs/runbooks" || page == "docs/troubleshooting.md" {
			found := line.FindAllStringSubmatch(harnesstest.Read(t, page), -1)
			if len(found) == 0 && strings.HasPrefix(filepath.Base(page), "Stunner") {
				t.Errorf("%s names no command of stunnerctl", page)
			}
			for _, m := range found {
				if !slices.Contains(commands, "stunnerctl-"+m[2]) {
					t.Errorf("%s: there is no command %s", page, m[1])
				}
				if m[2] == "doctor" && !strings.Contains(m[1], " -A") && !strings.Contains(m[1], " -n ") {
					t.Errorf("%s: %s: add -A or -n NAMESPACE", page, m[1])
				}
			}
		}
	}
}

// headings returns the headings of a page in the form of link anchors.
func headings(text string) (all []string) {
	text = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "") // may contain comments that start with #
	for _, match := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		plain := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(match[1]), "")
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

// pages returns the Markdown files of the documentation, relative to the root.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "charts/*/*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(harnesstest.Root(t), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			relative, err := filepath.Rel(harnesstest.Root(t), path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, relative)
		}
	}
	return all
}

// names returns the groups of all matches, sorted and unique.
func names(text string, pattern *regexp.Regexp) []string {
	set := map[string]bool{}
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		for _, name := range match[1:] {
			set[name] = true
		}
	}
	delete(set, "") // a group without a match is empty
	return slices.Sorted(maps.Keys(set))
}

func help(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.Command(program, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v", program, err)
	}
	return string(out)
}
