package shapes

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// sendBuffers is the limit of send buffers in bytes, and its usual value.
const (
	sendBuffers      = "/proc/sys/net/core/wmem_max"
	usualSendBuffers = "212992"
)

// TestMain sets the limit of send buffers to that of most nodes while the tests run. It is one for all network namespaces,
// and a child process in another one cannot set it.
func TestMain(m *testing.M) {
	before, err := os.ReadFile(sendBuffers)
	if err == nil && os.Getenv("E2E_NETNS") == "" {
		err = os.WriteFile(sendBuffers, []byte(usualSendBuffers), 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err, "run the test as root")
		os.Exit(1)
	}
	code := m.Run()
	if os.Getenv("E2E_NETNS") == "" {
		if err := os.WriteFile(sendBuffers, []byte(strings.TrimSpace(string(before))), 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
