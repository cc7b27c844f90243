package discovery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long a change of the folder may go on before the file is read: writers are seldom done at once.
	settle = 50 * time.Millisecond
	// poll finds what the kernel does not tell: changes on network file systems, or behind a link to another folder.
	poll = 5 * time.Second
)

// file is the Source of a file with one config, whatever its name, or a list of configs.
type file struct {
	path string
	want selector
	log  *slog.Logger
	// lookup is that of Options.
	lookup func(name string) string
}

func newFile(path string, o Options) *file {
	return &file{path: filepath.Clean(path), want: selector(o.ID), log: o.Log, lookup: o.Lookup}
}

// String gives the path.
func (f *file) String() string { return f.path }

// Load reads the file. An error that concerns some of a list comes together with the others.
func (f *file) Load(context.Context) ([]Loaded, error) {
	data, err := f.read()
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", f.path, err)
	}
	configs, err := readAll(data, f.want, f.lookup)
	if err != nil {
		return configs, fmt.Errorf("load %s: %w", f.path, err)
	}
	return configs, nil
}

func (f *file) read() ([]byte, error) {
	in, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	return readLimited(in, listLimit)
}

// Watch reads the file, and again whenever it may have changed. A file that is empty or away changes nothing.
func (f *file) Watch(ctx context.Context) <-chan Event {
	out := make(chan Event)
	r := &reader{file: f, watch: newWatch(f.path, "")}
	r.watch.lookup = f.lookup
	go r.watch.run(ctx, out)
	go f.follow(ctx, r)
	return out
}

func (f *file) follow(ctx context.Context, r *reader) {
	changes, missed, stop := f.changes(ctx)
	defer stop()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	r.look()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-changes:
			if !ok {
				changes = nil
			} else if settled == nil {
				settled = time.After(settle)
			}
		case <-settled:
			settled = nil
			r.look()
		case _, ok := <-missed:
			if !ok {
				missed = nil
			} else {
				r.look()
			}
		case <-tick.C:
			r.look()
		}
	}
}

// changes tells of every change in the file's folder, because that is where files are replaced and links are swapped, and of changes that were missed:
// a watcher waits until it has told. Without one polling has to do.
func (f *file) changes(ctx context.Context) (changes <-chan fsnotify.Event, missed <-chan error, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(filepath.Dir(f.path)); err == nil {
			return watcher.Events, watcher.Errors, func() { _ = watcher.Close() }
		}
		_ = watcher.Close()
	}
	f.log.WarnContext(ctx, "folder cannot be watched, the file is looked at now and then", "file", f.path, "every", poll, "error", err)
	return nil, nil, func() {}
}

// reader turns contents of a file into events.
type reader struct {
	file  *file
	watch *watch
	// sum is the content that was read last.
	sum [sha256.Size]byte
	// there tells that the file was read once; away that its absence was reported.
	there, away bool
}

// look reads the file and delivers what is new.
func (r *reader) look() {
	data, err := r.file.read()
	switch {
	case errors.Is(err, fs.ErrNotExist) && (r.there || r.away):
		return // it will come back
	case err != nil:
		r.away = true
		r.watch.lost(err)
		return
	case blank(data):
		return
	}
	if !r.there {
		r.there = true
		r.watch.connected(nil)
	}
	sum := sha256.Sum256(data)
	if bytes.Equal(sum[:], r.sum[:]) {
		return
	}
	r.sum = sum
	for _, document := range split(data, r.file.want) {
		r.watch.receive(document, "")
	}
}
