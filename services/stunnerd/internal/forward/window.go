package forward

import "sync/atomic"

// windowSize is how far the counter of a frame may be behind the highest counter of its sender. Each reader of a
// process assigns counters when it builds frames, and sends the frames in batches. A reader may not be scheduled for
// 300 ms between these two steps, while the other readers send 100,000 frames a second. Its frames are still accepted.
const windowSize = 1 << 15

// window detects replayed frames by their counters, like RFC 6479. The zero window has seen no frame. One goroutine
// uses it, except that another goroutine may read highest.
type window struct {
	highest atomic.Uint64
	// seen has a bit for each counter, in a ring of words. The ring has one word more than windowSize needs. This word
	// is the one that is being filled.
	seen [words]uint64
}

const words = windowSize/64 + 1

// skip marks a counter and all lower counters as seen. It may be called only before the first frame.
func (w *window) skip(counter uint64) {
	for i := range w.seen {
		w.seen[i] = ^uint64(0)
	}
	w.seen[counter/64%words] = 1<<(counter%64+1) - 1
	w.highest.Store(counter)
}

// fresh reports whether a counter was not seen before. Counters below the window count as seen.
func (w *window) fresh(counter uint64) bool {
	highest := w.highest.Load()
	switch {
	case counter == 0:
		return false
	case counter > highest:
		return true
	case highest-counter >= windowSize:
		return false
	}
	return w.seen[counter/64%words]&(1<<(counter%64)) == 0
}

// mark marks a fresh counter as seen. It must not be called before the frame was authenticated.
func (w *window) mark(counter uint64) {
	if highest := w.highest.Load(); counter > highest {
		for word, n := highest/64+1, 0; word <= counter/64 && n < words; word, n = word+1, n+1 {
			w.seen[word%words] = 0
		}
		w.highest.Store(counter)
	}
	w.seen[counter/64%words] |= 1 << (counter % 64)
}
