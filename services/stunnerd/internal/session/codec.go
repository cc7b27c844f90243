package session

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// AppendTime appends the milliseconds since 1970, and 0 for the zero time.
func AppendTime(b []byte, t time.Time) []byte {
	return binary.AppendUvarint(b, uint64(min(max(t.UnixMilli(), 0), maxTime)))
}

const (
	// maxTime is in the year 10889.
	maxTime = 1 << 48
	// maxAddress is the length of an IPv6 address with a zone, which is the name of an interface.
	maxAddress = 16 + 16
)

// AppendBool appends a boolean.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// AppendAddr appends an IP address: its length, then its bytes and its zone.
func AppendAddr(b []byte, a netip.Addr) []byte {
	at := len(b)
	b, _ = a.AppendBinary(append(b, 0)) // never fails
	if len(b)-at-1 > maxAddress {
		b = b[:at+1] // no interface has a zone of this length
	}
	b[at] = byte(len(b) - at - 1)
	return b
}

// AppendAddrPort appends an IP address and a port.
func AppendAddrPort(b []byte, a netip.AddrPort) []byte {
	return binary.BigEndian.AppendUint16(AppendAddr(b, a.Addr()), a.Port())
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Decoder reads values in the notation of a Record. After the first value that is missing or malformed, all values are
// zero and Done reports false.
type Decoder struct {
	b      []byte
	failed bool
}

// NewDecoder returns a Decoder that reads b.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// Done reports whether all values were well-formed and nothing is left.
func (d *Decoder) Done() bool { return !d.failed && len(d.b) == 0 }

// More reports whether there are further bytes. It reports false after an error.
func (d *Decoder) More() bool { return len(d.b) > 0 }

func (d *Decoder) failIf(malformed bool) {
	if malformed {
		d.failed, d.b = true, nil
	}
}

// Number reads a number up to limit. Only the shortest encoding of a number is valid.
func (d *Decoder) Number(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 || v > limit {
		d.failIf(true)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// take reads n bytes. It returns nil if there are fewer. The result refers to the decoded bytes.
func (d *Decoder) take(n int) []byte {
	if len(d.b) < n {
		d.failIf(true)
		return nil
	}
	taken := d.b[:n:n]
	d.b = d.b[n:]
	return taken
}

// Bytes reads at most limit bytes. The result refers to the decoded bytes.
func (d *Decoder) Bytes(limit uint64) []byte { return d.take(int(d.Number(limit))) }

// Rest reads all bytes that are left. The result refers to the decoded bytes.
func (d *Decoder) Rest() []byte { return d.take(len(d.b)) }

// Time reads what AppendTime has written.
func (d *Decoder) Time() time.Time {
	if ms := d.Number(maxTime); ms != 0 {
		return time.UnixMilli(int64(ms))
	}
	return time.Time{}
}

// Bool reads what AppendBool has written.
func (d *Decoder) Bool() bool { return d.Number(1) == 1 }

// Addr reads what AppendAddr has written.
func (d *Decoder) Addr() (a netip.Addr) {
	if b := d.Bytes(maxAddress); a.UnmarshalBinary(b) != nil {
		d.failIf(true)
	}
	return a
}

// AddrPort reads what AppendAddrPort has written.
func (d *Decoder) AddrPort() netip.AddrPort { return netip.AddrPortFrom(d.Addr(), d.uint16()) }

// Channel reads what ChannelRecord.Append has written.
func (d *Decoder) Channel() ChannelRecord {
	return ChannelRecord{Number: d.uint16(), Peer: d.AddrPort(), Until: d.Time(), Installed: d.Time()}
}

// Check reads what Check.Append has written.
func (d *Decoder) Check() Check { return Check{d.AddrPort(), copied(d.Bytes(MaxCheck))} }

// Former reads what Former.Append has written.
func (d *Decoder) Former() (f Former) {
	a := &f.Authority
	a.Realm, a.Username = string(d.Bytes(maxText)), string(d.Bytes(maxText))
	a.Password, a.SharedSecret = credential.Secret(d.Bytes(maxText)), credential.Secret(d.Bytes(maxText))
	f.Replaced, f.Until = d.Time(), d.Time()
	return f
}

func (d *Decoder) uint16() uint16 {
	if b := d.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// copied returns a copy, and nil for no bytes.
func copied(b []byte) []byte { return append([]byte(nil), b...) }
