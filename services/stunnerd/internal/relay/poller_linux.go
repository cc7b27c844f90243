package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Pollers receive the datagrams of all relay sockets of a process. A poller is a goroutine with an epoll instance. A
// socket belongs to one poller.
type Pollers struct {
	pollers []*poller
	next    atomic.Uint32
}

// NewPollers starts pollers, one for each processor that may receive datagrams of peers at a time.
func NewPollers(number int) (*Pollers, error) {
	p := &Pollers{}
	for range max(number, 1) {
		one, err := newPoller()
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.pollers = append(p.pollers, one)
	}
	return p, nil
}

// Tasks returns the tasks of the pollers, for the liveness probe.
func (p *Pollers) Tasks() (tasks []*watch.Task) {
	for _, one := range p.pollers {
		tasks = append(tasks, &one.task)
	}
	return tasks
}

// Close ends the pollers. Sockets receive nothing afterwards.
func (p *Pollers) Close() (err error) {
	for _, one := range p.pollers {
		err = errors.Join(err, one.close())
	}
	return err
}

// add makes a poller receive the datagrams of a socket.
func (p *Pollers) add(s *kernelSocket) error {
	return p.pollers[p.next.Add(1)%uint32(len(p.pollers))].add(s)
}

// poller receives from the sockets of an epoll instance. It waits for the epoll instance in the poller of the Go
// runtime. A goroutine that waits in epoll_wait would hold its processor (GOMAXPROCS) until the runtime takes it away,
// and all other goroutines would wait for up to 10 ms.
type poller struct {
	epoll *os.File
	raw   syscall.RawConn
	// attempt is the method value p.poll. Creating it for each wait would allocate.
	attempt  func(fd uintptr) bool
	events   [128]unix.EpollEvent
	done     chan struct{}
	task     watch.Task
	receiver *datagram.Receiver
	batch    []Datagram

	mu sync.Mutex
	// running reports whether the goroutine was started. It is started with the first socket, so that tests in virtual
	// time can use a server: a goroutine that waits for sockets stops the clock of testing/synctest.
	running bool
	// slots contain the sockets of the epoll instance. An event contains the index and the use of a slot. It does not
	// contain the number of a descriptor, which may belong to another socket when the event is handled.
	slots []slot
	free  []int32
}

// slot holds the sockets of a poller one after another.
type slot struct {
	socket *kernelSocket
	// use is the number of sockets that have used the slot before.
	use int32
}

func newPoller() (*poller, error) {
	receiver, err := datagram.NewReceiver()
	if err != nil {
		return nil, err
	}
	p := &poller{receiver: receiver, done: make(chan struct{}), batch: make([]Datagram, 0, datagram.BatchSize+maxErrors)}
	p.attempt = p.poll
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create epoll instance: %w", err), receiver.Close())
	}
	// The runtime polls only non-blocking descriptors.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("make epoll instance non-blocking: %w", err), unix.Close(fd), receiver.Close())
	}
	p.epoll = os.NewFile(uintptr(fd), "epoll")
	if p.raw, err = p.epoll.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for epoll instance: %w", err), p.epoll.Close(), receiver.Close())
	}
	return p, nil
}

// add receives the datagrams of a socket until remove.
func (p *poller) add(s *kernelSocket) error {
	e := p.occupy(s)
	err := s.Use(func(fd int) (err error) {
		closed := p.raw.Control(func(epoll uintptr) { err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &e) })
		return errors.Join(closed, err)
	})
	if err != nil {
		p.remove(s)
		s.poller = nil
		return fmt.Errorf("add socket to epoll instance: %w", err)
	}
	return nil
}

