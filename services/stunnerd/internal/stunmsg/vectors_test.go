package stunmsg

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// S-11: the messages of RFC 5769 are parsed, their MESSAGE-INTEGRITY, FINGERPRINT and addresses are right, and a
// changed bit is detected.
func TestVectors(t *testing.T) {
	short := []byte("VOkJxbRl1RmTxUk/WvJxBt")
	for _, c := range []struct {
		name, vector string
		key          []byte
		mapped       string
	}{
		{"request, §2.1", sample, short, ""},
		{"IPv4 response, §2.2", "0101003c2112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220002000080001a147e112a643" +
			"000800142b91f599fd9e90c38c7489f92af9ba53f06be7d780280004c07d4c96", short, "192.0.2.1:32853"},
		{"IPv6 response, §2.3", "010100482112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220" +
			"002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d900080014a382954e4be67bf11784c97c8292c275bfe3ed4180280004c8fb0b4c",
			short, "[2001:db8:1234:5678:11:2233:4455:6677]:32853"},
		{"long-term credential, §2.4", "000100602112a44278ad3433c6ad72c029da412e00060012e3839ee38388e383aae38383e382afe382b90000" +
			"0015001c662f2f3439396b39353464364f4c33346f4c39465354767936347341" + "0014000b6578616d706c652e6f726700" +
			"00080014f67024656dd64a3e02b8e0712e85c9a28ca89666", credential.Key(
			"マトリックス", "example.org", "TheMatrIX",
		), ""},
	} {
		raw, err := hex.DecodeString(c.vector)
		if err != nil {
			t.Fatal(err)
		}
		var r Message
		if err := r.Parse(raw); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !r.Signed || !r.SignedWith(c.key) || r.SignedWith(append([]byte{1}, c.key...)) {
			t.Errorf("%s: MESSAGE-INTEGRITY is not that of the key", c.name)
		}
		if mapped, ok := r.Value(stun.AttrXORMappedAddress); ok != (c.mapped != "") {
			t.Errorf("%s: XOR-MAPPED-ADDRESS is there: %t", c.name, ok)
		} else if addr, _ := r.Address(mapped); ok && addr != netip.MustParseAddrPort(c.mapped) {
			t.Errorf("%s: address %s, want %s", c.name, addr, c.mapped)
		}
		raw[HeaderSize+5] ^= 1 // a byte of the first attribute
		if err := r.Parse(raw); err == nil && r.SignedWith(c.key) {
			t.Errorf("%s: a changed bit is not noticed", c.name)
		}
	}
}
