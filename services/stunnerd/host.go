package main

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/host"
)

// hostAddresses returns the first routable address of this host in each family, IPv4 first. If there is none, it
// returns the loopback addresses.
func hostAddresses() []netip.Addr {
	local, _ := host.Addresses() // after an error, the loopback addresses are returned
	found := slices.DeleteFunc(local, func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
	if len(found) == 0 {
		found = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	}
	return oneOfEach(found)
}

// oneOfEach returns the first address of each family, IPv4 first.
func oneOfEach(addrs []netip.Addr) (one []netip.Addr) {
	for _, is4 := range []bool{true, false} {
		if i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 {
			one = append(one, addrs[i])
		}
	}
	return one
}
