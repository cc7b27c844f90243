package journal

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"
)

// queue contains the changes that the writer has not written yet. The mutex of the journal guards it.
type queue struct {
	// entries are whole entries in the order of the changes.
	entries []byte
	// whole contains the sessions that are written as a whole after the entries: the current state of a live session,
	// or the end of an ended one.
	whole map[ID]struct{}
	// common reports whether the root of the nonces and the former authorities must be written.
	common bool
	// spare is an empty buffer for later entries.
	spare []byte
}

const (
	// maxQueue is the largest result of queueSize.
	maxQueue = 256 << 10
	// chunk is how many bytes are encoded at a time. Changes wait meanwhile, for some microseconds.
	chunk = 64 << 10
	// maxWaiting is the maximum number of answers that wait for a write. At this number, all are sent at once.
	maxWaiting = 4096
)

func (q *queue) empty() bool { return len(q.entries) == 0 && len(q.whole) == 0 && !q.common }

// change queues an entry for a changed session. The caller must hold mu.
func (j *Journal) change(k kind, id ID, s *stored, payload func([]byte) []byte) {
	q := &j.queue
	if _, whole := q.whole[id]; whole {
		return
	}
	if len(q.entries) >= j.queueSize() || !j.writable() {
		j.rewrite(id, s)
		return
	}
	at := len(q.entries)
	if q.entries = payload(openEntry(q.entries, k, id)); !closeEntry(q.entries, at) {
		q.entries = q.entries[:at] // unreachable: a valid record always fits
	}
	s.queued = true
	j.signal()
}

// queueSize is the size of the queued entries above which sessions are queued as a whole. The longest entry may exceed
// it. It is positive, even on a full volume, so that each call of take makes progress. The caller must hold mu.
func (j *Journal) queueSize() int { return int(max(1, min(maxQueue, j.shares.capacity/32))) }

// rewrite queues the whole state of a session. The caller must hold mu.
func (j *Journal) rewrite(id ID, s *stored) {
	if j.writable() {
		j.queue.whole[id] = struct{}{}
	} else {
		s.queued = false // the next file will contain all sessions
	}
	j.signal()
}

// writable reports whether the journal has a file, or the writer is about to create one. The caller must hold mu.
func (j *Journal) writable() bool { return j.file != nil || j.waiting.writing }

// signal wakes the writer.
func (j *Journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// take removes all entries from the queue, and about queueSize bytes of whole sessions. When these are written, the
// answers before the number covered may be sent. The caller must hold mu, and must return the memory with recycle.
func (j *Journal) take() (entries []byte, covered uint64) {
	q := &j.queue
	entries, q.entries, q.spare = q.entries, q.spare[:0], nil
	if q.common {
		entries, q.common = appendCommon(entries, j.root, j.former), false
	}
	most := len(entries) + j.queueSize()
	for id := range q.whole {
		if len(entries) >= most {
			return entries, 0
		}
		delete(q.whole, id)
		if s := j.sessions[id]; s != nil {
			s.queued = true
			entries = appendSession(entries, id, &s.Record)
			continue
		}
		at := len(entries)
		entries = openEntry(entries, ended, id)
		closeEntry(entries, at)
	}
	return entries, j.waiting.last()
}

// waiting contains the answers to clients that are sent when the preceding changes are written.
type waiting struct {
	answers []func()
	// first is the number of the first waiting answer. All answers with lower numbers are sent.
	first uint64
	// writing reports whether a write is in progress.
	writing bool
	// slow reports that a write takes longer than timeout. While it is set, no answer waits.
	slow  bool
	timer *time.Timer
}

// last returns the number of the next answer.
func (w *waiting) last() uint64 { return w.first + uint64(len(w.answers)) }

// remove removes the answers before a number. The caller calls them without the lock.
func (w *waiting) remove(last uint64) (answers []func()) {
	if last <= w.first {
		return nil
	}
	n := last - w.first
	answers, w.answers = w.answers[:n:n], slices.Clone(w.answers[n:])
	w.first = last
	return answers
}

// After calls f when all preceding changes are in the file: at once, or from another goroutine. If there is no file, or
// if writing takes longer than 250 ms, it calls f nevertheless, because a failing or slow volume must not delay calls.
func (j *Journal) After(f func()) {
	if j == nil || !j.wait(f) {
		f()
	}
}

// wait queues f, and reports whether it did. If it returns false, the caller calls f itself.
func (j *Journal) wait(f func()) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := &j.waiting
	switch {
	case j.closed, w.slow, !j.writable(), !w.writing && j.queue.empty():
		return false
	case len(w.answers) == 0 && j.timeout > 0 && w.timer == nil:
		w.timer = time.AfterFunc(j.timeout, j.late)
	case len(w.answers) == 0 && w.timer != nil:
		w.timer.Reset(j.timeout)
	case len(w.answers) >= maxWaiting && w.timer != nil:
		w.timer.Reset(0)
		return false
	}
	w.answers = append(w.answers, f)
	return true
}

