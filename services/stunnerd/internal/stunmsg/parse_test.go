package stunmsg

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"net/netip"
	"slices"
	"testing"

	"github.com/pion/stun/v2"
)

// sample is the request of RFC 5769 §2.1, with its padding of blanks.
const sample = "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74002400046e0001ff80290008932ff9b151263b36" +
	"000600096576746a3a68367659202020000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf"

// F-01: Parse accepts exactly the messages of RFC 8489 and the requests of RFC 3489. It reads the same values as a
// second parser that follows the text of the RFCs only. pion/stun accepts more messages. It accepts messages of RFC
// 3489 if a magic cookie is added. The differences are listed in stricter.
func FuzzParse(f *testing.F) {
	whole, err := hex.DecodeString(sample)
	if err != nil {
		f.Fatal(err)
	}
	request := func(method stun.Method, attrs ...stun.Setter) []byte {
		return stun.MustBuild(
			append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attrs...)...,
		).Raw
	}
	plain, binding := request(stun.MethodBinding), request(stun.MethodBinding, stun.Fingerprint)
	for _, seed := range [][]byte{
		nil, whole, plain, binding,
		request(
			stun.MethodAllocate, Number{stun.AttrRequestedTransport, 17 << 24}, stun.NewUsername("ann"),
			stun.NewRealm("r"), stun.NewNonce("n"), stun.NewLongTermIntegrity("ann", "r", "pw"), stun.Fingerprint,
		),
		request(
			stun.MethodCreatePermission, peerAt("127.0.0.1:4000"), peerAt("[2001:db8::1]:1"), mapped("127.0.0.1", 1),
		),
		request(
			stun.MethodCreatePermission,
			stun.RawAttribute{Type: stun.AttrXORPeerAddress, Value: []byte{0, 3, 0, 0, 0, 0, 0, 0}},
		),
		request(
			stun.MethodChannelBind, Number{stun.AttrChannelNumber, 0x4000 << 16}, Number{0x7777, 0}, Number{0x8020, 1},
			stun.NewLongTermIntegrity("a", "b", "c"), Number{0x7778, 0},
		),
		append(slices.Clone(plain), 0), append(slices.Clone(plain), 0, 0, 0, 0),
		append(slices.Clone(binding), 0, 0, 0, 0), binding[:len(binding)-4], binding[:19],
		changed(plain, 0, 0x40), changed(plain, 0, 0x80), changed(plain, 4, 1), changed(plain, 3, 4),
		changed(binding, len(binding)-1, 1), changed(binding, 23, 3),
		request(stun.MethodBinding, stun.Fingerprint, Number{0x8022, 0}),
		request(stun.MethodBinding, stun.RawAttribute{Type: stun.AttrFingerprint}),
		changed(request(stun.MethodBinding, Number{stun.AttrChangeRequest, 0}), 4, 1),
		changed(request(stun.MethodBinding, Number{stun.AttrChangeRequest, 6}), 5, 1),
		changed(request(stun.MethodBinding, Number{0x7777, 6}, Number{0x7778, 6}), 6, 1), changed(binding, 7, 1),
		changed(changed(plain, 1, 0x10), 4, 1),
		{0, 1, 0, 4, 0x21, 0x12, 0xA4, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 200},
	} {
		f.Add(seed)
	}
	var r Message // reused
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		err := r.Parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("the parser changed what it read")
		}
		attrs, ok := attributes(b)
		if ok != (err == nil) {
			t.Fatalf("a message: %v; parsed: %v", ok, err)
		}
		taken := (&stun.Message{Raw: withCookie(b)}).Decode() == nil
		if ok != (taken && !slices.ContainsFunc(stricter, func(refuses func([]byte) bool) bool { return refuses(b) })) {
			t.Fatalf("pion/stun takes it: %v, we do: %v, and stricter does not list that", taken, ok)
		}
		if ok {
			if r.Classic != classic(b) {
				t.Errorf("classic: %v", r.Classic)
			}
			sameMessage(t, withCookie(b), &r, attrs)
		}
	})
}

