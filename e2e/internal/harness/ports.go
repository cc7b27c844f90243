package harness

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// Loopback is the address that all programs listen on.
const Loopback = "127.0.0.1"

// FreePort returns a port that is free for UDP and TCP. It is below the kernel's ephemeral range, so that no relay
// socket takes the port before it is bound.
func FreePort() (int, error) {
	const first, count = 18000, 14000
	for range 100 {
		port := first + rand.IntN(count)
		if claim(port) {
			return port, nil
		}
	}
	return 0, errors.New("find free port: none is free for both UDP and TCP")
}

// FreePair returns the first of two adjacent ports that are free for UDP and TCP.
func FreePair() (first int, err error) {
	for {
		if first, err = FreePort(); err != nil || claim(first+1) {
			return first, err
		}
	}
}

// claims holds the sockets of the ports that this process has handed out, so that they are not closed before it ends.
var claims sync.Map

// claim reserves a port if it is free. An abstract Unix socket in the network namespace marks the port until this
// process ends, so that another suite that runs at the same time does not get it before it is bound.
func claim(port int) bool {
	mark, err := net.Listen("unix", "@stunner-port-"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	if !isFree(port) {
		mark.Close()
		return false
	}
	claims.Store(port, mark)
	return true
}

// isFree reports whether a port can be bound on every address, for UDP and for TCP. It holds the fork lock, so that no
// program starts meanwhile. A forked process has copies of the sockets until it executes its program. The copies would
// keep the port in use after the sockets are closed here.
func isFree(port int) bool {
	checkPidfd()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	addr := ":" + strconv.Itoa(port)
	stream, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer stream.Close()
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	packets.Close()
	return true
}

// checkPidfd lets package os check once whether the kernel has process descriptors. Its check clones this process
// without the fork lock, and would otherwise happen when the first program starts.
var checkPidfd = sync.OnceFunc(func() { _, _ = os.FindProcess(os.Getpid()) })

// Ports are the ports of a stack, all on the loopback address.
type Ports struct {
	Discovery  int
	Auth       int
	AuthHealth int // probes and metrics of the auth service
	Signalling int // signalling of the echo peer
	TURN       int // both listeners of the quickstart's Gateway
	Media      int // WebRTC media of the echo peer
	Datagrams  int // UDP echo of the echo peer
}

// quickstart returns the ports that docs/examples/quickstart uses.
func quickstart() Ports {
	return Ports{
		Discovery: 13478, Auth: 8088, AuthHealth: 8089, Signalling: 7000, TURN: 3478, Media: 7001, Datagrams: 7002,
	}
}

// each returns pointers to all ports of p.
func (p *Ports) each() []*int {
	return []*int{&p.Discovery, &p.Auth, &p.AuthHealth, &p.Signalling, &p.TURN, &p.Media, &p.Datagrams}
}

// FreePorts returns free ports for tests. None of them is a port of the quickstart.
func FreePorts() (p Ports, err error) {
	err = p.replace(func(int) bool { return true })
	return p, err
}

// UsualPorts returns the ports of the quickstart. Ports in use are replaced by free ports. taken is the number of
// replaced ports.
func UsualPorts() (p Ports, taken int, err error) {
	p = quickstart()
	err = p.replace(func(port int) bool { return !isFree(port) })
	usual := quickstart()
	for i, port := range p.each() {
		if *port != *usual.each()[i] {
			taken++
		}
	}
	return p, taken, err
}

// replace replaces each port for which must returns true by a free port. The two media ports of the echo peer stay
// adjacent, because the quickstart's route names them as one range.
func (p *Ports) replace(must func(port int) bool) (err error) {
	for _, port := range []*int{&p.Discovery, &p.Auth, &p.AuthHealth, &p.Signalling, &p.TURN} {
		if must(*port) {
			if *port, err = FreePort(); err != nil {
				return err
			}
		}
	}
	if !must(p.Media) && !must(p.Datagrams) {
		return nil
	}
	p.Media, err = FreePair()
	p.Datagrams = p.Media + 1
	return err
}
