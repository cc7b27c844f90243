package main

import (
	"net"
	"net/netip"
	"slices"
)

// hostAddresses are the first routable address of this host in each family, IPv4 first, and loopback where there is none at all.
func hostAddresses() []netip.Addr {
	found := slices.DeleteFunc(localAddresses(), func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
	if len(found) == 0 {
		found = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	}
	return oneOfEach(found)
}

// localAddresses are all addresses of this host; none when it does not tell.
func localAddresses() (found []netip.Addr) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			found = append(found, prefix.Addr().Unmap())
		}
	}
	return found
}

// oneOfEach keeps the first address of each family, IPv4 first.
func oneOfEach(addrs []netip.Addr) (one []netip.Addr) {
	for _, is4 := range []bool{true, false} {
		if i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 {
			one = append(one, addrs[i])
		}
	}
	return one
}
