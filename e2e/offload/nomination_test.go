package offload

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// A nominating connectivity check in a channel that the kernel forwards reaches the peer and the journal of sessions,
// also after an ICE restart, which changes its USERNAME.
func nomination(t *testing.T, n *network) {
	g := n.start(t)
	p := g.path(v4)
	for _, username := range []string{"first:check", "restarted:check"} {
		p.inKernel()
		before := g.settled()
		m := stun.MustBuild(stun.TransactionID, stun.BindingRequest, stun.NewUsername(username),
			stun.RawAttribute{Type: stun.AttrUseCandidate})
		g.udp.rx.Add(1)
		harnesstest.NoError(t, p.Send(ask.ChannelData(p.channel, m.Raw)))
		if got, err := read(p.peer); err != nil || !bytes.Equal(got, m.Raw) {
			t.Fatalf("the peer received %x, %v", got, err)
		}
		g.await("the journal has the check", func(context.Context) error { return stored(g.journal, username) })
		if k := g.counted(before, flow{1, len(m.Raw)}, flow{}); k.up != 0 {
			t.Errorf("%s: the kernel forwarded the check", username)
		}
	}
}

// stored reports whether a file of the journal contains a text.
func stored(folder, text string) error {
	files, err := filepath.Glob(filepath.Join(folder, "sessions.*"))
	if err != nil {
		return err
	}
	for _, name := range files {
		// the file may be replaced meanwhile
		if content, _ := os.ReadFile(name); bytes.Contains(content, []byte(text)) {
			return nil
		}
	}
	return fmt.Errorf("%q have no %q", files, text)
}
