package usage

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// interval is the time between two interim records of a session.
	interval = time.Minute
	// buckets spread the interim records over the interval.
	buckets = int(interval / time.Second)
	// settleTime is the time between the end of a session and its last record. The kernel reports packets within two
	// seconds (see offload.Entry.Count).
	settleTime = 3 * time.Second
	// batch is the number of records of one delivery.
	batch = 256
	// leastEnded is the least bound of the sessions whose last record is not delivered.
	leastEnded = 256
	// maxNames bounds the names of listeners, routes and reasons.
	maxNames = 1 << 12
	// leastRetry and mostRetry are the times between two attempts to deliver records.
	leastRetry = time.Second
	mostRetry  = 30 * time.Second
	// closeTime is how long Close waits for the volume.
	closeTime = 2 * time.Second
)

// Sink takes records. An error means that none, some or all of the records may have arrived. The recorder then delivers
// these records again, with the current counters.
type Sink interface {
	Deliver(ctx context.Context, records []Record) error
}

// Options are the arguments of Open.
type Options struct {
	// Dir is the folder of the file with the accounts. Empty keeps them in memory only.
	Dir string
	// Sessions is the number of sessions that the process has room for. The sessions whose last record is not delivered
	// are at most half as many.
	Sessions int
	// Memory is the memory of sessions in bytes, of which the last hour takes a part; 0 means no limit.
	Memory int64
	// HandOver reports whether another process continues the accounts that this process leaves.
	HandOver bool
	// Continued are the sessions that this process continues. All other accounts in the folder have ended.
	Continued []ID
	// Sink takes the records. A nil Sink means that there are none, and that only the last hour is kept.
	Sink Sink
	// User returns the form in which records show a user id. If it is nil, records show the id.
	User func(string) string
	// Refresh brings the counters up to date.
	Refresh func()
	// Now is the wall clock.
	Now func() time.Time
	Log *slog.Logger
}

// maxEnded bounds the sessions whose last record is not delivered.
func (o *Options) maxEnded() int { return max(o.Sessions/2, leastEnded) }

// Status are the numbers of a Recorder.
type Status struct {
	// Delivered is the number of delivered records. Failed is the number of failed deliveries.
	Delivered, Failed uint64
	// Lost is the number of sessions without a last record, or without any record.
	Lost uint64
	// Waiting is the number of sessions with a record that is due.
	Waiting int
}

// Recorder contains the accounts of a process. Use Open. A nil Recorder has no accounts.
type Recorder struct {
	o Options

	mu    sync.Mutex
	slots *slots
	names map[string]ref
	// accounts are the accounts of live sessions, including those in waiting.
	accounts map[ID]*Account
	// waiting are the accounts of a previous process that Begin has not continued yet.
	waiting map[ID]*Account
	// over are the ended accounts, in the order of their ends.
	over []*Account
	hour hour
	// ticked is the time of the last tick, in seconds since 1970.
	ticked int64
	status Status
	// full is the last error of the volume, or nil.
	full error

	// need makes Run call store, because there are few spare chunks or a new chunk of ordinary memory.
	need chan struct{}
	// storing has a value during calls of the volume. A caller that holds mu must not wait for such a call.
	storing chan struct{}

	// unstored reports whether the log has a warning about chunks without a copy in the file. Only tick uses it.
	unstored bool

	// Only one delivery at a time uses the following fields.

	// retry is the earliest time of the next delivery after an error, and pause the time between two attempts.
	retry   time.Time
	pause   time.Duration
	problem bool
}

// Open reads the accounts of a previous process. It logs problems with the folder. Such a problem only loses the
// accounts of a process that is killed.
func Open(o Options) *Recorder {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	memory, err := openSlots(o.Dir)
	if err != nil {
		o.Log.Warn("usage is lost if this process is killed", "error", err)
	}
	b := &Recorder{
		o: o, slots: memory, names: map[string]ref{}, accounts: map[ID]*Account{}, waiting: map[ID]*Account{},
		need: make(chan struct{}, 1), storing: make(chan struct{}, 1),
	}
	b.ticked, b.hour = o.Now().Unix(), newHour(o.Memory, o.Now())
	b.store()
	b.restore()
	return b
}

