package forward

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// The quota of a user counts the sessions in all pods. One pod, the home of the user, decides about each new session:
// the pod with the highest rendezvous hash. Each pod reports to the homes how many sessions their users have at this
// pod, and asks the home of a user before it answers an Allocate request. So two concurrent requests at two pods cannot
// both get the last session of a quota. Reported counts alone could not prevent that.
//
// The counts of a home end with its process. A pod that gets no answer decides by its own count. A count is valid for
// countTime only, so no user is refused because of the sessions of a pod that is gone.
const (
	// countEvery is how often a pod reports the numbers of sessions to the homes. countTime is how long a number is
	// valid, so that two frames may be lost.
	countEvery = 10 * time.Second
	countTime  = 35 * time.Second
	// admitTimes is how many times a home is asked about a session, and admitTimeout is how long the pod waits for each
	// answer. Together they are shorter than the 500 ms after which a client repeats its request (RFC 8489 §6.2.1).
	admitTimes   = 3
	admitTimeout = 100 * time.Millisecond
	// alone is how long a pod sends no admit frame to a home that has not answered, so that clients do not wait for
	// this home.
	alone = 5 * time.Second
	// maxCounts is the largest number of counts that a home stores. The users of 1,000,000 sessions in 100 pods with
	// one session each need 10,000.
	maxCounts = 1 << 17

	// userSize, countSize, admitSize and verdictSize are the sizes of parts of payloads.
	userSize    = len(User{})
	countSize   = userSize + 4
	toldSize    = countSize + 8
	admitSize   = 8 + countSize + 4
	verdictSize = 8 + 1
)

// User identifies a user: a hash of the user id.
type User [16]byte

// key returns the key for the rendezvous hash.
func (u User) key() clientKey {
	return clientKey{high: binary.BigEndian.Uint64(u[:]), low: binary.BigEndian.Uint64(u[8:])}
}

// quotas are the numbers of sessions of users.
type quotas struct {
	mu sync.Mutex
	// changed are the numbers of sessions of this pod that must be reported.
	changed map[User]ownCount
	// counts are the numbers of sessions in all pods of the users whose home is this pod. counted is the number of
	// entries, at most maxCounts.
	counts  map[User][]count
	counted int
	// asked are the sessions about which a home was asked, by the id of the frames.
	asked map[uint64]*admission
	last  uint64
	// silent has the ids of homes that have not answered, and the time until which each is not asked.
	silent map[uint64]time.Duration
}

func newQuotas() quotas {
	return quotas{
		changed: map[User]ownCount{}, counts: map[User][]count{}, asked: map[uint64]*admission{},
		silent: map[uint64]time.Duration{},
	}
}

// ownCount is a number of sessions of this process. counter is the counter of the latest frame when the sessions were
// counted. A session that the home admits for a frame with a higher counter is not included, even if the number is sent
// after that frame.
type ownCount struct {
	sessions uint32
	counter  uint64
}

// count is the number of sessions of a user in a process. A process has another sender than the process that it
// replaces. The counts of senders that are not in the list are ignored.
type count struct {
	sender   [8]byte
	sessions uint32
	// counter is the counter of the admit frame or of the ownCount. The count with the higher counter is the newer one.
	counter uint64
	until   time.Duration
}

// admission is a session about which a home was asked.
type admission struct {
	home    *pod
	payload [admitSize]byte
	asked   int
	timer   *time.Timer
	answer  func(ok bool)
}

// Admit asks whether a user may have another session, and calls answer once: before Admit returns, or later from
// another goroutine, or never after Close. sessions is the number of sessions of the user here, with the new one. limit
// is the largest number in all pods. If the home does not answer, the answer is yes, because the caller has compared
// its own number with the limit.
func (f *Forwarder) Admit(u User, sessions, limit uint32, answer func(ok bool)) {
	if f == nil {
		answer(true)
		return
	}
	v := f.view.Load()
	if !v.forwards() {
		answer(true)
		return
	}
	home := rank(v.homes, u.key())[0].pod
	if home == v.self {
		answer(f.counted(f.admits(v, u, f.count(ownCount{sessions, f.counter.Add(1)}), limit)))
		return
	}
	a := f.await(home, u, sessions, limit, answer)
	if a == nil {
		f.meter.QuotaUnanswered.Add(1)
		answer(true)
		return
	}
	f.ask(a)
}

