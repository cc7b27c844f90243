package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// written returns the file of a journal with three sessions and some changes, and the sessions after each entry.
func written(t testing.TB, now time.Time) (data []byte, ends []int, states [][]Entry) {
	dir := t.TempDir()
	j, _ := openWithLongTimeout(Options{Dir: dir, Now: func() time.Time { return now }})
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
	j.Move(3, false) // the last entry: only this entry shows that the length of the previous entry is damaged
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

// A journal that is truncated at any byte is restored up to its last complete entry, and is not set aside.
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

// In a journal with a flipped bit, the entries before it are restored. The whole file is set aside.
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

// large creates a sparse journal file: it begins with a text and has the given size, but uses no disk space.
func large(t *testing.T, dir, begin string, size int64) {
	t.Helper()
	name := filepath.Join(dir, fileName)
	if err := errors.Join(os.WriteFile(name, []byte(begin), 0o600), os.Truncate(name, size)); err != nil {
		t.Fatal(err)
	}
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

// A file that was not written by this release is set aside unchanged, and is read only as far as needed.
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
			j, r = openWithLongTimeout(Options{Dir: dir})
			if len(r.Sessions) != 1 || r.Sessions[0].ID != id {
				t.Errorf("%+v after the start", r.Sessions)
			}
			end(t, j)
		})
	}
}

// A folder, link or pipe at the path of the journal is set aside too, and never followed.
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
			j, _ := openWithLongTimeout(Options{Dir: dir})
			healthy(t, j, 0, 1)
			end(t, j)
		})
	}
}

// An entry of an unknown kind, or with a record of an unknown version, is skipped, and the file is set aside.
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

// F-14: any bytes after the header are replayed, or refused at some entry. Writing the resulting state and replaying it
// again gives the same state.
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
		if err != nil || !reflect.DeepEqual(second.entries(), s.entries()) || !bytes.Equal(second.root, s.root) ||
			!reflect.DeepEqual(second.former, s.former) {
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
