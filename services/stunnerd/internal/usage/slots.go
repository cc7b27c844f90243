package usage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// The memory of the counters is chunks of slots of one size. With a folder, each chunk is a part of a file that is
// mapped into memory, so a process that is killed leaves its counters there. Space for a chunk is allocated before it is
// mapped (fallocate(2)): a volume that is full then refuses a chunk, and does not end the process with a SIGBUS. A chunk
// that the volume has no room for is ordinary memory, which ends with the process.
const (
	chunkSize = 64 << 10
	// unit is the divisor of sizes and offsets of slots, and the size of the header of a chunk.
	unit = 64
	// maxChunks bounds the file: 1 GiB.
	maxChunks = 1 << 14
	// maxText is the size of the longest text of a slot. A user id has at most 1,024 bytes.
	maxText = 2048
	// magic is "STUNU1". Another layout of slots has another number.
	magic = 0x3155_4E55_5453

	fileName = "sessions.usage"
)

// chunkHeader is the beginning of a chunk.
type chunkHeader struct {
	magic    uint64
	slotSize uint64
	// alive is the last time of Book.tick, in milliseconds since 1970. It is kept in the first chunk.
	alive atomic.Int64
}

// state is the state of a slot.
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

// ref refers to a slot: the number of its chunk, and its offset in units. The zero ref refers to none, because a chunk
// begins with its header.
type ref = uint32

const unitsOfChunk = chunkSize / unit

// slot is the memory of one session, or of one name. The text follows: of a session the caveats and the user.
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

// routeSlot counts the traffic of one route. Without a name the slot is free.
type routeSlot struct {
	name atomic.Uint32
	_    uint32
	meter.Traffic
}

const slotHeader = int(unsafe.Sizeof(slot{}))

// chunk is one chunk of memory.
type chunk struct {
	memory []byte
	// stored reports whether the chunk is a part of the file.
	stored bool
}

func (c *chunk) header() *chunkHeader { return (*chunkHeader)(unsafe.Pointer(&c.memory[0])) }

// slots is the memory of the counters of a process. It is not safe for concurrent use.
type slots struct {
	file   *os.File // nil without a folder
	chunks []chunk
	// unused are the free slots by size.
	unused map[int][]ref
	// full is the error of the last chunk that is not in the file, or nil.
	full error
}

// openSlots opens the file of a folder and maps its chunks. It returns memory without a file together with an error.
func openSlots(dir string) (*slots, error) {
	m := &slots{unused: map[int][]ref{}}
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
		m.chunks = nil
		return m, fmt.Errorf("open usage: %s: %w", path, errors.Join(err, f.Close()))
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
	whole := info.Size()%chunkSize == 0 && info.Size() <= maxChunks*chunkSize
	for at := int64(0); whole && at < info.Size(); at += chunkSize {
		c, err := mapChunk(f, at)
		if err != nil {
			return err
		}
		m.chunks = append(m.chunks, c)
		h := c.header()
		size := h.slotSize
		whole = h.magic == magic && size%unit == 0 && size >= uint64(slotHeader) && size <= uint64(sizeOf(maxText))
	}
	if !whole {
		m.chunks = nil // stay mapped: nobody uses them
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	m.file = f
	return nil
}

// mapChunk allocates the space of a chunk of a file, and maps it.
func mapChunk(f *os.File, at int64) (chunk, error) {
	if err := unix.Fallocate(int(f.Fd()), 0, at, chunkSize); err != nil {
		return chunk{}, fmt.Errorf("allocate: %w", err)
	}
	b, err := unix.Mmap(int(f.Fd()), at, chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return chunk{}, fmt.Errorf("map: %w", err)
	}
	return chunk{b, true}, nil
}

// close unlocks and closes the file. Its memory stays mapped, because a late packet may still be counted, and would
// keep the lock.
func (m *slots) close() error {
	if m.file == nil {
		return nil
	}
	return errors.Join(syscall.Flock(int(m.file.Fd()), syscall.LOCK_UN), m.file.Close())
}

// sizeOf returns the size of a slot with a text.
func sizeOf(text int) int { return (slotHeader + text + unit - 1) / unit * unit }

// take returns a free slot for a text. Its counters are 0. It returns 0 if there are maxChunks.
func (m *slots) take(text int) ref {
	size := sizeOf(text)
	if len(m.unused[size]) == 0 && !m.grow(size) {
		return 0
	}
	list := m.unused[size]
	at := list[len(list)-1]
	m.unused[size] = list[:len(list)-1]
	clear(m.bytes(at))
	return at
}

// grow adds a chunk of free slots of a size.
func (m *slots) grow(size int) bool {
	if len(m.chunks) == maxChunks {
		return false
	}
	c := chunk{}
	// A part of the file follows the one before, so there is none after a chunk that is not in the file.
	if m.file != nil && m.full == nil {
		c, m.full = mapChunk(m.file, int64(len(m.chunks))*chunkSize)
	}
	if c.memory == nil {
		words := make([]uint64, chunkSize/8) // aligned for atomic operations
		c.memory = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), chunkSize)
	}
	h := c.header()
	h.slotSize, h.magic = uint64(size), magic
	m.chunks = append(m.chunks, c)
	for at := range m.inChunk(len(m.chunks) - 1) {
		m.unused[size] = append(m.unused[size], at)
	}
	return true
}

// inChunk yields the slots of a chunk.
func (m *slots) inChunk(n int) func(func(ref) bool) {
	return func(yield func(ref) bool) {
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
	size := len(m.bytes(at))
	m.unused[size] = append(m.unused[size], at)
}

// at returns a slot.
func (m *slots) at(at ref) *slot { return (*slot)(unsafe.Pointer(&m.bytes(at)[0])) }

// bytes returns the memory of a slot.
func (m *slots) bytes(at ref) []byte {
	c, offset := &m.chunks[at/unitsOfChunk], int(at%unitsOfChunk)*unit
	return c.memory[offset : offset+int(c.header().slotSize)]
}

// stored reports whether a slot outlives the process.
func (m *slots) stored(at ref) bool { return m.chunks[at/unitsOfChunk].stored }

// write stores the texts of a slot that take has returned for them.
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
	size := int(m.chunks[at/unitsOfChunk].header().slotSize)
	if offset := int(at%unitsOfChunk)*unit - unit; offset%size != 0 || offset+unit+size > chunkSize {
		return ""
	}
	if m.at(at).state.Load() != name || !m.valid(at) {
		return ""
	}
	_, text := m.texts(at)
	return text
}
