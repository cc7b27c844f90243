package offload

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ethernetAddress is the length of an Ethernet address. Other interfaces have packets without an Ethernet header.
const ethernetAddress = 6

// networkLink is one interface of this network namespace.
type networkLink struct {
	index, master int // master is 0 for a link without a master
	name          string
	flags, mtu    uint32 // flags are IFF constants
	ethernet      bool
	kind          string // such as "veth"; empty for network cards
	// port is the kind of the master if it takes over the packets of the interface, such as "bridge".
	port string
}

// listLinks lists the interfaces by their indexes.
func listLinks() (map[int]networkLink, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	links := map[int]networkLink{}
	err = c.call(unix.RTM_GETLINK, unix.NLM_F_DUMP, func(m []byte) {
		if len(m) >= unix.SizeofIfInfomsg {
			l := parseLink(m)
			links[l.index] = l
		}
	}, make([]byte, unix.SizeofIfInfomsg))
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}

// parseLink reads a struct ifinfomsg and its attributes.
func parseLink(m []byte) networkLink {
	l := networkLink{
		index: int(binary.NativeEndian.Uint32(m[4:])), flags: binary.NativeEndian.Uint32(m[8:]),
	}
	loopback := l.flags&unix.IFF_LOOPBACK != 0
	for kind, value := range attributes(m[unix.SizeofIfInfomsg:]) {
		switch {
		case kind == unix.IFLA_IFNAME:
			l.name = text(value)
		case kind == unix.IFLA_ADDRESS:
			l.ethernet = len(value) == ethernetAddress && !loopback
		case kind == unix.IFLA_MTU && len(value) == 4:
			l.mtu = binary.NativeEndian.Uint32(value)
		case kind == unix.IFLA_MASTER && len(value) == 4:
			l.master = int(binary.NativeEndian.Uint32(value))
		case kind == unix.IFLA_LINKINFO:
			l.kind, l.port = kinds(value)
		}
	}
	return l
}

// kinds returns the kind of a link and the kind of its master from its IFLA_LINKINFO. A VRF is no master: it changes
// the routing table, and its interfaces keep their addresses.
func kinds(info []byte) (own, port string) {
	for kind, value := range attributes(info) {
		switch name := text(value); {
		case kind == unix.IFLA_INFO_KIND:
			own = name
		case kind == unix.IFLA_INFO_SLAVE_KIND && name != "vrf":
			port = name
		}
	}
	return own, port
}

func text(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// unsuitable returns why the programs do not support an interface, and the remedy. It is empty for a supported
// interface.
//
// Packets of the ports of a bridge, a bond, a team or an Open vSwitch also pass the hooks of the master interface, in
// both directions. Only at the master can the addresses of clients and peers be resolved.
func (l networkLink) unsuitable(links map[int]networkLink) string {
	switch {
	case !l.ethernet:
		return "not an Ethernet interface"
	case l.port != "":
		return fmt.Sprintf("it is a port of the %s %s: "+
			"name the interface that has the IP addresses in offload_interfaces", l.port, links[l.master].name)
	default:
		return ""
	}
}
