package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

func (j *Journal) path(name string) string { return filepath.Join(j.o.Dir, name) }

// start locks the folder, reads the journal of the former process and writes a new one.
func (j *Journal) start() Restored {
	if err := j.takeLock(); err != nil {
		j.fault("start journal", err)
		j.drop()
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
	j.last, j.root = s.last, s.root
	s.resume(j.o.Now())
	j.sessions = len(s.sessions)
	restored := Restored{Sessions: s.entries(), NonceRoot: s.root}
	f, size, err := j.create(s.image())
	if err == nil {
		err = j.replace(f, size)
	}
	switch {
	case err == nil:
	case whole > 0 && j.keep(whole) == nil:
		j.warn("compact journal", err)
	default:
		j.fault("start journal", err)
		j.drop()
	}
	if len(restored.Sessions) == 0 {
		j.Done()
	}
	return restored
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
	j.lock = f
	return nil
}

// isLock reports whether a file is the lock of the folder, and not one that Remove of another process has removed after
// it was opened.
func (j *Journal) isLock(f *os.File) bool {
	own, err := f.Stat()
	named, namedErr := os.Lstat(j.path(lockName))
	return err == nil && namedErr == nil && os.SameFile(own, named)
}

// attempts counts this attempt to restore the journal, and returns the number of those before it. The count is written
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

// read reads the journal of the former process, and returns the length of its whole part. A damaged file is set aside.
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
		j.o.Log.Info("Journal: the former process was killed during a write", "bytes", info.Size()-whole)
	case err != nil && whole == 0:
		j.setAside(damagedName, err)
	case err != nil:
		j.copyAside(err)
	case s.unknown > 0:
		j.copyAside(fmt.Errorf("read journal: %d entries of an unknown version", s.unknown))
	}
	return s, whole
}

// setAside renames the journal.
func (j *Journal) setAside(name string, why error) {
	err := os.Rename(j.path(fileName), j.path(name))
	j.warn("set journal aside as "+name, errors.Join(why, err))
}

// copyAside gives the journal a second name. A hard link needs no room, which a copy of the damaged part would.
func (j *Journal) copyAside(why error) {
	_ = os.Remove(j.path(damagedName))
	err := os.Link(j.path(fileName), j.path(damagedName))
	j.warn("set journal aside as "+damagedName, errors.Join(why, err))
}

// create writes a file that replace makes the journal.
func (j *Journal) create(image []byte) (file, int64, error) {
	name := j.path(newName)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	f, err := j.open(name, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, 0, err
	}
	if _, err := f.Write(image); err != nil {
		return nil, 0, errors.Join(err, f.Close(), os.Remove(name))
	}
	return f, int64(len(image)), nil
}

// replace makes a new file the journal. It closes the file if it fails.
func (j *Journal) replace(f file, size int64) error {
	if err := os.Rename(j.path(newName), j.path(fileName)); err != nil {
		return errors.Join(err, f.Close(), os.Remove(j.path(newName)))
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.use(f, size)
	return nil
}

// use continues with a file whose entries have changed. The caller holds mu.
func (j *Journal) use(f file, size int64) {
	j.file, j.size, j.limit = f, size, max(2*size, j.minimum)
	j.epoch++
}

// keep continues with the file of the former process, without the part behind its whole entries.
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
		err := os.Remove(j.path(damagedName)) // only another name of this file, without the damage
		j.o.Log.Warn("Journal: no room to keep the damaged part", "error", err)
	}
	return nil
}

// ready makes a file if there is none, at most once in retryAfter. The caller holds mu.
func (j *Journal) ready() bool {
	if j.file != nil {
		return true
	}
	if now := j.o.Now(); j.compacting || now.Before(j.retry) {
		return false
	}
	var err error
	if j.lock == nil {
		err = j.takeLock()
	}
	if err == nil {
		var f file
		var size int64
		if f, size, err = j.create(appendRoot(appendHeader(nil), j.root)); err == nil {
			err = j.replace(f, size)
		}
	}
	if err == nil {
		_ = os.Remove(j.path(attemptsName)) // of a process that used the folder before
	} else {
		j.fault("start journal", err)
		j.drop()
	}
	return err == nil
}

