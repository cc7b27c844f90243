package discovery

import (
	"context"
	"slices"
	"sync"
	"time"
)

// longestCooldown is the maximum result of Cooldown, so that one slow run does not delay the next run for long.
const longestCooldown = time.Second

// Cooldown returns how long to pause after work that took the given time, so that repeated work uses at most the given
// share of a core. The share is more than 0 and less than 1. The result is at most one second.
func Cooldown(took time.Duration, share float64) time.Duration {
	return min(time.Duration(float64(took)*(1/share-1)), longestCooldown)
}

// readShare is the maximum share of a core that a client spends on parsing the frames of one config.
const readShare = 0.02

// maxPending is the maximum number of unread frames of one config. Older frames are dropped.
const maxPending = 8

// frames contains the frames of one config that were received and not parsed yet, the newest last. Usually only the
// newest is needed. Older ones are used if all newer ones are invalid.
type frames struct {
	mu      sync.Mutex
	pending [][]byte
	filled  chan struct{}
}

func newFrames() *frames { return &frames{filled: make(chan struct{}, 1)} }

func (f *frames) put(frame []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.pending) == maxPending {
		f.pending = slices.Delete(f.pending, 0, 1)
	}
	f.pending = append(f.pending, frame)
	signal(f.filled)
}

// takeAll removes and returns all frames.
func (f *frames) takeAll() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	pending := f.pending
	f.pending = nil
	return pending
}

// readFrom parses frames until ctx ends, and pauses after each. Of the frames that arrive during a pause it delivers
// only the newest valid one.
func (w *watch) readFrom(ctx context.Context, f *frames) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.filled:
		}
		begun := time.Now()
		w.receiveNewest(f.takeAll())
		select {
		case <-ctx.Done():
			return
		case <-time.After(Cooldown(time.Since(begun), readShare)):
		}
	}
}
