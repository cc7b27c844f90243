package manifests

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/operator/render"
)

// Unit is a set of manifests that are applied together.
type Unit struct {
	// Files are the texts by name. The text of a Kustomization is the output of its build.
	Files map[string][]byte
	// Findings are the errors in Kustomizations.
	Findings []Finding
	builds   map[string]*build
}

// Locate returns a finding with the place in the file from which its object was built.
func (u Unit) Locate(f Finding) Finding {
	if b := u.builds[f.File]; b != nil {
		return b.locate(f)
	}
	return f
}

// root is the file of a Kustomization. named means that a path of the command line names it.
type root struct {
	file  string
	named bool
}

// kustomizationOf returns the file of the Kustomization in a folder, or the path itself if it is such a file; "" if
// there is none.
func kustomizationOf(path string) string {
	if slices.Contains(konfig.RecognizedKustomizationFileNames(), filepath.Base(path)) && isFile(path) {
		return path
	}
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		if file := filepath.Join(path, name); isFile(file) {
			return file
		}
	}
	return ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// units returns the sets of manifests that are applied together: all files as one unit, and the Kustomizations.
// Kustomizations that contain the same object, such as the Kustomizations of a test and of a production environment,
// are in different units. A Kustomization that another Kustomization includes is left out, and so is a Component,
// unless the command line names it.
func (r *reader) units() []Unit {
	var builds []*build
	included := map[string]bool{}
	for _, root := range r.roots {
		b := newBuild(root)
		builds = append(builds, b)
		for dir := range b.included {
			included[dir] = true
		}
	}
	units := []Unit{{}}
	for _, b := range builds {
		if !b.named && (b.component || included[b.dir]) {
			continue
		}
		i := slices.IndexFunc(units, func(u Unit) bool { return !overlaps(u, b) })
		if i < 0 {
			i, units = len(units), append(units, Unit{})
		}
		units[i].add(b)
	}
	for i := range units {
		if units[i].Files == nil {
			units[i].Files = map[string][]byte{}
		}
		maps.Copy(units[i].Files, r.files)
	}
	return units
}

func overlaps(u Unit, b *build) bool {
	for _, other := range u.builds {
		for id := range b.objects {
			if other.objects[id] {
				return true
			}
		}
	}
	return false
}

func (u *Unit) add(b *build) {
	if u.builds == nil {
		u.Files, u.builds = map[string][]byte{}, map[string]*build{}
	}
	u.builds[b.file] = b
	if b.err != nil {
		u.Findings = append(u.Findings, Finding{
			Severity: Error, File: b.file, Line: 1, Object: "Kustomization", Problem: "cannot be built: " + b.err.Error(),
			Remedy: "correct it: kubectl kustomize " + filepath.Dir(b.file) + " shows what is built",
		})
		return
	}
	u.Files[b.file] = b.text
}

// build is a built Kustomization.
type build struct {
	root
	dir       string // absolute
	component bool
	text      []byte
	err       error
	// remote is the error about a URL. The builder itself would report that there is no Kustomization.
	remote error
	// included are the folders of the Kustomizations that it includes.
	included map[string]bool
	// objects are the names of its objects.
	objects map[string]bool
	origins []origin
}

// origin is the place from which an object was built, and the line at which the object begins in the built text.
type origin struct {
	line int
	// file is the file that contains the object. For a generated object it is the file of the Kustomization.
	file       string
	kind, name string
}

func newBuild(r root) *build {
	b := &build{root: r, included: map[string]bool{}, objects: map[string]bool{}}
	if b.dir, b.err = filepath.Abs(filepath.Dir(r.file)); b.err != nil {
		return b
	}
	if b.dir, b.err = filepath.EvalSymlinks(b.dir); b.err != nil {
		return b
	}
	if b.err = b.run(); b.err != nil {
		b.err = cmp.Or(b.remote, b.err)
		b.err = errors.New(strings.Join(strings.Fields(b.err.Error()), " "))
	}
	return b
}

func (b *build) run() error {
	disk := kustomizations{FileSystem: filesys.MakeFsOnDisk(), build: b}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, b.dir)
	if err != nil {
		return err
	}
	origins := make([]origin, 0, built.Size())
	for _, r := range built.Resources() {
		o := origin{file: b.file, kind: r.GetKind(), name: r.GetName()}
		if from, err := r.GetOrigin(); err == nil && from != nil && from.Path != "" {
			o.file = filepath.Join(filepath.Dir(b.file), from.Path)
		}
		origins = append(origins, o)
		b.objects[fmt.Sprintf("%s %s/%s", r.GetGvk(), r.GetNamespace(), r.GetName())] = true
	}
	if err := built.RemoveOriginAnnotations(); err != nil {
		return err
	}
	var text bytes.Buffer
	for i, r := range built.Resources() {
		data, err := r.AsYAML()
		if err != nil {
			return err
		}
		text.WriteString("---\n")
		origins[i].line = bytes.Count(text.Bytes(), []byte("\n")) + 1
		text.Write(data)
	}
	b.text, b.origins = text.Bytes(), origins
	return nil
}

