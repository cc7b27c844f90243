package resolve

import (
	"net/netip"
	"slices"
	"time"
)

// answer contains the addresses of a host name in one address family.
type answer struct {
	// addrs are sorted, so that answers that differ only in their order are equal.
	addrs []netip.Addr
	// missingSince is the time of the first of the latest consecutive lookups that found no address. It is zero if the
	// latest lookup found one.
	missingSince time.Time
}

// next returns the answer after one more lookup. The addresses of the lookup replace the old ones at once. If the
// lookup found none, the old addresses are kept for KeepMissing.
func (a answer) next(addrs []netip.Addr, now time.Time) answer {
	switch {
	case len(addrs) > 0:
		return answer{addrs: normalize(addrs)}
	case a.missingSince.IsZero():
		a.missingSince = now
	case now.Sub(a.missingSince) >= KeepMissing:
		a.addrs = nil
	}
	return a
}

// normalize unmaps and sorts addresses and removes duplicates.
func normalize(addrs []netip.Addr) []netip.Addr {
	normal := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		normal = append(normal, a.Unmap())
	}
	slices.SortFunc(normal, netip.Addr.Compare)
	return slices.Compact(normal)
}
