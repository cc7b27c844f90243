package usage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// The memory of the counters is chunks of slots of one size. With a folder, each chunk has a part of a file. As a rule
// it is mapped into memory, so a process that is killed leaves its counters there. Space for a chunk is allocated
// before it is mapped (fallocate(2)): a volume that is full then refuses a chunk, and does not end the process with a
// SIGBUS.
//
// A volume may be slow, so chunks are mapped in advance, by a goroutine for which no session waits. If no mapped chunk
// is left, a chunk of ordinary memory is used, and is copied into its part of the file once a second.
const (
	chunkSize = 64 << 10
	// unit is the divisor of sizes and offsets of slots, and the size of the header of a chunk.
	unit = 64
	// maxChunks bounds the file: 1 GiB.
	maxChunks = 1 << 14
	// maxText is the size of the longest text of a slot. A user id has at most 1,024 bytes.
	maxText = 2048
	// magic is "STUNU1". It changes with the layout of slots.
	magic = 0x3155_4E55_5453

	fileName = "sessions.usage"

	// leastSpare and mostSpare bound the number of chunks that are mapped in advance. Within these bounds it is an
	// eighth of all chunks.
	leastSpare = 2
	mostSpare  = 16
)

// chunkHeader is the beginning of a chunk. It is zero until the chunk is divided into slots.
type chunkHeader struct {
	magic    uint64
	slotSize uint64
	// alive is the last time of Recorder.tick, in milliseconds since 1970. It is stored in the first chunk that has
	// memory.
	alive atomic.Int64
}

type state = uint32

const (
	free state = iota
	// live is the state of the slot of a session.
	live
	// ended is the state of the slot of a session whose last record is not delivered.
	ended
	// name is the state of a slot whose text is a name that other slots refer to.
	name
)

// ref refers to a slot: the number of its chunk, and its offset in units. The zero ref refers to no slot, because a
// chunk begins with its header.
type ref = uint32

const unitsOfChunk = chunkSize / unit

// slot is the memory of one session, or of one name. Its text follows: the name, or the caveats and the user of the
// session.
type slot struct {
	state atomic.Uint32
	// length is the size of the text, and of its first part.
	length, first uint16
	id            ID
	part          uint64
	// started and ended are in milliseconds since 1970.
	started int64
	ended   atomic.Int64
	// gateway, listener, protocol and reason are names.
	gateway, listener, protocol ref
	reason                      atomic.Uint32
	routes                      [maxRoutes]routeSlot
}

// routeSlot counts the traffic of one route. Without a name it is free.
type routeSlot struct {
	name atomic.Uint32
	_    uint32
	meter.Traffic
}

const slotHeader = int(unsafe.Sizeof(slot{}))

// chunk is one chunk of memory. Without memory it is a part of the file that is not mapped yet.
type chunk struct {
	memory []byte
	// mapped reports whether the memory is mapped from the file.
	mapped bool
	// copied reports whether the file contains a copy of the memory.
	copied bool
	// used is the number of slots that are not free. usedInCopy is the number of such slots in the copy.
	used, usedInCopy int
}

func (c *chunk) header() *chunkHeader { return (*chunkHeader)(unsafe.Pointer(&c.memory[0])) }

// stale reports whether the chunk must be copied into the file.
func (c *chunk) stale() bool {
	return c.memory != nil && !c.mapped && (!c.copied || c.used > 0 || c.usedInCopy > 0)
}

// read appends the memory of a chunk to an empty buffer.
func (c *chunk) read(buffer []uint64) []uint64 {
	buffer = buffer[:0]
	for i := 0; i < len(c.memory); i += 8 {
		// The counters may change meanwhile.
		buffer = append(buffer, (*atomic.Uint64)(unsafe.Pointer(&c.memory[i])).Load())
	}
	return buffer
}

func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
}

// volume is the file of the chunks. Its methods may block.
type volume interface {
	// Map allocates the space of a chunk, and maps it.
	Map(n int) ([]byte, error)
	// Write writes memory to chunk n of the file.
	Write(n int, memory []byte) error
	// Close unlocks and closes the file. Mapped memory stays mapped, because a late packet may still be counted.
	Close() error
}

// class is a kind of slots.
type class struct {
	size   int
	mapped bool
}

// slots is the memory of the counters of a process. It is not safe for concurrent use.
type slots struct {
	file   volume // nil without a folder
	chunks []chunk
	// unused are the free slots.
	unused map[class][]ref
	// spare are the mapped chunks that are not divided into slots. missing are the chunks without memory.
	spare, missing []int
}

