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
	// settle is the delay between a change in the folder and the read of the file, because a file is often written in
	// several steps.
	settle = 50 * time.Millisecond
	// pollInterval is how often the file is read to find changes that the kernel does not report: on network file
	// systems, or behind a link to another folder.
	pollInterval = 5 * time.Second
)

// file is the Source for a file that contains one config with any name, or a list of configs.
type file struct {
	path string
	want selector
	log  *slog.Logger
	// lookup is Options.Lookup.
	lookup func(name string) string
}

func newFile(path string, o Options) *file {
	return &file{path: filepath.Clean(path), want: selector(o.ID), log: o.Log, lookup: o.Lookup}
}

// String returns the path.
func (f *file) String() string { return f.path }

// Load reads the file. If some configs of a list are invalid, it returns the valid configs with an error.
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

// Watch reads the file, and reads it again whenever it may have changed. An empty or missing file causes no deletion,
// because a program may be writing the file.
func (f *file) Watch(ctx context.Context) <-chan Event {
	out := make(chan Event)
	r := &fileReader{file: f, watch: newWatch(f.path, "")}
	r.watch.lookup = f.lookup
	go r.watch.run(ctx, out)
	go f.follow(ctx, r)
	return out
}

func (f *file) follow(ctx context.Context, r *fileReader) {
	changes, missed, stop := f.changes(ctx)
	defer stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	r.read()
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
			r.read()
		case _, ok := <-missed:
			if !ok {
				missed = nil
			} else {
				r.read()
			}
		case <-tick.C:
			r.read()
		}
	}
}

// changes returns a channel of changes in the folder of the file, because files may be replaced and links changed, and
// a channel of errors, which mean that changes were missed. Both channels must be read. If the folder cannot be
// watched, both are nil and the file is only polled.
func (f *file) changes(ctx context.Context) (changes <-chan fsnotify.Event, missed <-chan error, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(filepath.Dir(f.path)); err == nil {
			return watcher.Events, watcher.Errors, func() { _ = watcher.Close() }
		}
		_ = watcher.Close()
	}
	f.log.WarnContext(ctx, "cannot watch folder, poll the file instead", "file", f.path, "every", pollInterval,
		"error", err)
	return nil, nil, func() {}
}

// fileReader converts the contents of a file to events.
type fileReader struct {
	file  *file
	watch *watch
	// sum is the hash of the content that was read last.
	sum [sha256.Size]byte
	// connected is set once the file has been read.
	connected bool
	// reported is set once an error of reading the file has been reported. A missing file is then not reported again.
	reported bool
}

// read reads the file and delivers the documents if the content has changed.
func (r *fileReader) read() {
	data, err := r.file.read()
	switch {
	case errors.Is(err, fs.ErrNotExist) && (r.connected || r.reported):
		return // a program may be replacing the file
	case err != nil:
		r.reported = true
		r.watch.lost(err)
		return
	case isBlank(data):
		return
	}
	if !r.connected {
		r.connected = true
		r.watch.connected(nil, nil)
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
