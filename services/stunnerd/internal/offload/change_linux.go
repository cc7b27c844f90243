package offload

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// changeGroups are the netlink groups of changes that may change the path to a client or peer. RTNLGRP constants have a
// bit for each group.
const changeGroups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV4_RULE |
	unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE | 1<<(unix.RTNLGRP_IPV6_RULE-1) | 1<<(unix.RTNLGRP_NEXTHOP-1)

// maxPrefixes is the maximum number of prefixes in a change. A change with more prefixes affects everything.
const maxPrefixes = 64

// change describes a change of the network that the kernel has reported: which clients and peers may now be reached by
// another path.
type change struct {
	links      bool                // an interface was added, removed or changed
	everything bool                // all clients and peers may be affected
	interfaces map[uint32]struct{} // indexes of interfaces with another state or address
	prefixes   []netip.Prefix      // of changed routes
}

// linkState contains the properties of an interface that affect the paths through it.
type linkState struct {
	usable uint32 // which of the flags IFF_UP, IFF_RUNNING and IFF_LOWER_UP are set
	mtu    uint32
	master int
}

func (l networkLink) state() linkState {
	return linkState{l.flags & (unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP), l.mtu, l.master}
}

// linkAddress is an address of an interface.
type linkAddress struct {
	index   uint32
	address netip.Addr
}

// changes collects the changes that were not handled yet. The kernel also reports interfaces and addresses without a
// relevant change, for example an address whose lifetime a router extends. So changes keeps the last states, to compare
// them.
type changes struct {
	mu        sync.Mutex
	states    map[uint32]linkState   // by index
	addresses map[linkAddress]uint32 // flags
	pending   change
}

func newChanges() *changes {
	c := &changes{states: map[uint32]linkState{}, addresses: map[linkAddress]uint32{}}
	c.take(true)
	return c
}

// start reads the current interfaces and addresses. They do not count as changes.
func (c *changes) start() error {
	n, err := dial()
	if err != nil {
		return err
	}
	defer n.close()
	for _, list := range []struct {
		request, answer uint16
		header          int
	}{
		{unix.RTM_GETLINK, unix.RTM_NEWLINK, unix.SizeofIfInfomsg},
		{unix.RTM_GETADDR, unix.RTM_NEWADDR, unix.SizeofIfAddrmsg},
	} {
		err := n.call(list.request, unix.NLM_F_DUMP, func(m []byte) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.add(list.answer, m)
		}, make([]byte, list.header))
		if err != nil {
			return fmt.Errorf("list interfaces and their addresses: %w", err)
		}
	}
	c.take(true)
	return nil
}

// observe adds a datagram of messages (netlink(7)). An empty datagram means that messages were lost.
func (c *changes) observe(datagram []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(datagram) == 0 {
		c.forget()
	}
	for len(datagram) >= unix.SizeofNlMsghdr {
		length := max(unix.SizeofNlMsghdr, min(len(datagram), int(binary.NativeEndian.Uint32(datagram))))
		c.add(binary.NativeEndian.Uint16(datagram[4:]), datagram[unix.SizeofNlMsghdr:length])
		datagram = datagram[min(len(datagram), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
}

// forget discards the last states, so that everything counts as a change.
func (c *changes) forget() {
	c.pending.links, c.pending.everything = true, true
	clear(c.addresses)
	for index := range c.states {
		c.states[index] = linkState{}
	}
}

// add adds one message (rtnetlink(7)).
func (c *changes) add(kind uint16, m []byte) {
	p := &c.pending
	switch {
	case (kind == unix.RTM_NEWLINK || kind == unix.RTM_DELLINK) && len(m) >= unix.SizeofIfInfomsg:
		p.links = true
		if m[0] == unix.AF_UNSPEC { // not AF_BRIDGE: its messages are about ports of bridges
			c.link(kind == unix.RTM_DELLINK, parseLink(m))
		}
	case (kind == unix.RTM_NEWADDR || kind == unix.RTM_DELADDR) && len(m) >= unix.SizeofIfAddrmsg:
		c.address(kind == unix.RTM_DELADDR, m)
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

// link adds a message about an interface. The kernel also sends such messages without a relevant change.
func (c *changes) link(removed bool, l networkLink) {
	index, state := uint32(l.index), l.state()
	before, known := c.states[index]
	if removed || state != before {
		c.pending.interfaces[index] = struct{}{}
	}
	if removed {
		delete(c.states, index)
		return
	}
	// Routes through an interface that becomes usable may be preferred to others. A new interface has no routes.
	if known && state.usable&^before.usable != 0 {
		c.pending.everything = true
	}
	c.states[index] = state
}

// address adds a message about an address, a struct ifaddrmsg.
func (c *changes) address(removed bool, m []byte) {
	six, global := m[0] == unix.AF_INET6, m[3] == unix.RT_SCOPE_UNIVERSE
	a, flags := linkAddress{index: binary.NativeEndian.Uint32(m[4:])}, uint32(m[2])
	for kind, value := range attributes(m[unix.SizeofIfAddrmsg:]) {
		switch {
		case kind == unix.IFA_LOCAL || kind == unix.IFA_ADDRESS && !a.address.IsValid():
			a.address, _ = netip.AddrFromSlice(value)
		case kind == unix.IFA_FLAGS && len(value) == 4:
			flags = binary.NativeEndian.Uint32(value)
		}
	}
	if removed {
		delete(c.addresses, a)
	} else {
		before, known := c.addresses[a]
		if known && before == flags {
			return
		}
		c.addresses[a] = flags
	}
	c.pending.interfaces[a.index] = struct{}{}
	// When the kernel removes an address, it also removes the routes of all interfaces with this preferred source
	// address, without a message. IPv6 packets may have a source address of another interface.
	if removed && !six || six && global {
		c.pending.everything = true
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

// take returns the changes since the last call. If all is false, changes that affect everything are kept for a later
// call.
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

// concerns reports whether an address that is reached through an interface may now be reached by another path.
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

// empty reports whether the change affects nothing.
func (c *change) empty() bool {
	return !c.links && !c.everything && len(c.interfaces) == 0 && len(c.prefixes) == 0
}
