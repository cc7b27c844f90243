package journal

import (
	"bytes"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unlimited is the room of a volume that is never full.
func unlimited(string) (int64, error) { return maxRoom, nil }

// openWithLongTimeout opens a journal without a limit on the duration of writes, because tests may run on a busy
// machine.
func openWithLongTimeout(o Options) (*Journal, Restored) { return open(o, system(time.Hour)) }

// byHand opens a journal on an unlimited volume. The journal is not compacted, and writes only when the test calls
// work.
func byHand(o Options, opener func(name string, flags int) (file, error)) (*Journal, Restored) {
	return open(o, hooks{open: opener, room: unlimited, minimum: maxSize, manual: true})
}

// flush waits until the changes are written.
func flush(j *Journal) {
	if j.manual {
		j.work()
	}
	written := make(chan struct{})
	j.After(func() { close(written) })
	<-written
}

// image returns a file with the given state, with one entry for each session.
func (s *state) image() []byte {
	b := appendCommon(appendHeader(nil), s.root, s.former)
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		b = appendSession(b, id, s.sessions[id])
	}
	return b
}

// end closes a journal.
func end(t *testing.T, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// healthy checks that a journal stores changes, after a number of errors.
func healthy(t *testing.T, j *Journal, sessions int, errors uint64) {
	t.Helper()
	flush(j)
	if s := j.Status(); s.Problem != "" || s.Sessions != sessions || s.Errors != errors {
		t.Errorf("status %+v, want %d sessions and %d errors", s, sessions, errors)
	}
}

// memory returns a folder in memory, like the state folder of a pod. If /dev/shm is not writable, it returns a
// temporary folder. On a disk a rename would wait until the file is written.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "journal")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// restore returns the restored sessions of a file, the status, and the files that remain.
func restore(t testing.TB, data []byte, now time.Time) (Restored, Status, map[string]int) {
	t.Helper()
	dir := memory(t)
	if err := os.WriteFile(filepath.Join(dir, fileName), data, 0o600); err != nil {
		t.Fatal(err)
	}
	j, r := openWithLongTimeout(Options{Dir: dir, Now: func() time.Time { return now }})
	j.Done()
	status := j.Status()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string]int{}
	list, err := os.ReadDir(dir)
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = int(info.Size())
	}
	if err != nil || status.Problem != "" || files[fileName] != int(status.Bytes) {
		t.Fatalf("%v, %+v, files %v", err, status, files)
	}
	return r, status, files
}

// A second process on a folder reports a problem and stores nothing. When the first process has ended, the second
// process uses the folder and stores all its sessions.
func TestTwoProcesses(t *testing.T) {
	dir, start := t.TempDir(), time.UnixMilli(1795470000123)
	var passed atomic.Int64
	options := Options{Dir: dir, Now: func() time.Time { return start.Add(time.Duration(passed.Load())) }}
	first, _ := openWithLongTimeout(options)
	first.Add(sample(start))
	second, r := openWithLongTimeout(options)
	if s := second.Status(); !strings.Contains(s.Problem, "another process uses the state folder") || len(r.Sessions) > 0 {
		t.Errorf("status %+v, %d sessions", s, len(r.Sessions))
	}
	second.Done()
	second.Nonces([]byte("second"))
	early := second.Add(sample(start))
	flush(second)
	if second.Stores(early) || !second.Holds(early) || second.Status().Sessions != 0 {
		t.Errorf("stored as %d, %+v", early, second.Status())
	}
	healthy(t, first, 1, 0)
	end(t, first)
	second.Permit(early, nil, start)
	flush(second)
	if second.Stores(early) {
		t.Error("the folder is tried with each change")
	}
	passed.Add(int64(retryAfter))
	id := second.Add(sample(start))
	within(t, "the second process stores its sessions", func() bool { return second.Stores(early) && second.Stores(id) })
	healthy(t, second, 2, 1)
	end(t, second)
	third, r := openWithLongTimeout(options)
	if len(r.Sessions) != 2 || r.Sessions[0].ID != early || r.Sessions[1].ID != id || string(r.NonceRoot) != "second" {
		t.Errorf("%+v", r)
	}
	end(t, third)
}

