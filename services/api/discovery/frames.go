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

// Bounds of the unread frames of one config. Older frames are dropped. maxPending is the maximum number of frames with
// a whole config, maxDeltas is the maximum number of deltas, and maxDeltaBytes is the maximum number of bytes of the
// deltas.
const (
	maxPending    = 8
	maxDeltas     = 256
	maxDeltaBytes = frameLimit
)

// frames contains the frames of one config that were received and not parsed yet, the newest last. Usually only the
// newest whole config and the deltas after it are needed. Older frames are used if all newer frames are invalid.
type frames struct {
	mu      sync.Mutex
	pending [][]byte
	// wholes is the number of whole configs in pending, and bytes the length of the deltas.
	wholes, bytes int
	filled        chan struct{}
}

func newFrames() *frames { return &frames{filled: make(chan struct{}, 1)} }

func (f *frames) put(frame []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, frame)
	f.count(frame, 1)
	for f.wholes > maxPending {
		f.drop(0)
	}
	// If a delta is dropped, the client cannot apply later deltas, and requests the whole config.
	for len(f.pending)-f.wholes > maxDeltas || f.bytes > maxDeltaBytes && len(f.pending)-f.wholes > 1 {
		f.drop(slices.IndexFunc(f.pending, isDelta))
	}
	signal(f.filled)
}

func (f *frames) drop(i int) {
	f.count(f.pending[i], -1)
	f.pending = slices.Delete(f.pending, i, i+1)
}

// count adds a frame to the numbers, or subtracts it.
func (f *frames) count(frame []byte, sign int) {
	if isDelta(frame) {
		f.bytes += sign * len(frame)
	} else {
		f.wholes += sign
	}
}

// takeAll removes and returns all frames.
func (f *frames) takeAll() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	pending := f.pending
	f.pending, f.wholes, f.bytes = nil, 0, 0
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
