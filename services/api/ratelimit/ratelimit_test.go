package ratelimit

import (
	"net/netip"
	"testing"
	"time"
)

func TestManyKeysDelayNoNewKey(t *testing.T) {
	l, now := New[int](1, 2, 3), time.Unix(1_000, 0)
	for key := range 3 {
		for range 2 {
			if l.Take(key, now) != 0 {
				t.Fatalf("key %d has no burst", key)
			}
		}
		if wait := l.Take(key, now); wait != time.Second {
			t.Fatalf("key %d waits %v, want 1s", key, wait)
		}
	}
	for key := 3; key < 100; key++ {
		if wait := l.Take(key, now); wait != 0 || len(l.buckets) > 3 {
			t.Fatalf(
				"the new key %d waits %v among %d buckets, want no wait among at most 3", key, wait, len(l.buckets),
			)
		}
	}
	now = now.Add(2 * time.Second)
	if l.Take(6, now); len(l.buckets) != 1 {
		t.Errorf("%d buckets, want 1: full ones are dropped", len(l.buckets))
	}
}

func TestSourcePrefix(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1":                "192.0.2.1/32",
		"::ffff:192.0.2.1":         "192.0.2.1/32",
		"2001:db8:1:2:3:4:5:6":     "2001:db8:1:2::/64",
		"fe80::1%eth0":             "fe80::/64",
		"2001:db8:ffff:ffff::ffff": "2001:db8:ffff:ffff::/64",
	} {
		if got := SourcePrefix(netip.MustParseAddr(addr)).String(); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// Keys may have rates of their own. A changed rate applies to the same bucket.
func TestTakeAt(t *testing.T) {
	l, now := New[string](0, 0, 10), time.Unix(1_800_000_000, 0)
	take := func(key string, perSecond float64, burst int, allowed bool) {
		t.Helper()
		if wait := l.TakeAt(key, perSecond, burst, now); (wait == 0) != allowed {
			t.Errorf("%s at %g/s: wait %s", key, perSecond, wait)
		}
	}
	take("slow", 1, 1, true)
	take("slow", 1, 1, false)
	for range 5 {
		take("fast", 1, 5, true)
	}
	take("fast", 1, 5, false)
	take("slow", 1000, 1, false) // after an increase of the rate, the bucket is not full at once
	now = now.Add(10 * time.Millisecond)
	take("slow", 1000, 1, true)
	take("fast", 1, 5, false)
}
