package forward

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

const (
	// MaxCopy is the size of the longest record of a session that is copied.
	MaxCopy = 1000
	// copyEvery is the shortest time between two copies of a session that keeps changing to one home.
	copyEvery = time.Second
	// earlyCopies is the number of copies of a session that do not wait for copyEvery. The count begins again when the
	// session has not changed for copyEvery. At its beginning, a call changes several times in a second. A pod that
	// takes over from a copy without the channels would drop the data of the call.
	earlyCopies = 3
	// copyTimes is how many times a copy is sent to a home that does not confirm the copy.
	copyTimes = 10
	// copiesPerPing limits the sessions that are copied in each pingEvery: 10,000 a second. After a change of the list,
	// many sessions are due at once.
	copiesPerPing = 1000
	// secondWaits is how long the second home waits for the first home to take over a session.
	secondWaits = time.Second
	// maxCopies is the largest memory of copies of other pods. Options.Copies may set a lower limit.
	maxCopies = 256 << 20
	// priceCopy is the memory of a copy in addition to its record.
	priceCopy = 256
	// copyHeader is the size of a version and a clock.
	copyHeader  = versionSize + 8
	versionSize = 12 + 4
)

// The generation of a session consists of a term and a count. Each take-over increments the term. The count is
// incremented by each process that restores the session after a restart or receives it from a draining pod. So a pod
// that is cut off and restarts keeps a lower generation than the pod that has taken over its session.
const (
	termBits = 8
	// maxTerms is the largest difference between the term in a frame and the term of the stored copy or session. A
	// frame with a larger difference is refused.
	maxTerms = 16
)

// Version identifies a session of a client, and orders the pods that have it.
type Version struct {
	// Session is the transaction ID of the Allocate request. It distinguishes the sessions of one client.
	Session [12]byte
	// Generation orders the processes that have had the session. The process with the highest generation keeps it.
	Generation uint32
}

// next returns the version of the pod that takes over.
func (v Version) next() Version {
	v.Generation = (v.Generation>>termBits + 1) << termBits
	return v
}

// Moves returns how many processes have continued the session since its pod was last lost. It is at most 255.
func (v Version) Moves() int { return int(v.Generation & (1<<termBits - 1)) }

// fromFuture reports whether a generation is more than maxTerms ahead of a known generation.
func fromFuture(generation, known uint32) bool {
	return uint64(generation>>termBits) > uint64(known>>termBits)+maxTerms
}

func (v Version) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, v.Session[:]...), v.Generation)
}

// parseVersion parses a version and the 8 bytes after it.
func parseVersion(b []byte) (v Version, number uint64, rest []byte, ok bool) {
	if len(b) < copyHeader {
		return v, 0, nil, false
	}
	v.Session, v.Generation = [12]byte(b), binary.BigEndian.Uint32(b[12:])
	return v, binary.BigEndian.Uint64(b[versionSize:]), b[copyHeader:], true
}

// claim names a pod that has a session, and the generation of the session there.
type claim struct {
	generation uint32
	pod        uint64
}

// beats reports whether the pod of a keeps the session of a client if the pod of b has it too. If both homes have taken
// over the session at the same time, the generations are equal, and the home with the higher rendezvous hash keeps it.
func (a claim) beats(b claim, k clientKey) bool {
	if a.generation != b.generation || a.pod == b.pod {
		return a.generation > b.generation
	}
	return mix(k.hash()^a.pod) > mix(k.hash()^b.pod)
}

// saved is a copy of a session of another pod.
type saved struct {
	owner uint64
	Version
	record []byte
	// shift is the difference between the clocks of this pod and the owner.
	shift time.Duration
	// wanted is when a datagram of the client of a lost owner first arrived here, or 0. taking is set while this pod
	// takes over the session.
	wanted time.Duration
	taking bool
}

func (s *saved) claim() claim { return claim{s.Generation, s.owner} }

// stored is the result of storing a copy.
type stored int

