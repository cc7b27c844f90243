package meter

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Stats reads the traffic counters at the time now.
func (t *Traffic) Stats(now time.Time) inspection.Stats {
	return inspection.Stats{Rx: t.Rx.count(now), Tx: t.Tx.count(now)}
}

func (f *Flow) count(now time.Time) inspection.Count {
	return inspection.Count{Packets: f.Packets.Load(), Bytes: f.Bytes.Load(), Timestamp: now.UnixNano()}
}