// within waits until a condition holds.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// If a process ends during the restore, the next process tries again. The third process sets the journal aside.
func TestThirdRestoreAttemptSetsTheJournalAside(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	j, _ := openWithLongTimeout(Options{Dir: dir})
	j.Add(sample(now))
	j.Nonces([]byte("root"))
	end(t, j)
	for attempt, want := range []int{1, 1, 0, 0} {
		j, r := openWithLongTimeout(Options{Dir: dir})
		if len(r.Sessions) != want {
			t.Errorf("attempt %d: %d sessions, want %d", attempt, len(r.Sessions), want)
		}
		if want == 1 && r.Sessions[0].Generation != uint32(attempt+1) {
			t.Errorf("attempt %d: generation %d", attempt, r.Sessions[0].Generation)
		}
		if attempt == 2 {
			healthy(t, j, 0, 1)
		}
		end(t, j)
	}
	if _, err := os.Stat(filepath.Join(dir, failedName)); err != nil {
		t.Error(err)
	}
	// Restores that are completed do not count.
	for range 5 {
		j, r := openWithLongTimeout(Options{Dir: dir})
		if len(r.Sessions) == 0 {
			j.Add(sample(now))
		}
		j.Done()
		healthy(t, j, 1, 0)
		end(t, j)
	}
}

// The next process gets the latest list of former authorities, without those whose time is over, and so does a process
// after that one.
func TestFormerAuthorities(t *testing.T) {
	dir, now := t.TempDir(), time.UnixMilli(1795470000123)
	options := Options{Dir: dir, Now: func() time.Time { return now }}
	former := func(realm string, valid time.Duration) session.Former {
		return session.Former{
			Authority: credential.Authority{Realm: realm, Username: "ann", Password: "p", SharedSecret: "s"},
			Replaced:  now, Until: now.Add(valid),
		}
	}
	minute, hour := former("minute", time.Minute), former("hour", time.Hour)
	j, r := openWithLongTimeout(options)
	if r.Former != nil {
		t.Errorf("a new journal has %v", r.Former)
	}
	j.Former([]session.Former{former("earlier", time.Hour)})
	flush(j)
	j.Former([]session.Former{minute, former(strings.Repeat("a", 1<<16), time.Hour), hour}) // one is too long
	end(t, j)
	for _, step := range []struct {
		after time.Duration
		want  []session.Former
	}{{0, []session.Former{minute, hour}}, {time.Minute, []session.Former{hour}}, {0, []session.Former{hour}}, {time.Hour, nil}} {
		now = now.Add(step.after)
		j, r := openWithLongTimeout(options)
		if !reflect.DeepEqual(r.Former, step.want) {
			t.Errorf("after %s: %+v, want %+v", step.after, r.Former, step.want)
		}
		end(t, j)
	}
	j, _ = openWithLongTimeout(options)
	j.Former([]session.Former{hour})
	j.Former(nil)
	end(t, j)
	now = now.Add(-time.Hour)
	j, r = openWithLongTimeout(options)
	if r.Former != nil {
		t.Errorf("after an empty list: %+v", r.Former)
	}
	end(t, j)
}

// Restored lifetimes are not extended if the wall clock was set back. Ended sessions are not restored.
func TestRestoredLifetimes(t *testing.T) {
	dir, now := t.TempDir(), time.UnixMilli(1795470000123)
	options := Options{Dir: dir, Now: func() time.Time { return now }}
	peer := netip.MustParseAddrPort("10.0.0.9:4000")
	j, _ := openWithLongTimeout(options)
	id := j.Add(sample(now)) // until 10:00
	j.Permit(id, []netip.Addr{peer.Addr()}, now.Add(5*time.Minute))
	j.Permit(id, []netip.Addr{netip.MustParseAddr("::1")}, now.Add(time.Minute))
	j.Bind(id, session.ChannelRecord{Number: 0x4000, Peer: peer, Until: now.Add(10 * time.Minute), Installed: now})
	j.Bind(id, session.ChannelRecord{Number: 0x4001, Peer: peer, Until: now.Add(time.Minute), Installed: now})
	end(t, j)
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		passed time.Duration
		want   string // remaining lifetimes
	}{
		{0, "10m0s 5m0s 1m0s 10m0s 1m0s"},
		{time.Minute - time.Millisecond, "9m0.001s 4m0.001s 1ms 9m0.001s 1ms"},
		{time.Minute, "9m0s 4m0s 9m0s"},
		{5 * time.Minute, "5m0s 5m0s"},
		{10*time.Minute - time.Millisecond, "1ms 1ms"},
		{10 * time.Minute, ""},
		{-time.Hour, "10m0s 5m0s 5m0s 10m0s 10m0s"},
	} {
		at := now.Add(row.passed)
		r, _, _ := restore(t, data, at)
		var got []string
		left := func(until time.Time) { got = append(got, until.Sub(at).String()) }
		for _, e := range r.Sessions {
			left(e.Until)
			for _, p := range e.Permissions {
				left(p.Until)
			}
			for _, c := range e.Channels {
				left(c.Until)
				if c.Installed.After(at) || e.Started.After(at) {
					t.Errorf("%v later: started %v, channel %v, now %v", row.passed, e.Started, c.Installed, at)
				}
			}
		}
		if strings.Join(got, " ") != row.want {
			t.Errorf("%v later: %q, want %q", row.passed, got, row.want)
		}
	}
}

