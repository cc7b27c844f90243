package usage

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// fixture is a recorder with a clock of its own. A consumer adds up its records.
type fixture struct {
	*Recorder
	t        *testing.T
	o        Options
	now      time.Time
	consumer *consumer
}

// consumer adds up records by the documented rule for consumers.
type consumer struct {
	t       *testing.T
	fail    error
	batches int
	list    []Record
	highest map[string]Record // by part
}

func (c *consumer) Deliver(_ context.Context, records []Record) error {
	c.batches++
	if c.fail != nil {
		return c.fail
	}
	for _, r := range records {
		c.list = append(c.list, r)
		h, known := c.highest[r.Part]
		if known && (r.Sent.Bytes < h.Sent.Bytes || r.Received.Packets < h.Received.Packets || h.Session != r.Session) {
			c.t.Errorf("the counters of a part fell from %+v to %+v", h, r)
		}
		c.highest[r.Part] = r
	}
	return nil
}

// sum returns the sum of all parts of a session.
func (c *consumer) sum(id ID) (sum Count) {
	for _, r := range c.highest {
		if r.Session == id.String() {
			sum.add(r.Sent)
		}
	}
	return sum
}

// take returns the records since the last call.
func (c *consumer) take() (list []Record) {
	list, c.list = c.list, nil
	return list
}

func newFixture(t *testing.T, o Options) *fixture {
	b := &fixture{t: t, now: time.Unix(1_800_000_000, 0), consumer: &consumer{t: t, highest: map[string]Record{}}}
	o.Sink, o.Now = b.consumer, func() time.Time { return b.now }
	b.o = o
	b.Recorder = Open(o)
	return b
}

// kill replaces a recorder whose process was killed.
func (b *fixture) kill(continued ...ID) {
	b.t.Helper()
	if err := b.closeFile(); err != nil { // unlocks the file, as the end of the process does
		b.t.Fatal(err)
	}
	b.o.Continued = continued
	b.Recorder = Open(b.o)
}

// pass advances the clock second by second.
func (b *fixture) pass(seconds int) {
	for range seconds {
		b.now = b.now.Add(time.Second)
		b.tick()
		b.deliverDue(b.t.Context())
	}
}

func (b *fixture) begin(user string) *Account {
	b.t.Helper()
	a := b.Begin(Identity{ID: New(), Gateway: "media/edge", Listener: "media/edge/udp", Protocol: "TURN-UDP", User: user,
		Started: b.now})
	if a == nil {
		b.t.Fatal("no account")
	}
	return a
}

// send counts a packet to a peer of a route.
func send(a *Account, route string, bytes int) { a.Route(route).Tx.Add(bytes) }

// A session has an interim record once a minute. It has a last record when packets in progress are counted.
func TestRecordsOfASession(t *testing.T) {
	b := newFixture(t, Options{User: func(user string) string { return "hash of " + user }})
	id := New()
	a := b.Begin(Identity{ID: id, Gateway: "media/edge", Listener: "media/edge/udp", Protocol: "TURN-UDP", User: "ann",
		Caveats: "~1~A2", Started: b.now})
	started := b.now
	for minute := range 3 {
		send(a, "media/echo", 100)
		b.pass(60)
		records := b.consumer.take()
		if len(records) != 1 {
			t.Fatalf("minute %d: %d records", minute, len(records))
		}
		if r := records[0]; r.Final || r.End != nil || r.Reason != "" || r.Sent != (Count{100 * uint64(minute+1), uint64(minute + 1)}) {
			t.Errorf("minute %d: %+v", minute, r)
		}
	}
	a.Because(meter.RevokedCredential.String())
	a.Because(ByClient) // a second reason is ignored
	a.End()
	a.End()
	b.pass(int(settleTime/time.Second) - 1)
	if records := b.consumer.take(); len(records) != 0 {
		t.Fatalf("too early: %+v", records)
	}
	a.Route("media/other").Rx.Add(7) // a late packet
	b.pass(1)
	records := b.consumer.take()
	if len(records) != 1 {
		t.Fatalf("%d last records", len(records))
	}
	r := records[0]
	end := started.Add(3 * time.Minute)
	if !r.Final || r.Reason != "revoked_credential" || !r.End.Equal(end) || !r.Start.Equal(started) ||
		r.Session != id.String() || r.Gateway != "media/edge" || r.Listener != "media/edge/udp" ||
		r.Protocol != "TURN-UDP" || r.User != "hash of ann" || len(r.Caveats) != 16 {
		t.Errorf("last record %+v", r)
	}
	if r.Sent != (Count{300, 3}) || r.Received != (Count{7, 1}) || len(r.Routes) != 2 ||
		r.Routes[0] != (Route{Route: "media/echo", Sent: Count{300, 3}}) ||
		r.Routes[1] != (Route{Route: "media/other", Received: Count{7, 1}}) {
		t.Errorf("counters %+v", r)
	}
	if b.pass(120); len(b.consumer.take()) != 0 || b.Status().Waiting != 0 {
		t.Error("a record after the last one")
	}
}

