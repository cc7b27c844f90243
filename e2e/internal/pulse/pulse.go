// Package pulse detects times in which the machine did not run this process, so that a time limit in a test can exclude
// them.
package pulse

import (
	"sync"
	"time"
)

// pace is the interval between two beats. A beat that is late by more than pace is a stall.
const pace = 20 * time.Millisecond

// Pulse detects stalls between Start and Stop.
type Pulse struct {
	stop    func()
	beating sync.WaitGroup

	mu     sync.Mutex
	last   time.Time // time of the last beat
	stalls []stall
}

// stall is a period in which the process did not run.
type stall struct {
	began  time.Time
	lasted time.Duration
}

// Start begins to detect stalls.
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

// Stop ends the detection. No other method may be called after it.
func (p *Pulse) Stop() {
	p.stop()
	p.beating.Wait()
}

// beat records that the process runs now, and returns all stalls so far.
func (p *Pulse) beat(now time.Time) []stall {
	p.mu.Lock()
	defer p.mu.Unlock()
	if late := now.Sub(p.last) - pace; late > pace {
		p.stalls = append(p.stalls, stall{p.last.Add(pace), late})
	}
	p.last = now
	return p.stalls
}

// Stalled returns the total length of the stalls that overlap the given period. The call itself counts as a beat,
// because it may be the first code to run after a stall.
func (p *Pulse) Stalled(from, to time.Time) (total time.Duration) {
	for _, s := range p.beat(time.Now()) {
		if s.began.Before(to) && s.began.Add(s.lasted).After(from) {
			total += s.lasted
		}
	}
	return total
}

// Since returns the time since a moment, without stalls.
func (p *Pulse) Since(began time.Time) time.Duration {
	took := time.Since(began)
	return took - p.Stalled(began, began.Add(took))
}

// Worst returns the length of the longest stall.
func (p *Pulse) Worst() (longest time.Duration) {
	for _, s := range p.beat(time.Now()) {
		longest = max(longest, s.lasted)
	}
	return longest
}
