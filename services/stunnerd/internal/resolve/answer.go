package resolve

import (
	"net/netip"
	"slices"
	"time"
)

// answer is what is known about one question.
type answer struct {
	// addrs are sorted, so that two answers that differ in their order only are equal.
	addrs []netip.Addr
	// missing is when a name server first said that there is no address, unless one has been given since.
	missing time.Time
}

// next is what is known after one more answer of a name server. Addresses are replaced at once, and given up late.
func (a answer) next(addrs []netip.Addr, now time.Time) answer {
	switch {
	case len(addrs) > 0:
		return answer{addrs: tidy(addrs)}
	case a.missing.IsZero():
		a.missing = now
	case now.Sub(a.missing) >= Absence:
		a.addrs = nil
	}
	return a
}

// tidy brings addresses into the form that packets show, and into order: name servers shuffle their answers.
func tidy(addrs []netip.Addr) []netip.Addr {
	tidied := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		tidied = append(tidied, a.Unmap())
	}
	slices.SortFunc(tidied, netip.Addr.Compare)
	return slices.Compact(tidied)
}
