//go:build !race

package datagram

import "sync"

// Pool keeps values for reuse. It is a sync.Pool, which takes no lock that processors share.
type Pool[T any] struct{ pool sync.Pool }

// Get returns a value that was put, or a new value.
func (p *Pool[T]) Get() *T {
	if v, ok := p.pool.Get().(*T); ok {
		return v
	}
	return new(T)
}

// Put makes a value available to Get. The caller must not use it afterwards.
func (p *Pool[T]) Put(v *T) { p.pool.Put(v) }