const (
	// kept: the index has the copy.
	kept stored = iota
	// ignored: another session of the client is newer.
	ignored
	// beaten: another pod has the session in a higher generation.
	beaten
	// future: the generation is too high.
	future
	// full: there is no room.
	full
)

// keep stores a copy. If another pod has the session in a higher generation, keep returns the claim of that pod.
func (x *index) keep(k clientKey, s *saved, now time.Duration) (stored, claim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, h := x.copies[k], x.held[k]
	other := h.until > now && h.owner != s.owner
	switch {
	case old == nil || old.Session != s.Session:
		if other {
			return ignored, claim{}
		}
	case fromFuture(s.Generation, old.Generation):
		return future, claim{}
	case old.claim().beats(s.claim(), k):
		return beaten, old.claim()
	case old.claim() == s.claim() && other: // the other pod has a newer session of the client
		return ignored, claim{}
	}
	size := len(s.record) + priceCopy
	if old != nil {
		size -= len(old.record) + priceCopy
	}
	if h.until == 0 && len(x.held) >= most(x.clients, maxHeld) || x.bytes+size > x.room {
		return full, claim{}
	}
	x.bytes += size
	x.copies[k] = s
	x.held[k] = holding{owner: s.owner, until: now + holdTime}
	return kept, claim{}
}

// other returns the stored copy of a client, if it is the copy of the current owner and that owner is not the given
// pod.
func (x *index) other(k clientKey, pod uint64) *saved {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.copies[k]; s != nil && x.held[k].owner != pod && s.owner == x.held[k].owner {
		return s
	}
	return nil
}

// drop removes the copy of a client. The caller holds mu.
func (x *index) drop(k clientKey) {
	if s := x.copies[k]; s != nil {
		x.bytes -= len(s.record) + priceCopy
		delete(x.copies, k)
	}
}

// wants handles a datagram of a client of a lost owner. If there is a usable copy, it returns the copy, and whether
// this pod must take over the session now. The first home takes it over at once, the second one after secondWaits.
func (x *index) wants(k clientKey, owner uint64, first bool, now time.Duration) (s *saved, due bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s = x.copies[k]
	if s == nil || s.owner != owner {
		return nil, false
	}
	if s.wanted == 0 || now-s.wanted >= giveUp { // another attempt
		s.wanted = now
	}
	due = !s.taking && (first || now-s.wanted >= secondWaits)
	s.taking = s.taking || due
	return s, due
}

// taken ends an attempt to take over the session of a client. It removes the copy, and the owner that the index stores
// for the client.
func (x *index) taken(k clientKey, s *saved) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.copies[k] == s {
		x.drop(k)
		delete(x.held, k)
	}
}

// stay ends a failed attempt to take over a session, and keeps the copy.
func (x *index) stay(s *saved) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s.taking = false
}

// numCopies returns the number of copies, and their memory in bytes.
func (x *index) numCopies() (number, size int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.copies), x.bytes
}

// copying are the sessions of this pod whose homes do not have the latest copy.
type copying struct {
	mu   sync.Mutex
	jobs map[clientKey]*copyJob
}

// copyJob is a session that is to be copied.
type copyJob struct {
	client Client
	// changed is set if the session or its homes have changed since the latest copy.
	changed bool
	// to are the homes that have not confirmed the latest copy, at most two. sent is the header of that copy.
	to   []uint64
	sent [copyHeader]byte
	// former is the lost owner whose session this pod has taken over, or 0. That pod must end the session when it is
	// reachable again.
	former uint64
	// next is the earliest time of the next copy, and times the number of copies since the latest change. early is the
	// number of copies that did not wait for next.
	next         time.Duration
	times, early int
}

// Changed sends the homes of a client the new record of its session.
func (f *Forwarder) Changed(c Client) {
	if k, ok := keyOf(c); f != nil && ok && f.view.Load().forwards() {
		f.copying.mark(k, c, 0, f.clients)
	}
}

