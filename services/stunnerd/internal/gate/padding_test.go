package gate

import (
	"bytes"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// S-15: the answer to a Binding request with PADDING is nearly as long as the request, and never longer. It repeats no
// content of the request, because the source may be forged.
func TestPaddingOfBindingRequests(t *testing.T) {
	b := newFixture(t)
	for _, source := range []string{"192.0.2.1:1000", "[2001:db8::1]:1000"} {
		for _, n := range []int{0, 4, 20, 24, 100, 1200, 1500, 9000} {
			c := newClient(source)
			request := b.build(request4(stun.MethodBinding), stun.RawAttribute{Type: stun.AttrPadding, Value: bytes.Repeat([]byte{7}, n)})
			answer := b.send(c, request)
			got, err := answer.Get(stun.AttrPadding)
			if answer.Type.Class != stun.ClassSuccessResponse || (err == nil) != (n >= mappedSize) || bytes.ContainsRune(got, 7) {
				t.Fatalf("%s, %d bytes: %s, %v", source, n, answer, err)
			}
			if n < mappedSize {
				continue // handled like a request without PADDING
			}
			if len(answer.Raw) > len(request) || len(answer.Raw) < min(len(request)-12, maxPadding) {
				t.Errorf("%s: an answer of %d bytes to %d", source, len(answer.Raw), len(request))
			}
		}
	}
	plain := b.send(newClient("192.0.2.1:1000"), b.build(request4(stun.MethodBinding)))
	if plain.Contains(stun.AttrPadding) || len(plain.Raw) > stunmsg.HeaderSize+12 {
		t.Errorf("without PADDING: %s", plain)
	}
}
