package server

import (
	"log/slog"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// T-12: source quotas apply only if the config sets them.
func TestSourceQuotaIsThatOfTheConfig(t *testing.T) {
	for _, quota := range []int{0, 1, 100} {
		if got := bounds(config.Admin{SourceQuota: quota}, session.Amounts{}).SourceSessions; got != quota {
			t.Errorf("source_quota %d: %d sessions of a source", quota, got)
		}
	}
}

// while there are no sessions, the capacity is computed for the transport that needs the most memory.
func TestCapacityIsThatOfTheTransport(t *testing.T) {
	const places, memory = 8192, 376 << 20
	for _, tc := range []struct {
		protocols []config.Protocol
		want      int
	}{
		{nil, places},
		{[]config.Protocol{config.TURNUDP}, places},
		{[]config.Protocol{config.TURNTCP, config.TURNUDP}, places},
		{[]config.Protocol{config.TURNTLS, config.TURNUDP}, int(memory / session.PriceOf(config.TURNTLS, 0, 0))},
		{[]config.Protocol{config.TURNTLS, config.TURNDTLS}, int(memory / session.PriceOf(config.TURNDTLS, 0, 0))},
	} {
		s, err := New(Options{Capacity: places, Memory: memory, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range tc.protocols {
			s.running.Listeners = append(s.running.Listeners, config.Listener{Protocol: p})
		}
		if got := s.Capacity(); got != tc.want {
			t.Errorf("listeners %v: capacity %d, want %d", tc.protocols, got, tc.want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
