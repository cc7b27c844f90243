package usage

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// stuck is a volume that blocks, and then succeeds or fails.
type stuck struct {
	volume
	asked chan<- struct{} // gets one value, when the first caller waits
	free  <-chan struct{}
	fail  atomic.Bool
}

func (s *stuck) wait() error {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-s.free
	if s.fail.Load() {
		return syscall.ENOSPC
	}
	return nil
}

func (s *stuck) Map(n int) ([]byte, error) {
	if err := s.wait(); err != nil {
		return nil, err
	}
	return s.volume.Map(n)
}

func (s *stuck) Write(n int, memory []byte) error {
	if err := s.wait(); err != nil {
		return err
	}
	return s.volume.Write(n, memory)
}

// stall blocks the volume of a recorder until proceed is called. asked gets a value when the recorder waits.
func (b *fixture) stall() (s *stuck, asked <-chan struct{}, proceed func()) {
	waits, free := make(chan struct{}, 1), make(chan struct{})
	s = &stuck{volume: b.slots.file, asked: waits, free: free}
	b.slots.file = s
	return s, waits, sync.OnceFunc(func() { close(free) })
}

// full makes writes to the volume of a recorder fail.
func (b *fixture) full() *stuck {
	s, _, proceed := b.stall()
	s.fail.Store(true)
	proceed()
	return s
}

// sessionsOfChunk is the number of sessions of a user with a short name in a chunk.
var sessionsOfChunk = chunkSize / sizeOf(3)

// while the volume blocks, sessions begin, count, get new routes, have records and end. When it does not block
// any more, the accounts of the remaining sessions move into the file.
func TestSlowVolumeDelaysNoSession(t *testing.T) {
	b := newFixture(t, Options{Dir: t.TempDir(), Sessions: 10_000})
	_, asked, proceed := b.stall()
	defer proceed()
	b.begin("ann") // takes a spare chunk, so that another chunk must be mapped
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		b.store()
	}()
	<-asked
	var all []*Account
	for range 4 * sessionsOfChunk {
		a := b.begin("bob")
		send(a, "media/echo", 3)
		send(a, "media/"+strings.Repeat("long", 30), 4) // the slot of the name has another size
		all = append(all, a)
	}
	first := all[0]
	first.Because(ByClient)
	first.End()
	b.pass(60)
	if got := b.consumer.sum(first.id); got != (Count{7, 2}) {
		t.Errorf("the session that has ended: %+v", got)
	}
	proceed()
	<-stored
	b.store()
	last := all[len(all)-1]
	if b.slots.chunks[last.at/unitsOfChunk].mapped || b.slots.uncopied() {
		t.Error("want a chunk of ordinary memory, and none that is not in the file")
	}
	if late := b.begin("bob"); !b.slots.chunks[late.at/unitsOfChunk].mapped {
		t.Error("a session does not use a mapped chunk although there is one")
	}

	var ids []ID
	for _, a := range all[1:] {
		ids = append(ids, a.id)
	}
	b.kill(ids...)
	for _, a := range all[1:] {
		again := b.Begin(Identity{ID: a.id, Listener: "ignored"})
		send(again, "media/echo", 5)
		again.Because(Expired)
		again.End()
	}
	b.pass(60)
	for _, a := range all[1:] {
		if got := b.consumer.sum(a.id); got != (Count{12, 3}) {
			t.Fatalf("after the kill: %+v", got)
		}
	}
	for _, r := range b.consumer.list {
		if r.Gateway != "media/edge" || len(r.Routes) == 2 && r.Routes[1].Route != "media/"+strings.Repeat("long", 30) {
			t.Fatalf("%+v", r)
		}
	}
}

// When a slot of a copied chunk is freed, its copy is freed too: the next process finds no session in it.
func TestCopyOfAnEndedSession(t *testing.T) {
	b := newFixture(t, Options{Dir: t.TempDir()})
	s := b.full()
	var all []*Account
	for range 3 * sessionsOfChunk {
		a := b.begin("ann")
		send(a, "media/echo", 1)
		all = append(all, a)
	}
	s.fail.Store(false)
	b.store()
	for _, a := range all {
		a.Because(ByClient)
		a.End()
	}
	b.pass(60)
	b.store()
	b.kill()
	b.consumer.take()
	if b.pass(60); len(b.consumer.list) > 0 {
		t.Errorf("%d records of sessions that had theirs: %+v", len(b.consumer.list), b.consumer.list[0])
	}
}