// write appends an entry. If that fails, also after a compaction, the journal starts anew with an empty file, and write
// reports false. The caller holds mu.
func (j *Journal) write(entry []byte) bool {
	err := j.append(entry)
	if err != nil {
		j.fault("write journal", err)
		if err = j.shrink(); err == nil {
			err = j.append(entry)
		}
	}
	if err != nil {
		j.restart(err)
		return false
	}
	j.problem = ""
	if j.size > j.limit && !j.compacting {
		j.compacting = true
		f, size, epoch := j.file, j.size, j.epoch
		j.work.Add(1)
		j.background(func() {
			defer j.work.Done()
			j.compact(f, size, epoch)
		})
	}
	return true
}

// append appends an entry, or leaves the file as it was.
func (j *Journal) append(entry []byte) error {
	if j.size+int64(len(entry)) > maxSize {
		return syscall.EFBIG
	}
	n, err := j.file.Write(entry)
	if err == nil && n < len(entry) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return errors.Join(err, j.file.Truncate(j.size))
	}
	j.size += int64(n)
	return nil
}

// errOften is the error of a compaction in place that would follow too soon after one that has freed little.
var errOften = errors.New("compact journal: the volume is too small")

// shrink compacts the file, in place if there is no room for a second one: a process that is killed between the
// truncation and the write then leaves no sessions. A client waits for it: after a compaction that has freed less than
// half of the file, the next one is at least retryAfter later.
func (j *Journal) shrink() error {
	now := j.o.Now()
	if now.Before(j.retry) {
		return errOften
	}
	s, _, err := replay(io.NewSectionReader(j.file, 0, j.size), j.size)
	if err != nil {
		return err
	}
	s.prune(now)
	image := s.image()
	if int64(len(image)) > j.size/2 {
		j.retry = now.Add(retryAfter)
	}
	if !j.compacting { // a compaction uses the name of the new file
		if f, size, err := j.create(image); err == nil {
			return j.replace(f, size)
		}
	}
	if err := j.file.Truncate(0); err != nil {
		return err
	}
	if _, err := j.file.Write(image); err != nil {
		return err
	}
	j.use(j.file, int64(len(image)))
	return nil
}

// restart continues with an empty file after an error.
func (j *Journal) restart(why error) {
	image := appendRoot(appendHeader(nil), j.root)
	f := j.file
	if err := f.Truncate(0); err == nil {
		if _, err = f.Write(image); err == nil {
			j.forget()
			j.use(f, int64(len(image)))
			j.fault("start journal anew", why)
			return
		}
	}
	// A process that read what is left would continue sessions that have ended.
	j.fault("start journal anew", errors.Join(why, j.drop(), os.Remove(j.path(fileName))))
}

// forget makes later changes of the sessions of the file have no effect.
func (j *Journal) forget() { j.sessions, j.first = 0, j.last+1 }

// drop continues without a file until the next attempt.
func (j *Journal) drop() (err error) {
	if j.file != nil {
		err = j.file.Close()
	}
	if !j.closed {
		j.forget()
	}
	j.file, j.size, j.retry = nil, 0, j.o.Now().Add(retryAfter)
	j.epoch++
	return err
}

// fault counts an error that prevents writes, and logs it unless the journal has a problem already.
func (j *Journal) fault(what string, err error) {
	if j.problem == "" {
		j.o.Log.Error("The journal of sessions failed: calls continue, but a crash would end them",
			"action", what, "error", err)
	}
	j.errors++
	j.problem = fmt.Sprintf("%s: %v", what, err)
}

// warn counts and logs an error that prevents no writes.
func (j *Journal) warn(what string, err error) {
	j.errors++
	j.o.Log.Warn("The journal of sessions has a problem", "action", what, "error", err)
}

// compact writes a file with the state of the first bytes of the journal, and then the entries that were appended
// meanwhile.
func (j *Journal) compact(from file, size int64, epoch uint64) {
	s, _, err := replay(io.NewSectionReader(from, 0, size), size)
	var f file
	var written int64
	if err == nil {
		s.prune(j.o.Now())
		f, written, err = j.create(s.image())
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.compacting = false
	if j.epoch != epoch {
		if err == nil {
			_, _ = f.Close(), os.Remove(j.path(newName))
		}
		return
	}
	if err == nil {
		tail := make([]byte, j.size-size)
		if _, err = from.ReadAt(tail, size); err == nil {
			_, err = f.Write(tail)
		}
		if err == nil {
			err = j.replace(f, written+int64(len(tail)))
		} else {
			_, _ = f.Close(), os.Remove(j.path(newName))
		}
	}
	if err != nil {
		j.warn("compact journal", err)
		j.limit = 2 * j.size
	}
}
