package session

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Limits of a Record. The gate and the relay have the same limits, so a Record of a real session never exceeds them.
const (
	// MaxPermissions is the largest number of permissions of a Record.
	MaxPermissions = 256
	// MaxChannels is the largest number of channels of a Record.
	MaxChannels = 64
	// MaxChecks is the largest number of connectivity checks of a Record.
	MaxChecks = 64
	// MaxCheck is the size of the largest connectivity check, in bytes.
	MaxCheck = 512

	maxText   = 1024 // a realm has at most 763 bytes (RFC 8489 §14.9)
	maxSource = 64
)

// recordVersion is the first byte of the binary form. A change of the form increments it.
const recordVersion = 3

// Errors of the binary form of a Record.
var (
	// ErrRecordVersion is the error for a record in the format of another release.
	ErrRecordVersion = errors.New("read session record: unknown version")
	// ErrRecord is the error for bytes that are not a valid record.
	ErrRecord = errors.New("read session record: damaged")
	// ErrRecordSize is the error for a Record that exceeds a limit.
	ErrRecordSize = errors.New("write session record: a field is too large")
)

// Record is what a process needs to continue a session that another process has created. It contains no secret: a
// continued session authenticates its requests with the credentials of the config.
type Record struct {
	// Generation is the number of processes that have continued the session before. It is 0 for a new session.
	Generation uint32
	// Usage identifies the session in usage records.
	Usage usage.ID
	// Listener is the name of the listener that created the session.
	Listener string
	// Client is the transport address of the client, as the listener saw it.
	Client netip.AddrPort
	// Local is the transport address to which the client sends: the port of the listener, and the IP address if it is
	// known.
	Local netip.AddrPort
	// Source is the binary form of the datagram.Source with which answers are sent from Local. It may be empty.
	Source []byte
	// Username, UserID and Realm come from the Allocate request.
	Username, UserID, Realm string
	// Relay is the relayed transport address: the advertised IP address, and the port of the relay socket.
	Relay netip.AddrPort
	// Transaction is the transaction ID of the Allocate request.
	Transaction [12]byte
	// Lifetime is the granted lifetime, in seconds.
	Lifetime uint32
	// Started is when the allocation was created. Until is when its lifetime ends. All times of a Record are wall clock
	// times with a resolution of a millisecond. A time before 1970 is stored as the zero time.
	Started, Until time.Time
	// Permissions are the permissions, at most MaxPermissions.
	Permissions []Permission
	// Channels are the channel bindings, at most MaxChannels.
	Channels []ChannelRecord
	// Checks holds the nominating connectivity check of each peer, at most MaxChecks.
	Checks []Check
	// Away reports whether the datagrams of the client arrive at another pod, which forwards them. Nothing must be sent
	// to such a client before its first datagram, which shows the path to it.
	Away bool
}

// Permission is a permission of a session (RFC 8656 §9).
type Permission struct {
	Peer  netip.Addr
	Until time.Time
}

// ChannelRecord is a channel binding of a session (RFC 8656 §12).
type ChannelRecord struct {
	Number uint16
	Peer   netip.AddrPort
	// Until is the end of the binding. Installed is when the channel was first bound.
	Until, Installed time.Time
}

// Check is the newest connectivity check with USE-CANDIDATE that the client has sent to a peer (RFC 8445 §7.2.2): a
// Binding request of at most MaxCheck bytes.
type Check struct {
	Peer    netip.AddrPort
	Message []byte
}