// An account counts the first routes by name, and all further routes together.
func TestManyRoutes(t *testing.T) {
	b := newFixture(t, Options{})
	a := b.begin("ann")
	for i := range 20 {
		for range 2 {
			send(a, "media/"+string(rune('a'+i)), 1)
		}
	}
	a.End()
	b.pass(60)
	records := b.consumer.take()
	r := records[len(records)-1]
	if len(r.Routes) != maxRoutes || r.Routes[maxRoutes-1] != (Route{Route: Others, Sent: Count{32, 32}}) ||
		r.Routes[0] != (Route{Route: "media/a", Sent: Count{2, 2}}) || r.Sent != (Count{40, 40}) {
		t.Errorf("%+v", r)
	}
}

// A session that could not start has no record.
func TestSessionThatDidNotStart(t *testing.T) {
	b := newFixture(t, Options{})
	b.begin("ann").End()
	b.pass(10)
	if len(b.consumer.take()) != 0 || b.Status() != (Status{}) {
		t.Errorf("a record, %+v", b.Status())
	}
}

// A slow delivery delays the interim records only by its own duration.
func TestSlowDeliveryDelaysNoLaterRecord(t *testing.T) {
	b := newFixture(t, Options{})
	for range 200 {
		b.begin("ann")
	}
	b.pass(20)
	early := len(b.consumer.take())
	b.now = b.now.Add(40 * time.Second)
	b.tick()
	b.deliverDue(t.Context())
	if got := early + len(b.consumer.take()); got != 200 {
		t.Errorf("%d interim records of 200 sessions in a minute", got)
	}
}

// After a process was killed, each account is continued or gets its last record, with all that was counted.
func TestKilledProcess(t *testing.T) {
	b := newFixture(t, Options{Dir: t.TempDir()})
	continued, crashed, over, dropped, moved := b.begin("ann"), b.begin("bob"), b.begin("eve"), b.begin("joe"), b.begin("kim")
	b.pass(70)
	for i, a := range []*Account{continued, crashed, over, dropped, moved} {
		send(a, "media/echo", 1000*(i+1))
	}
	over.Because(ByClient)
	over.End()
	moved.Because(Moved) // killed between Because and End
	alive := b.now
	b.consumer.take()
	b.now = b.now.Add(5 * time.Second)
	ids := []ID{continued.id, dropped.id, over.id}
	for range 2 {
		b.kill(ids...)
		again := b.Begin(Identity{ID: continued.id, Listener: "ignored", User: "ignored"})
		send(again, "media/echo", 1)
		b.Abandon(dropped.id, meter.PortTaken.String())
		b.Abandon(crashed.id, "never begun, not waiting")
		continued = again
	}
	b.pass(60)
	wanted := map[ID]struct {
		reason string
		sent   Count
	}{
		continued.id: {"", Count{1002, 3}}, crashed.id: {Crashed, Count{2000, 1}}, over.id: {ByClient, Count{3000, 1}},
		dropped.id: {"port_taken", Count{4000, 1}}, moved.id: {Moved, Count{5000, 1}},
	}
	if len(b.consumer.highest) != len(wanted) {
		t.Errorf("%d parts, want %d", len(b.consumer.highest), len(wanted))
	}
	for _, r := range b.consumer.highest {
		for id, want := range wanted {
			if r.Session != id.String() {
				continue
			}
			if r.Reason != want.reason || r.Sent != want.sent || r.Final != (want.reason != "") || r.Gateway != "media/edge" {
				t.Errorf("%+v, want %+v", r, want)
			}
			if r.Reason == Crashed && !r.End.Equal(alive) {
				t.Errorf("crashed at %v, last alive at %v", r.End, alive)
			}
		}
	}
	if b.consumer.take(); b.Status().Waiting != 0 {
		t.Errorf("%+v", b.Status())
	}
	b.kill(continued.id) // after the deliveries only the live session is left
	if len(b.over) != 0 || len(b.waiting) != 1 {
		t.Errorf("%d ended and %d waiting", len(b.over), len(b.waiting))
	}
}