// await returns a new admission, or nil while no admit frame is sent to the home (see alone).
func (f *Forwarder) await(home *pod, u User, sessions, limit uint32, answer func(ok bool)) *admission {
	q := &f.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.silent[home.id] > f.now() {
		return nil
	}
	q.last++
	id := q.last
	a := &admission{home: home, answer: answer}
	b := appendCount(binary.BigEndian.AppendUint64(a.payload[:0], id), u, sessions)
	binary.BigEndian.AppendUint32(b, limit)
	a.timer = time.AfterFunc(admitTimeout, func() { f.askAgain(id) })
	q.asked[id] = a
	return a
}

func (f *Forwarder) ask(a *admission) {
	path := ReturnPath{forwarder: f, pod: a.home, client: nobody}
	_ = path.send(admit, a.payload[:])
}

// askAgain repeats the frame of an admission, or decides without the home.
func (f *Forwarder) askAgain(id uint64) {
	defer f.meter.RecoverPanic("count sessions of a user")
	select {
	case <-f.closed:
		return
	default:
	}
	q := &f.quotas
	q.mu.Lock()
	a := q.asked[id]
	if a == nil {
		q.mu.Unlock()
		return
	}
	a.asked++
	again := a.asked < admitTimes
	if again {
		a.timer.Reset(admitTimeout)
	} else {
		delete(q.asked, id)
		q.silent[a.home.id] = f.now() + alone
	}
	q.mu.Unlock()
	if again {
		f.ask(a)
		return
	}
	f.meter.QuotaUnanswered.Add(1)
	a.answer(true)
}

// counted counts a decision that a home has made.
func (f *Forwarder) counted(ok bool) bool {
	if ok {
		f.meter.QuotaAdmitted.Add(1)
	} else {
		f.meter.QuotaRefused.Add(1)
	}
	return ok
}

// Count reports to the home of a user how many sessions the user has here. A number that has decreased is sent at once,
// because other pods may wait for the free session. A number that has increased is sent within a second, because the
// home already counts the sessions that it has admitted.
func (f *Forwarder) Count(u User, sessions uint32, fewer bool) {
	if f == nil || !f.view.Load().forwards() {
		return // when forwarding begins, the announcer reports all numbers
	}
	q := &f.quotas
	q.mu.Lock()
	_, listed := q.changed[u]
	listed = listed || len(q.changed) < most(f.clients, maxPending)
	if listed {
		q.changed[u] = ownCount{sessions, f.counter.Add(1)}
	}
	q.mu.Unlock()
	if !listed {
		f.unlisted()
	}
	if fewer {
		f.signal()
	}
}

func (f *Forwarder) count(own ownCount) count {
	return count{f.self.Sender, own.sessions, own.counter, f.now() + countTime}
}

// admits reports whether the sessions of a new count fit into the limit, and stores the count if so.
func (f *Forwarder) admits(v *view, u User, next count, limit uint32) bool {
	q := &f.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	total, admitted, now := uint64(next.sessions), uint32(0), next.until-countTime
	for _, c := range q.counts[u] {
		switch {
		case c.until <= now, c.sender != f.self.Sender && v.senders[c.sender] == nil:
		case c.sender == next.sender:
			admitted = c.sessions
		default:
			total += uint64(c.sessions)
		}
	}
	if total > uint64(limit) {
		return false
	}
	// Several readers of a pod send admit frames, so an earlier one may arrive last. An admit frame therefore never
	// lowers the stored number.
	next.sessions = max(next.sessions, admitted)
	f.store(u, next)
	return true
}

// store stores a count unless a newer count of its process is stored. A count of 0 is stored too, so that an older
// frame that arrives later is ignored. The caller must hold mu.
func (f *Forwarder) store(u User, next count) {
	q := &f.quotas
	all := q.counts[u]
	i := slices.IndexFunc(all, func(c count) bool { return c.sender == next.sender })
	switch {
	case i >= 0:
		if all[i].counter < next.counter {
			all[i] = next
		}
	case next.sessions == 0:
	case q.counted >= most(f.clients, maxCounts):
		f.unlisted()
	default:
		q.counted++
		q.counts[u] = append(all, next)
	}
}

