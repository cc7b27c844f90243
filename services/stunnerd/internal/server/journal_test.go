package server

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
)

// After an error of the journal, the sessions that are not in it count as lost until a later write stores them, or
// until they end.
func TestLostSessionsAreAProblemUntilTheyAreStored(t *testing.T) {
	var passed atomic.Int64
	o := journal.Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Now: func() time.Time {
		return time.Now().Add(time.Duration(passed.Load()))
	}}
	former, _ := journal.Open(o)
	b := newEmptyFixture(t)
	b.opt.Journal, _ = journal.Open(o) // fails, because the folder is in use
	t.Cleanup(func() {
		if err := b.opt.Journal.Close(); err != nil {
			t.Error(err)
		}
	})
	b.apply(b.config)
	expect := func(when string, unstored int, lost uint64, problem string) {
		t.Helper()
		j := b.Journal()
		if n := b.Unstored(); n != unstored || j.Lost != lost || !strings.Contains(j.Problem, problem) ||
			problem == "" && j.Problem != "" {
			t.Errorf("%s: %d unstored, %+v; want %d unstored, %d lost and the problem %q", when, n, j, unstored, lost, problem)
		}
	}
	lost := b.mustDial("udp", "ann", "first")
	b.mustDial("udp", "ann", "first")
	b.mustDial("tcp", "ann", "first")
	expect("the folder is in use", 3, 2, "another process")
	if err := lost.relay.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "a lost session ends", func() bool { return b.Sessions().Len() == 2 })
	expect("a lost session has ended", 2, 1, "another process")
	if err := former.Close(); err != nil {
		t.Fatal(err)
	}
	passed.Store(int64(time.Minute))
	b.mustDial("udp", "ann", "first")
	within(t, "all sessions are stored", func() bool { return b.Unstored() == 1 })
	expect("a later session is stored", 1, 0, "")
}