// A session that the process leaves to the next process has no last record if there is a folder and HandOver is set.
// Otherwise the session has a last record, because no process may continue it. If the folder stays nevertheless, the
// next process begins another part of the session.
func TestLeave(t *testing.T) {
	for _, o := range []Options{{HandOver: true}, {Dir: t.TempDir()}, {Dir: t.TempDir(), HandOver: true}} {
		b := newFixture(t, o)
		a := b.begin("ann")
		send(a, "media/echo", 5)
		a.Because(Shutdown)
		a.Leave()
		a.End()
		_, _ = b.deliver(t.Context(), true)
		records := b.consumer.take()
		if len(records) != 1 || records[0].Final == (o.Dir != "" && o.HandOver) || records[0].Sent != (Count{5, 1}) {
			t.Errorf("%+v: %+v", o, records)
		}
		if o.Dir == "" {
			continue
		}
		b.kill(a.id)
		a = b.Begin(Identity{ID: a.id})
		send(a, "media/echo", 6)
		a.Because(Expired)
		a.End()
		b.pass(5)
		if r := b.consumer.take(); len(r) != 1 || r[0].Reason != Expired || b.consumer.sum(a.id) != (Count{11, 2}) {
			t.Errorf("at the next process %+v", r)
		}
	}
}

var errAway = errors.New("the collector is away")

// While the collector does not answer, last records are kept, and an interim record is replaced by the next one.
func TestRecordsWaitForTheCollector(t *testing.T) {
	b := newFixture(t, Options{Sessions: 10 * batch})
	b.consumer.fail = errAway
	var all []*Account
	for range 2 * batch {
		a := b.begin("ann")
		send(a, "media/echo", 10)
		all = append(all, a)
	}
	for _, a := range all[:batch+1] {
		a.Because(ByClient)
		a.End()
	}
	b.pass(600)
	if s := b.Status(); s.Waiting != len(all) || s.Delivered != 0 || s.Lost != 0 || s.Failed != uint64(b.consumer.batches) {
		t.Errorf("away: %+v", s)
	}
	if b.consumer.batches > 30 {
		t.Errorf("%d attempts in 10 minutes", b.consumer.batches)
	}
	b.consumer.fail = nil
	b.now = b.now.Add(mostRetry)
	b.deliverDue(t.Context())
	records := b.consumer.take()
	over := slices.IndexFunc(records, func(r Record) bool { return !r.Final })
	if len(records) != len(all) || len(b.consumer.highest) != len(all) || over != batch+1 || b.Status().Waiting != 0 {
		t.Errorf("%d records, %d of them last ones, %+v", len(records), over, b.Status())
	}
}