// Goroutines that each change their own session lose no change during compactions. After Close nothing is written.
func TestConcurrentChanges(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	j, _ := openWithLongTimeout(Options{Dir: dir})
	const writers, changes = 4, 3000
	var want sync.Map // lifetime by ID
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			r := sample(now)
			id := j.Add(r)
			for n := range uint32(changes) {
				j.Refresh(id, 600+n, now.Add(time.Hour))
				j.End(j.Add(r))
			}
			want.Store(id, uint32(600+changes-1))
		})
	}
	running.Wait()
	flush(j)
	if s := j.Status(); s.Sessions != writers || s.Errors > 0 {
		t.Errorf("%+v", s)
	}
	end(t, j)
	before, err := os.ReadFile(filepath.Join(dir, fileName))
	if j.Add(sample(now)) != 0 || err != nil {
		t.Errorf("stored after Close, %v", err)
	}
	j.End(1)
	j.Nonces([]byte("late"))
	end(t, j)
	if after, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || !bytes.Equal(after, before) {
		t.Errorf("written after Close: %v", err)
	}
	for name, mode := range map[string]fs.FileMode{fileName: 0o600, lockName: 0o600, ".": fs.ModeDir} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || name != "." && info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	j, r := openWithLongTimeout(Options{Dir: dir})
	if len(r.Sessions) != writers {
		t.Fatalf("%d sessions, want %d", len(r.Sessions), writers)
	}
	for _, e := range r.Sessions {
		if lifetime, _ := want.Load(e.ID); e.Lifetime != lifetime {
			t.Errorf("session %d: lifetime %d", e.ID, e.Lifetime)
		}
	}
	end(t, j)
}

// A change of a session allocates nothing, apart from compactions.
func TestChangeAllocatesNothing(t *testing.T) {
	j, _ := byHand(Options{Dir: t.TempDir()}, osFile)
	now := time.Now()
	r, peers := sample(now), []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	c := session.ChannelRecord{Number: 0x4000, Peer: r.Client, Until: now}
	check := session.Check{Peer: r.Client, Message: make([]byte, 108)}
	id := j.Add(r)
	if n := testing.AllocsPerRun(200, func() {
		j.Refresh(id, 600, now)
		j.Permit(id, peers, now)
		j.Bind(id, c)
		check.Message[50]++
		j.Check(id, check)
		j.Move(id, true)
		j.work()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	end(t, j)
}

// A session of a browser with a permission and a channel takes less than 250 bytes, and less than 400 bytes with a
// connectivity check. The size of the volume of a pod depends on these numbers.
func TestBytesOfASession(t *testing.T) {
	now := time.Now()
	r := sample(now)
	size := func() int {
		s := state{sessions: map[ID]*session.Record{100_000: r}}
		return len(s.image()) - headerSize
	}
	bare := size()
	peer := netip.MustParseAddrPort("10.244.1.9:40001")
	r.Permissions = []session.Permission{{Peer: peer.Addr(), Until: now}}
	r.Channels = []session.ChannelRecord{{Number: 0x4000, Peer: peer, Until: now, Installed: now}}
	bound := size()
	r.Checks = []session.Check{{Peer: peer, Message: make([]byte, 108)}}
	t.Logf("a session has %d bytes, with permission and channel %d, with a check too %d", bare, bound, size())
	if bound > 250 || size() > 400 {
		t.Errorf("%d and %d bytes", bound, size())
	}
}

// After Remove the folder is empty. A process that has opened the lock file before does not use it, because a third
// process could lock a new lock file at the same time.
func TestRemove(t *testing.T) {
	dir := t.TempDir()
	j, _ := openWithLongTimeout(Options{Dir: dir})
	j.Add(sample(time.Now()))
	late, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := j.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	next, r := openWithLongTimeout(Options{Dir: dir})
	healthy(t, next, 0, 0)
	if len(r.Sessions) != 0 || next.isLock(late) {
		t.Errorf("%d sessions, removed lock in use: %v", len(r.Sessions), next.isLock(late))
	}
	end(t, next)
}
