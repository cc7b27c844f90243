//go:build race

package datagram

import "sync"

// Pool keeps values for reuse. With the race detector a sync.Pool drops some of them, and tests could not count
// allocations.
type Pool[T any] struct {
	mu   sync.Mutex
	free []*T
}

// Get returns a value that was put, or a new value.
func (p *Pool[T]) Get() *T {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.free) - 1
	if last < 0 {
		return new(T)
	}
	v := p.free[last]
	p.free = p.free[:last]
	return v
}

// Put makes a value available to Get. The caller must not use it afterwards.
func (p *Pool[T]) Put(v *T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, v)
}
