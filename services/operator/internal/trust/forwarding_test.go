package trust

import (
	"slices"
	"testing"
	"time"
)

func forwardingKeys(t *testing.T, a Authority, uid string, now time.Time) []ForwardingKey {
	t.Helper()
	keys, err := a.ForwardingKeys(uid, now)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func ids(keys []ForwardingKey) (all []uint8) {
	for _, k := range keys {
		all = append(all, k.ID)
	}
	return all
}

// The key of a day is used during the day and the next day.
func TestForwardingKeysOfADay(t *testing.T) {
	midnight := time.Date(2031, 5, 4, 0, 0, 0, 0, time.UTC)
	a, err := Authority{}.Next(midnight.Add(-30 * day))
	if err != nil {
		t.Fatal(err)
	}
	n := uint8(midnight.Unix() / 86_400)
	known := map[uint8][32]byte{}
	for _, c := range []struct {
		after time.Duration
		want  []uint8
	}{
		{-1, []uint8{n - 1, n - 2}}, {0, []uint8{n, n - 1}}, {day - 1, []uint8{n, n - 1}}, {day, []uint8{n + 1, n}},
	} {
		now := midnight.Add(c.after).In(time.FixedZone("east", 5*3600))
		keys := forwardingKeys(t, a, "uid", now)
		if !slices.Equal(ids(keys), c.want) {
			t.Errorf("%s: keys %v, want %v", now, ids(keys), c.want)
		}
		for _, k := range keys {
			if before, ok := known[k.ID]; ok && before != k.Secret {
				t.Errorf("%s: key %d has changed", now, k.ID)
			}
			known[k.ID] = k.Secret
		}
		if got := uint8(ForwardingDay(now)); got != keys[0].ID {
			t.Errorf("%s: day %d, want %d", now, got, keys[0].ID)
		}
	}
	for _, k := range forwardingKeys(t, a, "another", midnight) {
		known[k.ID+100] = k.Secret
	}
	other, err := Authority{}.Next(midnight.Add(-30 * day))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range forwardingKeys(t, other, "uid", midnight) {
		known[k.ID+200] = k.Secret
	}
	distinct := map[[32]byte]bool{}
	for _, secret := range known {
		distinct[secret] = true
	}
	if len(distinct) != len(known) || len(known) != 8 {
		t.Errorf("%d distinct keys of %d: days, Gateways and authorities must not share keys", len(distinct), len(known))
	}
}

// The keys of a day never change during the day, even if CAs are added, removed or expire. All replicas have a CA for a
// day before keys are derived from it.
func TestForwardingKeysOutliveTheirCA(t *testing.T) {
	start := time.Date(2031, 5, 4, 13, 30, 0, 0, time.UTC)
	var a Authority
	keyOfDay, since := map[int64][32]byte{}, map[string]time.Time{}
	for now := start; now.Before(start.Add(2 * Lifetime)); now = now.Add(5 * time.Hour) {
		next, err := a.Next(now)
		if err != nil {
			t.Fatal(err)
		}
		a = next
		if bundle := a.Bundle(); since[bundle].IsZero() {
			since[bundle] = now
		}
		for _, k := range forwardingKeys(t, a, "uid", now) {
			number := now.Unix()/86_400 + int64(int8(k.ID-uint8(now.Unix()/86_400)))
			if before, ok := keyOfDay[number]; ok && before != k.Secret {
				t.Fatalf("%s: the key of day %d has changed", now, number)
			}
			keyOfDay[number] = k.Secret
		}
	}
	if len(since) < 3 {
		t.Fatalf("%d sets of CAs: the CA was not rotated", len(since))
	}
}
