package journal

import (
	"bytes"
	"errors"
	"fmt"
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

// model is the model of a journal: the sessions from the view of the caller of a Journal.
type model struct {
	*rand.Rand
	t   *testing.T
	dir string
	// other is a folder in which the files after a simulated crash are restored.
	other string
	now   time.Time
	j     *Journal
	// past are the states of each session, the oldest first. The last state of an ended session is nil.
	past map[ID][]moment
	// steps is the number of changes. answered is the number of changes in the file, according to After.
	steps, answered int
	// refused is the number of changes that the journal has refused or removed, as far as the model has observed.
	refused uint64
	// volume is the size of the volume, and failing the probability that a write or truncation fails.
	volume  int64
	failing float64
	// inPlace is true while a compaction in place may have removed states from the file.
	inPlace bool
	// busy prevents recursion: changes during a write must not cause further changes.
	busy bool

	compactions, failures, cuts, restarts, refusals, trimmed, during int
}

// moment is the state of a session after a step.
type moment struct {
	step int
	*session.Record
}

// failing is a file on a volume that may be full.
type failing struct {
	file
	w *model
}

// Write writes a part, checks the state after a simulated crash, makes changes as other goroutines may, and writes the
// rest.
func (f failing) Write(b []byte) (int, error) {
	room, _ := f.w.room("")
	want := len(b)
	if room < int64(want) {
		want = int(room)
	}
	if f.w.Float64() < f.w.failing {
		want = f.w.IntN(len(b) + 1)
	}
	half := f.w.IntN(want + 1)
	if _, err := f.file.Write(b[:half]); err != nil {
		return 0, err
	}
	f.w.meanwhile()
	n, err := f.file.Write(b[half:want])
	if half+n < len(b) {
		f.w.failures++
		err = errors.Join(err, syscall.ENOSPC)
	}
	return half + n, err
}

func (f failing) Truncate(size int64) error {
	if f.w.Float64() < f.w.failing/4 {
		return syscall.EIO
	}
	f.w.inPlace = f.w.inPlace || size == 0
	return f.file.Truncate(size)
}

func (w *model) room(string) (int64, error) {
	free := w.volume
	for _, name := range []string{fileName, newName} {
		if info, err := os.Stat(filepath.Join(w.dir, name)); err == nil {
			free -= info.Size()
		}
	}
	return max(free, 0), nil
}

func (w *model) hooks() hooks {
	return hooks{
		minimum: 4 << 10, manual: true, room: w.room,
		open: func(name string, flags int) (file, error) {
			f, err := osFile(name, flags)
			if err != nil {
				return nil, err
			}
			return failing{f, w}, nil
		},
	}
}

// meanwhile makes changes while the writer writes.
func (w *model) meanwhile() {
	if w.busy || w.j == nil {
		return
	}
	w.busy = true
	defer func() { w.busy = false }()
	w.learn()
	if w.IntN(10) == 0 {
		w.cuts++
		w.crash()
	}
	for w.IntN(3) == 0 {
		w.during++
		w.change()
	}
}

// live returns the state of a session, nil if it has ended.
func (w *model) live(id ID) *session.Record {
	if p := w.past[id]; len(p) > 0 {
		return p[len(p)-1].Record
	}
	return nil
}

// note records the state of a session after a step. The caller calls After when the journal has the state.
func (w *model) note(id ID, r *session.Record) {
	w.steps++
	w.past[id] = append(w.past[id], moment{w.steps, r})
	step := w.steps
	w.j.After(func() { w.answered = max(w.answered, step) })
}

// learn updates the model with the entries that the journal has removed to make room.
func (w *model) learn() {
	if w.refused == w.j.refused {
		return
	}
	w.refused = w.j.refused
	for id := range w.past {
		r, s := w.live(id), w.j.sessions[id]
		switch {
		case r != nil && s == nil:
			w.trimmed++
			w.note(id, nil)
		case r != nil && len(r.Checks) > 0 && len(s.Checks) == 0:
			w.trimmed++
			r = copied(r)
			r.Checks = nil
			w.note(id, r)
		}
	}
}

// same reports whether two states of a session are the same for a process that restores it.
func (w *model) same(a, b *session.Record) bool {
	one, other := resumed(w.now, a), resumed(w.now, b)
	return reflect.DeepEqual(sorted(one), sorted(other))
}

// resumed returns the session that a process restores from a record, or nil.
func resumed(now time.Time, r *session.Record) []Entry {
	s := state{sessions: map[ID]*session.Record{}}
	if r != nil {
		s.sessions[1] = copied(r)
	}
	s.resume(now)
	return s.entries()
}

// crash compares the sessions that the next process would restore now with the model: each must have the state after
// its last answered change, or a later state.
func (w *model) crash() {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.dir, fileName))
	if w.j.file == nil || w.inPlace || err != nil {
		if w.j.file != nil && !w.inPlace {
			w.t.Fatal(err)
		}
		return // the journal has a problem
	}
	if err := os.WriteFile(filepath.Join(w.other, fileName), data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	j, restored := open(Options{Dir: w.other, Now: func() time.Time { return w.now }},
		hooks{open: osFile, room: unlimited, minimum: maxSize, manual: true})
	j.Done()
	if s := j.Status(); s.Errors > 0 {
		w.t.Fatalf("%+v", s)
	}
	if err := j.Close(); err != nil {
		w.t.Fatal(err)
	}
	found := map[ID]*session.Record{}
	for _, e := range restored.Sessions {
		if found[e.ID] = &e.Record; len(w.past[e.ID]) == 0 {
			w.t.Fatalf("restored a session that has ended: %+v", e)
		}
	}
	for id, past := range w.past {
		ok := past[0].step > w.answered && found[id] == nil
		for i, m := range past {
			if i+1 < len(past) && past[i+1].step <= w.answered {
				continue // a later change was answered too, so this state must not be restored
			}
			want := resumed(w.now, m.Record)
			ok = ok || len(want) == 0 && found[id] == nil ||
				len(want) > 0 && found[id] != nil && reflect.DeepEqual(sorted(want), sorted([]Entry{{1, *copied(found[id])}}))
		}
		if !ok {
			for _, m := range past {
				w.t.Logf("step %d: %+v", m.step, m.Record)
			}
			w.t.Fatalf("session %d after step %d of %d: restored %+v", id, w.answered, w.steps, found[id])
		}
	}
}

