// Package journal stores what another process needs to continue the sessions of this one after it has crashed.
//
// The journal is a file in the state folder, to which every change of a session is appended before the client is
// answered. When the process is killed, the kernel still has all written entries. The file need not survive a restart
// of the host, so the journal does not call fsync(2). It does not use mmap(2), because on a full volume a write to
// mapped memory ends the process with a SIGBUS.
//
// The state of the sessions is in memory too. A change applies to it and is queued, and a goroutine writes the queue to
// the file. So a goroutine that reads packets never waits for a write: it passes the answer to the client to After. If
// the queue is full, changed sessions are written as a whole later. Only states between two writes are lost then.
//
// A volume that is full or fails disables the journal, and never affects a call. The state is not larger than 5/16 of
// the volume, so that a compaction has room for a second file. If space is scarce, changes of users and sources with
// many stored bytes are refused first (see shares).
//
// # Files
//
//	journal.go  the journal, and the changes of its state
//	share.go    shares of users and sources in the capacity
//	writer.go   queue, writes, compaction
//	file.go     the files, the start, errors
//	replay.go   file format and reading
//
// The binary form of a session is in package session. Sessions are restored in ../server/restore.go, ../gate/restore.go
// and ../relay/restore.go.
package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// ID identifies a session in the journal of a folder. Methods ignore the zero ID, which means that the session is not
// stored.
type ID uint64

// Options are the arguments of Open.
type Options struct {
	// Dir is the state folder. If it is empty, Open returns a nil Journal.
	Dir string
	Log *slog.Logger
	// Now is the wall clock.
	Now func() time.Time
}

// Restored is the content of the journal of a previous process.
type Restored struct {
	// Sessions are the live sessions, the oldest first. Their remaining lifetimes, and those of their permissions and
	// channels, never exceed the lifetimes of RFC 8656, even if the wall clock was set back. Their Generation is
	// incremented. They are already in the new journal: the caller must continue each of them or call End.
	Sessions []Entry
	// NonceRoot is the last argument of Nonces, or nil.
	NonceRoot []byte
	// Former is the last argument of Former, without authorities that are no longer valid.
	Former []session.Former
}

// Entry is a session of the journal.
type Entry struct {
	ID ID
	session.Record
}

// Status is the state of a Journal.
type Status struct {
	// Problem says why changes are not stored. It is empty if they are.
	Problem string
	// Bytes is the size of the file.
	Bytes int64
	// Sessions is the number of stored sessions that have not ended.
	Sessions int
	// Errors is the number of writes that failed or took too long, and of journals that were set aside.
	Errors uint64
	// Refused is the number of changes that are not stored because a user ID and its source have used up their share.
	Refused uint64
}

const (
	lockName     = "sessions.lock"
	fileName     = "sessions.journal"
	newName      = fileName + ".new"
	damagedName  = fileName + ".damaged"
	failedName   = fileName + ".failed"
	attemptsName = "sessions.attempts"

	// maxSize is the size of the largest file. A larger file is set aside unread, so that a start is never slow.
	maxSize = 256 << 20
	// maxRoom is how many bytes of a volume the journal uses at most.
	maxRoom = 128 << 20
	// leastCapacity is the least result of capacity, even if the volume is full: the state stays in memory until the
	// volume has free space.
	leastCapacity = 64 << 10
	// retryAfter is the time between two attempts to create a file, or to measure a volume that is too small.
	retryAfter = 10 * time.Second
)

// file is the part of os.File that a Journal uses.
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Truncate(size int64) error
}

// Journal is an open journal. Its methods may be called concurrently. Only Open and the methods that close the journal
// wait for a file. A nil Journal stores nothing.
type Journal struct {
	hooks
	o Options
	// wake makes run write the queue.
	wake chan struct{}
	// stop ends run, which closes stopped.
	stop, stopped chan struct{}

	mu sync.Mutex
	// sessions is the state that is written to the file. shares bounds it.
	sessions map[ID]*stored
	shares   shares
	last     ID
	root     []byte
	former   []session.Former
	queue    queue
	waiting  waiting
	// scratch is reused to encode a record, and peers is reused to list the peers of an entry.
	scratch []byte
	peers   []netip.Addr

	// file is nil if there is no file: after Close, and after an error until the next attempt.
	file file
	// size is the number of bytes of the file up to the end of its last whole entry.
	size int64
	// closing is true when Close has begun. closed is true when nothing can be queued any more.
	closing, closed bool
	// retry is the earliest time of the next attempt after an error.
	retry   time.Time
	problem string
	errors  uint64
	refused uint64
	// declined is the value of refused at the last log line about refused changes.
	declined atomic.Uint64
	lines    *meter.RefusalLog
	// measured is the value of refused at the last measurement of the free space of the volume. measure is the earliest
	// time of the next measurement that a refusal causes.
	measured uint64
	measure  time.Time
	// locked reports whether lock is the lock of the folder.
	locked bool

	// Only the writer uses the fields below: run, or start and close while run does not run.
	lock *os.File
	// broken reports that an entry could not be appended to the file.
	broken bool
	// limit is the size at which the file is compacted.
	limit int64
	// most is the size of the file at which a write has failed because the volume was full, although the volume reports
	// free space. It is valid until mostUntil.
	most      int64
	mostUntil time.Time
}

