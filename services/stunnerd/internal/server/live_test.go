package server

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

func TestServerIsNotLiveWhileATaskIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close() // after the lock is released
		task := s.engine.Tasks()[0]
		task.Begin()
		s.mu.Lock() // as a config change that waits for a stuck goroutine
		defer s.mu.Unlock()
		for range 2 {
			if err := s.Live(); err != nil {
				t.Errorf("live at once: %v", err)
			}
			time.Sleep(watch.StuckAfter / 2)
		}
		if err := s.Live(); err == nil || !strings.Contains(err.Error(), "10s") {
			t.Errorf("after %v: %v", watch.StuckAfter, err)
		}
		task.End()
		if err := s.Live(); err != nil {
			t.Errorf("when it is back: %v", err)
		}
	})
}

// A stuck reader of forwarded datagrams is detected too.
func TestServerWatchesTheReaderOfForwardedDatagrams(t *testing.T) {
	s, err := New(Options{Log: slog.New(slog.DiscardHandler), Forward: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, task := range s.forwarder.Tasks() {
		if !slices.Contains(*s.tasks.Load(), task) {
			t.Error("Live does not check the reader")
		}
	}
	if len(s.forwarder.Tasks()) == 0 {
		t.Error("nothing is forwarded")
	}
}
