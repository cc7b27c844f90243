// Package journal stores what another process needs to continue the sessions of this one after it has crashed.
//
// The journal is a file in the state folder, to which every change of a session is appended by one write(2) before the
// client is answered. The kernel keeps what it has written when the process is killed. The folder is memory, so the
// file need not outlive the kernel: there is no fsync(2). There is no mmap(2) either: on a full volume it would end the
// process with a SIGBUS.
//
// A volume that is full or fails costs the journal, and never a call.
//
// # Files
//
//	journal.go  the journal, and its maximum size
//	file.go     the files, errors, compaction
//	replay.go   file format and reading
//
// The binary form of a session is in package session. Sessions are restored in ../server/restore.go, ../gate/restore.go
// and ../relay/restore.go.
package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// ID identifies a session in the journal of a folder. The zero ID is a session that is not stored: methods ignore it.
type ID uint64

// Options are the arguments of Open.
type Options struct {
	// Dir is the state folder. If it is empty, Open returns a nil Journal.
	Dir string
	Log *slog.Logger
	// Now is the wall clock.
	Now func() time.Time
}

// Restored is what the journal of a former process contained.
type Restored struct {
	// Sessions are the live sessions, the oldest first. Their remaining lifetimes, and those of their permissions and
	// channels, are not longer than RFC 8656 grants, whatever the wall clock did. Their Generation is incremented. They
	// are in the new journal already: the caller continues each of them, or calls End.
	Sessions []Entry
	// NonceRoot is the last argument of Nonces, or nil.
	NonceRoot []byte
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
	// Errors is the number of writes that failed, and of journals that were set aside.
	Errors uint64
}

const (
	lockName     = "sessions.lock"
	fileName     = "sessions.journal"
	newName      = fileName + ".new"
	damagedName  = fileName + ".damaged"
	failedName   = fileName + ".failed"
	attemptsName = "sessions.attempts"

	// maxSize is the size of the largest file. A larger one is set aside unread, so that a start is never slow.
	maxSize = 256 << 20
	// retryAfter is the time between two attempts to make a file, and after a compaction in place that has freed little.
	retryAfter = 10 * time.Second
)

// file is the part of os.File that a Journal uses.
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Truncate(size int64) error
}

// Journal is an open journal. Its methods may be called from several goroutines at a time. A nil Journal stores
// nothing.
type Journal struct {
	hooks
	o Options

	mu   sync.Mutex
	lock *os.File
	// file is nil if there is no journal: after Close, and after an error until the next attempt.
	file file
	// size is the length of the whole entries of the file.
	size int64
	// limit is the size at which the file is compacted.
	limit int64
	// epoch counts the changes of the bytes before size. A compaction that another change has overtaken is discarded.
	epoch      uint64
	compacting bool
	closed     bool
	// retry is the earliest time of the next attempt after an error.
	retry time.Time
	// first is the lowest ID of the sessions in the file, and last the highest that was assigned.
	first, last ID
	sessions    int
	root        []byte
	buffer      []byte

	problem string
	errors  uint64
	work    sync.WaitGroup
}

// hooks are what tests replace.
type hooks struct {
	open       func(name string, flags int) (file, error)
	background func(func())
	// minimum is the size up to which the file is not compacted.
	minimum int64
}

func osFile(name string, flags int) (file, error) {
	// O_NONBLOCK: the open of a named pipe must not wait.
	f, err := os.OpenFile(name, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err // not a nil *os.File in the interface
	}
	return f, nil
}

// Open locks the folder, reads the journal that a former process has left, and starts a new one with its live sessions.
// It never fails a start: problems are in Status, and details in the log.
func Open(o Options) (*Journal, Restored) {
	return open(o, hooks{open: osFile, background: func(f func()) { go f() }, minimum: 64 << 10})
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
	j := &Journal{o: o, hooks: h, first: 1}
	return j, j.start()
}

// Add stores a new session. It returns 0 if the session is not stored. It does not retain r.
func (j *Journal) Add(r *session.Record) ID {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return 0
	}
	if id := j.last + 1; j.ready() && j.record(r, id) {
		j.last = id
		j.sessions++
		return id
	}
	return 0
}

