package datagram

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// SendsWhole reports whether the kernel can send a datagram without fragmentation (see SendWhole). Linux supports this.
// A sandbox that implements system calls itself may not.
var SendsWhole = sync.OnceValue(func() bool {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) { // the host has no IPv6, and thus no relays
			continue
		}
		if err != nil {
			return false
		}
		_, err = setDiscovery(fd, family, unix.IP_PMTUDISC_DO)
		now, read := discovery(fd, family)
		if errors.Join(err, read, unix.Close(fd)) != nil || now != unix.IP_PMTUDISC_DO {
			return false
		}
	}
	return true
})

// SendWhole sends one datagram without waiting, and sets its Err as SendAll does. IPv4 sets the DF bit, so neither this
// host nor a router fragments the datagram. If it is longer than the MTU of the path, Err is EMSGSIZE. The option
// applies to the whole socket, so no other datagram is sent by the socket meanwhile.
func (s *Sender) SendWhole(p *Packet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.release == nil {
		p.Err = net.ErrClosed
		return
	}
	before, err := setDiscovery(s.fd, s.family, unix.IP_PMTUDISC_DO)
	if err != nil {
		p.Err = err
		return
	}
	b := batches.Get()
	defer batches.Put(b)
	one := [1]Packet{*p}
	b.send(s, one[:], false)
	_, err = setDiscovery(s.fd, s.family, before)
	p.Err = errors.Join(one[0].Err, err)
}

// setDiscovery sets how the kernel discovers the MTU of a path for the datagrams of a socket (IP_MTU_DISCOVER, which
// has the same values for IPv6), and returns the earlier value.
func setDiscovery(fd, family, how int) (before int, err error) {
	if before, err = discovery(fd, family); err != nil || before == how {
		return before, err
	}
	level, option := discoveryOption(family)
	return before, unix.SetsockoptInt(fd, level, option, how)
}

func discovery(fd, family int) (int, error) {
	level, option := discoveryOption(family)
	return unix.GetsockoptInt(fd, level, option)
}

func discoveryOption(family int) (level, option int) {
	if family == unix.AF_INET {
		return unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	}
	return unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
}
