package connect

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// An operator that does not answer is explained: no operator runs for the folder, it hangs, or the answer came from the
// operator of another folder. The operator of a folder has its lock file open.
func TestOperatorOfAFolder(t *testing.T) {
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"message":"send the bearer token"}`, http.StatusUnauthorized)
	}))
	defer stranger.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	ended := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended }))
	defer hanging.Close()
	defer close(ended)
	own := "process " + strconv.Itoa(os.Getpid())
	for name, c := range map[string]struct {
		url    string
		locked bool
		want   string
	}{
		"dead":                  {closed.URL, false, "no operator runs for this folder"},
		"hangs":                 {hanging.URL, true, own + " and hangs"},
		"does not listen":       {closed.URL, true, own + " and does not listen"},
		"another":               {stranger.URL, false, "is of another folder"},
		"another, and this one": {stranger.URL, true, own + " is the operator of this folder"},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, urlFile), c.url+"\n")
		write(t, filepath.Join(dir, "state", "lock"), "")
		if c.locked {
			lock, err := os.Open(filepath.Join(dir, "state", "lock"))
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
		}
		f, err := Open(Options{Folder: dir})
		if err != nil {
			t.Fatal(err)
		}
		var u *Unreached
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = f.Get(ctx, "/api/v1/operator", new(any))
		if !errors.As(err, &u) || !strings.Contains(u.Err.Error(), c.want) || u.Remedy == "" {
			t.Errorf("%s: %v, want %q with a remedy", name, err, c.want)
		}
	}
}

// The answer of an operator contains its output folder.
func TestOperatorOfAnotherFolder(t *testing.T) {
	dir := t.TempDir()
	f := &Folder{Path: dir}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for output, same := range map[string]bool{"": true, dir: true, link: true, t.TempDir(): false, "/none": true} {
		if err := f.IsOf(output); (err == nil) != same {
			t.Errorf("%q: %v", output, err)
		}
	}
}