// late sends all answers that wait for a write that takes too long.
func (j *Journal) late() {
	j.mu.Lock()
	w := &j.waiting
	answers := w.remove(w.last())
	if len(answers) > 0 {
		w.slow = true
		j.fault("write journal", fmt.Errorf("the volume takes longer than %v", j.timeout))
	}
	j.mu.Unlock()
	for _, f := range answers {
		f()
	}
}

// release sends the answers before a number, after a write has returned.
func (j *Journal) release(last uint64) {
	j.mu.Lock()
	w := &j.waiting
	w.slow = false
	answers := w.remove(last)
	if w.timer != nil {
		if w.timer.Stop(); len(w.answers) > 0 {
			w.timer.Reset(j.timeout)
		}
	}
	j.mu.Unlock()
	for _, f := range answers {
		f()
	}
}

// run writes the queue, until stop is closed.
func (j *Journal) run() {
	defer close(j.stopped)
	for {
		select {
		case <-j.wake:
			j.work()
		case <-j.stop:
			return
		}
	}
}

// work writes the queue.
func (j *Journal) work() {
	for j.begin() {
		if j.file == nil {
			j.restart()
			continue
		}
		j.mu.Lock()
		entries, covered := j.take()
		j.mu.Unlock()
		err := j.append(entries)
		j.recycle(entries)
		switch {
		case err != nil:
			j.recover(err)
		case j.size > j.limit:
			j.release(covered)
			j.shrink()
		default:
			j.release(covered)
		}
	}
}

// begin prepares the next write. It reports false if there is nothing to write. Without a file, nothing is written
// until the next attempt to create one, and no answer waits.
func (j *Journal) begin() bool {
	now := j.o.Now()
	if j.refusals(now) {
		j.fit()
	}
	j.mu.Lock()
	if k, exceeded := j.shares.exceeded(); exceeded {
		j.trim(k)
	}
	w := &j.waiting
	if j.file != nil {
		w.writing = !j.queue.empty() || len(w.answers) > 0
	} else {
		w.writing = !j.closed && !now.Before(j.retry)
	}
	writing, last := w.writing, w.last()
	j.mu.Unlock()
	if !writing {
		j.release(last)
	}
	return writing
}

// refusals reports whether the free space of the volume must be measured again, because changes were refused since the
// last measurement and the volume may have more space.
func (j *Journal) refusals(now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.refused != j.measured && !now.Before(j.measure)
}

// recycle makes the memory of a slice that take has returned available to later entries.
func (j *Journal) recycle(entries []byte) {
	if cap(entries) <= 2*maxQueue {
		j.mu.Lock()
		j.queue.spare = entries[:0]
		j.mu.Unlock()
	}
}

