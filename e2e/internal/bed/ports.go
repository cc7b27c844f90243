package bed

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Loopback is where everything listens.
const Loopback = "127.0.0.1"

// FreePort returns a port that nobody uses for UDP or TCP now. It stays below the ports that the kernel hands out by itself, so
// that no relay socket takes it before it is bound.
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

// promised are the ports that this process was given. Whoever has one has not always bound it when the next one is looked for.
var promised sync.Map

// claim takes a port that is free, once.
func claim(port int) bool {
	_, given := promised.LoadOrStore(port, true)
	return !given && isFree(port)
}

// isFree tells whether a port can be bound on every address, for UDP and for TCP.
func isFree(port int) bool {
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

// Ports are where the parts of a stack listen, all on the loopback address.
type Ports struct {
	Discovery  int
	Auth       int
	AuthHealth int // probes and metrics of the auth service
	Signalling int // of the echo peer
	TURN       int // both listeners of the quickstart's Gateway
	Media      int // of the echo peer
	Datagrams  int // of the echo peer
}

// quickstart returns the ports that docs/examples/quickstart is written for.
func quickstart() Ports {
	return Ports{Discovery: 13478, Auth: 8088, AuthHealth: 8089, Signalling: 7000, TURN: 3478, Media: 7001, Datagrams: 7002}
}

// each returns pointers to all ports of p.
func (p *Ports) each() []*int {
	return []*int{&p.Discovery, &p.Auth, &p.AuthHealth, &p.Signalling, &p.TURN, &p.Media, &p.Datagrams}
}

// FreePorts returns ports that are free, for tests: none of them is the one that a user would see.
func FreePorts() (p Ports, err error) {
	err = p.replace(func(int) bool { return true })
	return p, err
}

// UsualPorts returns the ports of the quickstart, with a free one in the place of each that is taken, and how many these are.
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

// replace puts free ports in the place of those that must go. The two media ports of the echo peer stay neighbours, because the
// quickstart's route names them as one range.
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
	for {
		if p.Media, err = FreePort(); err != nil {
			return err
		}
		if p.Datagrams = p.Media + 1; claim(p.Datagrams) {
			return nil
		}
	}
}
