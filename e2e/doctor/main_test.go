package doctor

import (
	"os"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

func TestMain(m *testing.M) {
	harnesstest.Parallel(6) // most of the time is spent waiting for answers
	os.Exit(netns.Main(m.Run, netns.UsualSendBuffers))
}
