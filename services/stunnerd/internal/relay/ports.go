package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

const (
	// reuseDelay is how long a port stays unused after its socket was closed, so that late datagrams of peers do not
	// reach the client that gets the port next.
	reuseDelay = time.Second
	// portTries bounds the ports that are tried for one allocation if other processes use ports of the range.
	portTries = 256
)

// ErrNoPort is the error if no relay port of the range is free.
var ErrNoPort = errors.New("no relay port of the range is free: widen --relay-ports")

// Ports assigns the relay ports of a range in random order. A port has at most one socket of each family.
type Ports struct {
	ports    config.PortRange
	mu       sync.Mutex
	families map[bool]*pool // the key is true for IPv4, false for IPv6
}

// pool is the ports of one family.
type pool struct {
	first uint16
	free  []uint16
	// at contains the index of each port of the range in the slice free, or -1 for a port that is not free.
	at []int32
	// delayed contains the ports that are not free until reuseDelay after their sockets were closed or could not be
	// opened, the earliest first.
	delayed []delayedPort
}

type delayedPort struct {
	port  uint16
	until time.Time
}

// NewPorts returns the ports of a range. All of them are free.
func NewPorts(ports config.PortRange) *Ports {
	p := &Ports{ports: ports, families: map[bool]*pool{}}
	for _, is4 := range []bool{true, false} {
		f := &pool{first: ports.First, at: make([]int32, p.Len())}
		for i := range p.Len() {
			f.put(ports.First + uint16(i))
		}
		p.families[is4] = f
	}
	return p
}

// Len returns the number of ports for each address family.
func (p *Ports) Len() int { return p.ports.Len() }

// open opens a socket on a random free port.
func (p *Ports) open(k Kernel, advertised netip.Addr) (Socket, error) {
	for range portTries {
		port, ok := p.take(advertised)
		if !ok {
			return nil, ErrNoPort
		}
		if s, err := p.bind(k, advertised, port); !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
	}
	return nil, ErrNoPort
}

// openAt opens a socket on a port.
func (p *Ports) openAt(k Kernel, advertised netip.Addr, port uint16) (Socket, error) {
	if !p.takeAt(advertised, port) {
		return nil, fmt.Errorf("relay port %d is not free", port)
	}
	return p.bind(k, advertised, port)
}

// openEven opens a socket on a random free even port. If next is true, it opens another socket on the port above.
func (p *Ports) openEven(k Kernel, advertised netip.Addr, next bool) (even, odd Socket, err error) {
	for range portTries {
		port, ok := p.takeEven(advertised, next)
		if !ok {
			return nil, nil, ErrNoPort
		}
		even, err = p.bind(k, advertised, port)
		if !next {
			odd = nil
		} else if err != nil {
			p.release(advertised, port+1)
		} else if odd, err = p.bind(k, advertised, port+1); err != nil {
			err = errors.Join(err, even.Close())
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return even, odd, err
		}
	}
	return nil, nil, ErrNoPort
}

// bind opens a socket on a port that was taken from the free ports. The port is released when the socket is closed, or
// if the socket cannot be opened.
func (p *Ports) bind(k Kernel, advertised netip.Addr, port uint16) (Socket, error) {
	s, err := k.open(advertised, port)
	if err != nil {
		p.release(advertised, port)
		return nil, err
	}
	s.closed = func() { p.release(advertised, port) }
	return s, nil
}

// of returns the pool for the address family of an address.
func (p *Ports) of(advertised netip.Addr) *pool {
	f := p.families[advertised.Is4()]
	f.freeDelayed(time.Now())
	return f
}

func (p *Ports) take(advertised netip.Addr) (port uint16, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.of(advertised)
	if len(f.free) == 0 {
		return 0, false
	}
	port = f.free[rand.IntN(len(f.free))]
	f.remove(port)
	return port, true
}

func (p *Ports) takeAt(advertised netip.Addr, port uint16) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.of(advertised)
	if !f.isFree(int(port)) {
		return false
	}
	f.remove(port)
	return true
}

func (p *Ports) takeEven(advertised netip.Addr, next bool) (port uint16, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.of(advertised)
	if len(f.free) == 0 {
		return 0, false
	}
	start := rand.IntN(len(f.free))
	for i := range f.free {
		port := f.free[(start+i)%len(f.free)]
		if port%2 == 1 || next && !f.isFree(int(port)+1) {
			continue
		}
		f.remove(port)
		if next {
			f.remove(port + 1)
		}
		return port, true
	}
	return 0, false
}

// release makes a relay port free again after reuseDelay.
func (p *Ports) release(advertised netip.Addr, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.families[advertised.Is4()]
	f.delayed = append(f.delayed, delayedPort{port, time.Now().Add(reuseDelay)})
}

// freeDelayed frees the ports whose reuseDelay is over.
func (f *pool) freeDelayed(now time.Time) {
	for len(f.delayed) > 0 && !now.Before(f.delayed[0].until) {
		f.put(f.delayed[0].port)
		f.delayed = f.delayed[1:]
	}
}

func (f *pool) isFree(port int) bool {
	i := port - int(f.first)
	return i >= 0 && i < len(f.at) && f.at[i] >= 0
}

func (f *pool) put(port uint16) {
	f.at[port-f.first] = int32(len(f.free))
	f.free = append(f.free, port)
}

// remove removes a port from the list of free ports. The last free port moves to its index, so that the time does not
// depend on the size of the range.
func (f *pool) remove(port uint16) {
	i, last := f.at[port-f.first], len(f.free)-1
	moved := f.free[last]
	f.free[i], f.at[moved-f.first] = moved, i
	f.at[port-f.first] = -1
	f.free = f.free[:last]
}
