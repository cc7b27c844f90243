package session

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
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
	// MaxFormer is the largest number of former authorities of a Record.
	MaxFormer = 2

	maxText   = 1024 // a realm has at most 763 bytes (RFC 8489 §14.9)
	maxSource = 64
)

// The first byte of the binary form. A change of the form increments it. Only a record with former authorities has
// formerVersion, so that pods of releases without this version take all other sessions.
const (
	recordVersion = 3
	formerVersion = 4
)

// Errors of the binary form of a Record.
var (
	// ErrRecordVersion is the error for a record in the format of another release.
	ErrRecordVersion = errors.New("read session record: unknown version")
	// ErrRecord is the error for bytes that are not a valid record.
	ErrRecord = errors.New("read session record: damaged")
	// ErrRecordSize is the error for a Record that exceeds a limit.
	ErrRecordSize = errors.New("write session record: a field is too large")
)

// Record is what a process needs to continue a session that another process has created. A continued session
// authenticates its requests with the credentials of the config, so a record contains no secret, except in Former.
type Record struct {
	// Generation orders the processes that have had the session (see forward.Version). It is 0 for a new session. A
	// process that continues the session has a higher Generation than the process before it.
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
	// Checks holds one connectivity check of each peer, at most MaxChecks. In the journal they nominate. In a record
	// for another pod they are the checks that relay.Relay.Checks returns.
	Checks []Check
	// Away reports whether the datagrams of the client arrive at another pod, which forwards them. Nothing must be sent
	// to such a client before its first datagram, which shows the path to it.
	Away bool
	// Former are the authorities that a config change has replaced since the session began, at most MaxFormer. A pod
	// that has started after that change does not know them. In the journal they have an entry of their own.
	Former []Former
}

// Former is an authority that a config change has replaced.
type Former struct {
	Authority credential.Authority
	// Replaced is when the config changed. Until is when credentials of the authority become invalid.
	Replaced, Until time.Time
	// New reports whether credentials of the former authority are valid for new sessions. They are always valid for
	// existing sessions. The binary form does not contain New: each process gets New from its config.
	New bool
}

// Storable reports whether the authority has a binary form.
func (f *Former) Storable() bool {
	a := &f.Authority
	return max(len(a.Realm), len(a.Username), len(a.Password), len(a.SharedSecret)) <= maxText
}

// Append appends the binary form of an authority that is Storable. Decoder.Former reads it.
func (f *Former) Append(b []byte) []byte {
	a := &f.Authority
	b = appendBytes(appendBytes(b, a.Realm), a.Username)
	b = appendBytes(appendBytes(b, string(a.Password)), string(a.SharedSecret))
	return AppendTime(AppendTime(b, f.Replaced), f.Until)
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

// Check is a connectivity check that the client has sent to a peer: a Binding request of at most MaxCheck bytes (RFC
// 8445 §7.2.2).
type Check struct {
	Peer    netip.AddrPort
	Message []byte
}

// AppendBinary implements encoding.BinaryAppender. The error is ErrRecordSize.
func (r *Record) AppendBinary(b []byte) ([]byte, error) {
	if len(r.Permissions) > MaxPermissions || len(r.Channels) > MaxChannels || len(r.Checks) > MaxChecks ||
		len(r.Former) > MaxFormer {
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
	if len(r.Former) > 0 {
		b = append(b, formerVersion)
	} else {
		b = append(b, recordVersion)
	}
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
	b = AppendBool(b, r.Away)
	if len(r.Former) == 0 {
		return b, nil
	}
	b = binary.AppendUvarint(b, uint64(len(r.Former)))
	for _, f := range r.Former {
		if !f.Storable() {
			return b, ErrRecordSize
		}
		b = f.Append(b)
	}
	return b, nil
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (r *Record) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// UnmarshalBinary implements encoding.BinaryUnmarshaler. It accepts only bytes that AppendBinary writes. The error is
// ErrRecordVersion or ErrRecord, and leaves r as it was. r retains no part of b.
func (r *Record) UnmarshalBinary(b []byte) error {
	switch {
	case len(b) == 0:
		return ErrRecord
	case b[0] != recordVersion && b[0] != formerVersion:
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
	if b[0] == formerVersion {
		number := d.Number(MaxFormer)
		d.failIf(number == 0)
		for range number {
			n.Former = append(n.Former, d.Former())
		}
	}
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
