package resolve

import (
	"net/netip"
	"slices"
	"time"
)

// answer is the current result for a host name and address family.
type answer struct {
	// addrs are sorted, so that answers that differ only in their order are equal.
	addrs []netip.Addr
	// missing is the time of the first of the lookups without an address that followed the last one with an address.
	missing time.Time
}

// next returns the result after one more lookup. New addresses replace the old ones at once. If the lookup has no
// addresses, the old addresses are kept for Absence.
func (a answer) next(addrs []netip.Addr, now time.Time) answer {
	switch {
	case len(addrs) > 0:
		return answer{addrs: normalize(addrs)}
	case a.missing.IsZero():
		a.missing = now
	case now.Sub(a.missing) >= Absence:
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
