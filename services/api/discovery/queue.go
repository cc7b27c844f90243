package discovery

import (
	"context"
	"slices"
	"sync"
)

// latestQueue is a queue that contains only the latest item of each key. put never blocks. The number of keys bounds
// the memory.
type latestQueue[T any] struct {
	mu    sync.Mutex
	order []string
	items map[string]T
	// filled contains a token if there may be items.
	filled chan struct{}
}

func newLatestQueue[T any]() *latestQueue[T] {
	return &latestQueue[T]{items: map[string]T{}, filled: make(chan struct{}, 1)}
}

// put adds an item, or replaces the item with the same key without changing its position in the queue.
func (q *latestQueue[T]) put(key string, item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, queued := q.items[key]; !queued {
		q.order = append(q.order, key)
	}
	q.items[key] = item
	signal(q.filled)
}

// take waits for an item. Only one goroutine may call it.
func (q *latestQueue[T]) take(ctx context.Context) (item T, err error) {
	for {
		select {
		case <-ctx.Done():
			return item, context.Cause(ctx)
		case <-q.filled:
			if item, ok := q.pop(); ok {
				return item, nil
			}
		}
	}
}

func (q *latestQueue[T]) pop() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return item, false
	}
	key := q.order[0]
	q.order = q.order[1:]
	item = q.items[key]
	delete(q.items, key)
	if len(q.order) > 0 {
		signal(q.filled)
	}
	return item, true
}

// remove drops the item of key.
func (q *latestQueue[T]) remove(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, queued := q.items[key]; queued {
		delete(q.items, key)
		q.order = slices.DeleteFunc(q.order, func(k string) bool { return k == key })
	}
}

func signal(filled chan<- struct{}) {
	select {
	case filled <- struct{}{}:
	default:
	}
}
