package wire

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/pion/stun/v2"
)

// The sample messages of RFC 5769 §2.1 to §2.4.
const (
	sampleRequest = `000100582112a442b7e7a701bc34d686fa87dfae
		802200105354554e207465737420636c69656e74
		002400046e0001ff 80290008932ff9b151263b36
		000600096576746a3a68367659202020
		000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a2 80280004e57a3bcf`
	sampleResponse4 = `0101003c2112a442b7e7a701bc34d686fa87dfae
		8022000b7465737420766563746f7220
		002000080001a147e112a643
		000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7 80280004c07d4c96`
	sampleResponse6 = `010100482112a442b7e7a701bc34d686fa87dfae
		8022000b7465737420766563746f7220
		002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d9
		00080014a382954e4be67bf11784c97c8292c275bfe3ed41 80280004c8fb0b4c`
	sampleLongTerm = `000100602112a44278ad3433c6ad72c029da412e
		00060012e3839ee38388e383aae38383e382afe382b90000
		0015001c662f2f3439396b39353464364f4c33346f4c394653547679363473 41
		0014000b6578616d706c652e6f726700
		00080014f67024656dd64a3e02b8e0712e85c9a28ca89666`
)

var (
	sampleID       = TxID{0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae}
	samplePassword = []byte("VOkJxbRl1RmTxUk/WvJxBt")
	longTermID     = TxID{0x78, 0xad, 0x34, 0x33, 0xc6, 0xad, 0x72, 0xc0, 0x29, 0xda, 0x41, 0x2e}
	longTermUser   = "\u30de\u30c8\u30ea\u30c3\u30af\u30b9"
	longTermKey    = Key(longTermUser, "example.org", "TheMatrIX")
	longTermNonce  = "f//499k954d6OL34oL9FSTvy64sA"
)

// S-11: the decoder reads the samples of RFC 5769, verifies their MESSAGE-INTEGRITY, and detects a flipped bit.
func TestSamples(t *testing.T) {
	for _, c := range []struct {
		name, sample string
		class        Class
		key          []byte
		mapped       string
	}{
		{"request", sampleRequest, Request, samplePassword, ""},
		{"IPv4 response", sampleResponse4, Success, samplePassword, "192.0.2.1:32853"},
		{"IPv6 response", sampleResponse6, Success, samplePassword, "[2001:db8:1234:5678:11:2233:4455:6677]:32853"},
		{"long-term request", sampleLongTerm, Request, longTermKey, ""},
	} {
		raw := unhex(t, c.sample)
		m, err := Parse(raw)
		if err != nil || m.Class != c.class || m.Method != Binding {
			t.Errorf("%s: %v, %s", c.name, err, m)
			continue
		}
		if err := m.Verify(c.key); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if m.Verify([]byte("other key")) == nil {
			t.Errorf("%s: verifies with a wrong key", c.name)
		}
		if c.mapped == "" {
			continue
		}
		if got, err := m.GetAddress(XORMappedAddress); err != nil || got != netip.MustParseAddrPort(c.mapped) {
			t.Errorf("%s: address %s, %v", c.name, got, err)
		}
	}
	damaged := unhex(t, sampleRequest)
	damaged[len(damaged)-1] ^= 1
	if _, err := Parse(damaged); err == nil {
		t.Error("no error for a wrong FINGERPRINT")
	}
}

// S-11: the encoder writes the samples of RFC 5769 byte for byte. The samples pad with spaces instead of zeros, which
// the test adjusts.
func TestWriteSamples(t *testing.T) {
	software := Text(Software, "test vector")
	for _, c := range []struct {
		name, sample string
		key          []byte
		message      Message
		marked       bool // the sample has FINGERPRINT
	}{
		{"IPv4 response", sampleResponse4, samplePassword, Message{Binding, Success, sampleID,
			[]Attr{software, Address(XORMappedAddress, netip.MustParseAddrPort("192.0.2.1:32853"))}, nil, nil}, true},
		{"IPv6 response", sampleResponse6, samplePassword, Message{Binding, Success, sampleID,
			[]Attr{
				software,
				Address(XORMappedAddress, netip.MustParseAddrPort("[2001:db8:1234:5678:11:2233:4455:6677]:32853")),
			}, nil, nil}, true},
		{"long-term request", sampleLongTerm, longTermKey, Message{Binding, Request, longTermID,
			[]Attr{
				Text(Username, longTermUser), Text(Nonce, longTermNonce), Text(Realm, "example.org"),
			}, nil, nil}, false},
	} {
		got := c.message.Bytes()
		if i := bytes.Index(got, []byte("test vector\x00")); i >= 0 {
			got[i+11] = ' '
		}
		got = Sign(got, c.key)
		if c.marked {
			got = Fingerprint(got)
		}
		if want := unhex(t, c.sample); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, want)
		}
	}
}

