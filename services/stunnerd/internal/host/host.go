// Package host reads the IP addresses of this host, or of the network namespace of this pod, and follows their changes.
package host

import (
	"fmt"
	"net"
	"net/netip"
)

// Addresses returns the addresses of all interfaces, in the order of the interfaces. It leaves out link-local
// addresses, which neither clients nor peers use, and which change with the interfaces of pods.
func Addresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read addresses of this host: %w", err)
	}
	var found []netip.Addr
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if addr := prefix.Addr().Unmap(); err == nil && !addr.IsLinkLocalUnicast() {
			found = append(found, addr)
		}
	}
	return found, nil
}
