package access

import (
	"sync"
	"time"
)

// KeyState tells whether the keys that verify tokens are current.
type KeyState struct {
	// ReadAt is the time of the last successful read of the keys; zero if there was none.
	ReadAt time.Time
	// Problem is why the last read failed; empty if it succeeded. The keys of the last successful read stay in use.
	Problem string
}

// Keys returns the state of the keys. An open Policy has none, and returns the zero KeyState.
func (p *Policy) Keys() KeyState {
	if p.keys == nil {
		return KeyState{}
	}
	return p.keys()
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
