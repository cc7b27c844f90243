package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

func portRange(first, last uint16) config.PortRange {
	return config.PortRange{First: first, Last: last}
}

// freeRange returns a range of n unused ports that starts with an even one.
func freeRange(t *testing.T, n int) config.PortRange {
	t.Helper()
	first := uint16(testport.Range(t, n))
	return portRange(first, first+uint16(n)-1)
}

// T-A16: all ports of the range are assigned, each once, in random order, and a further request fails at once.
func TestPortsOfARangeAreGivenOutOnce(t *testing.T) {
	const n = 32
	r := freeRange(t, n)
	orders := map[string]bool{}
	for range 3 {
		network := Kernel{Ports: NewPorts(r)}
		var ports []uint16
		var open []Socket
		for range n {
			s, err := network.Open(loopback, 0)
			if err != nil {
				t.Fatal(err)
			}
			ports, open = append(ports, s.Port()), append(open, s)
		}
		orders[fmt.Sprint(ports)] = true
		began := time.Now()
		if _, err := network.Open(loopback, 0); !errors.Is(err, ErrNoPort) || time.Since(began) > 10*time.Second {
			t.Errorf("one more: %v after %v", err, time.Since(began))
		}
		six, err := network.Open(netip.IPv6Loopback(), 0)
		if err != nil {
			t.Errorf("the other family has no ports: %v", err)
		} else {
			open = append(open, six)
		}
		closeAll(t, open...)
		slices.Sort(ports)
		if ports = slices.Compact(ports); len(ports) != n || ports[0] != r.First || ports[n-1] != r.Last {
			t.Errorf(
				"%d different ports, from %d to %d, want those of %s", len(ports), ports[0], ports[len(ports)-1], r,
			)
		}
	}
	if len(orders) != 3 {
		t.Errorf("%d orders in 3 rounds: ports can be guessed", len(orders))
	}
}

// a port is free again one second after its socket was closed. Closing a socket twice frees its port once.
func TestPortsAreReusedAfterADelay(t *testing.T) {
	network := Kernel{Ports: NewPorts(freeRange(t, 2))}
	a, errA := network.Open(loopback, 0)
	b, errB := network.Open(loopback, 0)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	closed := time.Now()
	closeAll(t, a)
	_ = a.Close()
	for {
		s, err := network.Open(loopback, 0)
		if passed := time.Since(closed); err == nil {
			if passed < time.Second || s.Port() != a.Port() {
				t.Errorf("port %d after %v, want %d after 1s", s.Port(), passed, a.Port())
			}
			if _, err := network.Open(loopback, 0); !errors.Is(err, ErrNoPort) {
				t.Errorf("one more: %v", err)
			}
			closeAll(t, s, b)
			return
		} else if !errors.Is(err, ErrNoPort) || passed > 3*time.Second {
			t.Fatalf("after %v: %v", passed, err)
		}
	}
}

// ports of other processes are skipped, and tried again later.
func TestPortsOfOtherProcessesArePassedOver(t *testing.T) {
	r := freeRange(t, 8)
	var others []Socket
	for _, port := range []uint16{r.First, r.First + 1, r.First + 2, r.First + 4, r.First + 5, r.First + 7} {
		s, err := Kernel{}.Open(loopback, port)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, s)
	}
	network := Kernel{Ports: NewPorts(r)}
	var got []uint16
	for range 2 {
		s, err := network.Open(loopback, 0)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s.Port())
		defer s.Close()
	}
	if slices.Sort(got); !slices.Equal(got, []uint16{r.First + 3, r.First + 6}) {
		t.Errorf("got %v of %s", got, r)
	}
	if _, err := network.Open(loopback, 0); !errors.Is(err, ErrNoPort) {
		t.Errorf("one more: %v", err)
	}
	closeAll(t, others...)
	network.Ports.families[true].freeDelayed(time.Now().Add(reuseDelay))
	s, err := network.Open(loopback, 0)
	if err != nil {
		t.Fatalf("when the others have gone: %v", err)
	}
	closeAll(t, s)
}

// T-A7: a free pair of ports is found if one exists. An even port whose next port is in use is not a pair.
func TestPairsOfARange(t *testing.T) {
	r := freeRange(t, 8)
	network := Kernel{Ports: NewPorts(r)}
	single, err := network.Open(loopback, r.First+2)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := Kernel{}.Open(loopback, r.First+5) // another process uses the port
	if err != nil {
		t.Fatal(err)
	}
	open := []Socket{single, taken}
	var pairs []uint16
	for range 2 {
		even, odd, err := OpenEven(network, loopback, true)
		if err != nil {
			t.Fatal(err)
		}
		if even.Port()%2 != 0 || odd.Port() != even.Port()+1 {
			t.Errorf("pair %d, %d", even.Port(), odd.Port())
		}
		pairs, open = append(pairs, even.Port()), append(open, even, odd)
	}
	if slices.Sort(pairs); !slices.Equal(pairs, []uint16{r.First, r.First + 6}) {
		t.Errorf("pairs at %v of %s", pairs, r)
	}
	if even, odd, err := OpenEven(network, loopback, true); !errors.Is(err, ErrNoPort) || even != nil || odd != nil {
		t.Errorf("one more pair: %v, %v, %v", even, odd, err)
	}
	network.Ports.families[true].freeDelayed(time.Now().Add(reuseDelay))
	even, _, err := OpenEven(network, loopback, false)
	if err != nil || even.Port() != r.First+4 {
		t.Fatalf("an even port alone: %v, %v", even, err)
	}
	closeAll(t, append(open, even)...)
}

// concurrent clients get different ports, and all ports are free again afterwards.
func TestPortsUnderConcurrency(t *testing.T) {
	const n = 100
	p := NewPorts(portRange(40_000, 40_000+n-1))
	var mu sync.Mutex
	held := map[uint16]bool{}
	var group sync.WaitGroup
	for range 2 * n {
		group.Go(func() {
			if port, ok := p.take(loopback); ok {
				mu.Lock()
				defer mu.Unlock()
				if held[port] {
					t.Errorf("port %d is given out twice", port)
				}
				held[port] = true
			}
		})
	}
	group.Wait()
	if len(held) != n {
		t.Errorf("%d ports of %d are given out", len(held), n)
	}
}

// BenchmarkOpen compares the cost of a port of a range with the cost of a port that the kernel selects.
func BenchmarkOpen(b *testing.B) {
	for name, network := range map[string]Kernel{"kernel": {}, "range": {Ports: NewPorts(portRange(20_000, 59_999))}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s, err := network.Open(loopback, 0)
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
					b.Fatal(err)
				}
				if network.Ports != nil {
					network.Ports.families[true].freeDelayed(time.Now().Add(reuseDelay))
				}
			}
		})
	}
}
