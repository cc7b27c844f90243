package offload

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Filters of clsact remain when the process that added them ends. So the name of a filter contains a token, and the
// process holds an abstract Unix socket of that name. The socket exists as long as the process, and is visible in the
// network namespace of the interface. A filter without its socket is a leftover.
const (
	filterPrefix = "stunnerd-offload-"
	// qdiscSuffix of the name of a filter means that the process has also added the qdisc.
	qdiscSuffix = "-qdisc"
)

var token = sync.OnceValues(func() (string, error) {
	name := filterPrefix + strings.ToLower(rand.Text())
	fd, err := hold(name)
	if err != nil {
		return "", fmt.Errorf("bind abstract socket %s: %w", name, err)
	}
	_ = fd // open until the process ends
	return name, nil
})

func hold(name string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name}); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// abandoned reports whether the process that added a filter has ended.
func abandoned(name string) bool {
	fd, err := hold(strings.TrimSuffix(name, qdiscSuffix))
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// The parents of filters, TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS) and TC_H_MIN_EGRESS of linux/pkt_sched.h.
const (
	clsact       = 0xffff_fff1
	clsactHandle = 0xffff_0000
	ingress      = 0xffff_fff2
	egress       = 0xffff_fff3
)

// Attributes of linux/pkt_cls.h and linux/rtnetlink.h.
const (
	attrKind            = 1  // TCA_KIND
	attrOptions         = 2  // TCA_OPTIONS
	attrProgram         = 6  // TCA_BPF_FD
	attrName            = 7  // TCA_BPF_NAME
	attrFlags           = 8  // TCA_BPF_FLAGS
	directAction        = 1  // TCA_BPF_FLAG_ACT_DIRECT
	sizeofTrafficHeader = 20 // struct tcmsg
)

// filter is one filter of this package at an interface.
type filter struct {
	handle, info uint32
	name         string
}

// filters are the two filters of this process at an interface.
type filters struct {
	index int
	name  string
}

func (f filters) Close() error { return removeFilters(f.index, f.name) }

// addFilters adds the two programs to an interface and removes leftovers of ended processes.
func addFilters(index, in, out int) (f filters, err error) {
	name, err := token()
	if err != nil {
		return f, err
	}
	c, err := dial()
	if err != nil {
		return f, err
	}
	defer c.close()
	created, err := c.addQdisc(index)
	if err != nil {
		return f, err
	}
	for _, parent := range []uint32{ingress, egress} {
		removed, err := c.removeFilters(index, parent, abandoned)
		if err != nil {
			return f, err
		}
		created = created ||
			slices.ContainsFunc(removed, func(n string) bool { return strings.HasSuffix(n, qdiscSuffix) })
	}
	if created {
		name += qdiscSuffix
	}
	f = filters{index, name}
	for parent, program := range map[uint32]int{ingress: in, egress: out} {
		if err := c.addFilter(index, parent, everyProtocol, program, name); err != nil {
			return f, errors.Join(fmt.Errorf("add filter: %w", err), f.Close())
		}
	}
	return f, nil
}

// addQdisc adds the qdisc to an interface that has none.
func (c conn) addQdisc(index int) (created bool, err error) {
	err = c.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		trafficHeader(index, clsactHandle, clsact, 0), attribute(attrKind, []byte("clsact\x00")))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return false, fmt.Errorf("add qdisc clsact: %w", err)
	}
	return err == nil, nil
}

func (c conn) addFilter(index int, parent, info uint32, program int, name string) error {
	options := slices.Concat(attribute(attrProgram, word(uint32(program))), attribute(attrName, []byte(name+"\x00")),
		attribute(attrFlags, word(directAction)))
	return c.request(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL, trafficHeader(index, 0, parent, info),
		attribute(attrKind, []byte("bpf\x00")), attribute(attrOptions, options))
}

// removeFilters removes the filters with a name from an interface. It also removes the qdisc if it was added for these
// filters and has no other filter. It is not an error if the interface no longer exists.
func removeFilters(index int, name string) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.close()
	left := 0
	for _, parent := range []uint32{ingress, egress} {
		if _, err := c.removeFilters(index, parent, func(n string) bool { return n == name }); err != nil {
			return err
		}
		filters, err := c.filters(index, parent)
		if err != nil {
			return err
		}
		left += len(filters)
	}
	if !strings.HasSuffix(name, qdiscSuffix) || left > 0 {
		return nil
	}
	err = c.request(unix.RTM_DELQDISC, 0, trafficHeader(index, clsactHandle, clsact, 0),
		attribute(attrKind, []byte("clsact\x00")))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove qdisc clsact: %w", err)
	}
	return nil
}

// removeFilters removes those filters of this package whose name matches, and returns their names.
func (c conn) removeFilters(index int, parent uint32, matches func(name string) bool) (removed []string, err error) {
	filters, err := c.filters(index, parent)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if !strings.HasPrefix(f.name, filterPrefix) || !matches(f.name) {
			continue
		}
		err := c.request(unix.RTM_DELTFILTER, 0, trafficHeader(index, f.handle, parent, f.info),
			attribute(attrKind, []byte("bpf\x00")))
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return removed, fmt.Errorf("remove filter: %w", err)
		}
		removed = append(removed, f.name)
	}
	return removed, nil
}

// filters lists the filters of an interface.
func (c conn) filters(index int, parent uint32) (filters []filter, err error) {
	err = c.call(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, func(m []byte) {
		if len(m) < sizeofTrafficHeader {
			return
		}
		f := filter{handle: binary.NativeEndian.Uint32(m[8:]), info: binary.NativeEndian.Uint32(m[16:])}
		if f.handle == 0 { // describes a priority, and not a filter
			return
		}
		for kind, value := range attributes(m[sizeofTrafficHeader:]) {
			if kind == attrOptions {
				for kind, value := range attributes(value) {
					if kind == attrName {
						f.name = text(value)
					}
				}
			}
		}
		filters = append(filters, f)
	}, trafficHeader(index, 0, parent, 0))
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	return filters, nil
}

// everyProtocol is the info of a filter for all protocols, with a priority that the kernel selects.
var everyProtocol = uint32(binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff}))

// trafficHeader returns a struct tcmsg.
func trafficHeader(index int, handle, parent, info uint32) []byte {
	b := make([]byte, sizeofTrafficHeader)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], handle)
	binary.NativeEndian.PutUint32(b[12:], parent)
	binary.NativeEndian.PutUint32(b[16:], info)
	return b
}
