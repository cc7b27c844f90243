package discovery

import (
	"context"
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

// frames holds what has arrived of one config and was not read yet: the newest frame, and the first one in case that the newest is no good.
type frames struct {
	mu            sync.Mutex
	first, newest []byte
	filled        chan struct{}
}

func newFrames() *frames { return &frames{filled: make(chan struct{}, 1)} }

func (f *frames) put(frame []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == nil {
		f.first = f.newest
	}
	f.newest = frame
	select {
	case f.filled <- struct{}{}:
	default:
	}
}

// take returns what there is; nil for nothing.
func (f *frames) take() (first, newest []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, newest = f.first, f.newest
	f.first, f.newest = nil, nil
	return first, newest
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