func peerAt(addr string) Address {
	return Address{stun.AttrXORPeerAddress, netip.MustParseAddrPort(addr)}
}

// mapped is an XOR-PEER-ADDRESS with an IPv4-mapped IPv6 address, which pion/stun writes as IPv4.
func mapped(ip string, port uint16) stun.Setter {
	return setter(func(m *stun.Message) error {
		a := netip.MustParseAddr(ip).As16()
		v := append([]byte{0, FamilyIPv6, byte(port >> 8), byte(port)}, a[:]...)
		xorAddress(v, v, m.TransactionID)
		m.Add(stun.AttrXORPeerAddress, v)
		return nil
	})
}

type setter func(*stun.Message) error

func (s setter) AddTo(m *stun.Message) error { return s(m) }

func changed(b []byte, at int, bits byte) []byte {
	b = slices.Clone(b)
	b[at] ^= bits
	return b
}

// stricter are the messages that pion/stun accepts and Parse refuses.
var stricter = []func(b []byte) bool{
	func(b []byte) bool { return b[0] >= 0x40 },                                            // not STUN (RFC 8489 §5)
	func(b []byte) bool { return len(b)%4 != 0 },                                           // §5: attributes are padded
	func(b []byte) bool { return len(b) > HeaderSize+int(binary.BigEndian.Uint16(b[2:])) }, // bytes after the message
	func(b []byte) bool { // §14.7
		attrs := tlvs(b[HeaderSize:])
		i := slices.IndexFunc(attrs, func(a tlv) bool { return a.kind == fingerprint })
		return i >= 0 && (i < len(attrs)-1 || !rightFingerprint(b, attrs[i].value))
	},
	func(b []byte) bool { // RFC 3489 has requests and responses, and no FINGERPRINT
		return classic(b) && (b[0]&1 != 0 || b[1]&0x10 != 0 ||
			slices.ContainsFunc(tlvs(b[HeaderSize:]), func(a tlv) bool { return a.kind == fingerprint }))
	},
}

// classic reports whether a message has no magic cookie.
func classic(b []byte) bool { return binary.BigEndian.Uint32(b[4:]) != magicCookie }

// withCookie returns a copy of a message that has the magic cookie.
func withCookie(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) >= 8 {
		binary.BigEndian.PutUint32(b[4:], magicCookie)
	}
	return b
}

// tlv is an attribute on the wire.
type tlv struct {
	kind           uint16
	value, padding []byte
}

const (
	integrity   = 0x0008
	peerAddress = 0x0012

	integritySHA256 = 0x001C
	fingerprint     = 0x8028
)

// attributes parses a message by RFC 8489 §5 and §14, or a request by RFC 3489 §11. ok is false for anything else, and
// for a wrong FINGERPRINT (§14.7).
func attributes(b []byte) (attrs []tlv, ok bool) {
	if len(b) < HeaderSize || b[0] >= 0x40 || len(b)%4 != 0 ||
		int(binary.BigEndian.Uint16(b[2:])) != len(b)-HeaderSize || classic(b) && binary.BigEndian.Uint16(b)&0x110 != 0 {
		return nil, false
	}
	attrs = tlvs(b[HeaderSize:])
	size := 0
	for i, a := range attrs {
		size += 4 + len(a.value) + len(a.padding)
		if a.kind == fingerprint && (classic(b) || i < len(attrs)-1 || !rightFingerprint(b, a.value)) {
			return nil, false
		}
	}
	return attrs, size == len(b)-HeaderSize
}

// tlvs reads attributes until one is incomplete.
func tlvs(b []byte) (attrs []tlv) {
	for len(b) >= 4 {
		n := int(binary.BigEndian.Uint16(b[2:]))
		end := 4 + (n+3)/4*4
		if end > len(b) {
			break
		}
		attrs = append(attrs, tlv{binary.BigEndian.Uint16(b), b[4 : 4+n], b[4+n : end]})
		b = b[end:]
	}
	return attrs
}

