package listener

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// T-14: a new connection is admitted, and the oldest connection is evicted: of the same source if that source has at
// least an equal share, otherwise of the sources with the most slots.
func TestAFullLimitEvictsTheOldestConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		come []string
		gone []int // in the order of arrival
	}{
		"room for all":      {[]string{"192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.3"}, nil},
		"third of a source": {[]string{"192.0.2.9", "192.0.2.1", "192.0.2.1", "192.0.2.1"}, []int{1}},
		"fifth and sixth of all": {
			[]string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6"}, []int{0, 1},
		},
		"a source again and again":       {[]string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1"}, []int{0, 1}},
		"hosts of one IPv6 network":      {[]string{"2001:db8::1", "2001:db8::2", "2001:db8::3"}, []int{0}},
		"hosts of two IPv6 networks":     {[]string{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::3"}, nil},
		"behind a private load balancer": {[]string{"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"}, nil},
		"a flood beside another": {
			[]string{"192.0.2.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"}, []int{1, 2},
		},
		"another beside a flood": {
			[]string{"10.0.0.1", "10.0.0.1", "192.0.2.1", "10.0.0.1", "192.0.2.2", "192.0.2.3"}, []int{0, 1},
		},
		"private sources beyond all": {
			[]string{"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"}, []int{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConnLimiter(4, 2)
			var gone []int
			for i, addr := range tc.come {
				c.slot(netip.MustParseAddr(addr), func() { gone = append(gone, i) }).enter()
			}
			if !slices.Equal(gone, tc.gone) {
				t.Errorf("gone: %v, want %v", gone, tc.gone)
			}
			if c.all.Len() != len(tc.come)-len(tc.gone) {
				t.Errorf("%d are there", c.all.Len())
			}
		})
	}
}

// T-14: a connection that has lost its slot does not take a slot again while it is being closed, so it evicts no other
// connection.
func TestEvictedSlotIsNotTakenAgain(t *testing.T) {
	c := newConnLimiter(4, 1)
	var gone []string
	slotOf := func(name string) *slot {
		return c.slot(netip.MustParseAddr("192.0.2.1"), func() { gone = append(gone, name) })
	}
	first, second := slotOf("first"), slotOf("second")
	first.enter()
	second.enter()
	first.enter()
	if !slices.Equal(gone, []string{"first"}) || c.all.Len() != 1 {
		t.Errorf("gone: %v, %d slots are taken", gone, c.all.Len())
	}
	first.readmit()
	first.enter()
	if !slices.Equal(gone, []string{"first", "second"}) {
		t.Errorf("gone after the first is readmitted: %v", gone)
	}
}

// T-14: connections without a session may take at most half of a small capacity.
func TestLimitsFollowTheCapacity(t *testing.T) {
	for capacity, want := range map[int][2]int{
		0: {1024, 4096}, 100_000: {1024, 4096}, 3000: {1024, 1500}, 500: {250, 250}, 1: {1, 1},
	} {
		l := NewLimits(capacity)
		if got := [2]int{l.handshakes.most, l.unauthenticated.most}; got != want {
			t.Errorf("capacity %d: %v, want %v", capacity, got, want)
		}
	}
}

// A connection with a session has no slot. It gets a new slot when the session ends, and none after its own end.
func TestConnectionWithASessionHasNoSlot(t *testing.T) {
	c := newConnLimiter(2, 2)
	var gone []string
	come := func(name string) *slot {
		p := c.slot(netip.MustParseAddr("192.0.2.1"), func() { gone = append(gone, name) })
		p.enter()
		return p
	}
	first, second := come("first"), come("second")
	first.pause()
	first.pause()
	first.enter()
	first.enter()
	third := come("third")
	second.leave() // its slot was evicted before
	third.leave()
	third.enter()
	if want := []string{"second"}; !slices.Equal(gone, want) || c.all.Len() != 1 {
		t.Errorf("gone: %v, want %v; %d are there, want 1", gone, want, c.all.Len())
	}
	first.leave()
	if c.all.Len() != 0 || len(c.sources) != 0 {
		t.Errorf("left behind: %s", fmt.Sprint(c.all.Len(), c.sources))
	}
}
