package journal

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
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

// world is the model of a journal: the sessions as the caller of a Journal knows them.
type world struct {
	*rand.Rand
	t   *testing.T
	dir string
	now time.Time
	// live are the sessions. A change replaces the record, because the past states have it too.
	live map[ID]*session.Record
	root []byte
	j    *Journal
	// pending is the compaction that has not run yet.
	pending func()
	// past are the states of the journal by the size of the file, since the last change of the bytes before. A crash
	// that cuts the file at a size restores the newest state of at most this size.
	past []moment
	// begun is the size of the file when the pending compaction was started.
	begun int64
	// epoch is that of the journal after the last step.
	epoch uint64
	// failing is the probability that a write or truncation fails.
	failing float64

	compactions, failures, cuts, crashes, restarts int
}

type moment struct {
	size     int64
	sessions map[ID]*session.Record
	root     []byte
}

// failing is a file on a volume that may have no room.
type failing struct {
	file
	w *world
}

func (f failing) Write(b []byte) (int, error) {
	if f.w.Float64() >= f.w.failing {
		return f.file.Write(b)
	}
	f.w.failures++
	n, err := f.file.Write(b[:f.w.IntN(len(b)+1)])
	return n, errors.Join(err, syscall.ENOSPC)
}

func (f failing) Truncate(size int64) error {
	if f.w.Float64() >= f.w.failing/4 {
		return f.file.Truncate(size)
	}
	return syscall.EIO
}

func (w *world) hooks() hooks {
	return hooks{
		minimum: 4 << 10,
		background: func(f func()) {
			w.pending, w.begun = f, w.j.size
		},
		open: func(name string, flags int) (file, error) {
			f, err := osFile(name, flags)
			if err != nil {
				return nil, err
			}
			return failing{f, w}, nil
		},
	}
}

// check compares what a process restores with a state of the model.
func (w *world) check(got Restored, want moment) {
	w.t.Helper()
	s := state{sessions: clone(want.sessions)}
	s.resume(w.now)
	if wanted := s.entries(); !reflect.DeepEqual(sorted(got.Sessions), sorted(wanted)) {
		w.t.Fatalf("restored\n%+v\nwant\n%+v", got.Sessions, wanted)
	}
	if !bytes.Equal(got.NonceRoot, want.root) {
		w.t.Fatalf("root %x, want %x", got.NonceRoot, want.root)
	}
}

// sorted sorts the lists of records, whose order has no meaning.
func sorted(list []Entry) []Entry {
	for i := range list {
		e := &list[i]
		slices.SortFunc(e.Permissions, func(a, b session.Permission) int { return a.Peer.Compare(b.Peer) })
		slices.SortFunc(e.Channels, func(a, b session.ChannelRecord) int { return int(a.Number) - int(b.Number) })
		slices.SortFunc(e.Checks, func(a, b session.Check) int { return a.Peer.Compare(b.Peer) })
		e.Permissions, e.Channels, e.Checks = orNil(e.Permissions), orNil(e.Channels), orNil(e.Checks)
	}
	return list
}

func orNil[E any](list []E) []E {
	if len(list) == 0 {
		return nil
	}
	return list
}

func clone(sessions map[ID]*session.Record) map[ID]*session.Record {
	c := maps.Clone(sessions)
	for id, r := range c {
		c[id] = copied(r)
	}
	return c
}

func copied(r *session.Record) *session.Record {
	n := *r
	n.Permissions, n.Channels = slices.Clone(r.Permissions), slices.Clone(r.Channels)
	n.Checks = slices.Clone(r.Checks)
	return &n
}

func (w *world) state() moment {
	m := moment{w.j.size, maps.Clone(w.live), w.root}
	if w.j.file == nil {
		m.root = nil
	}
	return m
}

// step makes one random change, and notes the state that it leads to.
func (w *world) step() {
	if w.IntN(200) == 0 {
		w.failing = 0.4
	}
	w.change()
	w.failing = 0
	maps.DeleteFunc(w.live, func(id ID, _ *session.Record) bool { return id < w.j.first })
	if w.epoch != w.j.epoch {
		w.epoch, w.past = w.j.epoch, nil
	}
	w.past = append(w.past, w.state())
	if got := w.j.Status(); got.Sessions != len(w.live) || got.Bytes != w.j.size || (w.j.file == nil) && got.Problem == "" {
		w.t.Fatalf("status %+v, want %d sessions", got, len(w.live))
	}
}

