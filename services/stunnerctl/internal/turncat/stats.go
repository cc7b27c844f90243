package turncat

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Stats count the work of all clients. It is safe for concurrent use.
type Stats struct {
	Clients, Active, Refused                                   atomic.Int64
	SentDatagrams, SentBytes, ReceivedDatagrams, ReceivedBytes atomic.Int64
	// Dropped counts the datagrams that turncat has dropped because a client or the server was too slow.
	Dropped atomic.Int64
	// Unreturned are bytes that the peer did not return, with PaceEcho.
	Unreturned        atomic.Int64
	Allocations, Lost atomic.Int64

	mu   sync.Mutex
	rtts []time.Duration // the latest
}

const maxRTTs = 4096

// rtt records the duration of a round trip to the TURN server.
func (s *Stats) rtt(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rtts) == maxRTTs {
		s.rtts = slices.Delete(s.rtts, 0, maxRTTs/2)
	}
	s.rtts = append(s.rtts, d)
}

// RTT returns the median and the maximum of the latest round trips to the TURN server, or 0 if there are none.
func (s *Stats) RTT() (median, most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rtts) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(s.rtts))
	return sorted[len(sorted)/2], sorted[len(sorted)-1]
}

// String returns a table of the statistics.
func (s *Stats) String() string {
	median, most := s.RTT()
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return fmt.Sprintf(`clients      %d, active %d, refused %d
sent         %d datagrams, %d bytes
received     %d datagrams, %d bytes
dropped      %d datagrams
unreturned   %d bytes
allocations  %d, lost %d
server RTT   %.2f ms median, %.2f ms max
`, s.Clients.Load(), s.Active.Load(), s.Refused.Load(), s.SentDatagrams.Load(), s.SentBytes.Load(),
		s.ReceivedDatagrams.Load(), s.ReceivedBytes.Load(), s.Dropped.Load(), s.Unreturned.Load(),
		s.Allocations.Load(), s.Lost.Load(), ms(median), ms(most))
}
