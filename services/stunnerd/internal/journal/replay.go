package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// The file is a header and entries. The header is magic and a byte of version. An entry is
//
//	length of the payload     2 bytes, big endian, at least 1
//	CRC-32C                   4 bytes, big endian, over the length and the payload
//	payload                   kind (1 byte), ID of the session (uvarint), then the fields of the kind
//
// Numbers, addresses and times are in the notation of session.Record.
const (
	magic      = "STUNner journal"
	version    = 1
	headerSize = len(magic) + 1
	frameSize  = 2 + 4
)

// kind is the kind of an entry. The comments below list the fields of the payload after kind and ID.
type kind byte

const (
	added     kind = 1 + iota // Record
	refreshed                 // lifetime, end
	permitted                 // end, addresses
	bound                     // ChannelRecord
	checked                   // Check
	ended                     // without further fields
	nonces                    // root, without an ID
	moved                     // whether the client uses another pod
	formers                   // session.Former each, without an ID; replaces the earlier entry
	kinds
)

const maxRoot = 64

// Errors of a replay.
var (
	// errTorn is the error for an incomplete entry: the process was killed while it wrote the entry.
	errTorn = errors.New("read journal: the last entry is not complete")
	// errDamaged is the error for bytes that the journal has not written.
	errDamaged = errors.New("read journal: damaged entry")
	// errForeign is the error for a file with another header: it was written by a newer release, or is not a journal.
	errForeign = errors.New("read journal: unknown format or version")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendHeader appends the header of the file.
func appendHeader(b []byte) []byte { return append(append(b, magic...), version) }

// openEntry appends the beginning of an entry. closeEntry completes it.
func openEntry(b []byte, k kind, id ID) []byte {
	b = append(b, make([]byte, frameSize)...)
	return binary.AppendUvarint(append(b, byte(k)), uint64(id))
}

// closeEntry completes the entry that begins at an offset. It reports false if the entry is too long.
func closeEntry(b []byte, at int) bool {
	payload := b[at+frameSize:]
	if len(payload) > 1<<16-1 {
		return false
	}
	binary.BigEndian.PutUint16(b[at:], uint16(len(payload)))
	binary.BigEndian.PutUint32(b[at+2:], checksum(b[at:at+2], payload))
	return true
}

func checksum(length, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(length, castagnoli), castagnoli, payload)
}

// state is the result of the entries of a file.
type state struct {
	sessions map[ID]*session.Record
	last     ID
	root     []byte
	former   []session.Former
	// unknown is the number of entries of an unknown kind, or with a record of an unknown version.
	unknown int
}

// replay applies the entries of a file of a given size. It returns the length of the part before the error, which is
// errTorn, errDamaged, errForeign or an error of r.
func replay(r io.Reader, size int64) (s state, whole int64, err error) {
	s.sessions = map[ID]*session.Record{}
	in := bufio.NewReaderSize(r, int(min(size, 1<<16))) // most files are small
	header := make([]byte, min(size, int64(headerSize)))
	if _, err := io.ReadFull(in, header); err != nil {
		return s, 0, err
	}
	switch want := appendHeader(nil); {
	case string(header) != string(want[:len(header)]):
		return s, 0, errForeign
	case len(header) == 0:
		return s, 0, nil // a file without room for a header
	case len(header) < headerSize:
		return s, 0, errTorn
	}
	entry := make([]byte, min(size, frameSize+1<<16))
	for whole = int64(headerSize); whole < size; {
		frame := entry[:min(size-whole, frameSize)]
		if _, err := io.ReadFull(in, frame); err != nil {
			return s, whole, err
		}
		if len(frame) < frameSize {
			return s, whole, errTorn
		}
		length, left := int64(binary.BigEndian.Uint16(frame)), size-whole-frameSize
		payload := entry[frameSize:][:min(length, left)]
		if _, err := io.ReadFull(in, payload); err != nil {
			return s, whole, err
		}
		if left < length {
			return s, whole, incomplete(entry[:frameSize+left], whole)
		}
		sum := binary.BigEndian.Uint32(frame[2:])
		if len(payload) == 0 || checksum(frame[:2], payload) != sum || !s.apply(payload) {
			return s, whole, fmt.Errorf("%w at byte %d", errDamaged, whole)
		}
		whole += int64(frameSize + len(payload))
	}
	return s, whole, nil
}

// incomplete returns the error for the last bytes of a file, if the entry that starts there is longer than these bytes.
// The error is errTorn, unless the bytes contain a whole entry: then the length is damaged.
func incomplete(b []byte, at int64) error {
	for i := range max(len(b)-frameSize, 0) {
		payload := b[i+frameSize:]
		if i > 0 {
			n := int(binary.BigEndian.Uint16(b[i:]))
			if n == 0 || n > len(payload) {
				continue
			}
			payload = payload[:n]
		}
		// The kind is checked first, because most bytes are not a kind. This avoids most checksums of up to 64 KiB.
		if k := kind(payload[0]); k < added || k >= kinds {
			continue
		}
		length := binary.BigEndian.AppendUint16(nil, uint16(len(payload)))
		if checksum(length, payload) == binary.BigEndian.Uint32(b[i+2:]) {
			return fmt.Errorf("%w at byte %d", errDamaged, at)
		}
	}
	return errTorn
}

