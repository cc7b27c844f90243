package session

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// largest returns a Record in which every field has its maximum size.
func largest() *Record {
	ms := time.UnixMilli(maxTime)
	text := strings.Repeat("a", maxText)
	peer := netip.MustParseAddrPort("[2001:db8::1%abcdefghijklmnop]:65535")
	r := &Record{
		Generation: 1<<32 - 1, Listener: text, Client: peer, Local: peer, Source: make([]byte, maxSource),
		Username: text, UserID: strings.Repeat("b", maxText), Realm: text, Relay: peer, Transaction: [12]byte{11: 1},
		Lifetime: 1<<32 - 1, Started: ms, Until: ms,
	}
	for range MaxPermissions {
		r.Permissions = append(r.Permissions, Permission{peer.Addr(), ms})
	}
	for range MaxChannels {
		r.Channels = append(r.Channels, ChannelRecord{0x4FFF, peer, ms, ms})
	}
	for range MaxChecks {
		r.Checks = append(r.Checks, Check{peer, make([]byte, MaxCheck)})
	}
	for range MaxFormer {
		r.Former = append(r.Former, Former{credential.Authority{
			Realm: text, Username: text, Password: credential.Secret(text), SharedSecret: credential.Secret(text)}, ms, ms, false})
	}
	r.Away = true
	return r
}

func usual() *Record {
	now, peer := time.UnixMilli(1795470000123), netip.MustParseAddrPort("10.244.1.9:40001")
	return &Record{
		Generation: 3, Usage: usage.ID([]byte("usage identifier")), Listener: "stunner/udp-gateway/udp-listener", Client: netip.MustParseAddrPort("203.0.113.7:51234"),
		Local: netip.MustParseAddrPort("10.244.1.17:3478"), Source: []byte{10, 244, 1, 17, 10, 244, 1, 17},
		Username: "1795278827:ann", UserID: "ann", Realm: "stunner.l7mp.io",
		Relay: netip.MustParseAddrPort("10.244.1.17:40123"), Transaction: [12]byte{1, 2, 3}, Lifetime: 600,
		Started: now, Until: now.Add(10 * time.Minute),
		Permissions: []Permission{{peer.Addr(), now}}, Channels: []ChannelRecord{{0x4000, peer, now, now}},
		Checks: []Check{{peer, make([]byte, 108)}},
	}
}

// older returns the record of a session that is older than a change of the credentials.
func older() *Record {
	r := usual()
	r.Former = []Former{
		{credential.Authority{Realm: "stunner.l7mp.io", SharedSecret: "s3cret"}, r.Started, r.Until, false},
		{credential.Authority{Username: "ann", Password: "pass"}, r.Started, r.Until, false},
	}
	return r
}

