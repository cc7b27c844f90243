package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// tasks are what the process does at the same time. They tell a probe which of them is stuck, and a process that does not end what holds it up.
type tasks struct {
	mu      sync.Mutex
	running map[*task]bool
}

// task is a loop that takes up one thing after another, none of which takes long.
type task struct {
	name string
	// since is when it has taken up what it is at, 0 while it waits for something to do.
	since atomic.Int64
}

// begin notes that something is taken up.
func (t *task) begin() { t.since.Store(time.Now().UnixNano()) }

// end notes that it is done, and that the task waits.
func (t *task) end() { t.since.Store(0) }

// stuck is for how long a task may be at one thing. What waits for the API server gives up sooner (callTime): that somebody else does not answer
// is no reason to call this process unfit, which goes on to serve configs.
const taskTimeout = 8 * time.Second

// callTime bounds what is asked of the API server at once.
const callTime = 5 * time.Second

// do runs a task until it returns.
func (ts *tasks) do(name string, f func(*task)) {
	t := &task{name: name}
	ts.mu.Lock()
	if ts.running == nil {
		ts.running = map[*task]bool{}
	}
	ts.running[t] = true
	ts.mu.Unlock()
	defer func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		delete(ts.running, t)
	}()
	f(t)
}

// join runs a task in a group.
func (ts *tasks) join(g *errgroup.Group, name string, f func() error) {
	g.Go(func() (err error) {
		ts.do(name, func(*task) { err = f() })
		return err
	})
}

// stuck says which tasks have been at one thing for longer than they may; nil when none has.
func (ts *tasks) stuck(now time.Time, limit time.Duration) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.running {
		since := t.since.Load()
		if at := now.Sub(time.Unix(0, since)); since != 0 && at > limit {
			return fmt.Errorf("%s has been at one thing for %s: see the log, and restart the operator", t.name, at.Round(time.Second))
		}
	}
	return nil
}

// String names the tasks that run.
func (ts *tasks) String() string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var names []string
	for t := range maps.Keys(ts.running) {
		names = append(names, t.name)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}