// The number of undelivered last records is bounded. Records beyond the bound are counted as lost.
func TestTooManyLastRecords(t *testing.T) {
	b := newFixture(t, Options{Sessions: 20_000})
	b.consumer.fail = errAway
	const maxEnded = 10_000
	for range maxEnded + 10 {
		a := b.begin("ann")
		a.Because(ByClient)
		a.End()
	}
	if s := b.Status(); s.Waiting != maxEnded || s.Lost != 10 {
		t.Errorf("%+v", s)
	}
	if most := maxEnded/(chunkSize/sizeOf(3)) + 3; len(b.slots.chunks) > most {
		t.Errorf("%d chunks, want at most %d", len(b.slots.chunks), most)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := b.Close(ctx); err != nil || b.Status().Lost != maxEnded+10 {
		t.Errorf("closed: %v, %+v", err, b.Status())
	}
}

// The number of names of routes and listeners is bounded. Names beyond the bound are left out of the records.
func TestTooManyNames(t *testing.T) {
	b := newFixture(t, Options{})
	for range 2 * maxNames {
		b.named(New().String())
	}
	a := b.begin("ann")
	if len(b.names) != maxNames || a.Route("media/echo") != nil {
		t.Errorf("%d names", len(b.names))
	}
}

// Two processes never share a file.
func TestFolderInUse(t *testing.T) {
	dir := t.TempDir()
	one := newFixture(t, Options{Dir: dir})
	a := one.begin("ann")
	two := newFixture(t, Options{Dir: dir, Continued: []ID{a.id}})
	if other := two.begin("ann"); two.slots.stored(other.at) || !one.slots.stored(a.at) {
		t.Error("two processes use a file")
	}
}

// a file that was not written by stunnerd is not trusted: its accounts are dropped, without a panic.
func TestDamagedFile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	b := newFixture(t, Options{Dir: dir})
	var ids []ID
	for i := range 300 {
		a := b.begin(strings.Repeat("u", i%40*10))
		send(a, "media/echo", 1)
		ids = append(ids, a.id)
	}
	if err := b.closeFile(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fileName)
	intact, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damages := []func([]byte) []byte{
		func([]byte) []byte { return nil },
		func(file []byte) []byte { return file[:len(file)-1] },
		func(file []byte) []byte { return file[:chunkSize] },
		func(file []byte) []byte { clear(file); return file },
		func(file []byte) []byte { return slices.Repeat([]byte{0xff}, len(file)) },
		func(file []byte) []byte { return append(file, "more"...) },
	}
	for range 100 {
		damages = append(damages, func(file []byte) []byte {
			for range 1 + random.IntN(300) {
				file[random.IntN(len(file))] = byte(random.IntN(256))
			}
			return file
		})
	}
	for i, damage := range damages {
		if err := os.WriteFile(path, damage(slices.Clone(intact)), 0o600); err != nil {
			t.Fatal(err)
		}
		b := newFixture(t, Options{Dir: dir, Continued: ids[:150]})
		for _, id := range ids[:100] {
			send(b.Begin(Identity{ID: id, User: "ann"}), "media/echo", 1)
		}
		b.pass(61)
		if err := b.Close(t.Context()); err != nil {
			t.Errorf("damage %d: %v", i, err)
		}
		for _, r := range b.consumer.list {
			if len(r.User) > maxText || len(r.Routes) > maxRoutes {
				t.Fatalf("damage %d: %+v", i, r)
			}
		}
	}
}

// Concurrent sessions that begin, relay, end and are delivered, some of them after a failed delivery, are counted
// exactly.
func TestTrafficIsCountedExactlyOnce(t *testing.T) {
	const workers, each, packets = 8, 60, 50
	b := newFixture(t, Options{Dir: t.TempDir(), Sessions: 2 * workers * each})
	var mu sync.Mutex // of the clock and the consumer
	var ids []ID
	var group, deliveries sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	deliveries.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			b.consumer.fail = nil
			if i%3 == 0 {
				b.consumer.fail = errAway
			}
			b.tick()
			b.retry = time.Time{}
			b.deliverDue(ctx)
		}
	})
	for range workers {
		group.Go(func() {
			for range each {
				a := b.begin("ann")
				for range packets {
					send(a, "media/echo", 3)
				}
				mu.Lock()
				ids = append(ids, a.id)
				mu.Unlock()
				a.Because(ByClient)
				a.End()
			}
		})
	}
	group.Wait()
	stop()
	deliveries.Wait()
	b.consumer.fail = nil
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if got := b.consumer.sum(id); got != (Count{3 * packets, packets}) {
			t.Fatalf("%v: %+v", id, got)
		}
	}
	if len(b.consumer.highest) != workers*each {
		t.Errorf("%d parts of %d sessions", len(b.consumer.highest), workers*each)
	}
}

// Without usage records nothing is counted, and every method is valid.
func TestWithoutUsageRecordsNothingIsCounted(t *testing.T) {
	var b *Recorder
	a := b.Begin(Identity{})
	a.Because(ByClient)
	a.Leave()
	a.End()
	b.Abandon(ID{}, "")
	b.Run(t.Context())
	if a.Route("media/echo") != nil || b.Close(t.Context()) != nil || b.Status() != (Status{}) {
		t.Error("something is counted")
	}
}