// restore finds the accounts of a previous process.
func (b *Recorder) restore() {
	var alive int64
	continued := make(map[ID]bool, len(b.o.Continued))
	for _, id := range b.o.Continued {
		continued[id] = true
	}
	b.o.Continued = nil // frees the memory
	for n := range b.slots.chunks {
		for at := range b.slots.inChunk(n) {
			if b.slots.at(at).state.Load() == name {
				if text := b.slots.name(at); text != "" && b.names[text] == 0 && len(b.names) < maxNames {
					b.names[text] = at
				}
			}
		}
	}
	for n := range b.slots.chunks {
		if c := &b.slots.chunks[n]; c.memory != nil {
			alive = max(alive, c.header().alive.Load())
		}
	}
	for n := range b.slots.chunks {
		for at := range b.slots.inChunk(n) {
			s := b.slots.at(at)
			kind := s.state.Load()
			_, twice := b.accounts[s.id]
			switch {
			case kind == live && b.slots.valid(at) && !twice && continued[s.id]:
				a := b.account(at)
				a.begun = true
				b.accounts[a.id], b.waiting[a.id] = a, a
			case (kind == live || kind == ended) && b.slots.valid(at):
				a := b.account(at)
				a.begun = true
				b.close(a, Crashed, time.UnixMilli(alive))
			case kind == name && b.names[b.slots.name(at)] == at:
			default:
				b.slots.release(at)
			}
		}
	}
}

func (b *Recorder) account(at ref) *Account {
	s := b.slots.at(at)
	a := &Account{
		recorder: b, at: at, slot: s, id: s.id, bucket: int(s.part % uint64(buckets)), upUntil: b.o.Now().UnixMilli(),
	}
	_, a.user = b.slots.texts(at)
	for i := range s.routes {
		a.names[i] = b.slots.name(s.routes[i].name.Load())
		a.counted[i] = counted{countOf(&s.routes[i].Tx), countOf(&s.routes[i].Rx)}
	}
	return a
}

// New returns a random ID.
func New() (id ID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

func part(n uint64) string { return fmt.Sprintf("%016x", n) }

// Begin returns the account of a new session, or of a session that another process has begun. If a previous process
// with the same folder has an account of the session, Begin continues this account. It returns nil if there is no
// memory.
func (b *Recorder) Begin(i Identity) *Account {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.waiting[i.ID]; a != nil {
		delete(b.waiting, i.ID)
		a.slot.reason.Store(0)
		a.upUntil = b.o.Now().UnixMilli()
		return a
	}
	user, caveats := b.shown(i.User), ""
	if i.Caveats != "" {
		sum := sha256.Sum256([]byte(i.Caveats))
		caveats = hex.EncodeToString(sum[:8])
	}
	user = user[:min(len(user), maxText-len(caveats))]
	gateway, listener, protocol := b.name(i.Gateway), b.name(i.Listener), b.name(i.Protocol)
	at := b.take(len(caveats) + len(user))
	if at == 0 {
		b.status.Lost++
		return nil
	}
	s := b.slots.at(at)
	b.slots.write(at, caveats, user)
	s.id, s.started = i.ID, i.Started.UnixMilli()
	s.gateway, s.listener, s.protocol = gateway, listener, protocol
	var random [8]byte
	_, _ = rand.Read(random[:])
	s.part = binary.BigEndian.Uint64(random[:])
	s.state.Store(live) // after all other fields, because the process may be killed at any time
	a := b.account(at)
	a.begun = i.Continued
	b.accounts[a.id] = a
	return a
}

// shown returns the form in which records show a user id.
func (b *Recorder) shown(user string) string {
	if b.o.User != nil {
		user = b.o.User(user)
	}
	return strings.ToValidUTF8(user, "�")
}

// Abandon ends the account of a previous process whose session this process does not continue.
func (b *Recorder) Abandon(id ID, reason string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.waiting[id]; a != nil {
		a.closed.Store(true)
		b.close(a, reason, b.o.Now())
	}
}

// named returns the ref of a name.
func (b *Recorder) named(text string) ref {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.name(text)
}

// name does the same as the method named, for a caller that holds mu. It returns 0 if there are too many names.
func (b *Recorder) name(text string) ref {
	if at := b.names[text]; at != 0 || text == "" || len(text) > maxText || len(b.names) >= maxNames {
		return at
	}
	at := b.take(len(text))
	if at != 0 {
		b.slots.write(at, "", text)
		b.slots.at(at).state.Store(name)
		b.names[text] = at
	}
	return at
}

// take returns a free slot, and never waits for the volume. The caller holds mu.
func (b *Recorder) take(text int) ref {
	before := len(b.slots.spare) + len(b.slots.chunks)
	at := b.slots.take(text)
	if len(b.slots.spare)+len(b.slots.chunks) != before {
		select {
		case b.need <- struct{}{}:
		default:
		}
	}
	return at
}

func (b *Recorder) end(a *Account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.o.Now()
	a.settled = now.Add(settleTime)
	b.close(a, Unknown, now)
}

// close ends an account, unless it has ended before. The caller holds mu.
func (b *Recorder) close(a *Account, reason string, at time.Time) {
	b.forget(a)
	if a.slot.state.Load() == live {
		a.slot.reason.CompareAndSwap(0, b.name(reason))
		a.slot.ended.Store(at.UnixMilli())
		a.slot.state.Store(ended)
	}
	// A session that could not start is not counted.
	a.begun = a.begun || a.slot.routes[0].name.Load() == 0 && b.slots.name(a.slot.reason.Load()) == Unknown
	b.hour.add(a, b.o.Now())
	if len(b.over) >= b.o.maxEnded() {
		if b.o.Sink != nil {
			b.status.Lost++
		}
		b.release(a)
		return
	}
	b.over = append(b.over, a)
}

// release makes the slot of an account free, after its last packets are counted. The caller holds mu.
func (b *Recorder) release(a *Account) {
	b.hour.add(a, b.o.Now())
	a.released = true
	b.slots.release(a.at)
}

// forget removes an account from the maps. The caller holds mu.
func (b *Recorder) forget(a *Account) {
	if b.accounts[a.id] == a {
		delete(b.accounts, a.id)
	}
	if b.waiting[a.id] == a {
		delete(b.waiting, a.id)
	}
}

func (b *Recorder) leave(a *Account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.o.HandOver || !b.slots.stored(a.at) {
		b.close(a, Shutdown, b.o.Now())
		return
	}
	a.due = true
}

// Status returns the numbers of the recorder.
func (b *Recorder) Status() Status {
	if b == nil {
		return Status{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	if b.o.Sink == nil {
		return s
	}
	s.Waiting = len(b.over)
	for _, a := range b.accounts {
		if a.due {
			s.Waiting++
		}
	}
	return s
}

// Run delivers records until ctx ends. Close delivers the remaining records.
func (b *Recorder) Run(ctx context.Context) {
	if b == nil {
		return
	}
	// A slow volume or sink must not delay the other. Run waits for a delivery, which ends with ctx, but not for the
	// volume.
	second, due := make(chan struct{}, 1), make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-second:
			case <-b.need:
			}
			b.store()
		}
	}()
	var delivering sync.WaitGroup
	defer delivering.Wait()
	delivering.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-due:
				b.deliverDue(ctx)
			}
		}
	})
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.tick()
			for _, wake := range []chan<- struct{}{second, due} {
				select {
				case wake <- struct{}{}:
				default:
				}
			}
		}
	}
}

