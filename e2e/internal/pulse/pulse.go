// Package pulse tells when the machine stood still, so that what a program does in time is not judged by what its neighbours take.
package pulse

import (
	"sync"
	"time"
)

// pace is the pause between two beats, and how late one may be: less is nobody's stall.
const pace = 20 * time.Millisecond

// Pulse beats from Start to Stop.
type Pulse struct {
	stop    func()
	beating sync.WaitGroup

	mu     sync.Mutex
	last   time.Time // when the machine was seen to run
	stalls []stall
}

// stall is a time in which the machine stood still.
type stall struct {
	began  time.Time
	lasted time.Duration
}

// Start begins to watch the machine.
func Start() *Pulse {
	tick, stop := time.NewTicker(pace), make(chan struct{})
	p := &Pulse{last: time.Now(), stop: sync.OnceFunc(func() { tick.Stop(); close(stop) })}
	p.beating.Go(func() {
		for {
			select {
			case <-tick.C:
			case <-stop:
				return
			}
			p.beat(time.Now())
		}
	})
	return p
}

// Stop ends the watch. Nobody asks any more then.
func (p *Pulse) Stop() {
	p.stop()
	p.beating.Wait()
}

// beat notes that the machine runs, and returns when it did not.
func (p *Pulse) beat(now time.Time) []stall {
	p.mu.Lock()
	defer p.mu.Unlock()
	if late := now.Sub(p.last) - pace; late > pace {
		p.stalls = append(p.stalls, stall{p.last.Add(pace), late})
	}
	p.last = now
	return p.stalls
}

// Stalled is how long the stalls have lasted, all in all, that there were between two moments. Whoever asks is a beat too: he may be the first to
// run after a stall.
func (p *Pulse) Stalled(from, to time.Time) (total time.Duration) {
	for _, s := range p.beat(time.Now()) {
		if s.began.Before(to) && s.began.Add(s.lasted).After(from) {
			total += s.lasted
		}
	}
	return total
}

// Since is the time since a moment, without what the machine stood still.
func (p *Pulse) Since(began time.Time) time.Duration {
	took := time.Since(began)
	return took - p.Stalled(began, began.Add(took))
}

// Worst is the longest time that the machine has stood still.
func (p *Pulse) Worst() (longest time.Duration) {
	for _, s := range p.beat(time.Now()) {
		longest = max(longest, s.lasted)
	}
	return longest
}
