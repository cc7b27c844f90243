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
	// copyEvery is the shortest time between two copies of a session to one home.
	copyEvery = time.Second
	// copyTimes is how often a copy is sent to a home that does not confirm it.
	copyTimes = 10
	// copiesPerPing is the number of sessions that are copied in each pingEvery: 10,000 a second. They are many when the
	// list has changed.
	copiesPerPing = 1000
	// secondWaits is how long a home that is not the first one waits for those before it to take a session over.
	secondWaits = time.Second
	// maxCopies is the largest memory of copies of other pods. Options.Copies may be less.
	maxCopies = 256 << 20
	// priceCopy is the memory of a copy without its record.
	priceCopy = 256
	// copyHeader is the size of a version and a clock.
	copyHeader  = versionSize + 8
	versionSize = 12 + 4
)

// Generations of a session consist of a term and a count. Each take-over begins the next term. Each process that restores
// the session of a former one, or gets it from one that drains, adds one. So a pod that is cut off and restarts does not
// get ahead of the pod that has taken its session over.
const (
	termBits = 8
	// maxTerms is how many terms a session may be ahead of a copy or of the session here. A frame with more is refused.
	maxTerms = 16
)

// Version identifies a session of a client, and orders the pods that have it.
type Version struct {
	// Session is the transaction ID of the Allocate request. It tells sessions of one client apart.
	Session [12]byte
	// Generation orders the processes that have had the session. The highest one wins.
	Generation uint32
}

// next returns the version of the pod that takes over.
func (v Version) next() Version {
	v.Generation = (v.Generation>>termBits + 1) << termBits
	return v
}

// Moves returns how many processes have continued the session since its pod was last lost. It is at most 255.
func (v Version) Moves() int { return int(v.Generation & (1<<termBits - 1)) }

// fromFuture reports whether a generation is farther ahead of another one than take-overs can bring it.
func fromFuture(generation, known uint32) bool {
	return uint64(generation>>termBits) > uint64(known>>termBits)+maxTerms
}

func (v Version) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, v.Session[:]...), v.Generation)
}

// parseVersion parses a version and 8 bytes behind it.
func parseVersion(b []byte) (v Version, number uint64, rest []byte, ok bool) {
	if len(b) < copyHeader {
		return v, 0, nil, false
	}
	v.Session, v.Generation = [12]byte(b), binary.BigEndian.Uint32(b[12:])
	return v, binary.BigEndian.Uint64(b[versionSize:]), b[copyHeader:], true
}

// claim is a pod that has a session in a generation.
type claim struct {
	generation uint32
	pod        uint64
}

// beats reports whether the pod of a keeps the session of a client if that of b has it too. Two homes may have taken it
// over at the same time: then the one with the higher rendezvous hash keeps it.
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
	// wanted is since when a client of a lost owner waits for the first home, or 0. taking is set while this pod takes the
	// session over.
	wanted time.Duration
	taking bool
}

func (s *saved) claim() claim { return claim{s.Generation, s.owner} }

// stored is what has become of a copy.
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
	case old.claim() == s.claim() && other: // a newer session of the client is elsewhere
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

// other returns the copy of a client if its owner is not the pod that has announced a session of the client.
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

// wants notes that a client of a lost owner sends. If the copy of the session may be used, it returns the copy, and whether
// the session is to be taken over now: by the first home at once, and by another one after secondWaits.
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

// taken removes a copy after an attempt to take the session over. The owner is not the owner any more.
func (x *index) taken(k clientKey, s *saved) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.copies[k] == s {
		x.drop(k)
		delete(x.held, k)
	}
}

// stay reverts taking.
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
	// to are the homes that have not confirmed the latest copy, at most two, and sent is its header.
	to   []uint64
	sent [copyHeader]byte
	// former is the lost owner from which this pod has taken the session over. It must give the session up when it is back. 0
	// means none.
	former uint64
	// next is the earliest time of the next copy, and times the number of copies since the latest change.
	next  time.Duration
	times int
}

// Changed makes the homes of a client get the latest record of its session here.
func (f *Forwarder) Changed(c Client) {
	if k, ok := keyOf(c); f != nil && ok && f.view.Load().forwards() {
		f.copying.mark(k, c, 0, f.clients)
	}
}

// mark notes a change of a session. former is as in copyJob, or 0. Beyond the largest number of clients, the homes get the
// record after the next change.
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
		if j.next <= now {
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
	j.changed = false // a change from here on is for the next copy
	x.mu.Unlock()
	// These take locks that are held during Changed.
	version, here := f.sessions.Version(c)
	var record []byte
	copied := false
	if outdated {
		record, copied = f.sessions.Copy(c)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
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
				if j.times > 0 { // it has not confirmed the copy
					l.pod.need(now)
				}
				a.outbox.add(l, copyOf, c, payload)
				sent = true
			}
		}
		if sent { // a lost home gets the copy when it is back
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
	case f.sessions.Has(m.client): // another session
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

// handleNewer handles the news that another pod has the session of a client in a higher generation.
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

// meet compares the claim of another pod with the session here. The session here ends if it loses. If it wins, or if the
// claim is from the future, meet reports false; the pod of l then gets the claim of this pod.
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
	f.Changed(c) // the homes do not have it
	return false
}

func (f *Forwarder) tellNewer(l *link, c Client, session [12]byte, winner claim) {
	version := Version{session, winner.generation}
	f.replies.add(l, newer, c, binary.BigEndian.AppendUint64(version.append(nil), winner.pod))
}

// rescue begins to take over the session of a client that sends, if its owner is gone and this pod has a copy. copied
// reports whether there is such a copy, and here whether this pod takes the session over; otherwise another home does.
func (f *Forwarder) rescue(v *view, k clientKey, c Client, owner uint64, at time.Duration) (copied, here bool) {
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

// rescued is the first result of rescue.
func (f *Forwarder) rescued(v *view, k clientKey, c Client, owner uint64, at time.Duration) bool {
	copied, _ := f.rescue(v, k, c, owner, at)
	return copied
}

// takeOver takes over the session of a lost pod.
func (f *Forwarder) takeOver(c Client, s *saved) {
	k, _ := keyOf(c) // the client has been in a frame or in Pass
	if !f.view.Load().gone(s.owner) {
		f.index.stay(s) // it has answered meanwhile
		return
	}
	ok := f.sessions.TakeOver(c, s.next(), s.record, s.shift)
	f.index.taken(k, s)
	if ok {
		f.copying.mark(k, c, s.owner, f.clients)
	}
}