// TestEncodingAgreesWithPion: pion/stun decodes the messages that this package encodes, and this package those of
// pion/stun.
func TestEncodingAgreesWithPion(t *testing.T) {
	peer := netip.MustParseAddrPort("[2001:db8::7]:4242")
	ours := New(
		Request, CreatePermission, Address(XORPeerAddress, peer), Text(Username, "ann"), Text(Realm, "example.org"),
		Text(Nonce, "n"),
	)
	key := Key("ann", "example.org", "sesame")
	raw := Fingerprint(Sign(ours.Bytes(), key))

	theirs := stun.New()
	if err := stun.Decode(raw, theirs); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Check(stun.NewLongTermIntegrity("ann", "example.org", "sesame"), stun.Fingerprint); err != nil {
		t.Error(err)
	}
	var addr stun.XORMappedAddress
	if err := addr.GetFromAs(theirs, stun.AttrXORPeerAddress); err != nil || addr.String() != peer.String() {
		t.Errorf("peer %s, %v", addr, err)
	}
	if theirs.Type != stun.NewType(stun.MethodCreatePermission, stun.ClassRequest) || theirs.TransactionID != ours.ID {
		t.Errorf("header %s", theirs)
	}

	built, err := stun.Build(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassErrorResponse),
		stun.ErrorCodeAttribute{Code: 437, Reason: []byte("mismatch")}, stun.NewLongTermIntegrity(
			"ann", "example.org", "sesame",
		), stun.Fingerprint)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse(built.Raw)
	if err != nil || m.Code() != 437 || m.String() != "Allocate error 437" {
		t.Errorf("%s, %v", m, err)
	}
	if err := m.Verify(key); err != nil {
		t.Error(err)
	}
}

// TestTypes: class and method survive encoding and decoding, and pion/stun has the same type.
func TestTypes(t *testing.T) {
	for method := Method(0); method < 1<<12; method++ {
		for class := Request; class <= Error; class++ {
			raw := messageType(class, method)
			if c, m := split(raw); c != class || m != method {
				t.Fatalf("%s %s becomes %s %s", method, class, m, c)
			}
			if want := stun.NewType(stun.Method(method), stun.MessageClass(class)).Value(); raw != want {
				t.Fatalf("%s %s is 0x%04x, want 0x%04x", method, class, raw, want)
			}
		}
	}
}

// TestStrict: malformed messages are not decoded.
func TestStrict(t *testing.T) {
	good := New(Success, Binding, Text(Software, "abc")).Bytes()
	if _, err := Parse(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"header cut":            func(b []byte) []byte { return b[:19] },
		"top bits":              func(b []byte) []byte { b[0] |= 0x80; return b },
		"cookie":                func(b []byte) []byte { b[4]++; return b },
		"length too small":      func(b []byte) []byte { b[3] -= 4; return b },
		"length too large":      func(b []byte) []byte { b[3] += 4; return b },
		"attribute too long":    func(b []byte) []byte { b[23] = 5; return b },
		"half an attribute":     func(b []byte) []byte { b[3] -= 2; return b[:len(b)-2] },
		"FINGERPRINT in middle": func(b []byte) []byte { return Append(Fingerprint(b), Empty(Software)) },
	} {
		if m, err := Parse(spoil(bytes.Clone(good))); err == nil {
			t.Errorf("%s: decoded as %s", name, m)
		}
	}
}

// TestFrames: ReadFrame returns complete frames of any length, and ChannelData padding is not part of the payload.
func TestFrames(t *testing.T) {
	request := New(Request, Binding, Text(Software, "abcde")).Bytes()
	var stream []byte
	for n := range 6 {
		stream = append(append(stream, request...), ChannelData(0x4001, []byte("hello!")[:n], true)...)
	}
	r := bytes.NewReader(stream)
	for n := range 6 {
		first, err := ReadFrame(r)
		if err != nil || !bytes.Equal(first, request) {
			t.Fatalf("message %d: %x, %v", n, first, err)
		}
		second, err := ReadFrame(r)
		if err != nil {
			t.Fatal(err)
		}
		if ch, payload, err := ParseChannelData(second); err != nil || ch != 0x4001 || string(payload) != "hello!"[:n] {
			t.Fatalf("ChannelData %d: 0x%04x %q, %v", n, ch, payload, err)
		}
	}
	for name, b := range map[string]string{
		"end": "", "half": "\x00\x01\x00\x08\x21", "garbage": "\x80\x00\x00\x00",
		"half ChannelData": "\x40\x00\x00\x08ab",
	} {
		if f, err := ReadFrame(strings.NewReader(b)); err == nil {
			t.Errorf("%s: decoded as %x", name, f)
		}
	}
	if _, _, err := ParseChannelData([]byte{0x40, 0, 0, 1, 'a', 0, 0, 0, 0}); err == nil {
		t.Error("five bytes after a payload of one byte are accepted as padding")
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
