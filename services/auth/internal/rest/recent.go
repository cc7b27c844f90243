package rest

import (
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// RecentMinutes is the number of minutes over which refusals are counted for the operator.
const RecentMinutes = 10

// maxLines is the number of log lines a minute with one reason. A client could otherwise fill the log with requests that
// are refused. Further lines have level DEBUG.
const maxLines = 20

// recent counts the requests of the last minutes by the reason of their refusal. Granted requests have the empty
// reason.
type recent struct {
	mu     sync.Mutex
	counts map[access.Reason]*minutes
}

// minutes are the requests with one reason.
type minutes struct {
	current    int64 // the minute since 1970 that was counted last
	counts     [RecentMinutes]uint64
	suppressed uint64 // the refusals that were suppressed since the last log line
}

// advance makes a minute the current one. The counts of the minutes in between are zero.
func (m *minutes) advance(to int64) {
	for i := max(m.current+1, to-RecentMinutes+1); i <= to; i++ {
		m.counts[i%RecentMinutes] = 0
	}
	m.current = max(m.current, to)
}

// add counts a refusal. If its log line is within maxLines, it returns how many lines were suppressed before.
func (r *recent) add(reason access.Reason, now time.Time) (suppressed uint64, within bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.counts[reason]
	if m == nil {
		m = &minutes{}
		r.counts[reason] = m
	}
	m.advance(now.Unix() / 60)
	at := m.current % RecentMinutes
	m.counts[at]++
	if m.counts[at] > maxLines {
		m.suppressed++
		return 0, false
	}
	suppressed, m.suppressed = m.suppressed, 0
	return suppressed, true
}

// total returns the refusals of the last RecentMinutes by reason.
func (r *recent) total(now time.Time) map[access.Reason]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[access.Reason]uint64{}
	for reason, m := range r.counts {
		m.advance(now.Unix() / 60)
		for _, n := range m.counts {
			all[reason] += n
		}
		if all[reason] == 0 {
			delete(all, reason)
		}
	}
	return all
}
