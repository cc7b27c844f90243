package meter

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// KernelDrops counts the datagrams that the kernel dropped at a set of sockets. The zero KernelDrops is ready to use.
type KernelDrops struct {
	mu sync.Mutex
	// closed is the number of datagrams that the kernel dropped at sockets that were closed.
	closed uint64
	open   map[*kernelDrops]struct{}
}

// kernelDrops counts the datagrams that the kernel dropped at one socket.
type kernelDrops struct {
	read func() uint64
	// last is the final number of dropped datagrams plus 1. It is 0 while the socket is open.
	last atomic.Uint64
}

// Watch adds a socket. read returns the number of datagrams that the kernel dropped at the socket. The caller must call
// forget before it closes the socket.
func (k *KernelDrops) Watch(read func() uint64) (forget func()) {
	d := &kernelDrops{read: read}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open == nil {
		k.open = map[*kernelDrops]struct{}{}
	}
	k.open[d] = struct{}{}
	return func() {
		final := read()
		k.mu.Lock()
		defer k.mu.Unlock()
		d.last.Store(final + 1)
		delete(k.open, d)
		k.closed += final
	}
}

// Load returns the number of dropped datagrams of all sockets. It makes one system call for each open socket, and holds
// no lock during these calls.
func (k *KernelDrops) Load() uint64 {
	k.mu.Lock()
	sum, sockets := k.closed, slices.Collect(maps.Keys(k.open))
	k.mu.Unlock()
	for _, d := range sockets {
		n := d.read()
		if last := d.last.Load(); last > 0 { // the socket was closed meanwhile
			n = last - 1
		}
		sum += n
	}
	return sum
}
