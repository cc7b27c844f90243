package datagram

import "sync"

// Pool keeps values for reuse. In contrast to sync.Pool it also does so under the race detector, so that tests with the
// race detector can count allocations. It holds as many values as were in use at a time.
type Pool[T any] struct {
	mu   sync.Mutex
	free []*T
}

// Get returns a value that was put, or a new one.
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
