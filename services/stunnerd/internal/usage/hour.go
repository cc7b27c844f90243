package usage

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"
	"unsafe"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const (
	// hourMinutes is the number of minutes that are kept: an hour, the current minute, and one more for slow requests.
	hourMinutes = int64(inspection.UsageSpan/time.Minute) + 2
	// The memory of the last hour is at most mostHour bytes. Its limit is never less than leastHour.
	mostHour  = 16 << 20
	leastHour = 256 << 10
	// perUser is the memory of a user without its samples and its name.
	perUser = 160
	// atOnce is the number of accounts or users that are read before the lock is released.
	atOnce = 256
)

// hour has the usage of the last hour by minute, user and route. Its memory is bounded: beyond the bound, only the sum
// of the users with the fewest bytes is kept. It is not safe for concurrent use.
type hour struct {
	// limit is the bound of the memory in bytes, and size the memory.
	limit, size int
	// minute is the current minute, in minutes since 1970. since is the first minute of the hour.
	minute, since int64
	users         map[string]*hourUser
	// others is the sum of the users that are not kept. Its samples have no route.
	others hourUser
}

// hourUser is the usage of one user.
type hourUser struct {
	name string
	// samples are in the order in which they began.
	samples []sample
}

// sample is the usage of a user with one route in one minute. A sample without a route has sessions and times only.
type sample struct {
	minute         int64
	sent, received Count
	milliseconds   uint64
	route          ref
	starts         uint32
}

const sampleSize = int(unsafe.Sizeof(sample{}))

// counted are the values of the counters of an account that the hour already includes.
type counted struct {
	sent, received Count
}

// newHour returns an hour that begins now. memory is the memory of sessions, of which the hour may use a 32nd, but at
// least leastHour; 0 means no limit.
func newHour(memory int64, now time.Time) hour {
	limit := mostHour
	if memory > 0 {
		limit = max(int(min(memory/32, mostHour)), leastHour)
	}
	minute := now.Unix() / 60
	return hour{limit: limit, minute: minute, since: minute, users: map[string]*hourUser{}}
}

// add adds the increase of the counters of an account since the previous call to the current minute.
func (h *hour) add(a *Account, now time.Time) {
	s := a.slot
	var rest sample
	until := now.UnixMilli()
	if s.state.Load() == ended {
		until = min(until, s.ended.Load())
	}
	if up := until - a.upUntil; up > 0 { // the clock may have been set back
		rest.milliseconds = uint64(up)
	}
	a.upUntil = until
	if !a.begun {
		rest.starts, a.begun = 1, true
	}
	for i := range s.routes {
		route := &s.routes[i]
		at := route.name.Load()
		if at == 0 {
			continue
		}
		next := counted{countOf(&route.Tx), countOf(&route.Rx)}
		if next == a.counted[i] {
			continue
		}
		into := h.sample(h.user(a.user), at)
		into.sent.addSince(next.sent, a.counted[i].sent)
		into.received.addSince(next.received, a.counted[i].received)
		into.addTimes(&rest)
		rest, a.counted[i] = sample{}, next
	}
	if rest != (sample{}) {
		h.sample(h.user(a.user), 0).addTimes(&rest)
	}
	if h.size > h.limit {
		h.shrink()
	}
}

// addSince adds the increase of a counter.
func (c *Count) addSince(next, last Count) {
	c.add(Count{next.Bytes - last.Bytes, next.Packets - last.Packets})
}

func (s *sample) addTimes(t *sample) {
	s.starts += t.starts
	s.milliseconds += t.milliseconds
}

func (h *hour) user(name string) *hourUser {
	u := h.users[name]
	if u == nil {
		u = &hourUser{name: name}
		h.users[name] = u
		h.size += u.size()
	}
	return u
}

func (u *hourUser) size() int { return perUser + len(u.name) + cap(u.samples)*sampleSize }

// sample returns the sample of a user and a route in the current minute.
func (h *hour) sample(u *hourUser, route ref) *sample {
	for i := len(u.samples) - 1; i >= 0 && u.samples[i].minute == h.minute; i-- {
		if u.samples[i].route == route {
			return &u.samples[i]
		}
	}
	before := cap(u.samples)
	u.samples = append(u.samples, sample{minute: h.minute, route: route})
	h.size += (cap(u.samples) - before) * sampleSize
	return &u.samples[len(u.samples)-1]
}

// advance begins another minute, and removes samples that are older than the hour.
func (h *hour) advance(minute int64) {
	h.minute = minute
	h.size = 0
	old := func(s sample) bool { return s.minute <= minute-hourMinutes || s.minute > minute }
	h.others.samples = slices.DeleteFunc(h.others.samples, old)
	for name, u := range h.users {
		if u.samples = slices.DeleteFunc(u.samples, old); len(u.samples) == 0 {
			delete(h.users, name)
			continue
		}
		if cap(u.samples) > 4*len(u.samples) {
			u.samples = slices.Clone(u.samples)
		}
		h.size += u.size()
	}
}

// shrink moves the users with the fewest bytes to others, until a quarter of the memory is free. It compares their
// bytes by powers of two: sorting would take longer, and sessions wait meanwhile.
func (h *hour) shrink() {
	var sizes [65]int // memory of the users by the bit length of their bytes
	magnitudes := make(map[*hourUser]int, len(h.users))
	for _, u := range h.users {
		magnitudes[u] = bits.Len64(u.bytes())
		sizes[magnitudes[u]] += u.size()
	}
	excess, most := h.size-h.limit/4*3, 0
	for freed := sizes[0]; freed < excess && most < len(sizes)-1; freed += sizes[most] {
		most++
	}
	for _, below := range []bool{true, false} {
		for u, magnitude := range magnitudes {
			if below && magnitude < most || !below && magnitude == most && h.size > h.limit/4*3 {
				h.forget(u)
			}
		}
	}
}

