package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

func (j *Journal) path(name string) string { return filepath.Join(j.o.Dir, name) }

// start locks the folder, reads the journal of the previous process and writes a new one.
func (j *Journal) start() (restored Restored) {
	if err := j.takeLock(); err != nil {
		j.fault("start journal", err)
		j.drop()
		j.fit()
		return Restored{}
	}
	var s state
	var whole int64
	if j.attempts() < 2 {
		s, whole = j.read()
	} else {
		j.setAside(failedName, errors.New("two processes have ended while they restored its sessions"))
		j.Done()
	}
	j.last, j.root, j.size = s.last, s.root, whole // these bytes of the volume are free again when the file is replaced
	former := slices.Collect(maps.Keys(s.sessions))
	s.resume(j.o.Now())
	for _, e := range s.entries() {
		if kept, err := j.join(e.Record); err == nil { // err is always nil: replay enforces the limits of a Record
			kept.queued = true
			j.sessions[e.ID] = kept
			j.shares.set(&kept.share, kept.sizes())
		}
	}
	j.fit()
	for _, id := range slices.Sorted(maps.Keys(j.sessions)) {
		restored.Sessions = append(restored.Sessions, Entry{id, j.sessions[id].clone()})
	}
	restored.NonceRoot, restored.Former, j.former = s.root, slices.Clone(s.former), s.former
	err := j.compact(false)
	switch {
	case err == nil:
	case whole > 0 && j.keep(whole) == nil:
		j.warn("compact journal", err)
		for _, id := range former { // the appended entries give their current state, or their end
			j.queue.whole[id] = struct{}{}
		}
		j.work()
	default:
		j.fault("start journal", err)
		j.drop()
	}
	if len(restored.Sessions) == 0 {
		j.Done()
	}
	return restored
}

// clone returns a copy of the record.
func (s *stored) clone() session.Record {
	r := s.Record
	r.Permissions, r.Channels = slices.Clone(r.Permissions), slices.Clone(r.Channels)
	r.Checks = slices.Clone(r.Checks)
	for i := range r.Checks {
		r.Checks[i].Message = bytes.Clone(r.Checks[i].Message)
	}
	return r
}