// Holds reports whether a session that has not ended is in the file. After an error it may not be: its caller calls Add
// again.
func (j *Journal) Holds(id ID) bool {
	if j == nil || id == 0 {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.holds(id)
}

func (j *Journal) holds(id ID) bool { return id >= j.first && j.file != nil }

// record writes an added entry. The caller holds mu.
func (j *Journal) record(r *session.Record, id ID) (ok bool) {
	b, err := r.AppendBinary(openEntry(j.buffer[:0], added, id))
	j.buffer = b
	if err != nil || !closeEntry(b, 0) {
		j.fault("store session", cmp.Or(err, session.ErrRecordSize))
		return false
	}
	// write starts an empty file if it fails, and the file may have room for this session.
	return j.write(b) || j.file != nil && j.write(b)
}

// Refresh stores a new lifetime, in seconds, and its end.
func (j *Journal) Refresh(id ID, lifetime uint32, until time.Time) {
	j.change(refreshed, id, func(b []byte) []byte {
		return session.AppendTime(binary.AppendUvarint(b, uint64(lifetime)), until)
	})
}

// Permit stores permissions that have the same end, at most session.MaxPermissions.
func (j *Journal) Permit(id ID, peers []netip.Addr, until time.Time) {
	j.change(permitted, id, func(b []byte) []byte {
		b = session.AppendTime(b, until)
		for _, peer := range peers {
			b = session.AppendAddr(b, peer)
		}
		return b
	})
}

// Bind stores a channel binding, new or refreshed.
func (j *Journal) Bind(id ID, c session.ChannelRecord) { j.change(bound, id, c.Append) }

// Check stores the nominating connectivity check of a peer, of at most session.MaxCheck bytes. It does not retain the
// message.
func (j *Journal) Check(id ID, c session.Check) {
	if len(c.Message) <= session.MaxCheck {
		j.change(checked, id, c.Append)
	}
}

// Move stores whether the datagrams of the client arrive at another pod.
func (j *Journal) Move(id ID, away bool) {
	j.change(moved, id, func(b []byte) []byte { return session.AppendBool(b, away) })
}

// End stores the end of a session. It is called once for a session.
func (j *Journal) End(id ID) {
	j.change(ended, id, func(b []byte) []byte { return b })
}

// change writes an entry of a session, if the session is in the file.
func (j *Journal) change(k kind, id ID, payload func([]byte) []byte) {
	if j == nil || id == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.holds(id) {
		return
	}
	j.buffer = payload(openEntry(j.buffer[:0], k, id))
	if closeEntry(j.buffer, 0) && j.write(j.buffer) && k == ended {
		j.sessions = max(j.sessions-1, 0)
	}
}

// Nonces stores the root of the nonces. The caller calls it once after Open.
func (j *Journal) Nonces(root []byte) {
	if j == nil || len(root) > maxRoot {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.root = slices.Clone(root); j.file != nil {
		j.write(appendRoot(j.buffer[:0], j.root))
	}
}

// Done reports that all restored sessions are continued or ended. A journal during whose restore two processes have
// ended is set aside by the next Open.
func (j *Journal) Done() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lock != nil {
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
	return Status{Problem: j.problem, Bytes: j.size, Sessions: j.sessions, Errors: j.errors}
}

// Close closes the file and unlocks the folder. The file remains, with all sessions that have not ended.
func (j *Journal) Close() error { return j.close() }

// Remove is Close, and removes what the journal has in the folder, except files that were set aside.
func (j *Journal) Remove() error { return j.close(fileName, attemptsName, lockName) }

// close closes the journal, and removes files while the folder is locked.
func (j *Journal) close(remove ...string) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	j.closed = true
	err := j.drop()
	j.mu.Unlock()
	j.work.Wait() // a compaction uses the folder
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lock == nil {
		return err
	}
	for _, name := range remove {
		if e := os.Remove(j.path(name)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	err = errors.Join(err, j.lock.Close())
	j.lock = nil
	return err
}