// openSlots opens the file of a folder and maps its chunks. It returns memory without a file together with an error.
func openSlots(dir string) (*slots, error) {
	m := &slots{unused: map[class][]ref{}}
	if dir == "" {
		return m, nil
	}
	path := filepath.Join(dir, fileName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return m, fmt.Errorf("open usage: %w", err)
	}
	// O_NONBLOCK: the open of a named pipe must not wait.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return m, fmt.Errorf("open usage: %w", err)
	}
	if err := m.use(f); err != nil {
		return &slots{unused: map[class][]ref{}}, fmt.Errorf("open usage: %s: %w", path, errors.Join(err, f.Close()))
	}
	return m, nil
}

// use locks a file and maps its chunks. A file that no process of this release has written is emptied.
func (m *slots) use(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process uses the folder: stop it or choose another folder: %w", err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("want a regular file: remove it")
	}
	m.file = osFile{f}
	// A process that was killed while the file grew may have left an incomplete chunk.
	count := (info.Size() + chunkSize - 1) / chunkSize
	if count > maxChunks {
		return f.Truncate(0)
	}
	ours, err := m.load(int(count))
	if err == nil && !ours {
		m.chunks, m.spare, m.missing = nil, nil, nil // still mapped, but not used
		err = f.Truncate(0)
	}
	return err
}

// load maps the chunks of the file. It reports whether they have the layout of this release.
func (m *slots) load(count int) (ours bool, err error) {
	for n := range count {
		memory, err := m.file.Map(n)
		if errors.Is(err, syscall.ENOSPC) { // no space was allocated for the chunk
			m.chunks, m.missing = append(m.chunks, chunk{}), append(m.missing, n)
			continue
		}
		if err != nil {
			return false, err
		}
		c := chunk{memory: memory, mapped: true}
		m.chunks = append(m.chunks, c)
		switch h := c.header(); {
		case h.magic == 0:
			clear(memory[unit:])
			m.spare = append(m.spare, n)
		case h.magic != magic || h.slotSize%unit != 0 || h.slotSize < uint64(slotHeader) ||
			h.slotSize > uint64(sizeOf(maxText)):
			return false, nil
		}
		for range m.inChunk(n) {
			m.chunks[n].used++ // until release
		}
	}
	return true, nil
}

// osFile is the volume of a process.
type osFile struct{ f *os.File }

// Map implements volume.
func (o osFile) Map(n int) (memory []byte, err error) {
	raw, err := o.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	at := int64(n) * chunkSize
	// Control prevents that the descriptor is closed meanwhile.
	if e := raw.Control(func(fd uintptr) {
		for again := true; again; again = errors.Is(err, syscall.EINTR) { // tmpfs returns EINTR at a signal
			err = unix.Fallocate(int(fd), 0, at, chunkSize)
		}
		if err != nil {
			err = fmt.Errorf("allocate: %w", err)
			return
		}
		if memory, err = unix.Mmap(int(fd), at, chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			err = fmt.Errorf("map: %w", err)
			return
		}
		// The first write to a page may block too. Kernels before 5.14 do not support this call.
		_ = unix.Madvise(memory, unix.MADV_POPULATE_WRITE)
	}); e != nil {
		return nil, e
	}
	return memory, err
}

// Write implements volume.
func (o osFile) Write(n int, memory []byte) error {
	_, err := o.f.WriteAt(memory, int64(n)*chunkSize)
	return err
}

// Close implements volume. It unlocks the file explicitly, because mapped memory would keep the lock.
func (o osFile) Close() error {
	return errors.Join(syscall.Flock(int(o.f.Fd()), syscall.LOCK_UN), o.f.Close())
}

// sizeOf returns the size of a slot with a text.
func sizeOf(text int) int { return (slotHeader + text + unit - 1) / unit * unit }

// take returns a free slot for a text, if possible in a mapped chunk. The counters of the slot are 0. It returns the
// zero ref if there are maxChunks.
func (m *slots) take(text int) ref {
	size := sizeOf(text)
	of := class{size, true}
	if len(m.unused[of]) == 0 && !m.divideSpare(size) {
		of.mapped = false
		if len(m.unused[of]) == 0 && !m.extend(size) {
			return 0
		}
	}
	list := m.unused[of]
	at := list[len(list)-1]
	m.unused[of] = list[:len(list)-1]
	m.chunks[at/unitsOfChunk].used++
	clear(m.bytes(at))
	return at
}

// divideSpare divides a spare chunk into slots of a size, if there is a spare chunk.
func (m *slots) divideSpare(size int) bool {
	if len(m.spare) == 0 {
		return false
	}
	n := m.spare[0]
	m.spare = m.spare[1:]
	m.divide(n, size)
	return true
}

