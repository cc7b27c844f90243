package testroot

import "testing"

// A test that needs root is skipped with -short only.
func TestOnlyShortSkips(t *testing.T) {
	for _, c := range []struct {
		user         int
		short        bool
		skips, fails bool
	}{{0, false, false, false}, {0, true, false, false}, {1, false, false, true}, {1, true, true, false}} {
		skip, err := missing(c.user, c.short, "network namespaces")
		if (skip != "") != c.skips || (err != nil) != c.fails {
			t.Errorf("user %d, -short %t: skips with %q, fails with %v", c.user, c.short, skip, err)
		}
	}
}
