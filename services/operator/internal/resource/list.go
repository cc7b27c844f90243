package resource

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// table holds the objects of one kind. The value of a missing key is nil.
type table[T Object] map[types.NamespacedName]T

func (t table[T]) keys() []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(t), compareKeys)
}

// names returns the names of cluster-scoped objects, sorted.
func (t table[T]) names() []string {
	names := make([]string, 0, len(t))
	for _, key := range t.keys() {
		names = append(names, key.Name)
	}
	return names
}

// lists is an index from an object or namespace to a sorted list of items. A change makes a new list, so that callers
// may keep a list that they have looked up.
type lists[T any] struct {
	of    map[types.NamespacedName][]T
	order func(a, b T) int
}

func newLists[T any](order func(a, b T) int) lists[T] {
	return lists[T]{of: map[types.NamespacedName][]T{}, order: order}
}

// remove removes an item from the lists of these keys.
func (l lists[T]) remove(item T, keys ...types.NamespacedName) {
	for _, key := range keys {
		old := l.of[key]
		at, found := slices.BinarySearchFunc(old, item, l.order)
		switch {
		case !found:
		case len(old) == 1:
			delete(l.of, key)
		default:
			l.of[key] = slices.Concat(old[:at], old[at+1:])
		}
	}
}

// insert adds an item to the lists of these keys.
func (l lists[T]) insert(item T, keys ...types.NamespacedName) {
	for _, key := range keys {
		old := l.of[key]
		at, _ := slices.BinarySearchFunc(old, item, l.order)
		l.of[key] = slices.Concat(old[:at], []T{item}, old[at:])
	}
}
