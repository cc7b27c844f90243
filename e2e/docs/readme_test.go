package docs

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

const readme = "README.md"

// TestReadme_IsShort: details belong to the pages in docs.
func TestReadme_IsShort(t *testing.T) {
	if words := len(strings.Fields(harnesstest.Read(t, readme))); words > 450 {
		t.Errorf("%s has %d words: move details to docs, so that it has at most 450", readme, words)
	}
}

// tables are pages that are generated, or whose tables a test compares with the code: readers look up a row in them.
var tables = []string{
	"docs/providers.md", "docs/reference.md", "docs/reference/metrics.md", "docs/reference/problems.md", "docs/reference/reasons.md",
	"docs/requirements.md", "docs/stunnerctl.md",
}

// TestPages_AreShort: a page has one subject. A word contains a letter, so that figures in tables do not count.
func TestPages_AreShort(t *testing.T) {
	const most = 1400
	letter := regexp.MustCompile(`\pL`)
	for _, page := range pages(t) {
		if !strings.HasPrefix(page, "docs/") || slices.Contains(tables, page) {
			continue
		}
		words := 0
		for _, field := range strings.Fields(harnesstest.Read(t, page)) {
			if letter.MatchString(field) {
				words++
			}
		}
		if words > most {
			t.Errorf("%s has %d words: make pages of one subject each, so that it has at most %d", page, words, most)
		}
	}
	for _, page := range tables {
		harnesstest.Read(t, page) // fails if it does not exist
	}
}

// TestReadme_Picture: the picture has a version for light pages and a version for dark pages. Both are well-formed,
// contain the same shapes and texts, need no other files, and have texts that can be read on a telephone.
func TestReadme_Picture(t *testing.T) {
	const page = 360 // width of a small telephone in pixels
	const text = 9   // smallest legible text in pixels
	found := regexp.MustCompile(`(?s)<picture>.*?media="\(prefers-color-scheme: dark\)" srcset="([^"]+)".*?`+
		`<img src="([^"]+)"[^>]* alt="[^"]+".*?</picture>`).FindAllStringSubmatch(harnesstest.Read(t, readme), -1)
	if len(found) != 1 || found[0][1] == found[0][2] {
		t.Fatalf("%s has no picture with a dark version, a light version, and the attribute alt: %q", readme, found)
	}
	other, colour := regexp.MustCompile(`href|url\(|@import|<(image|script|foreignObject)\b`),
		regexp.MustCompile(`(?:fill|stroke): #[0-9a-f]{6};`)
	var shapes []string
	for _, file := range found[0][1:] {
		picture := harnesstest.Read(t, file)
		root, err := parse(picture)
		if err != nil {
			t.Errorf("parse %s: %v", file, err)
			continue
		}
		if root.Name != (xml.Name{Space: "http://www.w3.org/2000/svg", Local: "svg"}) {
			t.Errorf("%s is not an SVG: its root is %v", file, root.Name)
		}
		if reference := other.FindString(picture); reference != "" {
			t.Errorf("%s refers to another file: %s", file, reference)
		}
		width := number(t, picture, `viewBox="0 0 (\d+) \d+"`)[0]
		for _, size := range number(t, picture, `font(?:-size)?: (\d+)px`) {
			if shown := size * page / width; shown < text {
				t.Errorf("%s: a text of %v px is shown with %.1f px on a page of %d px", file, size, shown, page)
			}
		}
		shapes = append(shapes, colour.ReplaceAllString(picture, ""))
	}
	if len(shapes) == 2 && shapes[0] != shapes[1] {
		t.Errorf("%s and %s differ in more than colours", found[0][1], found[0][2])
	}
}

// TestDrawings: each page about a concept has one drawing. The drawing is well-formed, needs no other files, and has
// texts that can be read on a telephone. All drawings have the same style, because the site replaces its colours.
func TestDrawings(t *testing.T) {
	picture := regexp.MustCompile(`(?m)^!\[.+\]\((.+\.svg)\)$`)
	other := regexp.MustCompile(`href|url\(|@import|<(image|script|foreignObject)\b| id=`)
	styles := map[string][]string{}
	count := 0
	for _, page := range pages(t) {
		found := picture.FindAllStringSubmatch(harnesstest.Read(t, page), -1)
		if filepath.Dir(page) == "docs/concepts" && len(found) != 1 {
			t.Errorf("%s has %d drawings: a concept has one", page, len(found))
		}
		for _, match := range found {
			count++
			file := filepath.Join(filepath.Dir(page), match[1])
			drawing := harnesstest.Read(t, file)
			if _, err := parse(drawing); err != nil {
				t.Errorf("parse %s: %v", file, err)
			}
			if reference := other.FindString(drawing); reference != "" {
				t.Errorf("%s refers to another file, or has an id that another drawing may have: %s", file, reference)
			}
			if width := number(t, drawing, `viewBox="0 0 (\d+) \d+"`)[0]; width > 640 {
				t.Errorf("%s is %v wide: its texts of 16 px cannot be read on a telephone", file, width)
			}
			_, style, _ := strings.Cut(drawing, "<style>")
			style, _, _ = strings.Cut(style, "</style>")
			styles[style] = append(styles[style], file)
		}
	}
	if count == 0 || len(styles) != 1 {
		t.Errorf("%d drawings have %d styles: %v", count, len(styles), slices.Collect(maps.Values(styles)))
	}
}

