package discovery

import (
	"context"
	"slices"
	"sync"
	"time"
)

// longestRest bounds what Rest returns, so that a process that was slow once does not stay behind.
const longestRest = time.Second

// Rest returns how long to rest after work that took some time, so that the work takes at most a share of a core however often there is something to
// do. The share is more than 0 and less than 1. Small work needs no rest to speak of.
func Rest(took time.Duration, share float64) time.Duration {
	return min(time.Duration(float64(took)*(1/share-1)), longestRest)
}

// readShare is the share of a core that a client spends on reading the frames of one config.
const readShare = 0.025

// maxPending is how many frames of one config are kept until they are read.
const maxPending = 8

// frames holds what has arrived of one config and was not read yet, the newest frame last: an older one counts if all that are newer are no good.
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
	select {
	case f.filled <- struct{}{}:
	default:
	}
}

// take returns what there is and keeps nothing.
func (f *frames) take() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	pending := f.pending
	f.pending = nil
	return pending
}

// readFrom reads frames until ctx ends. It rests after each: of the frames that come meanwhile it reads the newest, and none of the others if that one is good.
func (w *watch) readFrom(ctx context.Context, f *frames) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.filled:
		}
		begun := time.Now()
		w.receiveNewest(f.take())
		select {
		case <-ctx.Done():
			return
		case <-time.After(Rest(time.Since(begun), readShare)):
		}
	}
}
