package discovery

import (
	"cmp"
	"maps"
	"net/netip"
	"sync"
	"time"
)

// Limits are what clients may cost a Server.
type Limits struct {
	// Streams is how many may be open at once; 0 means 5,000.
	Streams int
	// PodStreams is how many of them one pod may have; 0 means 4. A dataplane needs one, and a second one while it connects anew.
	PodStreams int
	// Rate is how many requests an address may make in a second, a /64 in IPv6, and Burst how many at once; 0 means 10 and 20.
	Rate, Burst int
	// Loopback holds the processes of this host to the rate as well.
	Loopback bool
}

func (l Limits) orUsual() Limits {
	l.Streams, l.PodStreams, l.Rate, l.Burst = cmp.Or(l.Streams, 5_000), cmp.Or(l.PodStreams, 4), cmp.Or(l.Rate, 10), cmp.Or(l.Burst, 20)
	return l
}

// sourceLimit is how many addresses are told apart. Beyond it the ones that are new share what one of them may do.
const sourceLimit = 10_000

// pace counts the requests of addresses.
type pace struct {
	interval, lead time.Duration
	loopback       bool

	mu sync.Mutex
	// due is when the requests that an address has made so far would all have been made at the rate.
	due map[netip.Prefix]time.Time
	// swept is when room was made last.
	swept time.Time
}

func newPace(l Limits) *pace {
	interval := time.Second / time.Duration(l.Rate)
	return &pace{interval: interval, lead: interval * time.Duration(l.Burst-1), loopback: l.Loopback, due: map[netip.Prefix]time.Time{}}
}

// allows tells whether an address, HOST:PORT, may make one more request.
func (p *pace) allows(remote string, now time.Time) bool {
	at, err := netip.ParseAddrPort(remote)
	if err != nil || at.Addr().IsLoopback() && !p.loopback {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	source := p.sourceOf(at.Addr().Unmap(), now)
	due := p.due[source]
	if due.Before(now) {
		due = now
	}
	if due.Sub(now) > p.lead {
		return false
	}
	p.due[source] = due.Add(p.interval)
	return true
}

// sourceOf returns the entry of an address. Those that have fallen silent make room, which is looked for once a second: to look is work as well.
func (p *pace) sourceOf(a netip.Addr, now time.Time) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	source, _ := a.WithZone("").Prefix(bits) // no error: the length fits the family
	if _, known := p.due[source]; known || len(p.due) < sourceLimit {
		return source
	}
	if now.Sub(p.swept) >= time.Second {
		p.swept = now
		maps.DeleteFunc(p.due, func(_ netip.Prefix, due time.Time) bool { return due.Before(now) })
	}
	if len(p.due) < sourceLimit {
		return source
	}
	return netip.Prefix{}
}