// parse returns the root element of a well-formed document.
func parse(document string) (root xml.StartElement, err error) {
	decoder := xml.NewDecoder(strings.NewReader(document))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) && root.Name.Local != "" {
			return root, nil
		} else if err != nil {
			return root, err
		}
		if start, ok := token.(xml.StartElement); ok && root.Name.Local == "" {
			root = start.Copy()
		}
	}
}

// number returns the numbers that a pattern selects, at least one.
func number(t *testing.T, text, pattern string) (all []float64) {
	t.Helper()
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		t.Fatalf("nothing matches %s", pattern)
	}
	return all
}

// TestReadme_Commands: docs/install.md has every command of the section Install, so that both describe one
// installation. e2e/node runs the commands of both.
func TestReadme_Commands(t *testing.T) {
	_, section, _ := strings.Cut(harnesstest.Read(t, readme), "\n## Install\n")
	section, _, _ = strings.Cut(section, "\n## ")
	manual := strings.NewReplacer(
		"oci://ghcr.io/stunner-gateway/charts/", "charts/",
		"'https://github.com/stunner-gateway/stunner//docs/examples/cluster?ref=v0.1.0'", "docs/examples/cluster",
	).Replace(harnesstest.Read(t, "docs/install.md"))
	commands := blocks(section)
	if len(commands) == 0 {
		t.Fatalf("%s has no section Install with commands", readme)
	}
	for _, block := range commands {
		for command := range strings.Lines(regexp.MustCompile(`\\\n\s*`).ReplaceAllString(block, "")) {
			if command = strings.TrimSpace(command); !strings.Contains(manual, command) {
				t.Errorf("docs/install.md does not have the command %s", command)
			}
		}
	}
}

