package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"
)

// memoryShare is the soft memory limit of the Go runtime, in percent of the memory limit of the process. The rest is
// for memory that the runtime does not manage.
const memoryShare = 90

// limitMemory sets the soft memory limit of the Go runtime according to the memory limit of the cgroup, unless
// GOMEMLIMIT is set. It returns the memory limit of the process in bytes, with GOMEMLIMIT an estimate from its value; 0
// if there is no limit or it is unknown.
func limitMemory(cgroup func() (uint64, error), env func(string) string, log *slog.Logger) int64 {
	if env("GOMEMLIMIT") != "" {
		if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
			return limit / memoryShare * 100
		}
		return 0
	}
	limit, err := cgroup()
	if err != nil || limit == 0 || limit >= math.MaxInt64/2 {
		log.Debug("no memory limit", "error", err)
		return 0
	}
	debug.SetMemoryLimit(int64(limit / 100 * memoryShare))
	return int64(limit)
}

// shutdownTimeout limits the duration of the shutdown in a cluster. If the shutdown takes longer, the process ends
// without a loss of state, because dataplanes continue without the operator.
const shutdownTimeout = 4500 * time.Millisecond

// runUntil calls run, and waits until run returns. After the end of ctx, it waits for at most grace. If run does not
// return in time, the error contains running(), the names of the tasks that have not ended.
func runUntil(ctx context.Context, grace time.Duration, run func(context.Context) error, running func() string) error {
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(grace):
		return fmt.Errorf("stop: not finished after %s, still running: %s", grace, running())
	}
}
