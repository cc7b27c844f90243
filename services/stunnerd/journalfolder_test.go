package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
)

func TestJournalFolderIsPrivate(t *testing.T) {
	user := strconv.Itoa(os.Geteuid())
	own := func(mode fs.FileMode) func(t *testing.T, dir string) error {
		return func(_ *testing.T, dir string) error {
			if err := os.Mkdir(filepath.Join(dir, user), 0o700); err != nil {
				return err
			}
			return os.Chmod(filepath.Join(dir, user), mode)
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string) error
		mode    fs.FileMode // of --journal-dir
		want    string      // in the error; empty means none
	}{
		"new":                   {nil, 0o777 | fs.ModeSticky, ""},
		"of a previous process": {own(0o700), 0o777 | fs.ModeSticky, ""},
		"private parent":        {nil, 0o755, ""},
		"readable by others":    {own(0o755), 0o777 | fs.ModeSticky, "has mode drwxr-xr-x"},
		"replaceable by others": {own(0o700), 0o777, "has mode drwxrwxrwx"},
		"symbolic link": {func(t *testing.T, dir string) error {
			return os.Symlink(t.TempDir(), filepath.Join(dir, user))
		}, 0o777 | fs.ModeSticky, "has mode L"},
		"file": {func(_ *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, user), nil, 0o600)
		}, 0o777 | fs.ModeSticky, "has mode -"},
		"of another user": {func(t *testing.T, dir string) error {
			testroot.Need(t, "folders of another user")
			if err := own(0o700)(t, dir); err != nil {
				return err
			}
			return os.Chown(filepath.Join(dir, user), 1, 1)
		}, 0o777 | fs.ModeSticky, "belongs to another user"},
		"missing": {func(_ *testing.T, dir string) error { return os.Remove(dir) }, 0, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{stateDir: "/state", journalDir: filepath.Join(t.TempDir(), "journal")}
			if err := os.Mkdir(o.journalDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if c.prepare != nil {
				if err := c.prepare(t, o.journalDir); err != nil {
					t.Fatal(err)
				}
			}
			if c.mode != 0 {
				if err := os.Chmod(o.journalDir, c.mode); err != nil {
					t.Fatal(err)
				}
			}
			want := filepath.Join(o.journalDir, user)
			if c.want != "" {
				want = o.stateDir
			}
			got, err := o.journalFolder()
			if got != want || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q, %v; want %q and an error with %q", got, err, want, c.want)
			}
		})
	}
	if got, err := (options{stateDir: "/state"}).journalFolder(); got != "/state" || err != nil {
		t.Errorf("without --journal-dir: %q, %v", got, err)
	}
}
