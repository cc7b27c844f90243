package file

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quietTime is how long the input folder must stay unchanged before a change is reported, so that a series of
	// changes is reported once.
	quietTime = 100 * time.Millisecond
	// maxDelay is the maximum delay between a change and its report if further changes keep following.
	maxDelay = time.Second
)

// watcher reports changes in the input folder and its subfolders.
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
	if err := w.watchFolders(); err != nil {
		events.Close()
		return nil, err
	}
	return w, nil
}

// watchFolders starts watching the input folder and all subfolders that exist now.
func (w *watcher) watchFolders() error {
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

// run sends to changed after each series of changes in the input folder, until ctx ends.
func (w *watcher) run(ctx context.Context, changed chan<- struct{}) {
	defer w.events.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var first time.Time
	note := func(wait time.Duration) {
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(min(wait, max(0, maxDelay-time.Since(first))))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.events.Events:
			note(quietTime)
		case err := <-w.events.Errors:
			w.log.Warn("watch of the input folder has lost events, the folder is read again", "error", err)
			note(quietTime)
		case <-timer.C:
			first = time.Time{}
			if err := w.watchFolders(); err != nil {
				w.log.Warn("cannot watch the input folder, will retry", "error", err)
				timer.Reset(retryDelay)
			} else {
				timer.Reset(time.Hour)
			}
			notify(changed)
		}
	}
}
