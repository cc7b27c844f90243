package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// callTime is the time limit of one step of a task, which may make several requests to the API server.
	callTime = 5 * time.Second
	// authorizeTimeout limits the authorization of a config discovery client. Clients give up after 5 s.
	authorizeTimeout = 4 * time.Second
	// taskTimeout is how long a task may take for one step before the readiness probe fails. It is longer than
	// callTime, because a slow API server must not fail readiness: config discovery works without the API server.
	taskTimeout = 8 * time.Second
	// livenessTimeout is how long a task may take for one step before it counts as deadlocked, and the liveness probe
	// fails.
	livenessTimeout = time.Minute
	// serverRetry is the retry interval while the API server is not available.
	serverRetry = time.Second
	// kindRetry is the interval of checks whether the API server serves a kind.
	kindRetry = 5 * time.Second
)

// tasks are the running tasks of the process. The probes check whether one of them is stuck. The error of a shutdown
// that takes too long lists the tasks that have not ended.
type tasks struct {
	mu      sync.Mutex
	running map[*task]bool
}

// task is a goroutine that runs short steps in a loop, or a server or watch without steps, see tasks.join.
type task struct {
	name string
	// since is when the current step began, in Unix nanoseconds; 0 while the task is idle.
	since atomic.Int64
}

// begin marks the start of a step.
func (t *task) begin() { t.since.Store(time.Now().UnixNano()) }

// end marks the task as idle.
func (t *task) end() { t.since.Store(0) }

// do registers a task and runs it until f returns.
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

// join runs a task in a group. It is never reported as stuck, because it has no steps that could be timed.
func (ts *tasks) join(g *errgroup.Group, name string, f func() error) {
	g.Go(func() (err error) {
		ts.do(name, func(*task) { err = f() })
		return err
	})
}

// run runs a task that returns no error in a group.
func (ts *tasks) run(g *errgroup.Group, name string, f func(*task)) {
	g.Go(func() error {
		ts.do(name, f)
		return nil
	})
}

// stuck returns an error if a task has been in one step for longer than limit.
func (ts *tasks) stuck(now time.Time, limit time.Duration) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.running {
		since := t.since.Load()
		if at := now.Sub(time.Unix(0, since)); since != 0 && at > limit {
			return fmt.Errorf("%s has been in one step for %s: see the log, and restart the operator", t.name,
				at.Round(time.Second))
		}
	}
	return nil
}

// String lists the names of the running tasks.
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

// ignoreEnd returns err, or nil if ctx has ended, because the error is then a consequence of the end of ctx.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
