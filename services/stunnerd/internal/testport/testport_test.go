package testport

import "testing"

// TestPortsAreGivenOnce: another process that searches the same ports gets others, although nothing listens yet.
func TestPortsAreGivenOnce(t *testing.T) {
	given := map[int]bool{}
	for range 2 {
		next.Store(0) // as at the start of a process
		start := Range(t, 4)
		for _, port := range []int{Free(t), start, start + 1, start + 2, start + 3} {
			if given[port] {
				t.Errorf("port %d is given twice", port)
			}
			given[port] = true
		}
	}
}