func rightFingerprint(b, value []byte) bool {
	return len(value) == 4 && binary.BigEndian.Uint32(value) == crc32.ChecksumIEEE(b[:len(b)-8])^0x5354554E
}

// sameMessage checks that a message has the content of its bytes, and is encoded to the same bytes again.
func sameMessage(t *testing.T, b []byte, r *Message, attrs []tlv) {
	t.Helper()
	want := bytes.Clone(b)
	at := HeaderSize
	encoded := &stun.Message{Type: r.Type, TransactionID: r.TransactionID}
	encoded.WriteHeader()
	for i, a := range attrs {
		// Padding may have any value (§14), and pion/stun reads the XOR-MAPPED-ADDRESS of old drafts as the current
		// one.
		if a.kind == 0x8020 {
			binary.BigEndian.PutUint16(want[at:], uint16(stun.AttrXORMappedAddress))
		}
		at += 4 + len(a.value)
		clear(want[at : at+len(a.padding)])
		at += len(a.padding)
		encoded.Add(r.Attributes[i].Type, r.Attributes[i].Value)
	}
	if len(r.Attributes) != len(attrs) || !bytes.Equal(encoded.Raw, want) {
		t.Fatalf("read\n% x, encoded\n% x", want, encoded.Raw)
	}
	signed := slices.IndexFunc(attrs, func(a tlv) bool { return a.kind == integrity })
	if r.Signed != (signed >= 0) {
		t.Errorf("signed %v", r.Signed)
	}
	var ignored []stun.AttrType
	if signed >= 0 {
		for _, a := range attrs[signed+1:] {
			if a.kind != fingerprint && a.kind != integritySHA256 {
				if a.kind == 0x8020 { // read as XOR-MAPPED-ADDRESS, see above
					a.kind = 0x0020
				}
				ignored = append(ignored, stun.AttrType(a.kind))
			}
		}
		attrs = attrs[:signed] // attributes after it are ignored (§14.5)
	}
	if got := r.Ignored(); !slices.Equal(got, ignored) {
		t.Errorf("%v are ignored, want %v", got, ignored)
	}
	if len(r.attrs) != len(attrs) {
		t.Errorf("%d attributes count, want %d", len(r.attrs), len(attrs))
	}
	samePeers(t, b, r, attrs)
	var unknown UnknownAttributes
	for _, a := range attrs {
		if r.Classic && a.kind == 3 && string(a.value) == "\x00\x00\x00\x00" { // requests no change
			continue
		}
		if a.kind < 0x8000 && !understands(stun.AttrType(a.kind)) {
			unknown = binary.BigEndian.AppendUint16(unknown, a.kind)
		}
	}
	if r.Classic && len(unknown)%4 != 0 { // RFC 3489 §11.2.10
		unknown = append(unknown, unknown[:2]...)
	}
	if !bytes.Equal(r.Unknown(), unknown) {
		t.Errorf("unknown % x, want % x", r.Unknown(), unknown)
	}
}

// samePeers checks the addresses of all XOR-PEER-ADDRESS attributes (§14.2), or that one of them is malformed.
func samePeers(t *testing.T, b []byte, r *Message, attrs []tlv) {
	t.Helper()
	var want []netip.AddrPort
	wantOK := true
	for _, a := range attrs {
		if a.kind != peerAddress {
			continue
		}
		family := byte(0)
		if len(a.value) > 1 {
			family = a.value[1]
		}
		if len(a.value) != map[byte]int{FamilyIPv4: 8, FamilyIPv6: 20}[family] || family == 0 {
			wantOK = false
			break
		}
		plain := bytes.Clone(a.value[2:])
		for i := range plain {
			plain[i] ^= append([]byte{b[4], b[5]}, b[4:20]...)[i]
		}
		addr, _ := netip.AddrFromSlice(plain[2:])
		want = append(want, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(plain)))
	}
	got, ok := r.Peers()
	if ok != wantOK || ok && !slices.Equal(got, want) {
		t.Errorf("peers %v, %v; want %v, %v", got, ok, want, wantOK)
	}
}
