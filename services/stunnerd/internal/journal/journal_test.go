package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unlimited is the room of a volume that is never full.
func unlimited(string) (int64, error) { return maxRoom, nil }

// openPatiently opens a journal for which no volume is slow: a busy machine is no slow volume.
func openPatiently(o Options) (*Journal, Restored) { return open(o, system(time.Hour)) }

// byHand opens a journal on an unlimited volume, which is not compacted and writes when the test calls work.
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

// image returns a file with the state in it, one entry a session.
func (s *state) image() []byte {
	b := appendRoot(appendHeader(nil), s.root)
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

// healthy checks that a journal stores changes, with a number of errors before.
func healthy(t *testing.T, j *Journal, sessions int, errors uint64) {
	t.Helper()
	flush(j)
	if s := j.Status(); s.Problem != "" || s.Sessions != sessions || s.Errors != errors {
		t.Errorf("status %+v, want %d sessions and %d errors", s, sessions, errors)
	}
}

// written returns the file of a journal with three sessions and some changes, and the sessions after each entry.
func written(t testing.TB, now time.Time) (data []byte, ends []int, states [][]Entry) {
	dir := t.TempDir()
	j, _ := openPatiently(Options{Dir: dir, Now: func() time.Time { return now }})
	model := map[ID]*session.Record{}
	note := func() {
		flush(j)
		s := state{sessions: clone(model)}
		s.resume(now)
		ends, states = append(ends, int(j.Status().Bytes)), append(states, sorted(s.entries()))
	}
	note()
	peer := netip.MustParseAddrPort("10.0.0.9:4000")
	for range 3 {
		r := sample(now)
		id := j.Add(r)
		model[id] = r
		note()
		p := session.Permission{Peer: peer.Addr(), Until: now.Add(time.Minute)}
		j.Permit(id, []netip.Addr{p.Peer}, p.Until)
		r.Permissions = []session.Permission{p}
		note()
		c := session.ChannelRecord{Number: 0x4000, Peer: peer, Until: now.Add(time.Minute), Installed: now}
		j.Bind(id, c)
		r.Channels = []session.ChannelRecord{c}
		note()
		r.Checks = []session.Check{{Peer: peer, Message: []byte("check")}}
		j.Check(id, r.Checks[0])
		note()
		r.Away = true
		j.Move(id, r.Away)
		note()
		r.Lifetime, r.Until = 300, now.Add(300*time.Second)
		j.Refresh(id, r.Lifetime, r.Until)
		note()
	}
	j.End(2)
	delete(model, 2)
	note()
	model[3].Away = false
	j.Move(3, false) // the last entry, so that only this entry shows that the length of the previous one is damaged
	note()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil || len(data) != ends[len(ends)-1] {
		t.Fatalf("%d bytes, %v, want %v", len(data), err, ends)
	}
	return data, ends, states
}

// memory returns a folder in memory, as that of a pod is, or else a temporary folder. A disk writes a file when it
// replaces another one.
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

// restore returns what a process restores from a file, its status and the files that it leaves.
func restore(t testing.TB, data []byte, now time.Time) (Restored, Status, map[string]int) {
	t.Helper()
	dir := memory(t)
	if err := os.WriteFile(filepath.Join(dir, fileName), data, 0o600); err != nil {
		t.Fatal(err)
	}
	j, r := openPatiently(Options{Dir: dir, Now: func() time.Time { return now }})
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

// A journal that is cut at any byte restores the state of the last entry that is complete, and sets nothing aside.
func TestTornJournal(t *testing.T) {
	now := time.UnixMilli(1795470000123)
	data, ends, states := written(t, now)
	for n := range len(data) + 1 {
		got, status, files := restore(t, data[:n], now)
		var want []Entry
		for i := range ends {
			if ends[i] <= n {
				want = states[i]
			}
		}
		if !reflect.DeepEqual(orNil(sorted(got.Sessions)), orNil(want)) {
			t.Fatalf("%d of %d bytes: %+v, want %+v", n, len(data), got.Sessions, want)
		}
		if status.Errors != 0 || len(files) != 2 {
			t.Fatalf("%d of %d bytes: %+v, files %v", n, len(data), status, files)
		}
	}
}

// A journal with any flipped bit restores the entries before it. The whole file is set aside.
func TestDamagedJournal(t *testing.T) {
	now := time.UnixMilli(1795470000123)
	data, ends, states := written(t, now)
	for bit := range len(data) * 8 {
		damaged := bytes.Clone(data)
		damaged[bit/8] ^= 1 << (bit % 8)
		var want []Entry
		for i := range ends {
			if ends[i] <= bit/8 {
				want = states[i]
			}
		}
		s, _, err := replay(bytes.NewReader(damaged), int64(len(damaged)))
		if s.resume(now); !reflect.DeepEqual(orNil(sorted(s.entries())), orNil(want)) ||
			!errors.Is(err, errDamaged) && !errors.Is(err, errForeign) {
			t.Fatalf("bit %d of byte %d: %+v, want %+v: %v", bit%8, bit/8, s.entries(), want, err)
		}
		if bit%8 != bit/8%8 {
			continue // a start takes long: only one bit of each byte
		}
		got, status, files := restore(t, damaged, now)
		if !reflect.DeepEqual(orNil(sorted(got.Sessions)), orNil(want)) {
			t.Fatalf("bit %d of byte %d: %+v, want %+v", bit%8, bit/8, got.Sessions, want)
		}
		if files[damagedName] != len(data) || status.Errors != 1 {
			t.Fatalf("bit %d of byte %d: %+v, files %v", bit%8, bit/8, status, files)
		}
	}
}

// large makes a file of a size without blocks.
func large(t *testing.T, dir, begin string, size int64) {
	t.Helper()
	name := filepath.Join(dir, fileName)
	if err := errors.Join(os.WriteFile(name, []byte(begin), 0o600), os.Truncate(name, size)); err != nil {
		t.Fatal(err)
	}
}

// Files that no process of this release has written are set aside as they are, and read only as far as needed.
func TestForeignJournal(t *testing.T) {
	header := string(appendHeader(nil))
	for name, row := range map[string]struct {
		begin string
		size  int64
		read  int64
	}{
		"newer version":     {magic + "\x02rest", 100, 100},
		"other file":        {"#!/bin/sh\nexit 0\n", 100, 100},
		"zeros":             {"", 1 << 30, 0},
		"zeros, fewer":      {"", 200 << 20, 1 << 17}, // a buffer
		"header and zeros":  {header, 200 << 20, 1 << 17},
		"header and a GiB":  {header, 1 << 30, 0},
		"bytes of a record": {header + "\x00\x01\xff\xff\xff\xff\x01", 100, 100},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			large(t, dir, row.begin, row.size)
			var read counter
			h := func(name string, flags int) (file, error) {
				f, err := osFile(name, flags)
				return counted{f, &read}, err
			}
			j, r := byHand(Options{Dir: dir}, h)
			healthy(t, j, 0, 1)
			if len(r.Sessions) > 0 || int64(read) > row.read {
				t.Errorf("%d sessions, %d bytes read, want %d", len(r.Sessions), read, row.read)
			}
			if info, err := os.Stat(filepath.Join(dir, damagedName)); err != nil || info.Size() != row.size {
				t.Errorf("set aside: %v, %v", info, err)
			}
			id := j.Add(sample(time.Now()))
			end(t, j)
			j, r = openPatiently(Options{Dir: dir})
			if len(r.Sessions) != 1 || r.Sessions[0].ID != id {
				t.Errorf("%+v after the start", r.Sessions)
			}
			end(t, j)
		})
	}
}