// apply applies the payload of an entry. It reports false if the payload is malformed. Changes of unknown sessions are
// ignored: such a session was written to a former file that failed.
func (s *state) apply(payload []byte) bool {
	d := session.NewDecoder(payload[1:])
	id := ID(d.Number(1<<63 - 1))
	s.last = max(s.last, id)
	r := s.sessions[id]
	if r == nil {
		r = &session.Record{}
	}
	switch kind(payload[0]) {
	case added:
		switch err := r.UnmarshalBinary(d.Rest()); err {
		case nil:
			s.sessions[id] = r
		case session.ErrRecordVersion:
			s.unknown++
		default:
			return false
		}
	case refreshed:
		r.Lifetime, r.Until = uint32(d.Number(1<<32-1)), d.Time()
	case permitted:
		for until := d.Time(); d.More(); {
			p := session.Permission{Peer: d.Addr(), Until: until}
			same := func(o session.Permission) bool { return o.Peer == p.Peer }
			r.Permissions = put(r.Permissions, p, session.MaxPermissions, same)
		}
	case bound:
		c := d.Channel()
		same := func(o session.ChannelRecord) bool { return o.Number == c.Number }
		r.Channels = put(r.Channels, c, session.MaxChannels, same)
	case checked:
		c := d.Check()
		same := func(o session.Check) bool { return o.Peer == c.Peer }
		r.Checks = put(r.Checks, c, session.MaxChecks, same)
	case moved:
		r.Away = d.Bool()
	case ended:
		delete(s.sessions, id)
	case formers:
		for s.former = nil; d.More(); {
			s.former = append(s.former, d.Former())
		}
	case nonces:
		s.root = slices.Clone(d.Bytes(maxRoot))
	default:
		s.unknown++
		return true
	}
	return d.Done()
}

// put moves the element to the end of the list, or appends it. If the list is full, the first element is removed, which
// was stored first. A permission or channel that is removed has ended already, because the gate refuses a request that
// would exceed the limit with live ones.
func put[E any](list []E, e E, limit int, same func(E) bool) []E {
	list = slices.DeleteFunc(list, same)
	if len(list) >= limit {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, e)
}

// Lifetimes of RFC 8656 §9 and §12.
const (
	permissionLifetime = 5 * time.Minute
	channelLifetime    = 10 * time.Minute
)

// resume prepares the state for a process that continues the sessions. It removes expired entries, and limits the
// remaining lifetimes, because the wall clock may have been set back.
func (s *state) resume(now time.Time) {
	maps.DeleteFunc(s.sessions, func(_ ID, r *session.Record) bool { return !r.Until.After(now) })
	s.former = slices.DeleteFunc(s.former, func(f session.Former) bool { return !f.Until.After(now) })
	if len(s.former) == 0 {
		s.former = nil // so that no entry is written whose kind earlier releases do not know
	}
	limit := func(until *time.Time, lifetime time.Duration) {
		*until = now.Add(min(until.Sub(now), lifetime))
	}
	past := func(t *time.Time) {
		if t.After(now) {
			*t = now
		}
	}
	for _, r := range s.sessions {
		prune(r, now)
		r.Generation++
		limit(&r.Until, time.Duration(r.Lifetime)*time.Second)
		past(&r.Started)
		for i := range r.Permissions {
			limit(&r.Permissions[i].Until, permissionLifetime)
		}
		for i := range r.Channels {
			limit(&r.Channels[i].Until, channelLifetime)
			past(&r.Channels[i].Installed)
		}
	}
}

// prune removes the expired permissions and channels. It keeps an expired session, because a later entry may be a
// Refresh of it.
func prune(r *session.Record, now time.Time) {
	r.Permissions = slices.DeleteFunc(r.Permissions, func(p session.Permission) bool { return !p.Until.After(now) })
	r.Channels = slices.DeleteFunc(r.Channels, func(c session.ChannelRecord) bool { return !c.Until.After(now) })
}

// entries returns the sessions, the oldest first.
func (s *state) entries() (list []Entry) {
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		list = append(list, Entry{id, *s.sessions[id]})
	}
	return list
}

// appendCommon appends the entries that do not belong to a session: the root of the nonces, if there is one, and the
// former authorities, if they are not nil.
func appendCommon(b, root []byte, former []session.Former) []byte {
	if root != nil {
		at := len(b)
		b = append(binary.AppendUvarint(openEntry(b, nonces, 0), uint64(len(root))), root...)
		closeEntry(b, at)
	}
	if former != nil {
		at := len(b)
		b = openEntry(b, formers, 0)
		for i := range former {
			b = former[i].Append(b)
		}
		if !closeEntry(b, at) {
			b = b[:at]
		}
	}
	return b
}

// appendSession appends the entry of a whole session.
func appendSession(b []byte, id ID, r *session.Record) []byte {
	at := len(b)
	var err error
	if b, err = r.AppendBinary(openEntry(b, added, id)); err != nil || !closeEntry(b, at) {
		b = b[:at] // unreachable: join and put enforce the limits of a Record
	}
	return b
}