// store maps chunks in advance, and copies chunks of ordinary memory into the file. It waits for the volume.
func (b *Recorder) store() {
	b.storing <- struct{}{}
	defer func() { <-b.storing }()
	err := b.mapWanted()
	if copied := b.copyChunks(); err == nil {
		err = copied
	}
	b.mu.Lock()
	b.full = err
	b.mu.Unlock()
}

// mapWanted maps chunks until there are enough spare chunks. The caller has set storing.
func (b *Recorder) mapWanted() error {
	for {
		b.mu.Lock()
		n, ok := b.slots.wanted()
		b.mu.Unlock()
		if !ok {
			return nil
		}
		memory, err := b.slots.file.Map(n)
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.slots.add(n, memory)
		b.mu.Unlock()
	}
}

// copyChunks copies the chunks of ordinary memory into the file. The caller has set storing.
func (b *Recorder) copyChunks() error {
	if b.slots.file == nil {
		return nil
	}
	var buffer []uint64
	for n := 0; ; n++ {
		b.mu.Lock()
		if n == len(b.slots.chunks) {
			b.mu.Unlock()
			return nil
		}
		c := &b.slots.chunks[n]
		stale, used := c.stale(), c.used
		if stale {
			buffer = c.read(buffer)
		}
		b.mu.Unlock()
		if !stale {
			continue
		}
		err := b.slots.file.Write(n, bytesOf(buffer))
		b.mu.Lock()
		c = &b.slots.chunks[n]
		c.copied, c.usedInCopy = err == nil, used
		b.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// tick makes the interim records of the seconds since the last tick due, and begins the next minute of the last hour.
func (b *Recorder) tick() {
	b.mu.Lock()
	minute := b.hour.minute
	b.mu.Unlock()
	if b.o.Now().Unix()/60 != minute {
		b.countHour()
	} else if b.o.Refresh != nil {
		b.o.Refresh()
	}
	b.mu.Lock()
	h, unstored, full := b.slots.header(), b.slots.uncopied(), b.full
	now := b.o.Now()
	passed := now.Unix() - b.ticked
	b.ticked = now.Unix()
	for _, a := range b.accounts {
		// ago is the time in seconds since the interim record was due. The variable passed is negative if the clock was
		// set back.
		ago := ((now.Unix()-int64(a.bucket))%int64(buckets) + int64(buckets)) % int64(buckets)
		a.due = a.due || ago < max(passed, 1)
	}
	b.mu.Unlock()
	if h != nil {
		h.alive.Store(now.UnixMilli())
	}
	switch was := b.unstored; {
	case unstored && !was:
		b.o.Log.Warn("usage of new sessions is lost if this process is killed: "+
			"the folder must take writes and have room", "error", full)
	case was && !unstored:
		b.o.Log.Info("usage of all sessions is in the folder again")
	}
	b.unstored = unstored
}

// deliverDue delivers the records that are due, unless the last attempt has just failed.
func (b *Recorder) deliverDue(ctx context.Context) {
	if b.o.Now().Before(b.retry) {
		return
	}
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = b.deliver(ctx, false); err != nil {
			b.pause = min(max(2*b.pause, leastRetry), mostRetry)
			b.retry = b.o.Now().Add(b.pause)
			return
		}
		b.pause = 0
	}
}

// deliver delivers one batch: first the last records of sessions, the oldest first, then interim records. It reports
// whether more records are due. If all is set, last records do not wait for settleTime.
func (b *Recorder) deliver(ctx context.Context, all bool) (more bool, err error) {
	records, over, interim := b.due(all)
	if over == 0 && len(records) == 0 {
		return false, nil
	}
	if len(records) > 0 {
		err = b.o.Sink.Deliver(ctx, records)
	}
	switch {
	case err != nil && !b.problem:
		b.o.Log.Warn("usage records were not delivered, and are kept", "records", len(records), "error", err)
	case err == nil && b.problem:
		b.o.Log.Info("usage records are delivered again")
	}
	b.problem = err != nil
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.status.Failed++
		for _, a := range interim {
			a.due = a.slot.state.Load() == live
		}
		return false, err
	}
	b.status.Delivered += uint64(len(records))
	for _, a := range b.over[:over] {
		b.release(a)
	}
	b.over = slices.Delete(b.over, 0, over)
	return over == batch || len(records) == batch, nil
}