// forget removes states that no crash can restore.
func (w *model) forget() {
	for id, past := range w.past {
		for len(past) > 1 && past[1].step <= w.answered {
			past = past[1:]
		}
		if w.past[id] = past; len(past) == 1 && past[0].Record == nil && past[0].step <= w.answered {
			delete(w.past, id)
		}
	}
}

// work makes the writer write all queued entries, and checks that it answers every step.
func (w *model) work() {
	size := w.j.size
	w.j.work()
	w.learn()
	w.j.work() // the entries that After has queued
	if w.inPlace = false; w.j.size < size {
		w.compactions++
	}
	w.failing = 0
	if w.answered != w.steps && w.j.file != nil {
		w.t.Fatalf("answered %d of %d", w.answered, w.steps)
	}
	w.forget()
	w.crash()
	status, sessions := w.j.Status(), 0
	var total count
	for id, past := range w.past {
		r, s := past[len(past)-1].Record, w.j.sessions[id]
		if (r == nil) != (s == nil) || r != nil && !w.same(r, &s.Record) {
			w.t.Fatalf("session %d: %+v, want %+v", id, s, r)
		}
		if s == nil {
			continue
		}
		sessions++
		for k := range classes {
			total[k] += s.count[k]
		}
		size := int64(len(appendSession(nil, id, &s.Record)))
		if counted := s.count[essential] + s.count[checks]; counted < size-16 || counted > size+16 {
			w.t.Fatalf("session %d counts as %d bytes, and has %d", id, counted, size)
		}
	}
	if total != w.j.shares.total || sessions != len(w.j.sessions) {
		w.t.Fatalf("%d sessions with %v bytes, the journal counts %d with %v",
			sessions, total, len(w.j.sessions), w.j.shares.total)
	}
	if most := w.j.shares.most(essential); total[essential] > most || total[checks] > w.j.shares.capacity {
		w.t.Fatalf("%v bytes exceed %d", total, w.j.shares.capacity)
	}
	if w.j.file != nil && (status.Sessions != sessions || status.Problem != "") || w.j.file == nil && status.Problem == "" {
		w.t.Fatalf("status %+v, want %d sessions", status, sessions)
	}
}

