package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
)

// If there is no room for a new file, the journal continues in the damaged file, after its whole entries. A copy that
// is only a link to this file is not kept.
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

// volume mounts a memory file system of the given size.
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

// On a full volume the journal is compacted, and sessions that exceed the capacity are refused. Stored sessions are
// restored, even if another file has used the free space meanwhile.
func TestFullVolume(t *testing.T) {
	const size = 512 << 10
	dir, now := volume(t, size), time.UnixMilli(1795470000123)
	var passed atomic.Int64
	options := Options{Dir: dir, Now: func() time.Time { return now.Add(time.Duration(passed.Load())) }}
	j, _ := openWithLongTimeout(options)
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
	j, r := openWithLongTimeout(options)
	var restored []ID
	for _, e := range r.Sessions {
		restored = append(restored, e.ID)
	}
	if !slices.Equal(restored, held) {
		t.Errorf("%d sessions restored, want %d", len(restored), len(held))
	}
	j.Done()
	end(t, j)

	// Another file uses all free space: nothing can be stored until it is removed.
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, make([]byte, size+1), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	j, _ = openWithLongTimeout(options)
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

// After a failed write, the compaction replaces the file if a second file fits on the volume, so that a kill at any
// time loses nothing.
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

// If no file can be created in the folder, the process starts, and all sessions continue.
func TestFolderThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j, r := openWithLongTimeout(Options{Dir: filepath.Join(file, "folder")})
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

	none, _ := openWithLongTimeout(Options{})
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