// sweepQuotas removes expired counts, and the homes that may be asked again from silent.
func (f *Forwarder) sweepQuotas(now time.Duration) {
	q := &f.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counted = 0
	for u, all := range q.counts {
		all = slices.DeleteFunc(all, func(c count) bool { return c.until <= now })
		q.counted += len(all)
		q.counts[u] = all
	}
	maps.DeleteFunc(q.counts, func(_ User, all []count) bool { return len(all) == 0 })
	maps.DeleteFunc(q.silent, func(_ uint64, until time.Duration) bool { return until <= now })
}

func appendCount(b []byte, u User, sessions uint32) []byte {
	return binary.BigEndian.AppendUint32(append(b, u[:]...), sessions)
}

// readCount reads a user and a number at the start of b, which has at least countSize bytes.
func readCount(b []byte) (User, uint32) { return User(b), binary.BigEndian.Uint32(b[userSize:]) }

// handleCounts stores the numbers of sessions of another pod.
func (f *Forwarder) handleCounts(l *link, m message, at time.Duration) {
	if len(m.payload) == 0 || len(m.payload)%toldSize != 0 {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	f.quotas.mu.Lock()
	defer f.quotas.mu.Unlock()
	for b := m.payload; len(b) > 0; b = b[toldSize:] {
		u, sessions := readCount(b)
		f.store(u, count{l.peer.Sender, sessions, binary.BigEndian.Uint64(b[countSize:]), at + countTime})
	}
}

// handleAdmit decides about a session at another pod.
func (f *Forwarder) handleAdmit(v *view, l *link, m message, at time.Duration) {
	if len(m.payload) != admitSize {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	u, sessions := readCount(m.payload[8:])
	limit := binary.BigEndian.Uint32(m.payload[8+countSize:])
	verdict := append(make([]byte, 0, verdictSize), m.payload[:8]...)
	if f.admits(v, u, count{l.peer.Sender, sessions, m.counter, at + countTime}, limit) {
		verdict = append(verdict, 1)
	} else {
		verdict = append(verdict, 0)
	}
	f.replies.add(l, admitted, nobody, verdict)
}

// handleAdmitted answers the caller of Admit. A late answer of a home shows that it can be asked again.
func (f *Forwarder) handleAdmitted(l *link, m message) {
	if len(m.payload) != verdictSize {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	id := binary.BigEndian.Uint64(m.payload)
	q := &f.quotas
	q.mu.Lock()
	a := q.asked[id]
	if id <= q.last {
		delete(q.silent, l.pod.id)
	}
	mine := a != nil && a.home == l.pod
	if mine {
		a.timer.Stop()
		delete(q.asked, id)
	}
	known := id <= q.last
	q.mu.Unlock()
	switch {
	case mine:
		a.answer(f.counted(m.payload[8] == 1))
	case a != nil || !known:
		f.refuse(meter.Unasked, l.peer.Address)
	}
}

// tellCounts reports the changed numbers of sessions to the homes, or all numbers if all is set.
func (a *announcer) tellCounts(all bool) {
	f, v := a.forwarder, a.view
	q := &f.quotas
	q.mu.Lock()
	var changed map[User]ownCount
	if len(q.changed) > 0 {
		changed, q.changed = q.changed, map[User]ownCount{}
	}
	q.mu.Unlock()
	if !v.forwards() {
		return
	}
	for u, own := range changed {
		a.tellCount(u, own)
	}
	if all {
		counter := f.counter.Add(1)
		f.sessions.Users(func(u User, sessions int64) bool {
			a.tellCount(u, ownCount{uint32(min(max(sessions, 0), math.MaxUint32)), counter})
			return true
		})
	}
	for l, b := range a.counts {
		a.outbox.add(l, counts, nobody, b)
	}
	clear(a.counts)
}

func (a *announcer) tellCount(u User, own ownCount) {
	f := a.forwarder
	home := rank(a.view.homes, u.key())[0].pod
	if home == a.view.self {
		f.quotas.mu.Lock()
		defer f.quotas.mu.Unlock()
		f.store(u, f.count(own))
		return
	}
	l := a.view.links[home.id]
	if l == nil {
		return
	}
	b := binary.BigEndian.AppendUint64(appendCount(a.counts[l], u, own.sessions), own.counter)
	if len(b)+toldSize > batchSize {
		a.outbox.add(l, counts, nobody, b)
		delete(a.counts, l)
		return
	}
	a.counts[l] = b
}