// denied checks that a refused change may be refused: because the journal is full, or because the user or the source of
// the session stores a fiftieth of the capacity.
func (w *model) denied(r *session.Record) {
	w.refusals++
	var all, user, source int64
	for _, s := range w.j.sessions {
		n := s.count[essential] + s.count[checks]
		all += n
		if s.UserID == r.UserID {
			user += n
		}
		if sourceOf(&s.Record) == sourceOf(r) {
			source += n
		}
	}
	c := w.j.shares.capacity
	const change = 600 // the largest size of the change, and of a check that was removed for it
	if (user+change)*50 < c && (source+change)*50 < c && all+2*change < c {
		w.t.Fatalf("refused a change of a user with %d bytes and a source with %d, of %d: %+v", user, source, c, r)
	}
}

// change makes a random change.
func (w *model) change() {
	w.learn()
	id := ID(1 + w.IntN(int(w.j.last)+1)) // may be a session that has ended
	if n := len(w.past); n > 0 && w.IntN(10) > 0 {
		id = slices.Sorted(maps.Keys(w.past))[w.IntN(n)]
	}
	now := w.live(id)
	r := &session.Record{} // the changes of an ended session are ignored
	if now != nil {
		r = copied(now)
	}
	until := w.now.Add(time.Duration(w.IntN(300_000)) * time.Millisecond)
	switch n := w.IntN(100); {
	case n < 14:
		w.add(until)
		return
	case n < 20:
		r.Lifetime, r.Until = w.Uint32N(600)+1, until
		w.j.Refresh(id, r.Lifetime, r.Until)
	case n < 45:
		var peers []netip.Addr
		for range w.IntN(4) {
			p := w.peer().Addr()
			peers = append(peers, p)
			r.Permissions = slices.DeleteFunc(r.Permissions, func(o session.Permission) bool { return o.Peer == p })
			r.Permissions = append(r.Permissions, session.Permission{Peer: p, Until: until})
		}
		w.j.Permit(id, peers, until)
	case n < 60:
		c := session.ChannelRecord{
			Number: 0x4000 + uint16(w.IntN(9)), Peer: w.peer(), Until: until, Installed: w.now,
		}
		r.Channels = slices.DeleteFunc(r.Channels, func(o session.ChannelRecord) bool { return o.Number == c.Number })
		r.Channels = append(r.Channels, c)
		w.j.Bind(id, c)
	case n < 80:
		c := session.Check{Peer: w.peer(), Message: bytes.Repeat([]byte{byte(w.IntN(4))}, w.IntN(session.MaxCheck+1))}
		c.Message = orNil(c.Message)
		r.Checks = slices.DeleteFunc(r.Checks, func(o session.Check) bool { return o.Peer == c.Peer })
		refused := w.refused
		w.j.Check(id, c)
		if w.j.refused == refused {
			r.Checks = append(r.Checks, c)
		} else {
			w.refused++
			w.denied(r)
		}
		before := w.j.queue.entries
		if w.j.refused == refused {
			w.j.Check(id, c)
		}
		if more := len(w.j.queue.entries) - len(before); more != 0 {
			w.t.Fatalf("the same check again: %d more bytes", more)
		}
	case n < 83:
		r.Away = !r.Away
		w.j.Move(id, r.Away)
	case n < 86:
		w.j.End(id)
		r = nil
	default:
		w.now = w.now.Add(time.Duration(w.IntN(10_000)) * time.Millisecond)
		return
	}
	if now == nil {
		return
	}
	if w.j.refused != w.refused {
		w.refused = w.j.refused
		w.denied(now)
		got := copied(&w.j.sessions[id].Record)
		if len(got.Permissions) > len(r.Permissions) || len(got.Channels) > len(r.Channels) {
			w.t.Fatalf("%+v, want at most %+v", got, r)
		}
		for _, p := range now.Permissions { // no permission is lost
			has := func(o session.Permission) bool { return o.Peer == p.Peer }
			if p.Until.After(w.now) && !slices.ContainsFunc(got.Permissions, has) {
				w.t.Fatalf("%+v is lost: %+v", p, got)
			}
		}
		r = got
	}
	w.note(id, r)
	if s := w.j.sessions[id]; (s == nil) != (r == nil) || r != nil && !w.same(r, &s.Record) {
		w.t.Fatalf("session %d: %+v, want %+v", id, s, r)
	}
}

// add creates a session of a random user at a random address. The first users and addresses have most sessions.
func (w *model) add(until time.Time) {
	few := func(n int) int { return int(float64(n) * w.Float64() * w.Float64() * w.Float64()) }
	r := &session.Record{
		Generation: w.Uint32N(4), Listener: w.text(), Local: w.peer(), Username: w.text(),
		Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(few(50))}), uint16(w.IntN(1000))),
		UserID: fmt.Sprint("user ", few(50)), Realm: w.text(), Relay: w.peer(), Lifetime: 600,
		Source: orNil(make([]byte, w.IntN(40))), Started: w.now, Until: until.Add(5 * time.Minute),
	}
	if id := w.j.Add(r); id != 0 {
		w.note(id, r)
		return
	}
	w.refused++
	w.denied(r)
}

