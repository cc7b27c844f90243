package listener

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// paced is a handshake of an address.
func (p *pacer) paced(addr string) *pace {
	return &pace{pacer: p, place: newCrowd(4096, 4096).place(netip.MustParseAddr(addr), func() {})}
}

// T-14: handshakes compute on a fourth of the cores, however many want to.
func TestHandshakesComputeOnAFourthOfTheCores(t *testing.T) {
	for _, cores := range []int{1, 2, 3, 4, 8, 64} {
		synctest.Test(t, func(t *testing.T) {
			p := newPacer(cores)
			const lasting, turn = 10 * time.Second, time.Millisecond
			var computed time.Duration
			var mu sync.Mutex
			stop := make(chan struct{})
			time.AfterFunc(lasting, func() { close(stop) })
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					h := p.paced(fmt.Sprint("192.0.2.", i))
					for h.compute(stop) {
						time.Sleep(turn)
						h.rest()
						select {
						case <-stop:
							return
						default:
						}
						mu.Lock()
						computed += turn
						mu.Unlock()
					}
				})
			}
			all.Wait()
			share, want := float64(computed)/float64(lasting)/float64(cores), 0.25
			if cores == 64 {
				want = 16.0 / 64
			}
			if share < want*0.9 || share > want*1.1 {
				t.Errorf("%d cores: handshakes compute on %.2f of them, want %.2f", cores, share, want)
			}
		})
	}
}

// T-14: sources get their turns one after the other, and one that floods waits for itself.
func TestSourcesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := newPacer(4), make(chan struct{})
		first := p.paced("192.0.2.9")
		first.compute(stop)
		var order []string
		var mu sync.Mutex
		for _, addr := range []string{"198.51.100.1", "198.51.100.1", "198.51.100.1", "198.51.100.1", "192.0.2.1", "10.0.0.1", "192.0.2.1", "192.0.2.2"} {
			go func() {
				h := p.paced(addr)
				if h.compute(stop) {
					mu.Lock()
					order = append(order, addr)
					mu.Unlock()
					h.end()
				}
			}()
			synctest.Wait()
		}
		first.end()
		synctest.Wait()
		want := []string{"198.51.100.1", "192.0.2.1", "10.0.0.1", "192.0.2.2", "198.51.100.1", "192.0.2.1", "198.51.100.1", "198.51.100.1"}
		if !slices.Equal(order, want) {
			t.Errorf("turns of %v, want %v", order, want)
		}
		if p.free != 1 || p.count != 0 || len(p.of) != 0 || p.queue.Len() != 0 {
			t.Errorf("left: %d free, %d waiting, %d sources, %d in the queue", p.free, p.count, len(p.of), p.queue.Len())
		}
	})
}

// T-14: so many handshakes wait and no more; those of a flood are refused, and not those of others.
func TestWaitingHandshakesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := newPacer(4), make(chan struct{})
		p.paced("192.0.2.9").compute(stop)
		var mu sync.Mutex
		waiting := func(addr string, times int) int {
			refused := 0
			for range times {
				go func() {
					if !p.paced(addr).compute(stop) {
						mu.Lock()
						refused++
						mu.Unlock()
					}
				}()
			}
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return times - refused
		}
		if n := waiting("198.51.100.1", 500); n != eachWaiting {
			t.Errorf("%d handshakes of one source wait, want %d", n, eachWaiting)
		}
		if n := waiting("10.0.0.1", 5000); n != mostWaiting/2 {
			t.Errorf("%d handshakes of a private source beside wait, want %d", n, mostWaiting/2)
		}
		if n := waiting("192.0.2.1", 1); n != 1 {
			t.Error("a third source is refused")
		}
		close(stop)
		synctest.Wait()
		if p.count != 0 || len(p.of) != 0 || p.queue.Len() != 0 {
			t.Errorf("left: %d waiting, %d sources, %d in the queue", p.count, len(p.of), p.queue.Len())
		}
		time.Sleep(longestTurn + time.Second) // for the first, which never rests
		if p.mu.Lock(); p.free != 1 {
			t.Error("a turn that never ends blocks the others")
		}
		p.mu.Unlock()
	})
}