// forget moves a user to others.
func (h *hour) forget(u *hourUser) {
	for i := range u.samples {
		h.others.merge(&u.samples[i])
	}
	delete(h.users, u.name)
	h.size -= u.size()
}

// bytes is the sum of both directions.
func (u *hourUser) bytes() (sum uint64) {
	for i := range u.samples {
		sum += u.samples[i].sent.Bytes + u.samples[i].received.Bytes
	}
	return sum
}

// merge adds a sample of another user, without its route.
func (u *hourUser) merge(s *sample) {
	i := slices.IndexFunc(u.samples, func(o sample) bool { return o.minute == s.minute })
	if i < 0 {
		i = len(u.samples)
		u.samples = append(u.samples, sample{minute: s.minute})
	}
	into := &u.samples[i]
	into.sent.add(s.sent)
	into.received.add(s.received)
	into.addTimes(s)
}

// figures returns a sample as it is shown.
func (s *sample) figures() inspection.UsageFigures {
	return inspection.UsageFigures{
		Sessions: uint64(s.starts), Seconds: float64(s.milliseconds) / 1000,
		Sent: inspection.UsageCount(s.sent), Received: inspection.UsageCount(s.received),
	}
}

// countHour adds the traffic of all accounts to the current minute, and begins the next minute if it is time. It
// releases the lock regularly, so that no session waits for it.
func (b *Recorder) countHour() {
	if b.o.Refresh != nil {
		b.o.Refresh()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]*Account, 0, len(b.accounts)+len(b.over))
	for _, a := range b.accounts {
		if b.waiting[a.id] != a {
			all = append(all, a)
		}
	}
	all = append(all, b.over...)
	now := b.o.Now()
	for i, a := range all {
		if i%atOnce == atOnce-1 {
			b.mu.Unlock()
			b.mu.Lock()
		}
		if !a.released {
			b.hour.add(a, now)
		}
	}
	if minute := now.Unix() / 60; minute != b.hour.minute {
		b.hour.advance(minute)
	}
}

// Hour returns the usage in a period of the last hour. The query has the user id even if records show its hash.
func (b *Recorder) Hour(q inspection.UsageQuery) inspection.Usage {
	b.countHour()
	sums := b.sumHour(q)
	out := inspection.Usage{
		From: q.From.UTC().Truncate(time.Minute), To: q.To.UTC().Add(time.Minute - 1).Truncate(time.Minute),
		Since: time.Unix(sums.since*60, 0).UTC(), Total: sums.total, Truncated: sums.truncated,
		Entries: make([]inspection.UsageEntry, 0, min(len(sums.entries), q.Limit)),
	}
	if now := b.o.Now().UTC().Truncate(time.Second); out.To.After(now) {
		out.To = now
	}
	order := slices.SortedFunc(maps.Keys(sums.entries), func(a, b string) int {
		return cmp.Or(cmp.Compare(sums.entries[b].Bytes(), sums.entries[a].Bytes()), cmp.Compare(a, b))
	})
	room := maxHourAnswer
	for _, name := range order {
		e := inspection.UsageEntry{User: name, UsageFigures: *sums.entries[name]}
		if q.By == inspection.UsageByRoute {
			e.User, e.Route = "", name
		}
		if room -= entrySize + 6*len(name); len(out.Entries) == q.Limit || room < 0 {
			out.Truncated = true
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out
}

const (
	// maxHourAnswer bounds the entries of an answer in bytes of JSON. The answer of a pod has at most 512 KiB.
	maxHourAnswer = 384 << 10
	// entrySize is the size of an entry in JSON without its name. Each byte of the name may be escaped with six
	// characters.
	entrySize = 256
)

// hourSums are the sums of a query by user or route.
type hourSums struct {
	total     inspection.UsageFigures
	entries   map[string]*inspection.UsageFigures
	since     int64
	truncated bool
}

// sumHour adds up the samples that a query selects.
func (b *Recorder) sumHour(q inspection.UsageQuery) hourSums {
	from, to := q.From.Unix()/60, (q.To.Unix()+59)/60
	within := func(s *sample) bool { return s.minute >= from && s.minute < to }
	out := hourSums{entries: map[string]*inspection.UsageFigures{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	out.since = b.hour.since
	for i := range b.hour.others.samples {
		if s := &b.hour.others.samples[i]; within(s) {
			out.truncated = true
			if q.User == "" {
				out.total.Add(s.figures())
			}
		}
	}
	users := b.selected(q.User)
	for i, u := range users {
		if i%atOnce == atOnce-1 {
			b.mu.Unlock()
			b.mu.Lock()
		}
		for j := range u.samples {
			s := &u.samples[j]
			if !within(s) {
				continue
			}
			f := s.figures()
			out.total.Add(f)
			name := u.name
			if q.By == inspection.UsageByRoute {
				if name = b.slots.name(s.route); name == "" {
					continue
				}
				f.Sessions, f.Seconds = 0, 0 // sessions are not counted by route
			}
			sum := out.entries[name]
			if sum == nil {
				sum = &inspection.UsageFigures{}
				out.entries[name] = sum
			}
			sum.Add(f)
		}
	}
	return out
}

// selected returns the users that a query selects. The caller holds mu.
func (b *Recorder) selected(user string) []*hourUser {
	if user == "" {
		return slices.Collect(maps.Values(b.hour.users))
	}
	if u := b.hour.users[b.shown(user)]; u != nil {
		return []*hourUser{u}
	}
	return nil
}
