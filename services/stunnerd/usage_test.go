package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The key of --usage-user-key hashes users, the same for all processes with it. A key that is too short or too long is
// refused with the remedy.
func TestUserKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for _, c := range []struct {
		key, problem string
	}{
		{"0123456789abcdef", ""}, {"0123456789abcde", "use a key of 16 to 4096 random bytes"},
		{strings.Repeat("k", maxUserKey), ""}, {strings.Repeat("k", maxUserKey+1), "use a key of 16 to 4096 random bytes"},
	} {
		if err := os.WriteFile(path, []byte(c.key), 0o600); err != nil {
			t.Fatal(err)
		}
		hash, err := userHash(path)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) || !strings.Contains(err.Error(), "--usage-user-key") {
				t.Errorf("key of %d bytes: %v", len(c.key), err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if a, b := hash("ann"), hash("bob"); len(a) != 32 || a == b || a != hash("ann") || strings.Contains(a, "ann") {
			t.Errorf("hashes %q and %q", a, b)
		}
	}
	if _, err := userHash(path + ".missing"); err == nil || !strings.Contains(err.Error(), "--usage-user-key") {
		t.Errorf("missing file: %v", err)
	}
}
