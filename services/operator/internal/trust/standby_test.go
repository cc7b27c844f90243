package trust

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// A standby Secret stays authentic while its CA is known. New standby Secrets are authenticated with the CA that signs.
// The keys are secret: without the private key of a CA, no key can be derived.
func TestStandbyKeysOutliveTheirCA(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	keysOf := func(a Authority, at time.Time) [][]byte {
		t.Helper()
		keys, err := a.StandbyKeys(at)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	contains := func(keys [][]byte, key []byte) bool {
		return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
	}
	if keys := keysOf(Authority{}, now); len(keys) != 0 {
		t.Errorf("keys without a CA: %d", len(keys))
	}
	a, err := Authority{}.Next(now)
	if err != nil {
		t.Fatal(err)
	}
	first := keysOf(a, now)
	if len(first) != 1 || len(first[0]) != 32 {
		t.Fatalf("keys of one CA: %x", first)
	}
	renewal := now.Add(Lifetime * 3 / 4)
	if a, err = a.Next(renewal); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		at       time.Time
		newFirst bool
	}{"during the overlap": {renewal, false}, "after the overlap": {renewal.Add(2 * Overlap), true}} {
		keys := keysOf(a, row.at)
		if len(keys) != 2 || !contains(keys, first[0]) || bytes.Equal(keys[0], first[0]) == row.newFirst {
			t.Errorf("%s: %d keys, the old one is known %t, and is the first %t", name, len(keys), contains(keys, first[0]),
				bytes.Equal(keys[0], first[0]))
		}
	}
	parsed, err := Parse(a.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if again := keysOf(parsed, renewal); !slices.EqualFunc(again, keysOf(a, renewal), bytes.Equal) {
		t.Error("another replica derives other keys")
	}
	data := a.Encode()
	delete(data, PrivateKey)
	public, _ := Parse(data)
	if keys := keysOf(public, renewal); len(keys) != 0 {
		t.Errorf("keys without private keys: %d", len(keys))
	}
}