// locate returns a finding about a built text with its place in the file of its object.
func (b *build) locate(f Finding) Finding {
	built := f.Line
	f.Quotable, f.Line = nil, 1
	i := slices.IndexFunc(b.origins, func(o origin) bool { return o.line > built })
	if i < 0 {
		i = len(b.origins)
	}
	if i == 0 {
		return f
	}
	o := b.origins[i-1]
	f.File = o.file
	data, err := os.ReadFile(o.file)
	if err != nil || o.file == b.file {
		return f
	}
	if line := o.lineIn(render.Places(data)); line > 0 {
		f.Line = render.FieldLine(data, line, f.Field)
	}
	return f
}

// lineIn returns the line of the object in its file; 0 if it is not found. A Kustomization may have changed its name by
// a prefix or a suffix.
func (o origin) lineIn(places []render.Place) (line int) {
	for _, match := range []func(render.Place) bool{
		func(p render.Place) bool { return p.Name == o.name },
		func(p render.Place) bool { return strings.Contains(o.name, p.Name) },
		func(render.Place) bool { return true },
	} {
		for _, p := range places {
			if p.Kind == o.kind && match(p) {
				return p.Line
			}
		}
	}
	return 0
}

// kustomizations is the file system from which a Kustomization is built. It makes the builder note the origin of each
// object, and refuses Kustomizations with URLs, which the builder would fetch.
type kustomizations struct {
	filesys.FileSystem
	build *build
}

// ReadFile implements filesys.FileSystem.
func (k kustomizations) ReadFile(path string) ([]byte, error) {
	data, err := k.FileSystem.ReadFile(path)
	if err != nil || !slices.Contains(konfig.RecognizedKustomizationFileNames(), filepath.Base(path)) {
		return data, err
	}
	var fields map[string]any
	if yaml.Unmarshal(data, &fields) != nil {
		return data, nil // the builder reports a better message
	}
	if err := checkLocal(path, fields); err != nil {
		k.build.remote = err
		return nil, err
	}
	if dir := filepath.Dir(path); dir != k.build.dir {
		k.build.included[dir] = true
		return data, nil
	}
	k.build.component = fields["kind"] == types.ComponentKind
	metadata, _ := fields["buildMetadata"].([]any)
	if !slices.Contains(metadata, any(types.OriginAnnotations)) {
		fields["buildMetadata"] = append(metadata, types.OriginAnnotations)
	}
	return yaml.Marshal(fields)
}

// checkLocal returns an error if a Kustomization refers to a URL, because stunnerctl opens no connection to check
// manifests. The builder fetches every path that is an HTTP URL, and clones a resource that looks like a repository.
func checkLocal(path string, fields map[string]any) error {
	refuse := func(field string) error {
		return fmt.Errorf("%s: %s: URLs are not fetched: name a copy in a folder", path, field)
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		entries, list := fields[field].([]any)
		if !list {
			entries = []any{fields[field]}
		}
		for i, entry := range entries {
			if isFetched(entry) || field == "helmCharts" {
				return refuse(fmt.Sprintf("%s[%d]", field, i))
			}
			text, isText := entry.(string)
			if isText && slices.Contains([]string{"resources", "bases", "components"}, field) {
				if _, missing := os.Stat(filepath.Join(filepath.Dir(path), text)); missing != nil && isRepository(text) {
					return refuse(fmt.Sprintf("%s[%d]", field, i))
				}
			}
		}
	}
	return nil
}

// isFetched reports whether a value contains a path that the builder would fetch. Texts of several lines are patches.
func isFetched(value any) bool {
	switch v := value.(type) {
	case string:
		_, path, _ := strings.Cut(v, "=") // a file of a generator may be KEY=PATH
		return isURL(v) || isURL(path)
	case []any:
		return slices.ContainsFunc(v, isFetched)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), isFetched)
	}
	return false
}

func isURL(text string) bool {
	text = strings.ToLower(strings.TrimSpace(text))
	return !strings.ContainsRune(text, '\n') && (strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://"))
}

// isRepository reports whether the builder may take a resource for a Git repository.
func isRepository(text string) bool {
	lower := strings.ToLower(text)
	return strings.Contains(lower, "://") || strings.Contains(lower, "?ref=") || strings.Contains(lower, "@") ||
		strings.HasPrefix(lower, "git::") || strings.HasPrefix(lower, "github.com")
}