// While the volume is full, only the records after a kill of the process are lost. The log has a line when the volume
// is full, and a line when the volume has space again.
func TestFullVolume(t *testing.T) {
	var text strings.Builder
	b := newFixture(t, Options{Dir: t.TempDir(), HandOver: true, Log: slog.New(slog.NewTextHandler(&text, nil))})
	stored := b.begin("ann")
	volume := b.full()
	var all []*Account
	for range 4 * sessionsOfChunk {
		a := b.begin("bob")
		send(a, "media/echo", 1)
		all = append(all, a)
	}
	last := all[len(all)-1]
	b.store()
	if b.pass(60); !b.slots.stored(stored.at) || b.slots.stored(last.at) {
		t.Fatal("the volume has room")
	}
	if got := len(b.consumer.take()); got != len(all)+1 {
		t.Errorf("%d records of %d sessions", got, len(all)+1)
	}
	if got := text.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, syscall.ENOSPC.Error()) {
		t.Errorf("log %s", got)
	}
	all[0].Leave()
	volume.fail.Store(false)
	b.store()
	if b.pass(1); !b.slots.stored(last.at) || !strings.Contains(text.String(), "in the folder again") {
		t.Errorf("log %s", &text)
	}
	last.Leave()
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := b.o
	o.Continued = []ID{last.id}
	b.Recorder = Open(o)
	if len(b.waiting) != 1 {
		t.Error("the session that was handed over is lost")
	}
}

// If a part of the file was never allocated, the accounts in the other parts are kept, even if the volume is full at
// the start.
func TestVolumeWithAHole(t *testing.T) {
	b := newFixture(t, Options{Dir: t.TempDir()})
	volume := b.full()
	b.store() // requests a chunk after the mapped ones
	hole := len(b.slots.chunks)
	b.begin("ann")
	b.store()
	a := b.begin("eve")
	for len(b.slots.chunks) < hole+3 {
		a = b.begin("bob")
		send(a, "media/echo", 9)
	}
	volume.volume = holes{volume.volume, hole}
	volume.fail.Store(false)
	b.store()
	if !slices.Equal(b.slots.missing, []int{hole}) || b.slots.uncopied() || a.at/unitsOfChunk != ref(hole+2) {
		t.Fatalf("missing parts %v, want %d", b.slots.missing, hole)
	}
	full := &slots{file: volume, unused: map[class][]ref{}}
	if ours, err := full.load(hole + 3); !ours || err != nil || !slices.Equal(full.missing, []int{hole}) {
		t.Fatalf("%v, %v; missing parts %v, want %d", ours, err, full.missing, hole)
	}
	if s := full.at(a.at); s.id != a.id || s.state.Load() != live || full.name(s.routes[0].name.Load()) != "media/echo" {
		t.Errorf("slot %+v", s)
	}
	b.kill(a.id)
	send(b.Begin(Identity{ID: a.id}), "media/echo", 1)
	if b.pass(60); b.consumer.sum(a.id) != (Count{10, 2}) {
		t.Errorf("%+v", b.consumer.sum(a.id))
	}
}

// holes is a volume without space for one of the chunks.
type holes struct {
	volume
	at int
}

func (h holes) Map(n int) ([]byte, error) {
	if n == h.at {
		return nil, syscall.ENOSPC
	}
	return h.volume.Map(n)
}

// A volume or a collector that does not answer delays neither the work of Run in each second nor its end.
func TestRunWaitsForNeitherVolumeNorCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refreshed atomic.Int32
		hanging := hangs{began: make(chan struct{}, 1)}
		b := &fixture{t: t, o: Options{Dir: t.TempDir(), Sink: hanging, Now: time.Now, Refresh: func() { refreshed.Add(1) }}}
		b.Recorder = Open(b.o)
		_, asked, proceed := b.stall()
		b.now = time.Now()
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() {
			defer close(ran)
			b.Run(ctx)
		}()
		a := b.begin("ann") // needs a chunk
		<-asked
		send(a, "media/echo", 1)
		<-hanging.began // its interim record
		before, at := refreshed.Load(), b.slots.header().alive.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := refreshed.Load() - before; got != 60 {
			t.Errorf("%d ticks in a minute", got)
		}
		if got := b.slots.header().alive.Load() - at; got != 60_000 {
			t.Errorf("the time of the last tick has advanced by %d ms", got)
		}
		stop()
		<-ran
		a.Because(Shutdown)
		a.End()
		if err := b.Close(ctx); err == nil || !strings.Contains(err.Error(), "takes no writes") {
			t.Errorf("closed: %v", err)
		}
		if other, err := openSlots(b.Recorder.o.Dir); err == nil || other.file != nil {
			t.Error("the next process uses the file while it may be written")
		}
		proceed()
	})
}

// hangs is a collector that never answers.
type hangs struct{ began chan struct{} }

func (h hangs) Deliver(ctx context.Context, _ []Record) error {
	select {
	case h.began <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ctx.Err()
}
