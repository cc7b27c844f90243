package discovery

import (
	"context"
	"slices"
	"sync"
)

// mailbox holds, for each key, the newest letter that was not taken yet. Putting never blocks, and memory is bounded by the number of
// keys.
type mailbox[T any] struct {
	mu      sync.Mutex
	order   []string
	letters map[string]T
	// filled holds a token when there may be letters.
	filled chan struct{}
}

func newMailbox[T any]() *mailbox[T] {
	return &mailbox[T]{letters: map[string]T{}, filled: make(chan struct{}, 1)}
}

// put replaces the letter of key. A key keeps its place in the queue.
func (m *mailbox[T]) put(key string, letter T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, waiting := m.letters[key]; !waiting {
		m.order = append(m.order, key)
	}
	m.letters[key] = letter
	m.signal()
}

// take waits for a letter. There is one taker.
func (m *mailbox[T]) take(ctx context.Context) (letter T, err error) {
	for {
		select {
		case <-ctx.Done():
			return letter, context.Cause(ctx)
		case <-m.filled:
			if letter, ok := m.pop(); ok {
				return letter, nil
			}
		}
	}
}

func (m *mailbox[T]) pop() (letter T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.order) == 0 {
		return letter, false
	}
	key := m.order[0]
	m.order = m.order[1:]
	letter = m.letters[key]
	delete(m.letters, key)
	if len(m.order) > 0 {
		m.signal()
	}
	return letter, true
}

// remove throws the letter of key away.
func (m *mailbox[T]) remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, waiting := m.letters[key]; waiting {
		delete(m.letters, key)
		m.order = slices.DeleteFunc(m.order, func(k string) bool { return k == key })
	}
}

func (m *mailbox[T]) signal() {
	select {
	case m.filled <- struct{}{}:
	default:
	}
}