// takeLock locks the folder for this process. The kernel releases the lock when the process ends.
func (j *Journal) takeLock() error {
	if err := os.MkdirAll(j.o.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path(lockName), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil && !j.isLock(f) {
		err = syscall.EWOULDBLOCK
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("lock %s: another process uses the state folder: stop it or choose another folder: %w",
			f.Name(), err)
	}
	j.mu.Lock()
	j.lock, j.locked = f, true
	j.mu.Unlock()
	return nil
}

// isLock reports whether f is still the lock file at its path. Another process may have removed the file in Remove
// after f was opened.
func (j *Journal) isLock(f *os.File) bool {
	own, err := f.Stat()
	named, namedErr := os.Lstat(j.path(lockName))
	return err == nil && namedErr == nil && os.SameFile(own, named)
}

// attempts counts this attempt to restore the journal, and returns the number of earlier attempts. The count is written
// before anything is read, so that a journal that crashes its reader is counted too.
func (j *Journal) attempts() int {
	if info, err := os.Lstat(j.path(fileName)); err != nil || info.Size() == 0 {
		return 0
	}
	f, err := os.OpenFile(j.path(attemptsName), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		j.warn("count restore", err)
		return 0
	}
	defer f.Close()
	count := []byte{'0'}
	_, _ = f.ReadAt(count, 0)
	before := int(min(max(count[0], '0'), '9') - '0')
	if _, err := f.WriteAt([]byte{byte('1' + min(before, 8))}, 0); err != nil {
		j.warn("count restore", err)
	}
	return before
}

// read reads the journal of the previous process. It returns the number of bytes up to the end of the last whole entry.
// A damaged file is renamed and kept.
func (j *Journal) read() (s state, whole int64) {
	info, err := os.Lstat(j.path(fileName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, 0
	case err != nil:
		j.warn("read journal", err)
		return s, 0
	case !info.Mode().IsRegular() || info.Size() > maxSize:
		j.setAside(damagedName, fmt.Errorf("read journal: want a regular file of at most %d bytes", maxSize))
		return s, 0
	}
	f, err := j.open(j.path(fileName), os.O_RDONLY)
	if err == nil {
		defer f.Close()
		s, whole, err = replay(io.NewSectionReader(f, 0, info.Size()), info.Size())
	}
	switch {
	case errors.Is(err, errTorn):
		j.o.Log.Info("Journal: the previous process was killed during a write", "bytes", info.Size()-whole)
	case err != nil && whole == 0:
		j.setAside(damagedName, err)
	case err != nil:
		j.copyAside(err)
	case s.unknown > 0:
		j.copyAside(fmt.Errorf("read journal: %d entries of an unknown version", s.unknown))
	}
	return s, whole
}

// setAside renames the journal, so that it is kept but not read again.
func (j *Journal) setAside(name string, why error) {
	err := os.Rename(j.path(fileName), j.path(name))
	j.warn("set journal aside as "+name, errors.Join(why, err))
}

// copyAside gives the journal a second name. A hard link needs no disk space, unlike a copy of the damaged part.
func (j *Journal) copyAside(why error) {
	_ = os.Remove(j.path(damagedName))
	err := os.Link(j.path(fileName), j.path(damagedName))
	j.warn("set journal aside as "+damagedName, errors.Join(why, err))
}

// create creates the file that replace later renames to the journal.
func (j *Journal) create() (file, error) {
	name := j.path(newName)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return j.open(name, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL)
}

// replace renames a new file of the given size to the journal.
func (j *Journal) replace(f file, size int64) error {
	if err := os.Rename(j.path(newName), j.path(fileName)); err != nil {
		return err
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.use(f, size)
	return nil
}

// use continues with a file of the given size.
func (j *Journal) use(f file, size int64) {
	// The compacted file must fit on the volume beside the current file. The limit is above size, so that a file that
	// cannot become smaller is not compacted at each write.
	j.limit = max(min(max(2*size, j.minimum), j.volume(size)*2/5), size+size/8)
	j.broken = false
	j.mu.Lock()
	defer j.mu.Unlock()
	j.file, j.size, j.problem = f, size, ""
}

// keep truncates the file of the previous process after its last whole entry, and appends to it from then on.
func (j *Journal) keep(whole int64) error {
	f, err := j.open(j.path(fileName), os.O_RDWR|os.O_APPEND)
	if err != nil {
		return err
	}
	if err := f.Truncate(whole); err != nil {
		return errors.Join(err, f.Close())
	}
	j.use(f, whole)
	own, err := os.Lstat(j.path(fileName))
	if aside, asideErr := os.Lstat(j.path(damagedName)); errors.Join(err, asideErr) == nil && os.SameFile(own, aside) {
		err := os.Remove(j.path(damagedName)) // the journal is another name of this file
		j.o.Log.Warn("Journal: no room to keep the damaged part", "error", err)
	}
	return nil
}

// drop continues without a file until the next attempt. It removes the file, because another process that reads it
// would continue sessions that have ended.
func (j *Journal) drop() {
	f := j.file
	j.mu.Lock()
	j.file, j.size, j.retry = nil, 0, j.o.Now().Add(retryAfter)
	j.queue.entries, j.queue.common = j.queue.entries[:0], false
	clear(j.queue.whole)
	j.mu.Unlock()
	if f != nil {
		_, _ = f.Close(), os.Remove(j.path(fileName))
	}
}

// volume returns how many bytes of the volume the journal may use, including the current size of its file.
func (j *Journal) volume(size int64) int64 {
	more, err := j.room(j.o.Dir)
	if err != nil {
		more = maxRoom // unknown; if the volume is full, a write will fail
	}
	v := min(more+size, maxRoom)
	if j.o.Now().Before(j.mostUntil) {
		v = min(v, j.most)
	}
	return v
}

// capacity returns the maximum size of the state: 5/16 of the volume. The rest is for the file, which grows to two
// fifths of the volume before it is compacted, and for changes that are written to both files during a compaction.
func (j *Journal) capacity() int64 {
	v := j.volume(j.size) * 5 / 16
	if j.o.Now().Before(j.mostUntil) {
		return v
	}
	return max(v, leastCapacity) // a full volume may have free space later
}

// fault counts an error that prevents writes, and logs it unless the journal already has a problem. The caller must
// hold mu, except start.
func (j *Journal) fault(what string, err error) {
	if j.problem == "" {
		j.o.Log.Error("The journal of sessions failed: calls continue, but a crash would end them",
			"action", what, "error", err)
	}
	j.errors++
	j.problem = fmt.Sprintf("%s: %v", what, err)
}

// failed is fault for a caller that does not hold mu.
func (j *Journal) failed(what string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fault(what, err)
}

// warn counts and logs an error that prevents no writes.
func (j *Journal) warn(what string, err error) {
	j.mu.Lock()
	j.errors++
	j.mu.Unlock()
	j.o.Log.Warn("The journal of sessions has a problem", "action", what, "error", err)
}
