package access

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// KeyState reports whether the keys that verify tokens, and the policy file, are current.
type KeyState struct {
	// ReadAt is the time of the last successful read, or zero if there was none. If there are several issuers, or a
	// policy file, it is the earliest of their times.
	ReadAt time.Time
	// Problem says why the last read failed; empty if it succeeded. The result of the last successful read stays in
	// use.
	Problem string
}

// Keys returns the state of the keys. A Policy without issuers and without a file has none, and returns the zero
// KeyState.
func (p *Policy) Keys() (all KeyState) {
	var states []KeyState
	if p.file != nil {
		states = append(states, p.file.reads.state())
	}
	if s := p.state.Load(); s != nil {
		for _, name := range slices.Sorted(maps.Keys(s.issuers)) {
			states = append(states, s.issuers[name].source.state())
		}
	}
	for i, k := range states {
		if i == 0 || k.ReadAt.Before(all.ReadAt) {
			all.ReadAt = k.ReadAt
		}
		all.Problem = cmp.Or(all.Problem, k.Problem)
	}
	return all
}

// Reads reports whether the Policy depends on keys or a file that are read again.
func (p *Policy) Reads() bool {
	s := p.state.Load()
	return p.file != nil || s != nil && len(s.issuers) > 0
}

// keyReads records the results of reads of keys.
type keyReads struct {
	mu   sync.Mutex
	last KeyState
}

// done records the result of a read.
func (k *keyReads) done(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.last.Problem = err.Error()
		return
	}
	k.last = KeyState{ReadAt: time.Now()}
}

func (k *keyReads) state() KeyState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}