func (w *model) text() string { return "0123456789abcdefghijklmnopqrstuvwxyz"[:w.IntN(36)] }

func (w *model) peer() netip.AddrPort {
	addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1", "fe80::1%eth0", "::ffff:10.0.0.4"}
	return netip.AddrPortFrom(netip.MustParseAddr(addresses[w.IntN(len(addresses))]), uint16(w.IntN(3)))
}

// restart ends the process, and starts another one that continues its sessions.
func (w *model) restart() {
	w.work()
	if w.j.file == nil {
		return
	}
	w.restarts++
	if err := w.j.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.begin()
}

func (w *model) begin() {
	w.j = nil
	j, restored := open(Options{Dir: w.dir, Now: func() time.Time { return w.now }}, w.hooks())
	w.j = j
	j.Done()
	before := w.past
	w.past, w.refused = map[ID][]moment{}, 0
	for _, e := range restored.Sessions {
		past := before[e.ID]
		if len(past) == 0 || !reflect.DeepEqual(
			sorted(resumed(w.now, past[len(past)-1].Record)), sorted([]Entry{{1, *copied(&e.Record)}})) && j.refused == 0 {
			w.t.Fatalf("restored %+v, want %+v", e, past)
		}
		delete(before, e.ID)
		w.steps++
		w.past[e.ID] = []moment{{w.steps, &e.Record}}
	}
	w.answered = w.steps
	for id, past := range before {
		if len(resumed(w.now, past[len(past)-1].Record)) > 0 && j.refused == 0 {
			w.t.Fatalf("session %d is not restored: %+v", id, past)
		}
	}
	w.refused = j.refused
}

// After a crash each session has the state of its last answered change, or a later state. This holds for any sequence
// of changes of users that store little or much, also during writes, compactions, failed writes and full volumes. No
// user loses an entry because of others, and a client that stores little is not refused.
func TestModel(t *testing.T) {
	const steps, most = 4_000, 80_000
	seed := uint64(time.Now().UnixNano())
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	w := &model{
		Rand: rand.New(rand.NewPCG(seed, 0)), t: t, dir: memory(t), other: memory(t), now: time.UnixMilli(1e12), volume: 1 << 20,
	}
	w.begin()
	for i := 0; i < steps || w.missing() != "" && i < most; i++ {
		w.change()
		switch n := w.IntN(1000); {
		case n < 60:
			w.work()
		case n < 64:
			w.failing = 0.4
			w.work()
		case n == 64:
			w.restart()
		case n == 65:
			w.volume = int64(100+w.IntN(500)) << 10
		case n == 66: // the queue gets full
			for range 1000 {
				w.change()
			}
		}
	}
	w.work()
	if err := w.j.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d steps: %d compactions, %d failed writes, %d cuts, %d restarts, %d refused, %d removed, %d during a write",
		w.steps, w.compactions, w.failures, w.cuts, w.restarts, w.refusals, w.trimmed, w.during)
	if what := w.missing(); what != "" {
		t.Errorf("no %s in any sequence", what)
	}
}

// missing returns an event that has not occurred yet, or "".
func (w *model) missing() string {
	for what, n := range map[string]int{
		"compactions": w.compactions, "failures": w.failures, "cuts": w.cuts, "restarts": w.restarts,
		"refusals": w.refusals, "trimmed": w.trimmed, "during": w.during,
	} {
		if n == 0 {
			return what
		}
	}
	return ""
}

// sorted sorts the lists of records, whose order has no meaning.
func sorted(list []Entry) []Entry {
	for i := range list {
		e := &list[i]
		slices.SortFunc(e.Permissions, func(a, b session.Permission) int { return a.Peer.Compare(b.Peer) })
		slices.SortFunc(e.Channels, func(a, b session.ChannelRecord) int { return int(a.Number) - int(b.Number) })
		slices.SortFunc(e.Checks, func(a, b session.Check) int { return a.Peer.Compare(b.Peer) })
		for i := range e.Checks {
			e.Checks[i].Message = orNil(e.Checks[i].Message)
		}
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
	for i := range n.Checks {
		n.Checks[i].Message = bytes.Clone(n.Checks[i].Message)
	}
	return &n
}