// due returns the records of a batch. It also returns the number of ended accounts at the beginning of the batch, and
// the live accounts.
func (b *Recorder) due(all bool) (records []Record, over int, interim []*Account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.o.Now()
	for _, a := range b.over {
		if over == batch || !all && now.Before(a.settled) {
			break
		}
		over++
		if b.o.Sink == nil {
			continue
		}
		if r := b.record(a, now); r.Reason != Unknown || len(r.Routes) > 0 {
			records = append(records, r)
		}
	}
	if b.o.Sink == nil {
		return nil, over, nil
	}
	for _, a := range b.accounts {
		if len(records) == batch {
			break
		}
		if a.due {
			a.due = false
			records = append(records, b.record(a, now))
			interim = append(interim, a)
		}
	}
	return records, over, interim
}

// Close delivers the remaining records until ctx ends, and closes the file. All sessions must have ended. Last records
// that cannot be delivered stay in the file; without a file they are lost.
func (b *Recorder) Close(ctx context.Context) error {
	if b == nil {
		return nil
	}
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = b.deliver(ctx, true); err != nil {
			more = true
			wait(ctx, leastRetry)
		}
	}
	closed := make(chan error, 1)
	go func() {
		b.store()
		closed <- b.closeFile()
	}()
	// The file stays locked while it is written, so that the next process waits.
	var err error
	timeout := time.NewTimer(closeTime)
	defer timeout.Stop()
	select {
	case err = <-closed:
	case <-timeout.C:
		err = fmt.Errorf("close usage: the folder takes no writes for %v", closeTime)
	}
	if left, lost := b.left(); left > 0 {
		b.o.Log.Error("usage records were not delivered before the end", "kept in the folder", left-lost, "lost", lost)
	}
	return err
}

// closeFile closes the file. It waits for the volume.
func (b *Recorder) closeFile() error {
	b.storing <- struct{}{}
	defer func() { <-b.storing }()
	b.mu.Lock()
	file := b.slots.file
	b.slots.file = nil
	b.mu.Unlock()
	if file == nil {
		return nil
	}
	return file.Close()
}

// left returns the number of undelivered last records, and how many of these are lost.
func (b *Recorder) left() (left, lost int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.over {
		if !b.slots.stored(a.at) {
			lost++
		}
	}
	b.status.Lost += uint64(lost)
	return len(b.over), lost
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