// mark records a change of a session. former is as in copyJob. If there are too many jobs, the homes get the record
// after the next change of the session.
func (x *copying) mark(k clientKey, c Client, former uint64, clients int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	j := x.jobs[k]
	if j == nil {
		if len(x.jobs) >= most(clients, maxPending) {
			return
		}
		j = &copyJob{client: c}
		x.jobs[k] = j
	}
	j.changed = true
	if former != 0 {
		j.former = former
	}
}

// due returns the sessions to copy now.
func (x *copying) due(now time.Duration) (list []clientKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k, j := range x.jobs {
		if len(list) == copiesPerPing {
			break
		}
		if j.next <= now || j.changed && j.early < earlyCopies {
			list = append(list, k)
		}
	}
	return list
}

// copyAll copies the sessions that are due to their homes.
func (a *announcer) copyAll(now time.Duration) {
	v := a.forwarder.view.Load()
	if !v.forwards() {
		return
	}
	for _, k := range a.forwarder.copying.due(now) {
		a.copy(v, k, now)
	}
	a.outbox.Flush()
}

func (a *announcer) copy(v *view, k clientKey, now time.Duration) {
	f := a.forwarder
	x := &f.copying
	x.mu.Lock()
	j := x.jobs[k] // only this goroutine removes jobs
	c, changed := j.client, j.changed
	outdated := changed || len(j.to) > 0
	j.changed = false // a later change needs another copy
	x.mu.Unlock()
	// Version and Copy take locks that callers of Changed hold, so they are called without x.mu.
	version, here := f.sessions.Version(c)
	var record []byte
	copied := false
	if outdated {
		record, copied = f.sessions.Copy(c)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if now < j.next {
		j.early++
	}
	j.next = now + copyEvery
	if changed {
		j.times, j.to = 0, j.to[:0]
		for _, h := range rank(v.homes, k) {
			if h.pod != nil && v.links[h.pod.id] != nil {
				j.to = append(j.to, h.pod.id)
			}
		}
	}
	if j.times == copyTimes || !copied || len(record) > MaxCopy {
		j.to = nil
	}
	if !here || len(j.to) == 0 && j.former == 0 && !j.changed {
		delete(x.jobs, k)
		return
	}
	if len(j.to) > 0 {
		sent := false
		payload := binary.BigEndian.AppendUint64(version.append(nil), uint64(time.Now().UnixMilli()))
		j.sent = [copyHeader]byte(payload)
		payload = append(payload, record...)
		for _, id := range j.to {
			if l := v.links[id]; l != nil && !l.pod.lost() {
				if j.times > 0 { // l has not confirmed the copy
					l.pod.need(now)
				}
				a.outbox.add(l, copyOf, c, payload)
				sent = true
			}
		}
		if sent { // a lost home gets the copy when it is reachable again
			j.times++
		}
	}
	if l := v.links[j.former]; l != nil && !l.pod.lost() {
		a.outbox.add(l, newer, c, binary.BigEndian.AppendUint64(version.append(nil), v.self.id))
	}
}

// handleCopied handles the answer to copyOf and newer.
func (f *Forwarder) handleCopied(v *view, l *link, k clientKey, m message) {
	version, number, rest, ok := parseVersion(m.payload)
	if !ok || len(rest) > 0 {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	x := &f.copying
	x.mu.Lock()
	defer x.mu.Unlock()
	j := x.jobs[k]
	switch {
	case j == nil:
	case bytes.Equal(j.sent[:], m.payload):
		j.to = slices.DeleteFunc(j.to, func(id uint64) bool { return id == l.pod.id })
	case j.former == l.pod.id && v.self != nil && number == v.self.id:
		if own, here := f.sessions.Version(m.client); here && own == version {
			j.former = 0
		}
	}
}

// handleCopy handles a copy of a session of the pod at the other end.
func (f *Forwarder) handleCopy(v *view, l *link, k clientKey, m message, now time.Time) {
	version, clock, record, ok := parseVersion(m.payload)
	if !ok || len(record) == 0 || len(record) > MaxCopy {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	theirs := claim{version.Generation, l.pod.id}
	switch goesOn := f.meet(v, l, k, m.client, version.Session, theirs); {
	case !goesOn:
		return
	case f.sessions.Has(m.client): // the client has another session at this pod
		f.replies.add(l, copied, m.client, m.payload[:copyHeader])
		return
	}
	what, winner := f.index.keep(k, &saved{
		owner: l.pod.id, Version: version, record: slices.Clone(record),
		shift: now.Sub(time.UnixMilli(int64(min(clock, 1<<48)))),
	}, f.since(now))
	switch what {
	case future:
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	case beaten:
		f.tellNewer(l, m.client, version.Session, winner)
		return
	case full:
		f.unlisted()
	}
	f.replies.add(l, copied, m.client, m.payload[:copyHeader])
}

// handleNewer handles a newer frame: another pod has the session of a client in a higher generation.
func (f *Forwarder) handleNewer(v *view, l *link, k clientKey, m message) {
	version, owner, rest, ok := parseVersion(m.payload)
	if !ok || len(rest) > 0 {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	if f.meet(v, l, k, m.client, version.Session, claim{version.Generation, owner}) {
		f.replies.add(l, copied, m.client, m.payload)
	}
}

// meet compares the claim of another pod with the session here, and ends the session here if the other claim wins. If
// the session here wins, meet reports false and sends the claim of this pod to the pod of l. It also reports false if
// the generation of the claim is too high.
func (f *Forwarder) meet(v *view, l *link, k clientKey, c Client, session [12]byte, theirs claim) (goesOn bool) {
	own, here := f.sessions.Version(c)
	switch {
	case !here || own.Session != session || v.self == nil || theirs.pod == v.self.id:
		return true
	case fromFuture(theirs.generation, own.Generation):
		f.refuse(meter.BadFrame, l.peer.Address)
		return false
	case theirs.beats(claim{own.Generation, v.self.id}, k):
		f.sessions.GiveUp(c, own)
		return true
	}
	f.tellNewer(l, c, session, claim{own.Generation, v.self.id})
	f.Changed(c) // the homes may not have this session
	return false
}

func (f *Forwarder) tellNewer(l *link, c Client, session [12]byte, winner claim) {
	version := Version{session, winner.generation}
	f.replies.add(l, newer, c, binary.BigEndian.AppendUint64(version.append(nil), winner.pod))
}

// tryTakeOver begins to take over the session of a client whose owner is lost, if this pod has a copy. copied reports
// whether there is a copy. here reports whether this pod takes over the session now. It is false if the take-over has
// begun before, or if the other home comes first.
func (f *Forwarder) tryTakeOver(v *view, k clientKey, c Client, owner uint64, at time.Duration) (copied, here bool) {
	if v.self == nil || !v.gone(owner) {
		return false, false
	}
	first := true
	for _, h := range rank(v.homes, k) {
		if h.pod == v.self {
			break
		}
		first = first && (h.pod == nil || v.gone(h.pod.id))
	}
	s, due := f.index.wants(k, owner, first, at)
	switch {
	case s == nil:
		return false, false
	case !due:
		return true, false
	}
	select {
	case f.handovers.queue <- taking{client: c, copy: s}:
	default:
		f.index.stay(s)
	}
	return true, true
}

// awaitsTakeOver begins a take-over like tryTakeOver, and reports only whether this pod has a copy.
func (f *Forwarder) awaitsTakeOver(v *view, k clientKey, c Client, owner uint64, at time.Duration) bool {
	copied, _ := f.tryTakeOver(v, k, c, owner, at)
	return copied
}

// takeOver takes over the session of a lost pod.
func (f *Forwarder) takeOver(c Client, s *saved) {
	k, _ := keyOf(c) // clients in frames and in Pass have a key
	if !f.view.Load().gone(s.owner) {
		f.index.stay(s) // the owner has answered meanwhile
		return
	}
	ok := f.sessions.TakeOver(c, s.next(), s.record, s.shift)
	f.index.taken(k, s)
	if ok {
		f.copying.mark(k, c, s.owner, f.clients)
	}
}