func TestRecordIsRestored(t *testing.T) {
	other := usual()
	other.UserID, other.Client = "bob", netip.AddrPortFrom(netip.MustParseAddr("::ffff:10.0.0.1"), 1)
	for _, want := range []*Record{{}, usual(), other, older(), largest()} {
		b, err := want.AppendBinary([]byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		var got Record
		if err := got.UnmarshalBinary(b[1:]); err != nil || !reflect.DeepEqual(&got, want) {
			t.Errorf("restored %v\n%+v\nwant\n%+v", err, got, want)
		}
		if len(b) > 62_000 {
			t.Errorf("%d bytes: an entry of the journal has at most 65,535", len(b))
		}
	}
}

// Every limit of a Record is enforced when it is written. A larger record is refused when it is read.
func TestRecordHasLimits(t *testing.T) {
	for i, change := range []func(*Record){
		func(r *Record) { r.Listener += "a" },
		func(r *Record) { r.Username += "a" },
		func(r *Record) { r.UserID += "a" },
		func(r *Record) { r.Realm += "a" },
		func(r *Record) { r.Source = append(r.Source, 0) },
		func(r *Record) { r.Permissions = append(r.Permissions, r.Permissions[0]) },
		func(r *Record) { r.Channels = append(r.Channels, r.Channels[0]) },
		func(r *Record) { r.Checks = append(r.Checks, r.Checks[0]) },
		func(r *Record) { r.Checks[0].Message = append(r.Checks[0].Message, 0) },
		func(r *Record) { r.Former = append(r.Former, r.Former[0]) },
		func(r *Record) { r.Former[0].Authority.Realm += "a" },
		func(r *Record) { r.Former[0].Authority.Username += "a" },
		func(r *Record) { r.Former[0].Authority.Password += "a" },
		func(r *Record) { r.Former[0].Authority.SharedSecret += "a" },
	} {
		r := largest()
		change(r)
		if _, err := r.AppendBinary(nil); !errors.Is(err, ErrRecordSize) {
			t.Errorf("change %d: %v, want %v", i, err, ErrRecordSize)
		}
	}
	early := usual()
	early.Started, early.Until = time.Time{}, time.Unix(-1, 0)
	b, err := early.AppendBinary(nil)
	var got Record
	if err := errors.Join(err, got.UnmarshalBinary(b)); err != nil || !got.Started.IsZero() || !got.Until.IsZero() {
		t.Errorf("times before 1970: %v, %v, %v", err, got.Started, got.Until)
	}
}

// A record that is truncated, has further bytes or has another version is refused as a whole.
func TestMalformedRecordIsRefused(t *testing.T) {
	b, err := usual().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := Record{Listener: "before"}
	for n := range b {
		if err := r.UnmarshalBinary(b[:n]); !errors.Is(err, ErrRecord) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	if err := r.UnmarshalBinary(append(bytes.Clone(b), 0)); !errors.Is(err, ErrRecord) {
		t.Errorf("a byte more: %v", err)
	}
	for version := range 256 {
		b[0] = byte(version)
		want := ErrRecordVersion
		if version == formerVersion { // without former authorities
			want = ErrRecord
		}
		if err := r.UnmarshalBinary(b); version != recordVersion && !errors.Is(err, want) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	if err := r.UnmarshalBinary(append([]byte{formerVersion}, append(b[1:len(b):len(b)], 0)...)); !errors.Is(err, ErrRecord) {
		t.Errorf("a list of no former authorities: %v", err)
	}
	b[0] = recordVersion
	if !reflect.DeepEqual(r, Record{Listener: "before"}) && r.Listener != usual().Listener {
		t.Errorf("a refused record has changed the former one: %+v", r)
	}
	// A user name that ends with the user ID has exactly one encoding.
	twice := bytes.Replace(b, []byte("1795278827:ann\x07"), []byte("1795278827:ann\x06ann"), 1)
	if bytes.Equal(twice, b) || r.UnmarshalBinary(twice) == nil {
		t.Error("a second form of a user ID is accepted")
	}
}

// Later releases read the record of a process of this release: the encoding changes only with its version.
func TestContractRecord(t *testing.T) {
	b, err := usual().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	const want = "\x03\x03usage identifier\x20stunner/udp-gateway/udp-listener\x0e1795278827:ann\x07\x0fstunner.l7mp.io" +
		"\x04\xcb\x00\x71\x07\xc8\x22\x04\x0a\xf4\x01\x11\x0d\x96\x04\x0a\xf4\x01\x11\x9c\xbb" +
		"\x08\x0a\xf4\x01\x11\x0a\xf4\x01\x11\x01\x02\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\xd8\x04"
	if !strings.HasPrefix(string(b), want) {
		t.Errorf("record\n%q\nwant\n%q", b[:len(want)], want)
	}
	// Pods of releases without former authorities take all records without them.
	of, err := older().AppendBinary(nil)
	const former = "\x02\x0fstunner.l7mp.io\x00\x00\x06s3cret\xfb\xff\xe7\xd2\xa04\xbb\xcf\x8c\xd3\xa04" +
		"\x00\x03ann\x04pass\x00\xfb\xff\xe7\xd2\xa04\xbb\xcf\x8c\xd3\xa04"
	if want := "\x04" + string(b[1:]) + former; err != nil || string(of) != want {
		t.Errorf("record with former authorities\n%q, %v\nwant\n%q", of, err, want)
	}
}

// F-13: bytes that are not refused are exactly the encoding of the decoded record.
func FuzzRecord(f *testing.F) {
	for _, r := range []*Record{{}, usual(), older()} {
		b, err := r.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if err := r.UnmarshalBinary(b); err != nil {
			return
		}
		if again, err := r.AppendBinary(nil); err != nil || !bytes.Equal(again, b) {
			t.Errorf("read %x\nwrote %x, %v", b, again, err)
		}
	})
}
