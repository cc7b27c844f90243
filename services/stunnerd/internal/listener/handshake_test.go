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

// turnsOf returns the CPU turns of a handshake from an address.
func (p *handshakeLimiter) turnsOf(addr string) *handshakeTurns {
	return &handshakeTurns{limiter: p, slot: newConnLimiter(4096, 4096).slot(netip.MustParseAddr(addr), func() {})}
}

// T-14: handshakes use at most a quarter of the cores, for any number of cores.
func TestHandshakesComputeOnAFourthOfTheCores(t *testing.T) {
	for _, cores := range []int{1, 2, 3, 4, 8, 64} {
		synctest.Test(t, func(t *testing.T) {
			p := newHandshakeLimiter(cores)
			const lasting, turn = 10 * time.Second, time.Millisecond
			var computed time.Duration
			var mu sync.Mutex
			stop := make(chan struct{})
			time.AfterFunc(lasting, func() { close(stop) })
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					h := p.turnsOf(fmt.Sprint("192.0.2.", i))
					for h.acquire(stop) {
						time.Sleep(turn)
						h.release()
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

// T-14: sources get CPU turns in rotation, so a source that floods delays only itself.
func TestSourcesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := newHandshakeLimiter(4), make(chan struct{})
		first := p.turnsOf("192.0.2.9")
		first.acquire(stop)
		var order []string
		var mu sync.Mutex
		for _, addr := range []string{
			"198.51.100.1", "198.51.100.1", "198.51.100.1", "198.51.100.1", "192.0.2.1", "10.0.0.1", "192.0.2.1",
			"192.0.2.2",
		} {
			go func() {
				h := p.turnsOf(addr)
				if h.acquire(stop) {
					mu.Lock()
					order = append(order, addr)
					mu.Unlock()
					h.finish()
				}
			}()
			synctest.Wait()
		}
		first.finish()
		synctest.Wait()
		want := []string{
			"198.51.100.1", "192.0.2.1", "10.0.0.1", "192.0.2.2", "198.51.100.1", "192.0.2.1", "198.51.100.1",
			"198.51.100.1",
		}
		if !slices.Equal(order, want) {
			t.Errorf("turns of %v, want %v", order, want)
		}
		if p.free != 1 || p.count != 0 || len(p.of) != 0 || p.queue.Len() != 0 {
			t.Errorf(
				"left: %d free, %d waiting, %d sources, %d in the queue", p.free, p.count, len(p.of), p.queue.Len(),
			)
		}
	})
}

// T-14: the number of waiting handshakes is bounded. Only handshakes of a source that floods are refused.
func TestWaitingHandshakesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := newHandshakeLimiter(4), make(chan struct{})
		p.turnsOf("192.0.2.9").acquire(stop)
		var mu sync.Mutex
		waiting := func(addr string, times int) int {
			refused := 0
			for range times {
				go func() {
					if !p.turnsOf(addr).acquire(stop) {
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
		time.Sleep(longestTurn + time.Second) // for the first handshake, which does not call release
		if p.mu.Lock(); p.free != 1 {
			t.Error("a turn that never ends blocks the others")
		}
		p.mu.Unlock()
	})
}
