package discovery

import (
	"testing"

	"go.uber.org/goleak"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