// stored is a session in the memory of the journal.
type stored struct {
	session.Record
	share
	// base is the size of the entry without permissions, channels and checks.
	base int64
	// queued reports whether the file or the queue has an entry of the session.
	queued bool
}

// hooks are the functions and values that tests replace.
type hooks struct {
	open func(name string, flags int) (file, error)
	room func(dir string) (int64, error)
	// minimum is the size up to which the file is not compacted. It is also the least capacity.
	minimum int64
	// timeout is how long answers wait for a write.
	timeout time.Duration
	// manual makes the journal write only when the test calls work.
	manual bool
}

func osFile(name string, flags int) (file, error) {
	// O_NONBLOCK: the open of a named pipe must not wait.
	f, err := os.OpenFile(name, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err // returning f would put a nil *os.File into the interface
	}
	return f, nil
}

// room returns how many bytes the user of this process may add to the volume of a folder.
func room(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(min(s.Bavail, maxRoom)) * s.Bsize, nil
}

// Open locks the folder, reads the journal that a previous process has left, and starts a new one with its live
// sessions. It never fails a start: problems are in Status, and details in the log.
func Open(o Options) (*Journal, Restored) {
	return open(o, system(250*time.Millisecond))
}

// system returns the hooks of a process. timeout is how long answers wait for a write.
func system(timeout time.Duration) hooks {
	return hooks{open: osFile, room: room, minimum: 64 << 10, timeout: timeout}
}

