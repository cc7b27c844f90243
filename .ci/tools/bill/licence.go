package bill

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/google/licenseclassifier/v2/assets"
)

// Licence is the licence of a module.
type Licence struct {
	// Expression is an SPDX licence expression, such as "MIT"; empty if no text is recognized.
	Expression string
	// Texts are the licence and notice files of the module by name.
	Texts map[string]string
}

// texts matches the names of the files that a licence requires to be passed on.
var texts = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|unlicense)([.-].*)?$`)

// programFile matches sources that have the name of a licence file, such as license.go.
var programFile = regexp.MustCompile(`(?i)\.(go|json|ya?ml|sh|tmpl)$`)

// Licences reads the licences of modules from the module cache. Modules of this repository have the licence of its file
// LICENSE, which is in root. If the checksum of a module differs from that of the program, it returns an error.
func Licences(root string, modules []Module) (map[Module]Licence, error) {
	folders, err := download(modules)
	if err != nil {
		return nil, err
	}
	all := map[Module]Licence{}
	for _, m := range modules {
		folder := folders[m]
		switch {
		case m.Path == stdlib:
			folder = runtime.GOROOT()
		case m.ours():
			folder = root
		}
		if all[m], err = read(folder); err != nil {
			return nil, fmt.Errorf("read licence of %s %s: %w", m.Path, m.Version, err)
		}
	}
	return all, nil
}

// download returns the folders of modules in the module cache.
func download(modules []Module) (map[Module]string, error) {
	args, wanted := []string{"mod", "download", "-json"}, map[string]Module{}
	for _, m := range modules {
		if m.Path != stdlib && !m.ours() {
			wanted[m.Path+"@"+m.Version] = m
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	cmd := exec.Command("go", append(args, slices.Sorted(maps.Keys(wanted))...)...)
	cmd.Dir = os.TempDir() // outside of all modules, whose versions do not count here
	// The checksums of the program are compared below. The checksum database would need a network for modules that are in
	// the module cache.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOSUMDB=off")
	out, failed := cmd.Output()
	folders := map[Module]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var got struct{ Path, Version, Error, Dir, Sum string }
		if err := decoder.Decode(&got); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("download modules: %w", errors.Join(failed, err))
		}
		m := wanted[got.Path+"@"+got.Version]
		switch {
		case got.Error != "":
			return nil, fmt.Errorf("download %s@%s: %s", got.Path, got.Version, got.Error)
		case m.Sum == "":
			return nil, fmt.Errorf("check %s@%s: the program has no checksum of it: build it from go.sum", got.Path, got.Version)
		case got.Sum != m.Sum:
			return nil, fmt.Errorf("download %s@%s: its checksum is %s, and that of the program %s: run go mod verify",
				got.Path, got.Version, got.Sum, m.Sum)
		}
		folders[m] = got.Dir
	}
	if failed != nil {
		return nil, fmt.Errorf("download modules: %w", failed)
	}
	return folders, nil
}

// classifier loads its database once, which takes about a second.
var classifier = sync.OnceValues(assets.DefaultClassifier)

// read returns the licence of a folder. Several texts, also in one file, are joined with AND: which files each is for,
// and whether the user may choose, is not known.
func read(folder string) (l Licence, err error) {
	c, err := classifier()
	if err != nil {
		return l, fmt.Errorf("load licences: %w", err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return l, err
	}
	found := map[string]bool{}
	l.Texts = map[string]string{}
	for _, e := range entries {
		if e.IsDir() || !texts.MatchString(e.Name()) || programFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return l, err
		}
		l.Texts[e.Name()] = strings.ToValidUTF8(string(text), "\uFFFD")
		for _, m := range c.Match(text).Matches {
			if m.MatchType == "License" || m.MatchType == "Header" {
				found[m.Name] = true
			}
		}
	}
	l.Expression = strings.Join(slices.Sorted(maps.Keys(found)), " AND ")
	return l, nil
}
