// Package guide reads the guides in docs/guides, so that tests run exactly the commands and manifests of the pages.
//
// A block of code has a language: yaml for manifests and for the configuration of media servers, sh for commands, text
// for their output, js, go and so on for programs. A block whose first line is a comment with the name of a file, such
// as "# livekit.yaml", is that file.
package guide

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Folder is the folder of the guides, relative to the root of the repository.
const Folder = "docs/guides"

// Page is a guide.
type Page struct {
	// Name is the base name of the file without suffix.
	Name string
	// Text is the Markdown.
	Text   string
	Blocks []Block
}

// Block is a block of code.
type Block struct {
	Language, Text string
	// File is the name in the comment in the first line, or empty.
	File string
}

var (
	blockPattern = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	filePattern  = regexp.MustCompile(`^(?:#|//|<!--) ?([\w.-]+\.[a-z]+)\b`)
)

// All returns all guides.
func All(t testing.TB) (pages []Page) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(harnesstest.Root(t), Folder, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".md"); name != "README" {
			pages = append(pages, Read(t, name))
		}
	}
	if len(pages) == 0 {
		t.Fatalf("%s has no guide", Folder)
	}
	return pages
}

// Read returns the guide with a name.
func Read(t testing.TB, name string) Page {
	t.Helper()
	p := Page{Name: name, Text: harnesstest.Read(t, filepath.Join(Folder, name+".md"))}
	for _, m := range blockPattern.FindAllStringSubmatch(p.Text, -1) {
		b := Block{Language: m[1], Text: m[2]}
		if f := filePattern.FindStringSubmatch(b.Text); f != nil {
			b.File = f[1]
		}
		p.Blocks = append(p.Blocks, b)
	}
	return p
}

// File returns the content of a file that the guide shows.
func (p Page) File(t testing.TB, name string) string {
	t.Helper()
	for _, b := range p.Blocks {
		if b.File == name {
			return b.Text
		}
	}
	t.Fatalf("guide %s has no block of code that begins with a comment with the name %s", p.Name, name)
	return ""
}

// Of returns the blocks of a language.
func (p Page) Of(language string) (all []string) {
	for _, b := range p.Blocks {
		if b.Language == language {
			all = append(all, b.Text)
		}
	}
	return all
}

// Manifests returns the Kubernetes objects of the guide as YAML documents. Blocks without apiVersion, such as
// configuration of media servers, are left out.
func (p Page) Manifests() string {
	var documents []string
	for _, text := range p.Of("yaml") {
		if regexp.MustCompile(`(?m)^apiVersion: `).MatchString(text) {
			documents = append(documents, text)
		}
	}
	return strings.Join(documents, "---\n")
}

// Objects returns the Kubernetes objects of the guide.
func (p Page) Objects(t testing.TB) (all []map[string]any) {
	t.Helper()
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(p.Manifests(), -1) {
		object := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatalf("guide %s: %v in\n%s", p.Name, err, document)
		}
		if len(object) > 0 {
			all = append(all, object)
		}
	}
	return all
}

// Commands returns the commands of the guide, each on one line, without comments.
func (p Page) Commands() (all []string) {
	for _, text := range p.Of("sh") {
		for line := range strings.Lines(regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, "")) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
	}
	return all
}

// Convert decodes an object of the guide into a typed one.
func Convert(object map[string]any, into any) error {
	data, err := yaml.Marshal(object)
	if err == nil {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		return fmt.Errorf("read %v: %w", object["kind"], err)
	}
	return nil
}