func open(o Options, h hooks) (*Journal, Restored) {
	if o.Dir == "" {
		return nil, Restored{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	j := &Journal{
		o: o, hooks: h, shares: newShares(), sessions: map[ID]*stored{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	j.lines = meter.NewRefusalLog(o.Log, func(meter.Reason) uint64 { return j.declined.Load() })
	j.queue.whole = map[ID]struct{}{}
	restored := j.start()
	if j.manual {
		close(j.stopped)
	} else {
		go j.run()
	}
	return j, restored
}

// Add stores a new session. It returns 0 if the session is not stored: after Close, or because its user ID and its
// source have used up their share. It does not retain r.
func (j *Journal) Add(r *session.Record) ID {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return 0
	}
	s, err := j.join(*r)
	if err != nil {
		j.fault("store session", err)
		return 0
	}
	s.Permissions, s.Channels, s.Checks = slices.Clone(r.Permissions), slices.Clone(r.Channels), nil
	size := s.sizes()
	if !j.shares.admits(&s.share, essential, size[essential]) {
		j.refuse()
		j.shares.leave(&s.share, s.UserID, sourceOf(&s.Record))
		return 0
	}
	j.shares.set(&s.share, size)
	j.last++
	j.sessions[j.last] = s
	j.change(added, j.last, s, func(b []byte) []byte {
		b, _ = s.AppendBinary(b) // cannot fail: join has encoded the same record
		return b
	})
	for _, c := range r.Checks {
		j.check(j.last, s, c)
	}
	return j.last
}

// join returns a session for a record, without stored bytes. The error is session.ErrRecordSize.
func (j *Journal) join(r session.Record) (*stored, error) {
	b, err := r.AppendBinary(openEntry(j.scratch[:0], added, j.last+1))
	j.scratch = b
	if err == nil && !closeEntry(b, 0) {
		err = session.ErrRecordSize
	}
	if err != nil {
		return nil, err
	}
	s := &stored{Record: r, share: j.shares.join(r.UserID, sourceOf(&r))}
	lists := s.sizes()
	s.base = int64(len(b)) - lists[essential] - lists[checks]
	return s, nil
}

func sourceOf(r *session.Record) netip.Prefix { return session.Source(r.Client.Addr()) }

// sizes returns how many bytes the session takes in a file.
func (s *stored) sizes() (c count) {
	c[essential] = s.base
	for i := range s.Permissions {
		c[essential] += permissionSize(s.Permissions[i].Peer)
	}
	for i := range s.Channels {
		c[essential] += channelSize(s.Channels[i].Peer.Addr())
	}
	for i := range s.Checks {
		c[checks] += checkSize(&s.Checks[i])
	}
	return c
}

// Sizes of the elements of a record: the sizes of session.AppendAddr, of session.AppendTime, which needs six bytes
// until the year 2109, and of the other fields.
const timeSize = 6

func addrSize(a netip.Addr) int64 { return 1 + int64(a.BitLen()/8+len(a.Zone())) }

func permissionSize(peer netip.Addr) int64 { return addrSize(peer) + timeSize }

func channelSize(peer netip.Addr) int64 { return 2 + addrSize(peer) + 2 + 2*timeSize }

func checkSize(c *session.Check) int64 {
	return addrSize(c.Peer.Addr()) + 2 + 2 + int64(len(c.Message))
}

// Holds reports whether the journal has a session that has not ended. If so, it writes the whole session as soon as
// possible. Otherwise the caller must call Add again.
func (j *Journal) Holds(id ID) bool { return j.has(id, false) }

// Stores reports whether a session that has not ended is in the file, or in the next write.
func (j *Journal) Stores(id ID) bool { return j.has(id, true) }

func (j *Journal) has(id ID, inFile bool) bool {
	if j == nil || id == 0 {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sessions[id] != nil && (j.file != nil || !inFile)
}

// Refresh stores a new lifetime, in seconds, and the time at which it ends.
func (j *Journal) Refresh(id ID, lifetime uint32, until time.Time) {
	j.with(id, func(s *stored) {
		s.Lifetime, s.Until = lifetime, until
		j.change(refreshed, id, s, func(b []byte) []byte {
			return session.AppendTime(binary.AppendUvarint(b, uint64(lifetime)), until)
		})
	})
}

// Permit stores permissions that have the same end, at most session.MaxPermissions.
func (j *Journal) Permit(id ID, peers []netip.Addr, until time.Time) {
	j.with(id, func(s *stored) {
		j.peers = j.peers[:0]
		for _, peer := range peers {
			p := session.Permission{Peer: peer, Until: until}
			same := func(o session.Permission) bool { return o.Peer == peer }
			if slices.ContainsFunc(s.Permissions, same) || j.admits(s, permissionSize(peer)) {
				s.Permissions = put(s.Permissions, p, session.MaxPermissions, same)
				j.shares.set(&s.share, s.sizes())
				j.peers = append(j.peers, peer)
			}
		}
		j.change(permitted, id, s, func(b []byte) []byte {
			b = session.AppendTime(b, until)
			for _, peer := range j.peers {
				b = session.AppendAddr(b, peer)
			}
			return b
		})
	})
}

// Bind stores a channel binding, new or refreshed.
func (j *Journal) Bind(id ID, c session.ChannelRecord) {
	j.with(id, func(s *stored) {
		same := func(o session.ChannelRecord) bool { return o.Number == c.Number }
		if slices.ContainsFunc(s.Channels, same) || j.admits(s, channelSize(c.Peer.Addr())) {
			s.Channels = put(s.Channels, c, session.MaxChannels, same)
			j.shares.set(&s.share, s.sizes())
			j.change(bound, id, s, c.Append)
		}
	})
}

// admits reports whether a permission or a channel of the given size may be stored. The caller must hold mu.
func (j *Journal) admits(s *stored, size int64) bool {
	if j.shares.admits(&s.share, essential, size) {
		return true
	}
	prune(&s.Record, j.o.Now())
	j.shares.set(&s.share, s.sizes())
	if j.shares.admits(&s.share, essential, size) {
		return true
	}
	j.refuse()
	return false
}

// refuse counts a change that is not stored. The caller holds mu.
func (j *Journal) refuse() {
	j.countRefused()
	j.signal() // the writer measures the volume
}

// countRefused counts and logs a change or entry that is not stored. The caller must hold mu.
func (j *Journal) countRefused() {
	j.refused++
	j.declined.Add(1)
	j.lines.Note(meter.JournalShare, meter.Note{})
}

// Check stores the nominating connectivity check of a peer, of at most session.MaxCheck bytes. It does not retain the
// message. The same check is not written twice.
func (j *Journal) Check(id ID, c session.Check) {
	if len(c.Message) <= session.MaxCheck {
		j.with(id, func(s *stored) { j.check(id, s, c) })
	}
}

// check stores a check in place of the earlier check of the same peer. If the share is used up, the earlier check is
// removed too, because it is out of date. The caller must hold mu.
func (j *Journal) check(id ID, s *stored, c session.Check) {
	at := slices.IndexFunc(s.Checks, func(o session.Check) bool { return o.Peer == c.Peer })
	more := checkSize(&c)
	if at >= 0 {
		if bytes.Equal(s.Checks[at].Message, c.Message) {
			return
		}
		more -= checkSize(&s.Checks[at])
	}
	admitted := j.shares.admits(&s.share, checks, more)
	var message []byte
	if len(s.Checks) == session.MaxChecks && at < 0 && admitted {
		at = 0
	}
	if at >= 0 {
		message = s.Checks[at].Message[:0]
		s.Checks = slices.Delete(s.Checks, at, at+1)
	}
	if admitted {
		s.Checks = append(s.Checks, session.Check{Peer: c.Peer, Message: append(message, c.Message...)})
	}
	j.shares.set(&s.share, s.sizes())
	switch {
	case admitted:
		j.change(checked, id, s, c.Append)
	case at >= 0:
		j.rewrite(id, s)
	}
	if !admitted {
		j.refuse()
	}
}

// Move stores whether the datagrams of the client arrive at another pod.
func (j *Journal) Move(id ID, away bool) {
	j.with(id, func(s *stored) {
		s.Away = away
		j.change(moved, id, s, func(b []byte) []byte { return session.AppendBool(b, away) })
	})
}

// End stores the end of a session.
func (j *Journal) End(id ID) { j.with(id, func(s *stored) { j.end(id, s) }) }

// end removes a session. The caller holds mu.
func (j *Journal) end(id ID, s *stored) {
	delete(j.sessions, id)
	j.shares.leave(&s.share, s.UserID, sourceOf(&s.Record))
	if s.queued {
		j.change(ended, id, s, func(b []byte) []byte { return b })
	} else {
		delete(j.queue.whole, id)
	}
}

// with calls f with a session, if the journal holds it.
func (j *Journal) with(id ID, f func(*stored)) {
	if j == nil || id == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.sessions[id]; s != nil && !j.closed {
		f(s)
	}
}

// Nonces stores the root of the nonces. The caller calls it once after Open.
func (j *Journal) Nonces(root []byte) {
	if j == nil || len(root) > maxRoot {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.root, j.queue.common = slices.Clone(root), true
		j.signal()
	}
}

// Former stores the former authorities with which sessions may still be authenticated, in place of the earlier list.
// The config of the next process does not contain them.
func (j *Journal) Former(list []session.Former) {
	if j == nil {
		return
	}
	former := make([]session.Former, 0, len(list)) // not nil: an empty list replaces the earlier one
	for _, f := range list {
		if f.Storable() {
			former = append(former, f)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.former, j.queue.common = former, true
		j.signal()
	}
}

// Done reports that all restored sessions are continued or ended. If two processes have ended before Done, the next
// Open sets the journal aside.
func (j *Journal) Done() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.locked && !j.closed {
		_ = os.Remove(j.path(attemptsName))
	}
}

// Status returns the state.
func (j *Journal) Status() Status {
	if j == nil {
		return Status{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Status{Problem: j.problem, Bytes: j.size, Errors: j.errors, Refused: j.refused}
	if j.file != nil {
		s.Sessions = len(j.sessions)
	}
	return s
}

// Close writes the queue, closes the file and unlocks the folder. The file remains, with all sessions that have not
// ended.
func (j *Journal) Close() error { return j.close() }

// Remove is like Close, and also removes the files of the journal from the folder, except files that were set aside.
func (j *Journal) Remove() error { return j.close(fileName, attemptsName, lockName) }

// close closes the journal, and removes files while the folder is locked.
func (j *Journal) close(remove ...string) (err error) {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	again := j.closing
	j.closing = true
	j.mu.Unlock()
	if again {
		return nil
	}
	close(j.stop)
	<-j.stopped
	j.work()
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.work()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		err = j.file.Close()
		j.file = nil
	}
	if !j.locked {
		return err
	}
	for _, name := range remove {
		if e := os.Remove(j.path(name)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	j.locked = false
	return errors.Join(err, j.lock.Close())
}
