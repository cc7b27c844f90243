package interop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// S-14, N-04: the client of RFC 3489 in Debian learns its address. It sends CHANGE-REQUEST in each request: without
// flags, which is ignored, and for other addresses, which gives 420. coturn answers in the same way.
func TestClassicClient(t *testing.T) {
	program := installed(t, "stun", "stun-client")
	ours, coturn := start(t, static), startCoturn(t)
	for name, port := range map[string]int{"stunnerd": ours.Plain, "coturn": coturn.Plain} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The exit code encodes the discovered properties of the network, so success is not always 0.
			out, _ := client(t, nil, program, fmt.Sprintf("%s:%d", harness.Loopback, port), "-v")
			for _, says := range []string{
				"MappedAddress = 127.0.0.1:", "ErrorCode = 4 20", "test I = 1", "mapped IP same = 1", "Primary: Open",
			} {
				if !strings.Contains(out, says) {
					t.Errorf("the output has no %q:\n%s", says, out)
				}
			}
		})
	}
}