// occupy assigns a slot to a socket, and returns the event of the slot. add makes its system call after occupy without
// mu, because the goroutine locks mu for each event.
func (p *poller) occupy(s *kernelSocket) unix.EpollEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		p.free = append(p.free, int32(len(p.slots)))
		p.slots = append(p.slots, slot{})
	}
	at := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.slots[at].socket, s.poller, s.slot = s, p, at
	if !p.running {
		p.running = true
		go p.run()
	}
	return unix.EpollEvent{Events: unix.EPOLLIN, Fd: at, Pad: p.slots[at].use}
}

// remove reverts add. The kernel removes a closed socket from the epoll instance.
func (p *poller) remove(s *kernelSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots[s.slot] = slot{use: p.slots[s.slot].use + 1}
	p.free = append(p.free, s.slot)
}

// socket returns the socket of an event, or nil if it has been removed.
func (p *poller) socket(e *unix.EpollEvent) *kernelSocket {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.slots[e.Fd]; at.use == e.Pad {
		return at.socket
	}
	return nil
}

func (p *poller) run() {
	defer close(p.done)
	for p.raw.Read(p.attempt) == nil {
	}
}

// poll gets events without waiting, and handles them. If it returns false, the runtime calls it again when a datagram
// has arrived, also if the datagram has arrived before poll returned. After a single datagram it returns false, because
// another attempt would usually find nothing. After an error, the error queue of the socket may contain more errors.
func (p *poller) poll(fd uintptr) bool {
	// RawSyscall does not notify the Go scheduler, which is not needed because the call does not block.
	ready, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&p.events)),
		uintptr(len(p.events)), 0, 0, 0)
	switch {
	case errno != 0: // EINTR
		return true
	case ready == 0:
		return false
	}
	p.task.Begin()
	defer p.task.End()
	now, datagrams := time.Now(), 0
	for i := range p.events[:ready] {
		if s := p.socket(&p.events[i]); s != nil {
			datagrams += p.receive(s, p.events[i].Events, now)
		}
	}
	return ready > 1 || datagrams != 1 || p.events[0].Events&unix.EPOLLERR != 0
}

// receive receives one batch from a socket and passes it on. It receives only one batch, so that a socket with many
// datagrams does not delay the others. It returns the size of the batch.
func (p *poller) receive(s *kernelSocket, events uint32, now time.Time) int {
	p.batch = p.batch[:0]
	_ = s.Use(func(fd int) error { // fails only if the socket is closed
		n, errno := p.receiver.Receive(fd)
		failed := errno != 0 && errno != unix.EAGAIN
		if failed { // the kernel has returned a pending ICMP error instead of datagrams
			n, _ = p.receiver.Receive(fd)
		}
		for i := range n {
			peer := p.receiver.From(i) // peers of channels and routes have no zone either
			peer = netip.AddrPortFrom(peer.Addr().WithZone(""), peer.Port())
			p.batch = append(p.batch, Datagram{
				room: p.receiver.Room(i), n: len(p.receiver.Payload(i)), peer: peer,
			})
		}
		if failed || events&unix.EPOLLERR != 0 {
			p.batch = s.appendICMP(p.batch, fd)
		}
		return nil
	})
	if len(p.batch) > 0 {
		s.receiver.ReceiveBatch(p.batch, now)
	}
	return len(p.batch)
}

// appendICMP appends the ICMP messages of the error queue of a socket that are for clients, or only counts them. It
// reads at most maxErrors messages, because a peer may cause them faster than they are read.
func (s *kernelSocket) appendICMP(batch []Datagram, fd int) []Datagram {
	more := true
	for n := 0; more && n < maxErrors; n++ {
		var d Datagram
		d.icmp, d.peer, more = nextICMP(fd)
		switch {
		case !d.peer.IsValid():
		case s.indicate:
			batch = append(batch, d)
		default:
			s.receiver.Unreachable(d.peer)
		}
	}
	return batch
}

func (p *poller) close() error {
	err := p.epoll.Close()
	p.mu.Lock()
	running := p.running
	p.mu.Unlock()
	if running {
		<-p.done
	}
	return errors.Join(err, p.receiver.Close())
}