// extend adds a chunk of ordinary memory, with slots of a size.
func (m *slots) extend(size int) bool {
	if len(m.chunks) == maxChunks {
		return false
	}
	words := make([]uint64, chunkSize/8) // aligned for atomic operations
	m.chunks = append(m.chunks, chunk{memory: bytesOf(words)})
	m.divide(len(m.chunks)-1, size)
	return true
}

// divide divides a chunk into free slots of a size.
func (m *slots) divide(n, size int) {
	c := &m.chunks[n]
	h := c.header()
	h.slotSize = uint64(size)
	h.magic = magic // written after the size, because the process may be killed at any time
	of := class{size, c.mapped}
	for at := range m.inChunk(n) {
		m.unused[of] = append(m.unused[of], at)
	}
}

// wanted returns the number of a chunk that must be mapped, if there are too few spare chunks.
func (m *slots) wanted() (n int, ok bool) {
	if m.file == nil || len(m.spare) >= min(max(len(m.chunks)/8, leastSpare), mostSpare) {
		return 0, false
	}
	if len(m.missing) == 0 {
		if len(m.chunks) == maxChunks {
			return 0, false
		}
		m.missing = append(m.missing, len(m.chunks))
		m.chunks = append(m.chunks, chunk{})
	}
	return m.missing[0], true
}

// add stores the memory of a chunk that wanted has returned.
func (m *slots) add(n int, memory []byte) {
	m.chunks[n] = chunk{memory: memory, mapped: true}
	m.missing, m.spare = m.missing[1:], append(m.spare, n)
}

// inChunk yields the slots of a chunk.
func (m *slots) inChunk(n int) func(func(ref) bool) {
	return func(yield func(ref) bool) {
		if m.chunks[n].memory == nil || m.chunks[n].header().magic == 0 {
			return
		}
		size := int(m.chunks[n].header().slotSize)
		for at := unit; at+size <= chunkSize; at += size {
			if !yield(ref(n*unitsOfChunk + at/unit)) {
				return
			}
		}
	}
}

// release makes a slot free.
func (m *slots) release(at ref) {
	m.at(at).state.Store(free)
	c := &m.chunks[at/unitsOfChunk]
	c.used--
	of := class{len(m.bytes(at)), c.mapped}
	m.unused[of] = append(m.unused[of], at)
}

// at returns a slot.
func (m *slots) at(at ref) *slot { return (*slot)(unsafe.Pointer(&m.bytes(at)[0])) }

// bytes returns the memory of a slot.
func (m *slots) bytes(at ref) []byte {
	c, offset := &m.chunks[at/unitsOfChunk], int(at%unitsOfChunk)*unit
	return c.memory[offset : offset+int(c.header().slotSize)]
}

// stored reports whether a slot is in the file, so that it outlives the process.
func (m *slots) stored(at ref) bool {
	c := &m.chunks[at/unitsOfChunk]
	return c.mapped || c.copied
}

// header returns the header of the first chunk with memory, or nil if there is none.
func (m *slots) header() *chunkHeader {
	for i := range m.chunks {
		if c := &m.chunks[i]; c.memory != nil {
			return c.header()
		}
	}
	return nil
}

// uncopied reports whether there is a chunk without a copy in the file.
func (m *slots) uncopied() bool {
	return m.file != nil && slices.ContainsFunc(m.chunks, func(c chunk) bool {
		return c.memory != nil && !c.mapped && !c.copied
	})
}

// write writes the texts of a slot that take has returned.
func (m *slots) write(at ref, first, second string) {
	s, text := m.at(at), m.bytes(at)[slotHeader:]
	s.first, s.length = uint16(len(first)), uint16(len(first)+len(second))
	copy(text[copy(text, first):], second)
}

// texts returns the texts of a slot.
func (m *slots) texts(at ref) (first, second string) {
	s, text := m.at(at), m.bytes(at)[slotHeader:]
	return string(text[:s.first]), string(text[s.first:s.length])
}

// valid reports whether a slot of a previous process has texts that write may have written.
func (m *slots) valid(at ref) bool {
	s, text := m.at(at), m.bytes(at)[slotHeader:]
	return s.first <= s.length && int(s.length) <= len(text) && utf8.Valid(text[:s.length])
}

// name returns the text of the name that a ref refers to, or "" if it refers to none.
func (m *slots) name(at ref) string {
	if at%unitsOfChunk == 0 || int(at/unitsOfChunk) >= len(m.chunks) {
		return ""
	}
	c := &m.chunks[at/unitsOfChunk]
	if c.memory == nil || c.header().magic == 0 {
		return ""
	}
	size := int(c.header().slotSize)
	if offset := int(at%unitsOfChunk)*unit - unit; offset%size != 0 || offset+unit+size > chunkSize {
		return ""
	}
	if m.at(at).state.Load() != name || !m.valid(at) {
		return ""
	}
	_, text := m.texts(at)
	return text
}