// append appends entries to the file. After an error, the file is unchanged.
func (j *Journal) append(entries []byte) error {
	if len(entries) == 0 {
		return nil
	}
	if j.size+int64(len(entries)) > maxSize {
		return syscall.EFBIG
	}
	if _, err := write(j.file, entries); err != nil {
		return errors.Join(err, j.file.Truncate(j.size))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.size += int64(len(entries))
	j.problem = ""
	return nil
}

func write(f file, b []byte) (int64, error) {
	n, err := f.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return int64(n), err
}

// restart creates a file if there is none.
func (j *Journal) restart() {
	var err error
	if j.lock == nil {
		err = j.takeLock()
	}
	if err == nil {
		j.fit()
		err = j.compact(false)
	}
	if err == nil {
		_ = os.Remove(j.path(attemptsName)) // a previous process may have left the file
		return
	}
	j.failed("start journal", err)
	j.drop()
}

// shrink compacts a file that has grown.
func (j *Journal) shrink() {
	j.fit()
	err := j.compact(true)
	switch {
	case err == nil:
	case j.broken:
		j.recover(err)
	default:
		j.warn("compact journal", err)
		j.limit = 2 * j.size
	}
}

// recover compacts the file after a failed write. If the volume has no space for a second file, recover compacts the
// file in place. If the process is killed between the truncation and the last write, the file has only some of the
// sessions. Entries that do not fit are left out.
func (j *Journal) recover(why error) {
	j.failed("write journal", why)
	j.fit()
	err := j.compact(false)
	for range 3 {
		if err == nil {
			return
		}
		var size int64
		if err = j.file.Truncate(0); err != nil {
			break
		}
		if size, err = j.copyTo(j.file, false); err == nil {
			j.use(j.file, size)
			return
		}
		j.most, j.mostUntil = size+size/5, j.o.Now().Add(retryAfter) // so that fit removes some entries
		j.fit()
	}
	j.failed("start journal anew", err)
	j.drop()
}

// compact writes the state to a new file, and makes that file the journal. If the current file is intact, changes that
// are queued meanwhile are written to it too, so that answers do not wait for the new file.
func (j *Journal) compact(intact bool) error {
	f, err := j.create()
	if err != nil {
		return err
	}
	size, err := j.copyTo(f, intact)
	if err == nil {
		err = j.replace(f, size)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(j.path(newName)))
	}
	return nil
}

// copyTo writes the state to an empty file, and returns the number of bytes that it has written.
//
// The state changes meanwhile. The entry of a session contains all earlier changes. Later changes are queued and follow
// the entry. The file may also contain changes of a session before its entry, which have no effect.
func (j *Journal) copyTo(f file, intact bool) (size int64, err error) {
	j.mu.Lock()
	ids := slices.Collect(maps.Keys(j.sessions))
	b := appendCommon(appendHeader(nil), j.root, j.former)
	j.mu.Unlock()
	for more := true; more; {
		j.mu.Lock()
		entries, covered := j.take()
		at := len(b)
		b, ids = j.encode(append(b, entries...), at+len(entries)+chunk, ids)
		j.mu.Unlock()
		if intact && !j.broken {
			if err := j.append(entries); err != nil {
				j.broken = true
			} else {
				j.release(covered)
			}
		}
		j.recycle(entries)
		n, err := write(f, b)
		size += n
		if err != nil {
			return size, err
		}
		more, b = len(ids) > 0, b[:0]
	}
	return size, nil
}

// encode appends the entries of sessions up to a size, and returns the remaining sessions. The caller holds mu.
func (j *Journal) encode(b []byte, size int, ids []ID) ([]byte, []ID) {
	now := j.o.Now()
	for i, id := range ids {
		if len(b) >= size {
			return b, ids[i:]
		}
		if s := j.sessions[id]; s != nil {
			prune(&s.Record, now)
			j.shares.set(&s.share, s.sizes())
			s.queued = true
			b = appendSession(b, id, &s.Record)
		}
	}
	return b, nil
}

// fit measures the volume, and removes entries that exceed the capacity.
func (j *Journal) fit() {
	capacity := j.capacity()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.shares.capacity, j.measured, j.measure = capacity, j.refused, j.o.Now().Add(retryAfter)
	for k, exceeded := j.shares.exceeded(); exceeded; k, exceeded = j.shares.exceeded() {
		j.trim(k)
	}
}

// trim removes entries of a class until the state is slightly below its limit. It begins with the sessions of the users
// and sources that store most. It removes either all checks of a session, or the session. The caller must hold mu.
func (j *Journal) trim(k class) {
	w := weights{class: k}
	for id, s := range j.sessions {
		if s.count[k] > 0 {
			w.add(id, &s.share)
		}
	}
	heap.Init(&w)
	for target := j.shares.most(k) * 15 / 16; j.shares.total.upTo(k) > target && w.Len() > 0; {
		id := w.next()
		s := j.sessions[id]
		j.countRefused()
		if k == essential {
			j.end(id, s)
			continue
		}
		s.Checks = nil
		j.shares.set(&s.share, s.sizes())
		j.rewrite(id, s)
	}
}
