package offload

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// changeGroups are the netlink groups of changes that may change the way to a client or peer. RTNLGRP constants have a
// bit for each group.
const changeGroups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV4_RULE |
	unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE | 1<<(unix.RTNLGRP_IPV6_RULE-1) | 1<<(unix.RTNLGRP_NEXTHOP-1)

// maxPrefixes bounds the prefixes of a change. More of them concern everything.
const maxPrefixes = 64

// change is what the kernel reports of the network: which clients and peers may be reached in another way.
type change struct {
	links      bool                // an interface was added, removed or changed
	everything bool                // each client and peer may be concerned
	interfaces map[uint32]struct{} // those with another state or address, by index
	prefixes   []netip.Prefix      // of changed routes
}

// carrier are the flags of an interface that is in use by routes.
const carrier = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP

// changes collects the changes that were not handled.
type changes struct {
	mu      sync.Mutex
	flags   map[uint32]uint32 // the last ones of each interface
	pending change
}

// newChanges returns changes of a network with these interfaces.
func newChanges(links map[int]networkLink) *changes {
	c := &changes{flags: map[uint32]uint32{}}
	for _, l := range links {
		c.flags[uint32(l.index)] = l.flags & carrier
	}
	c.take(true)
	return c
}

// observe adds a datagram of messages (netlink(7)). An empty one means that messages were lost.
func (c *changes) observe(datagram []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(datagram) == 0 {
		c.pending.links, c.pending.everything = true, true
	}
	for len(datagram) >= unix.SizeofNlMsghdr {
		length := max(unix.SizeofNlMsghdr, min(len(datagram), int(binary.NativeEndian.Uint32(datagram))))
		c.add(binary.NativeEndian.Uint16(datagram[4:]), datagram[unix.SizeofNlMsghdr:length])
		datagram = datagram[min(len(datagram), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
}

// add adds one message (rtnetlink(7)).
func (c *changes) add(kind uint16, m []byte) {
	p := &c.pending
	switch {
	case (kind == unix.RTM_NEWLINK || kind == unix.RTM_DELLINK) && len(m) >= unix.SizeofIfInfomsg:
		index, flags := binary.NativeEndian.Uint32(m[4:]), binary.NativeEndian.Uint32(m[8:])&carrier
		// Routes through an interface that becomes usable may be preferred to others. A new interface has no routes.
		if before, known := c.flags[index]; kind == unix.RTM_NEWLINK && known && flags&^before != 0 {
			p.everything = true
		}
		c.flags[index] = flags
		if kind == unix.RTM_DELLINK {
			delete(c.flags, index)
		}
		p.links = true
		p.interfaces[index] = struct{}{}
	case (kind == unix.RTM_NEWADDR || kind == unix.RTM_DELADDR) && len(m) >= unix.SizeofIfAddrmsg:
		// With an address, the kernel removes the routes of all interfaces that have it as preferred source, without a
		// message. The source address of IPv6 packets may be one of another interface.
		local := m[0] == unix.AF_INET6 && m[3] != unix.RT_SCOPE_UNIVERSE
		if !local && (kind == unix.RTM_DELADDR || m[0] == unix.AF_INET6) {
			p.everything = true
		}
		p.interfaces[binary.NativeEndian.Uint32(m[4:])] = struct{}{}
	case (kind == unix.RTM_NEWROUTE || kind == unix.RTM_DELROUTE) && len(m) >= unix.SizeofRtMsg:
		prefix, ok := destination(m)
		if !ok || len(p.prefixes) == maxPrefixes {
			p.everything = true
			return
		}
		p.prefixes = append(p.prefixes, prefix)
	default: // rules and next hops
		p.everything = true
	}
}

// destination returns the prefix of a struct rtmsg.
func destination(m []byte) (prefix netip.Prefix, ok bool) {
	address := netip.IPv4Unspecified()
	if m[0] == unix.AF_INET6 {
		address = netip.IPv6Unspecified()
	}
	for kind, value := range attributes(m[unix.SizeofRtMsg:]) {
		if a, valid := netip.AddrFromSlice(value); kind == unix.RTA_DST && valid {
			address = a
		}
	}
	prefix = netip.PrefixFrom(address, int(m[1])) // rtm_dst_len
	return prefix, prefix.IsValid()
}

// take returns the changes since the last call. Unless all is set, those that concern everything remain.
func (c *changes) take(all bool) change {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.pending
	c.pending = change{interfaces: map[uint32]struct{}{}}
	if !all {
		taken.everything, c.pending.everything = false, taken.everything
	}
	return taken
}

// concerns reports whether an address may be reached in another way than by an interface.
func (c *change) concerns(interfaceIndex uint32, address [16]byte) bool {
	if _, ok := c.interfaces[interfaceIndex]; ok || c.everything {
		return true
	}
	a := netip.AddrFrom16(address).Unmap()
	for _, p := range c.prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// empty reports whether the change concerns nothing.
func (c *change) empty() bool {
	return !c.links && !c.everything && len(c.interfaces) == 0 && len(c.prefixes) == 0
}
