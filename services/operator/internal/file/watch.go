package file

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A change is reported once the folder has been quiet for a moment, and at the latest after some of them.
const (
	quiet    = 100 * time.Millisecond
	patience = time.Second
)

// watcher reports that something in a folder or its subfolders has changed.
type watcher struct {
	folder folder
	events *fsnotify.Watcher
	log    *slog.Logger
}

func newWatcher(f folder, log *slog.Logger) (*watcher, error) {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch input folder: %w", err)
	}
	w := &watcher{folder: f, events: events, log: log}
	if err := w.cover(); err != nil {
		events.Close()
		return nil, err
	}
	return w, nil
}

// cover watches all folders that are there now; one that is watched already stays so.
func (w *watcher) cover() error {
	dirs, err := w.folder.dirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := w.events.Add(dir); err != nil {
			return fmt.Errorf("watch %s: %w: raise fs.inotify.max_user_watches or use fewer folders", dir, err)
		}
	}
	return nil
}

// run knocks after each burst of changes until ctx ends.
func (w *watcher) run(ctx context.Context, knock chan<- struct{}) {
	defer w.events.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var first time.Time
	note := func(wait time.Duration) {
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(min(wait, max(0, patience-time.Since(first))))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.events.Events:
			note(quiet)
		case err := <-w.events.Errors:
			w.log.Warn("watch of the input folder has lost events, it is read anew", "error", err)
			note(quiet)
		case <-timer.C:
			first = time.Time{}
			if err := w.cover(); err != nil {
				w.log.Warn("input folder cannot be watched, tried again", "error", err)
				timer.Reset(retry)
			} else {
				timer.Reset(time.Hour)
			}
			touch(knock)
		}
	}
}
