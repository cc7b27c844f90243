package forward

import (
	"math/rand/v2"
	"testing"
)

func TestWindow(t *testing.T) {
	var w window
	for _, step := range []struct {
		counter uint64
		fresh   bool
	}{
		{0, false},
		{1, true}, {1, false}, {3, true}, {2, true}, {3, false},
		{windowSize, true}, {4, true}, {windowSize + 3, true}, {3, false}, {5, true},
		{10 * windowSize, true}, {9 * windowSize, false}, {9*windowSize + 1, true}, {10*windowSize - 1, true},
		{10 * windowSize, false}, {maxCounter, true}, {maxCounter - 1, true}, {10*windowSize + 1, false},
	} {
		if got := w.fresh(step.counter); got != step.fresh {
			t.Errorf("counter %d: fresh is %t, want %t", step.counter, got, step.fresh)
		}
		if step.fresh {
			w.mark(step.counter)
		}
	}
}

// The window agrees with a set for random counters.
func TestWindowModel(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		var w window
		var highest uint64
		seen := map[uint64]bool{}
		base := uint64(1)
		for range 20_000 {
			switch random.IntN(100) {
			case 0:
				base += random.Uint64N(4 * windowSize)
			case 1:
				base += 64 * random.Uint64N(40)
			default:
				base += random.Uint64N(3)
			}
			counter := base - min(base, random.Uint64N(windowSize+windowSize/2))
			want := counter > 0 && !seen[counter] && (counter > highest || highest-counter < windowSize)
			if got := w.fresh(counter); got != want {
				t.Fatalf("seed %d: counter %d, highest %d: fresh is %t, want %t", seed, counter, highest, got, want)
			}
			if want && random.IntN(10) > 0 {
				w.mark(counter)
				seen[counter], highest = true, max(highest, counter)
			}
		}
	}
}