// AppendBinary implements encoding.BinaryAppender. The error is ErrRecordSize.
func (r *Record) AppendBinary(b []byte) ([]byte, error) {
	if len(r.Permissions) > MaxPermissions || len(r.Channels) > MaxChannels || len(r.Checks) > MaxChecks {
		return b, ErrRecordSize
	}
	for _, s := range [...]string{r.Listener, r.Username, r.UserID, r.Realm} {
		if len(s) > maxText {
			return b, ErrRecordSize
		}
	}
	if len(r.Source) > maxSource {
		return b, ErrRecordSize
	}
	b = append(b, recordVersion)
	b = binary.AppendUvarint(b, uint64(r.Generation))
	b = append(b, r.Usage[:]...)
	b = appendBytes(b, r.Listener)
	b = appendBytes(b, r.Username)
	// Usually the user name ends with the user ID.
	if strings.HasSuffix(r.Username, r.UserID) {
		b = binary.AppendUvarint(b, uint64(len(r.UserID))<<1|1)
	} else {
		b = append(binary.AppendUvarint(b, uint64(len(r.UserID))<<1), r.UserID...)
	}
	b = appendBytes(b, r.Realm)
	for _, address := range [...]netip.AddrPort{r.Client, r.Local, r.Relay} {
		b = AppendAddrPort(b, address)
	}
	b = appendBytes(b, r.Source)
	b = append(b, r.Transaction[:]...)
	b = binary.AppendUvarint(b, uint64(r.Lifetime))
	b = AppendTime(AppendTime(b, r.Started), r.Until)
	b = binary.AppendUvarint(b, uint64(len(r.Permissions)))
	for _, p := range r.Permissions {
		b = AppendTime(AppendAddr(b, p.Peer), p.Until)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Channels)))
	for _, c := range r.Channels {
		b = c.Append(b)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Checks)))
	for _, c := range r.Checks {
		if len(c.Message) > MaxCheck {
			return b, ErrRecordSize
		}
		b = c.Append(b)
	}
	return AppendBool(b, r.Away), nil
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (r *Record) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// UnmarshalBinary implements encoding.BinaryUnmarshaler. It accepts only bytes that AppendBinary writes. The error is
// ErrRecordVersion or ErrRecord, and leaves r as it was. r retains no part of b.
func (r *Record) UnmarshalBinary(b []byte) error {
	switch {
	case len(b) == 0:
		return ErrRecord
	case b[0] != recordVersion:
		return ErrRecordVersion
	}
	d := Decoder{b: b[1:]}
	var n Record
	n.Generation = uint32(d.Number(1<<32 - 1))
	copy(n.Usage[:], d.take(len(n.Usage)))
	n.Listener, n.Username = string(d.Bytes(maxText)), string(d.Bytes(maxText))
	switch id := d.Number(maxText<<1 | 1); {
	case id&1 == 0:
		n.UserID = string(d.take(int(id >> 1)))
		d.failIf(strings.HasSuffix(n.Username, n.UserID))
	case int(id>>1) > len(n.Username):
		d.failIf(true)
	default:
		n.UserID = n.Username[len(n.Username)-int(id>>1):]
	}
	n.Realm = string(d.Bytes(maxText))
	n.Client, n.Local, n.Relay = d.AddrPort(), d.AddrPort(), d.AddrPort()
	n.Source = copied(d.Bytes(maxSource))
	copy(n.Transaction[:], d.take(len(n.Transaction)))
	n.Lifetime = uint32(d.Number(1<<32 - 1))
	n.Started, n.Until = d.Time(), d.Time()
	for range d.Number(MaxPermissions) {
		n.Permissions = append(n.Permissions, Permission{d.Addr(), d.Time()})
	}
	for range d.Number(MaxChannels) {
		n.Channels = append(n.Channels, d.Channel())
	}
	for range d.Number(MaxChecks) {
		n.Checks = append(n.Checks, d.Check())
	}
	n.Away = d.Bool()
	if !d.Done() {
		return ErrRecord
	}
	*r = n
	return nil
}

// Append appends the binary form, which Decoder.Channel reads.
func (c *ChannelRecord) Append(b []byte) []byte {
	b = AppendAddrPort(binary.BigEndian.AppendUint16(b, c.Number), c.Peer)
	return AppendTime(AppendTime(b, c.Until), c.Installed)
}

// Append appends the binary form, which Decoder.Check reads.
func (c *Check) Append(b []byte) []byte { return appendBytes(AppendAddrPort(b, c.Peer), c.Message) }
