package offload

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// object holds the programs and maps, compiled from bpf/turn.c. It is the same for all little-endian processors.
//
//go:embed bpf/turn.o
var object []byte

// kernel holds the programs and maps of one Offload.
type kernel struct {
	collection  *ebpf.Collection
	slots       []slot
	generations []uint64
	mapped      [][]byte
	entered     bool // the map of programs is filled
}

// attachment is the presence of the programs at one interface.
type attachment struct {
	name      string
	mechanism Mechanism
	noXDP     string // why the interface has no XDP program, with EngineXDP
	detach    []io.Closer
}

// close removes the programs from the interface.
func (a *attachment) close() error {
	var errs []error
	for _, c := range a.detach {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// load loads the programs and creates the maps.
func load(slots int, xdp bool) (k *kernel, err error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	for _, name := range []string{"up", "down", "slots"} {
		spec.Maps[name].MaxEntries = uint32(slots)
	}
	if !xdp {
		delete(spec.Programs, "relay_xdp")
	}
	k = &kernel{}
	if k.collection, err = ebpf.NewCollection(spec); err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, errors.New(
				"load BPF programs: permission denied: grant the capabilities CAP_BPF and CAP_NET_ADMIN",
			)
		}
		return nil, fmt.Errorf("load BPF programs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	memory, err := k.memory("slots", slots*slotSize)
	if err != nil {
		return nil, err
	}
	k.slots = unsafe.Slice((*slot)(unsafe.Pointer(&memory[0])), slots)
	if memory, err = k.memory("generations", groupCount*8); err != nil {
		return nil, err
	}
	k.generations = unsafe.Slice((*uint64)(unsafe.Pointer(&memory[0])), groupCount)
	return k, nil
}

// memory maps the elements of an array.
func (k *kernel) memory(name string, size int) ([]byte, error) {
	protection := unix.PROT_READ | unix.PROT_WRITE
	m, err := unix.Mmap(k.collection.Maps[name].FD(), 0, size, protection, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memory of BPF map %s: %w", name, err)
	}
	k.mapped = append(k.mapped, m)
	return m, nil
}

// close removes the programs and maps. The mapped memory becomes empty memory and stays mapped, because bindings may
// still be used.
func (k *kernel) close() error {
	var errs []error
	for _, m := range k.mapped {
		_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&m[0]), uintptr(len(m)), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_FIXED|unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		errs = append(errs, err)
	}
	k.mapped = nil
	k.collection.Close()
	return errors.Join(errs...)
}

// attach attaches the programs to an interface by the first mechanism that the kernel supports.
func (k *kernel) attach(index int, name string, mechanisms []Mechanism) (*attachment, error) {
	var errs []error
	for _, m := range mechanisms {
		by := k.attachTCX
		if m == Clsact {
			by = k.attachClsact
		}
		detach, err := by(index)
		if err == nil {
			return &attachment{name: name, mechanism: m, detach: detach}, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", m, err))
	}
	return nil, errors.Join(errs...)
}

// attachXDP adds the XDP program to an interface.
func (k *kernel) attachXDP(a *attachment, index int, flags link.XDPAttachFlags) error {
	l, err := link.AttachXDP(link.XDPOptions{
		Program: k.collection.Programs["relay_xdp"], Interface: index, Flags: flags,
	})
	if err != nil {
		return err
	}
	a.mechanism, a.detach = XDP, append(a.detach, l)
	return nil
}

func (k *kernel) attachTCX(index int) (detach []io.Closer, err error) {
	in, err := link.AttachTCX(link.TCXOptions{
		Interface: index, Program: k.collection.Programs["relay_in"], Attach: ebpf.AttachTCXIngress,
	})
	if err != nil {
		return nil, err
	}
	out, err := link.AttachTCX(link.TCXOptions{
		Interface: index, Program: k.collection.Programs["relay_out"], Attach: ebpf.AttachTCXEgress,
	})
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return []io.Closer{in, out}, nil
}

// attachClsact attaches the programs through the map of programs, which the kernel empties when this process ends.
func (k *kernel) attachClsact(index int) (detach []io.Closer, err error) {
	if !k.entered {
		for i, name := range []string{"relay_in", "relay_out"} {
			if err := k.collection.Maps["programs"].Put(uint32(i), k.collection.Programs[name]); err != nil {
				return nil, fmt.Errorf("fill map of programs: %w", err)
			}
		}
		k.entered = true
	}
	f, err := addFilters(index, k.collection.Programs["enter_in"].FD(), k.collection.Programs["enter_out"].FD())
	if err != nil {
		return nil, err
	}
	return []io.Closer{f}, nil
}