// repeated is the content of a large file: begin, times an entry, end, and zeros up to a size.
type repeated struct {
	begin, entry, end []byte
	times             int
	size              int64
}

// repeatedFile reads the content of a file that has no blocks, because writing it takes longer than the test.
type repeatedFile struct {
	file
	repeated
}

func (r repeatedFile) ReadAt(b []byte, at int64) (n int, err error) {
	first := int64(len(r.begin))
	last := first + int64(r.times*len(r.entry))
	for n < len(b) {
		switch at := at + int64(n); {
		case at < first:
			n += copy(b[n:], r.begin[at:])
		case at < last:
			n += copy(b[n:], r.entry[(at-first)%int64(len(r.entry)):])
		case at < last+int64(len(r.end)):
			n += copy(b[n:], r.end[at-last:])
		default:
			zeros, err := r.file.ReadAt(b[n:], at)
			return n + zeros, err
		}
	}
	return n, nil
}

// A start takes less than a second of CPU time, whatever is in the file.
func TestStartIsFast(t *testing.T) {
	header := appendHeader(nil)
	longest := append(openEntry(nil, 99, 1), make([]byte, 1<<16-3)...) // of an unknown kind
	if !closeEntry(longest, 0) || closeEntry(append(longest, 0), 0) {
		t.Fatal("not the longest entry")
	}
	// Each byte may begin an entry, each with another length.
	almost := bytes.Repeat([]byte{byte(ended), byte(added), byte(nonces), byte(bound)}, len(longest)/4)
	almost[0], almost[1] = 0xff, 0xff
	most := maxSize/len(longest) - 1
	for name, c := range map[string]repeated{
		"1 GiB of zeros":                        {size: 1 << 30},
		"256 MiB of zeros":                      {size: maxSize},
		"256 MiB of damage":                     {begin: header, end: almost, size: maxSize},
		"256 MiB of entries, a damaged length":  {begin: header, entry: longest, times: most, end: almost},
		"256 MiB of entries, an incomplete one": {begin: header, entry: longest, times: most, end: longest[:1<<15]},
	} {
		t.Run(name, func(t *testing.T) {
			c.size = max(c.size, int64(len(c.begin)+c.times*len(c.entry)+len(c.end)))
			dir := t.TempDir()
			large(t, dir, "", c.size)
			h := func(name string, flags int) (file, error) {
				f, err := osFile(name, flags)
				if err == nil && flags == os.O_RDONLY {
					f = repeatedFile{f, c}
				}
				return f, err
			}
			before := cpuTime(t)
			j, _ := byHand(Options{Dir: dir}, h)
			took := cpuTime(t) - before
			t.Logf("%v", took)
			if took > time.Second {
				t.Errorf("the start takes %v", took)
			}
			end(t, j)
		})
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// If there is no room for a new file, the damaged journal is continued without what is behind its whole entries. A copy
// that is only another name of this file is not kept.
func TestDamagedJournalWithoutRoom(t *testing.T) {
	now := time.UnixMilli(1795470000123)
	data, ends, states := written(t, now)
	dir := t.TempDir()
	data[ends[4]+frameSize] ^= 1
	if err := os.WriteFile(filepath.Join(dir, fileName), data, 0o600); err != nil {
		t.Fatal(err)
	}
	h := func(name string, flags int) (file, error) {
		if strings.HasSuffix(name, newName) {
			return nil, syscall.ENOSPC
		}
		return osFile(name, flags)
	}
	j, r := byHand(Options{Dir: dir, Now: func() time.Time { return now }}, h)
	if !reflect.DeepEqual(sorted(r.Sessions), states[4]) {
		t.Errorf("restored: %+v, want %+v", r.Sessions, states[4])
	}
	if _, err := os.Stat(filepath.Join(dir, damagedName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy: %v", err)
	}
	if s := j.Status(); s.Problem != "" || s.Bytes < int64(ends[4]) {
		t.Errorf("%+v, want at least %d bytes", s, ends[4])
	}
	end(t, j)
}

type counter int64

type counted struct {
	file
	read *counter
}

func (c counted) ReadAt(b []byte, at int64) (int, error) {
	n, err := c.file.ReadAt(b, at)
	*c.read += counter(n)
	return n, err
}

// Folders, links and pipes in the place of the journal are set aside too, and never followed.
func TestJournalPathThatIsNotAFileIsSetAside(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"folder": func(name string) error { return os.Mkdir(name, 0o700) },
		"pipe":   func(name string) error { return syscall.Mkfifo(name, 0o600) },
		"link":   func(name string) error { return os.Symlink("/etc/passwd", name) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := make(filepath.Join(dir, fileName)); err != nil {
				t.Fatal(err)
			}
			j, _ := openPatiently(Options{Dir: dir})
			healthy(t, j, 0, 1)
			end(t, j)
		})
	}
}

// An entry of an unknown kind, or with a record of an unknown version, is skipped. The file is set aside.
func TestEntryOfALaterRelease(t *testing.T) {
	now := time.UnixMilli(1795470000123)
	data, _, states := written(t, now)
	later := func(k kind, payload ...byte) []byte {
		b := append(openEntry(nil, k, 9), payload...)
		closeEntry(b, 0)
		return b
	}
	for _, entry := range [][]byte{later(99, 1, 2, 3), later(added, 77)} {
		changed := slices.Concat(data[:headerSize], entry, data[headerSize:], entry)
		got, status, files := restore(t, changed, now)
		if !reflect.DeepEqual(sorted(got.Sessions), states[len(states)-1]) {
			t.Errorf("%+v", got.Sessions)
		}
		if status.Errors != 1 || files[damagedName] != len(changed) {
			t.Errorf("%+v, files %v", status, files)
		}
	}
}

// The second process on a folder says so and stores nothing. When the first one has ended, it uses the folder and stores
// all its sessions.
func TestTwoProcesses(t *testing.T) {
	dir, start := t.TempDir(), time.UnixMilli(1795470000123)
	var passed atomic.Int64
	options := Options{Dir: dir, Now: func() time.Time { return start.Add(time.Duration(passed.Load())) }}
	first, _ := openPatiently(options)
	first.Add(sample(start))
	second, r := openPatiently(options)
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
	third, r := openPatiently(options)
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

// A process that ends during the restore is followed by a second attempt. The third start sets the journal aside.
func TestAttempts(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	j, _ := openPatiently(Options{Dir: dir})
	j.Add(sample(now))
	j.Nonces([]byte("root"))
	end(t, j)
	for attempt, want := range []int{1, 1, 0, 0} {
		j, r := openPatiently(Options{Dir: dir})
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
		j, r := openPatiently(Options{Dir: dir})
		if len(r.Sessions) == 0 {
			j.Add(sample(now))
		}
		j.Done()
		healthy(t, j, 1, 0)
		end(t, j)
	}
}

// Lifetimes are not prolonged if the wall clock was set back, and what has ended is not restored.
func TestRestoredLifetimes(t *testing.T) {
	dir, now := t.TempDir(), time.UnixMilli(1795470000123)
	options := Options{Dir: dir, Now: func() time.Time { return now }}
	peer := netip.MustParseAddrPort("10.0.0.9:4000")
	j, _ := openPatiently(options)
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

// volume mounts a memory file system of a size.
func volume(t *testing.T, size int) string {
	t.Helper()
	testroot.Need(t, "mounts")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatalf("mount tmpfs: %v: run the test with CAP_SYS_ADMIN", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// On a full volume the journal is compacted, and sessions that exceed the capacity are refused. Those that it stores are
// restored, also if another file has taken the room meanwhile.
func TestFullVolume(t *testing.T) {
	const size = 512 << 10
	dir, now := volume(t, size), time.UnixMilli(1795470000123)
	var passed atomic.Int64
	options := Options{Dir: dir, Now: func() time.Time { return now.Add(time.Duration(passed.Load())) }}
	j, _ := openPatiently(options)
	peer := []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	id := j.Add(sample(now))
	for range 200_000 {
		j.Permit(id, peer, now.Add(time.Minute))
	}
	flush(j)
	if s := j.Status(); !j.Stores(id) || s.Sessions != 1 || s.Problem != "" || s.Errors > 0 {
		t.Fatalf("one session that grows: %+v", s)
	}
	held := []ID{id}
	for range 5000 { // 1 MB
		if id := j.Add(sample(now)); id != 0 {
			held = append(held, id)
		}
	}
	flush(j)
	s := j.Status()
	if s.Sessions != len(held) || len(held) < 300 || s.Refused == 0 || s.Errors > 0 || s.Problem != "" || s.Bytes > size/2 {
		t.Fatalf("%d sessions held, %+v", len(held), s)
	}

	// Another file takes the free space.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, make([]byte, size+1), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for range 20 {
		for _, id := range held {
			j.Refresh(id, 600, now.Add(10*time.Minute))
		}
		flush(j)
	}
	if s := j.Status(); s.Problem != "" || s.Errors == 0 || s.Sessions == 0 {
		t.Fatalf("without free room: %+v", s)
	}
	held = slices.DeleteFunc(held, func(id ID) bool { return !j.Stores(id) })
	end(t, j)
	j, r := openPatiently(options)
	var restored []ID
	for _, e := range r.Sessions {
		restored = append(restored, e.ID)
	}
	if !slices.Equal(restored, held) {
		t.Errorf("%d sessions restored, want %d", len(restored), len(held))
	}
	j.Done()
	end(t, j)

	// Another file takes all room: nothing can be stored, until there is room again.
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, make([]byte, size+1), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	j, _ = openPatiently(options)
	early := j.Add(sample(now))
	if s := j.Status(); s.Problem == "" || j.Stores(early) {
		t.Errorf("no room: %+v", s)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	passed.Add(int64(retryAfter))
	late := j.Add(sample(now))
	within(t, "room again", func() bool { return j.Stores(early) && j.Stores(late) })
	end(t, j)
}

// exhausted is a file that takes a number of bytes.
type exhausted struct {
	file
	room      int
	truncated *int // calls of Truncate(0)
}

func (e *exhausted) Write(b []byte) (int, error) {
	if e.room -= len(b); e.room < 0 {
		return 0, syscall.ENOSPC
	}
	return e.file.Write(b)
}

func (e *exhausted) Truncate(size int64) error {
	if size == 0 {
		*e.truncated++
	}
	return e.file.Truncate(size)
}

// A compaction after a failed write replaces the file if there is room for a second one, so that a kill in the meantime
// loses nothing.
func TestCompactionAfterAFailedWriteReplacesTheFile(t *testing.T) {
	var truncated int
	h := func(name string, flags int) (file, error) {
		f, err := osFile(name, flags)
		return &exhausted{f, 4096, &truncated}, err
	}
	dir, now := t.TempDir(), time.UnixMilli(1795470000123)
	j, _ := byHand(Options{Dir: dir, Now: func() time.Time { return now }}, h)
	id := j.Add(sample(now))
	for range 1000 {
		j.Permit(id, []netip.Addr{netip.MustParseAddr("10.0.0.9")}, now.Add(time.Minute))
		flush(j)
	}
	if s := j.Status(); truncated > 0 || !j.Stores(id) || s.Errors == 0 || s.Problem != "" {
		t.Errorf("truncated %d times, %+v", truncated, s)
	}
	end(t, j)
}

// A folder in which no file can be made costs no start and no session.
func TestFolderThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j, r := openPatiently(Options{Dir: filepath.Join(file, "folder")})
	if s := j.Status(); s.Problem == "" || len(r.Sessions) > 0 {
		t.Errorf("%+v", s)
	}
	if id := j.Add(sample(time.Now())); j.Stores(id) {
		t.Error("stored")
	}
	flush(j)
	j.Permit(1, nil, time.Now())
	j.End(1)
	end(t, j)

	none, _ := openPatiently(Options{})
	none.Add(sample(time.Now()))
	none.Refresh(1, 1, time.Now())
	none.Permit(1, nil, time.Now())
	none.Bind(1, session.ChannelRecord{})
	none.Check(1, session.Check{})
	none.Move(1, true)
	none.End(1)
	none.Nonces(nil)
	none.Done()
	end(t, none)
	if none != nil || none.Status() != (Status{}) {
		t.Errorf("without a folder: %+v", none.Status())
	}
}

// Goroutines that change sessions of their own during compactions lose no change. After Close nothing is written.
func TestConcurrentChanges(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	j, _ := openPatiently(Options{Dir: dir})
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
	j, r := openPatiently(Options{Dir: dir})
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

// A session of a browser with a permission and a channel takes less than 250 bytes, and 400 with a connectivity check.
// The size of the volume of a pod relies on these numbers.
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

// F-14: any bytes behind the header are replayed, or refused at some entry, and the state is written as a file that
// leads to the same state.
func FuzzJournal(f *testing.F) {
	now := time.UnixMilli(1795470000123)
	data, ends, _ := written(f, now)
	split := func(b []byte) []byte { // entries without checksums, so that the fuzzer can change them
		var payloads []byte
		for i := range ends[1:] {
			payload := b[ends[i]+frameSize : ends[i+1]]
			payloads = append(binary.BigEndian.AppendUint16(payloads, uint16(len(payload))), payload...)
		}
		return payloads
	}
	f.Add(split(data), uint16(0))
	f.Add([]byte{0, 3, byte(nonces), 0, 0}, uint16(7))
	f.Fuzz(func(t *testing.T, payloads []byte, flip uint16) {
		image := appendHeader(nil)
		for len(payloads) >= 2 {
			n := min(int(binary.BigEndian.Uint16(payloads)), len(payloads)-2)
			at := len(image)
			image = append(append(image, make([]byte, frameSize)...), payloads[2:2+n]...)
			closeEntry(image, at)
			payloads = payloads[2+n:]
		}
		if flip > 0 {
			image[int(flip)%len(image)] ^= byte(flip>>8) | 1
		}
		s, whole, err := replay(bytes.NewReader(image), int64(len(image)))
		if whole > int64(len(image)) || err == nil && whole != int64(len(image)) {
			t.Fatalf("%d of %d bytes, %v", whole, len(image), err)
		}
		for _, r := range s.sessions {
			if len(r.Permissions) > session.MaxPermissions || len(r.Checks) > session.MaxChecks {
				t.Fatalf("%d permissions, %d checks", len(r.Permissions), len(r.Checks))
			}
		}
		again := s.image()
		second, _, err := replay(bytes.NewReader(again), int64(len(again)))
		if err != nil || !reflect.DeepEqual(second.entries(), s.entries()) || !bytes.Equal(second.root, s.root) {
			t.Fatalf("%v\n%+v\nwant\n%+v", err, second.entries(), s.entries())
		}
		s.resume(now)
		for _, e := range s.entries() {
			if left := e.Until.Sub(now); left <= 0 || left > time.Duration(e.Lifetime)*time.Second || e.Started.After(now) {
				t.Fatalf("%+v at %v", e, now)
			}
		}
	})
}

// Remove leaves nothing in the folder. A process that has opened the lock before does not use it: the next process
// could have the folder at the same time.
func TestRemove(t *testing.T) {
	dir := t.TempDir()
	j, _ := openPatiently(Options{Dir: dir})
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
	next, r := openPatiently(Options{Dir: dir})
	healthy(t, next, 0, 0)
	if len(r.Sessions) != 0 || next.isLock(late) {
		t.Errorf("%d sessions, removed lock in use: %v", len(r.Sessions), next.isLock(late))
	}
	end(t, next)
}