// TestMake: every target of make in a block of commands exists, and the README starts with make demo and make test.
func TestMake(t *testing.T) {
	var targets []string
	files, err := filepath.Glob(filepath.Join(harnesstest.Root(t), ".ci/mk/*.mk"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		relative, err := filepath.Rel(harnesstest.Root(t), file)
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets,
			names(harnesstest.Read(t, relative), regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `))...)
	}
	made := regexp.MustCompile(`(?m)^(?:[A-Z_]+=\S+ )*make ([a-z0-9-]+)`)
	for _, page := range pages(t) {
		for i, block := range blocks(harnesstest.Read(t, page)) {
			var here []string
			for _, command := range made.FindAllStringSubmatch(block, -1) {
				if here = append(here, command[1]); !slices.Contains(targets, command[1]) {
					t.Errorf("%s: there is no target %q", page, command[1])
				}
			}
			if page == readme && i == 0 && !slices.Equal(here, []string{"demo", "test"}) {
				t.Errorf("the first block of %s makes %v", readme, here)
			}
		}
	}
}

// TestRequests: the requests in the pages for web apps conform to the contract of the auth service.
func TestRequests(t *testing.T) {
	contract := harnesstest.Read(t, "openapi/auth.yaml")
	request := regexp.MustCompile(`fetch\('([^']+)', \{\s+method: '([A-Z]+)'`)
	for _, page := range []string{readme, "docs/web-app.md"} {
		found := request.FindAllStringSubmatch(harnesstest.Read(t, page), -1)
		if len(found) == 0 {
			t.Errorf("%s has no request", page)
		}
		for _, match := range found {
			path, method := regexp.QuoteMeta(match[1]), strings.ToLower(match[2])
			operation := regexp.MustCompile(`(?m)^  ` + path + `:\n(?:    .*\n)*?    ` + method + `:$`)
			if !operation.MatchString(contract) {
				t.Errorf("%s: openapi/auth.yaml does not have %s %s", page, match[2], match[1])
			}
		}
	}
}

// TestIndex: docs/README.md, which is also the navigation of the site, links to every page below docs, directly or
// through the README.md of a folder. Reports to other projects are not for readers of the documentation.
func TestIndex(t *testing.T) {
	const index = "docs/README.md"
	text := harnesstest.Read(t, index)
	for _, page := range pages(t) {
		name, inDocs := strings.CutPrefix(page, "docs/")
		if !inDocs || page == index || strings.HasPrefix(name, "upstream/") || strings.Contains(text, "]("+name+")") {
			continue
		}
		folder := filepath.Join(filepath.Dir(page), "README.md")
		if page == folder || !exists(filepath.Join(harnesstest.Root(t), folder)) ||
			!strings.Contains(harnesstest.Read(t, folder), "]("+filepath.Base(page)+")") {
			t.Errorf("%s does not link to %s", index, name)
		}
	}
}

// TestQuickstart: status.txt has the lines of docs/quickstart.md after the mistake on that page, except for ports,
// because other programs may use the ports of the example.
func TestQuickstart(t *testing.T) {
	_, shown, _ := strings.Cut(harnesstest.Read(t, "docs/quickstart.md"), "```\nNOT IN FORCE\n")
	shown, _, found := strings.Cut(shown, "    …\n```")
	if !found {
		t.Fatal("docs/quickstart.md shows no status")
	}
	bin := harnesstest.Build(t, harness.Operator, harness.Stunnerd)
	folder, out := t.TempDir(), t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(filepath.Join(harnesstest.Root(t), "docs/examples/quickstart"))); err != nil {
		t.Fatal(err)
	}
	gateway := filepath.Join(folder, "gateway.yaml")
	rewrite(t, gateway, regexp.MustCompile(`port: \d+`), "port: "+strconv.Itoa(harnesstest.Port(t)))
	port := regexp.MustCompile(`:\d+\?transport`)
	reports := func(lines string) func(context.Context) error {
		return func(context.Context) error {
			status, err := os.ReadFile(filepath.Join(out, "status.txt"))
			if err != nil {
				return err
			}
			have := "\n" + port.ReplaceAllString(string(status), ":PORT?transport")
			for line := range strings.Lines(port.ReplaceAllString(lines, ":PORT?transport")) {
				if !strings.Contains(have, "\n"+line) {
					return fmt.Errorf("status.txt does not have the line %q:\n%s", line, status)
				}
			}
			return nil
		}
	}
	_, healthy, _ := strings.Cut(shown, "\nGATEWAYS\n")
	operator := harnesstest.Start(t, harness.Command{
		Name: "operator", Path: filepath.Join(bin, "operator"), Logs: t.TempDir(), Args: []string{
			"--provider=file", "--input", folder, "--output", out, "--stunnerd", filepath.Join(bin, "stunnerd"),
			"--address", "192.0.2.10", "--discovery-address", harnesstest.Address(t),
			"--child-lifetime", "bound", "--stop-grace", "1s",
		},
	}, reports(healthy))
	t.Cleanup(func() { // the operator ends, with its dataplane, before the folders are removed
		if err := operator.Stop(20 * time.Second); err != nil {
			t.Error(err)
		}
	})
	rewrite(t, filepath.Join(folder, "udproute.yaml"), regexp.MustCompile(`( port:) (\d+)`), `$1 "$2"`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := operator.Until(ctx, reports(shown)); err != nil {
		t.Error(err)
	}
}

// rewrite replaces the matches of a pattern, at least one, in a file.
func rewrite(t *testing.T, file string, pattern *regexp.Regexp, replacement string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !pattern.Match(text) {
		t.Fatalf("%s does not have %s", file, pattern)
	}
	if err := os.WriteFile(file, pattern.ReplaceAll(text, []byte(replacement)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestBlocks: the pages have the blocks of commands that e2e/node runs. This test finds a missing block without a
// cluster.
func TestBlocks(t *testing.T) {
	places := map[string]string{"readme": readme, "manual": "docs/install.md"}
	files, err := filepath.Glob(filepath.Join(harnesstest.Root(t), "e2e/node/*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found, named := map[string]int{}, regexp.MustCompile(`\{(readme|manual), "([^"]+)"\}`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range named.FindAllStringSubmatch(string(source), -1) {
			found[block[1]]++
			page := places[block[1]]
			begins := func(commands string) bool { return strings.HasPrefix(commands, block[2]) }
			if !slices.ContainsFunc(blocks(harnesstest.Read(t, page)), begins) {
				t.Errorf("%s: %s has no block of commands that begins with %q", filepath.Base(file), page, block[2])
			}
		}
	}
	if found["readme"] == 0 || found["manual"] == 0 {
		t.Errorf("e2e/node runs blocks of %v only", found)
	}
}

// blocks returns the blocks of commands or code of a page.
func blocks(text string) (all []string) {
	for _, match := range regexp.MustCompile("(?ms)^```\\w*\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}