func (w *world) change() {
	id := ID(1 + w.IntN(int(w.j.last)+1)) // perhaps a session that has ended
	if n := len(w.live); n > 0 && w.IntN(10) > 0 {
		id = slices.Sorted(maps.Keys(w.live))[w.IntN(n)]
	}
	r := &session.Record{} // the changes of an ended session are ignored
	if w.live[id] != nil {
		r = copied(w.live[id])
		w.live[id] = r
	}
	until := w.now.Add(time.Duration(w.IntN(300_000)) * time.Millisecond)
	switch n := w.IntN(100); {
	case n < 12 && len(w.live) < 12:
		n := &session.Record{
			Generation: w.Uint32N(4), Listener: w.text(), Client: w.peer(), Local: w.peer(), Username: w.text(),
			UserID: w.text(), Realm: w.text(), Relay: w.peer(), Transaction: [12]byte{byte(n)}, Lifetime: 600,
			Source: orNil(make([]byte, w.IntN(40))), Started: w.now, Until: until.Add(time.Second),
		}
		if added := w.j.Add(n); added != 0 {
			w.live[added] = n
		} else if w.failing == 0 && w.pending == nil && w.now.After(w.j.retry) {
			w.t.Fatalf("session not stored: %+v", w.j.Status())
		}
	case n < 20:
		r.Lifetime, r.Until = w.Uint32N(600)+1, until
		w.j.Refresh(id, r.Lifetime, r.Until)
	case n < 55:
		var peers []netip.Addr
		for range w.IntN(4) {
			p := w.peer().Addr()
			peers = append(peers, p)
			r.Permissions = slices.DeleteFunc(r.Permissions, func(o session.Permission) bool { return o.Peer == p })
			r.Permissions = append(r.Permissions, session.Permission{Peer: p, Until: until})
		}
		w.j.Permit(id, peers, until)
	case n < 75:
		c := session.ChannelRecord{
			Number: 0x4000 + uint16(w.IntN(9)), Peer: w.peer(), Until: until, Installed: w.now,
		}
		r.Channels = slices.DeleteFunc(r.Channels, func(o session.ChannelRecord) bool { return o.Number == c.Number })
		r.Channels = append(r.Channels, c)
		w.j.Bind(id, c)
	case n < 80:
		c := session.Check{Peer: w.peer(), Message: []byte(w.text())}
		c.Message = orNil(c.Message)
		r.Checks = slices.DeleteFunc(r.Checks, func(o session.Check) bool { return o.Peer == c.Peer })
		r.Checks = append(r.Checks, c)
		w.j.Check(id, c)
	case n < 83:
		r.Away = !r.Away
		w.j.Move(id, r.Away)
	case n < 88 && w.live[id] != nil:
		delete(w.live, id)
		w.j.End(id)
	case n < 89:
		w.root = []byte(w.text())
		w.j.Nonces(w.root)
	case n < 95:
		w.now = w.now.Add(time.Duration(w.IntN(10_000)) * time.Millisecond)
	default:
		w.compact()
	}
}

func (w *world) text() string { return "0123456789abcdefghijklmnopqrstuvwxyz"[:w.IntN(36)] }

func (w *world) peer() netip.AddrPort {
	addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1", "fe80::1%eth0", "::ffff:10.0.0.4"}
	return netip.AddrPortFrom(netip.MustParseAddr(addresses[w.IntN(len(addresses))]), uint16(w.IntN(3)))
}

// compact runs the pending compaction. The history before it is no longer in the file, the one since is behind it.
func (w *world) compact() {
	if w.pending == nil {
		return
	}
	size, epoch := w.j.size, w.j.epoch
	w.pending()
	w.pending = nil
	if w.j.epoch == epoch {
		return // discarded, or failed
	}
	w.compactions++
	w.epoch = w.j.epoch
	w.past = slices.DeleteFunc(w.past, func(m moment) bool { return m.size < w.begun })
	for i := range w.past {
		w.past[i].size += w.j.size - size
	}
}

// crash returns what the kernel has kept of the file if the process is killed, now or while it wrote one of the last
// entries, and the state of the last change in it.
func (w *world) crash() ([]byte, moment) {
	data, err := os.ReadFile(filepath.Join(w.dir, fileName))
	if err != nil && w.j.file != nil || int64(len(data)) != w.j.size {
		w.t.Fatalf("file of %d bytes, %v, want %d", len(data), err, w.j.size)
	}
	want := w.past[len(w.past)-1]
	if floor := int(w.past[0].size); w.IntN(2) == 0 && floor < len(data) {
		data = data[:floor+w.IntN(len(data)-floor)]
		for _, m := range slices.Backward(w.past) {
			if want = m; m.size <= int64(len(data)) {
				break
			}
		}
		w.cuts++
	}
	return data, want
}

// end ends the process.
func (w *world) end() {
	if w.pending != nil {
		w.pending()
		w.pending = nil
	}
	if err := w.j.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// begin starts a process, whose sessions are those of the model from then on.
func (w *world) begin(want moment) {
	j, restored := open(Options{Dir: w.dir, Now: func() time.Time { return w.now }}, w.hooks())
	w.j = j
	w.check(restored, want)
	j.Done()
	w.live, w.root = map[ID]*session.Record{}, restored.NonceRoot
	for _, e := range restored.Sessions {
		w.live[e.ID] = &e.Record
	}
	w.live = clone(w.live)
	w.epoch, w.past = j.epoch, []moment{w.state()}
}

// The state after a restart is that of the last change that was answered, in any sequence of changes, compactions,
// failed writes, restarts, and crashes after any byte.
func TestModel(t *testing.T) {
	const steps = 100_000
	seed := uint64(time.Now().UnixNano())
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), t: t, dir: memory(t), now: time.UnixMilli(1e12)}
	w.begin(moment{})
	other := memory(t)
	for range steps {
		w.step()
		switch n := w.IntN(300); {
		case n < 10: // what would be restored, beside the process
			data, want := w.crash()
			if err := os.WriteFile(filepath.Join(other, fileName), data, 0o600); err != nil {
				t.Fatal(err)
			}
			j, restored := Open(Options{Dir: other, Now: func() time.Time { return w.now }})
			w.check(restored, want)
			j.Done()
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		case n == 10: // a crash
			data, want := w.crash()
			w.end()
			if err := os.WriteFile(filepath.Join(w.dir, fileName), data, 0o600); err != nil {
				t.Fatal(err)
			}
			w.crashes++
			w.begin(want)
		case n == 11: // a restart
			want := w.state()
			w.end()
			w.restarts++
			w.begin(want)
		}
	}
	w.end()
	t.Logf("%d steps: %d compactions, %d failed writes, %d cuts, %d crashes, %d restarts",
		steps, w.compactions, w.failures, w.cuts, w.crashes, w.restarts)
	if w.compactions < 100 || w.failures < 100 || w.cuts < 100 || w.crashes < 100 || w.restarts < 100 {
		t.Error("the sequences are too tame")
	}
}
