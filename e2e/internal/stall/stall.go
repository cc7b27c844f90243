// Package stall measures how long the machine did not run this process, so that a time limit in a test can exclude it.
package stall

import (
	"sync"
	"time"
)

// interval is the time between two ticks. A tick that is late by more than that is a stall.
const interval = 20 * time.Millisecond

// Monitor detects stalls between Start and Stop.
type Monitor struct {
	stop    func()
	running sync.WaitGroup

	mu     sync.Mutex
	last   time.Time // time of the last tick
	stalls []stall
}

// stall is a period in which the process did not run.
type stall struct {
	began  time.Time
	lasted time.Duration
}

// Start begins to detect stalls.
func Start() *Monitor {
	ticker, stop := time.NewTicker(interval), make(chan struct{})
	m := &Monitor{last: time.Now(), stop: sync.OnceFunc(func() { ticker.Stop(); close(stop) })}
	m.running.Go(func() {
		for {
			select {
			case <-ticker.C:
			case <-stop:
				return
			}
			m.tick(time.Now())
		}
	})
	return m
}

// Stop ends the detection. No other method may be called after it.
func (m *Monitor) Stop() {
	m.stop()
	m.running.Wait()
}

// tick records that the process runs at this moment, and returns all stalls so far.
func (m *Monitor) tick(now time.Time) []stall {
	m.mu.Lock()
	defer m.mu.Unlock()
	if late := now.Sub(m.last) - interval; late > interval {
		m.stalls = append(m.stalls, stall{m.last.Add(interval), late})
	}
	m.last = now
	return m.stalls
}

// Stalled returns the total length of the stalls that overlap the given period. The call itself counts as a tick,
// because it may be the first code to run after a stall.
func (m *Monitor) Stalled(from, to time.Time) (total time.Duration) {
	for _, s := range m.tick(time.Now()) {
		if s.began.Before(to) && s.began.Add(s.lasted).After(from) {
			total += s.lasted
		}
	}
	return total
}

// Since returns the time since a moment, without stalls.
func (m *Monitor) Since(began time.Time) time.Duration {
	took := time.Since(began)
	return took - m.Stalled(began, began.Add(took))
}

// Worst returns the length of the longest stall.
func (m *Monitor) Worst() (longest time.Duration) {
	for _, s := range m.tick(time.Now()) {
		longest = max(longest, s.lasted)
	}
	return longest
}
