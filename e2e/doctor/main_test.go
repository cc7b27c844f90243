package doctor

import (
	"os"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m.Run, netns.UsualSendBuffers)) }
