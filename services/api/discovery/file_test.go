package discovery

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func text(c config.Config) string { return string(c.Canonical()) }

// quiet fails if there is an event before the next change of the file is noticed.
func quiet(t *testing.T, events <-chan Event) {
	t.Helper()
	select {
	case e := <-events:
		t.Errorf("event %+v", e)
	case <-time.After(4 * settle):
	}
}

func TestFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stunnerd.conf")
	a := sample("media/a", "r1")
	write(t, path, text(a))
	events := follow(t, open(t, path, Options{ID: "default/host"})) // a file with one config accepts any ID
	if e := next(t, events); !e.Connected {
		t.Errorf("event %+v", e)
	}
	if e := next(t, events); e.ID != "media/a" || e.Config.Revision() != a.Revision() {
		t.Errorf("event %+v", e)
	}

	write(t, path, text(a)+"\n")
	quiet(t, events) // the same config
	write(t, path, "")
	quiet(t, events) // a program is writing the file
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	quiet(t, events) // a missing file deletes nothing

	a.Auth.Realm = "r2"
	other := path + ".new"
	write(t, other, text(a))
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if e := next(t, events); e.Config.Auth.Realm != "r2" {
		t.Errorf("after a rename: %+v", e)
	}

	write(t, path, "version: v1\nlisteners: [{name: l, port: 70000}]\n")
	e := next(t, events)
	if e.Err == nil || !strings.Contains(e.Err.Error(), path) || !strings.Contains(e.Err.Error(), "70000") {
		t.Errorf("an invalid file: %+v", e)
	}

	write(t, path, text(config.Zero("media/a")))
	if e := next(t, events); !e.Deleted || e.ID != "media/a" {
		t.Errorf("the zero config: %+v", e)
	}
}

// Kubernetes replaces the files of a mounted ConfigMap by swapping one symbolic link.
func TestFileBehindASwappedLinkIsFollowed(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 {
		version := filepath.Join(dir, fmt.Sprintf("v%d", i))
		if err := os.Mkdir(version, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(version, "conf"), text(sample("media/a", fmt.Sprintf("r%d", i))))
	}
	link := func(name, target string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..data", "v0")
	link("conf", "..data/conf")
	events := follow(t, open(t, "file://"+filepath.Join(dir, "conf"), Options{}))
	if e := nextConfig(t, events); e.Config.Auth.Realm != "r0" {
		t.Errorf("event %+v", e)
	}
	link("..tmp", "v1")
	if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if e := nextConfig(t, events); e.Config.Auth.Realm != "r1" {
		t.Errorf("event %+v", e)
	}
}

func TestMissingFileIsAwaited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stunnerd.conf")
	events := follow(t, open(t, path, Options{}))
	if e := next(t, events); e.Err == nil || !strings.Contains(e.Err.Error(), path) {
		t.Errorf("event %+v", e)
	}
	write(t, path, text(sample("media/a", "r")))
	if e := next(t, events); !e.Connected {
		t.Errorf("event %+v", e)
	}
	if e := next(t, events); e.ID != "media/a" {
		t.Errorf("event %+v", e)
	}
}

func TestFileMayHoldAList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "configs.yaml")
	list := `
version: v1
items:
- version: v1
  admin: {name: media/a}
  auth: {type: none}
- version: v1
  admin: {name: media/bad}
  listeners: [{name: l, port: 0}]
- version: v1
  admin: {name: media/b}
  auth: {type: none}
- version: v1
  admin: {name: web/c}
  auth: {type: none}
`
	write(t, path, list)
	source := open(t, path, Options{ID: "media/"})
	configs, err := source.Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "media/bad") || !strings.Contains(err.Error(), path) {
		t.Errorf("load: %v", err)
	}
	if len(configs) != 2 || configs[0].Admin.Name != "media/a" || configs[1].Admin.Name != "media/b" {
		t.Errorf("loaded %+v", configs)
	}

	events := follow(t, source)
	for _, want := range []string{"media/a", "media/bad", "media/b"} {
		if e := nextConfig(t, events); e.ID != want || (e.Err != nil) != (want == "media/bad") {
			t.Errorf("event %+v, want %s", e, want)
		}
	}
	shorter := list[:strings.Index(list, "- version: v1\n  admin: {name: media/b}")]
	write(t, path, shorter)
	if e := nextConfig(t, events); e.ID != "media/bad" {
		t.Errorf("event %+v", e)
	}
	quiet(t, events) // an entry that is missing was not deleted
}

func TestLoadReturnsUnknownFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, "version: v1\nadmin: {name: media/a, newer: 1}\nauth: {type: none}\n")
	configs, err := open(t, path, Options{}).Load(t.Context())
	if err != nil || len(configs) != 1 || !slices.Equal(configs[0].Unknown, []string{"admin.newer"}) {
		t.Errorf("loaded %+v, %v", configs, err)
	}
}

func TestLoadOfAFileNamesIt(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	write(t, broken, "version: [")
	for _, path := range []string{broken, filepath.Join(dir, "missing.yaml"), dir} {
		if _, err := open(t, path, Options{}).Load(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("load %s: %v", path, err)
		}
	}
}
