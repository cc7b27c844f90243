package forward

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// TestPodOfTheReleaseBefore: a pod of the last release without forwarding is not in the list of peers. It keeps
// its calls, and so do the other pods when clients move among them and one of them terminates.
func TestPodOfTheReleaseBefore(t *testing.T) {
	earlier := releaseBefore(t) // with the network of the host, for its modules
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	w.returnable = true
	before, pods := w.addOf(9, earlier), []*pod{w.add(1), w.add(2), w.add(3)}
	var calls []*client
	for _, p := range append([]*pod{before}, pods...) {
		for range 8 {
			calls = append(calls, w.dial(p, voice, 200))
		}
	}
	for _, p := range pods {
		p.awaitPeers(len(pods) - 1)
	}
	awaitAll(t, calls, 100)
	ofBefore, others := calls[:8], calls[8:]
	for i, c := range others {
		w.send(c, pods[(slices.Index(pods, c.at)+1+i%2)%len(pods)])
	}
	awaitAll(t, calls, 400)
	w.retire(others, pods[:2], pods[2])
	awaitAll(t, calls, 700)
	if pods[0].awaitPeers(2); slices.ContainsFunc(ofBefore, func(c *client) bool { return c.at != before }) {
		t.Error("a client of the earlier release has moved")
	}
	endAll(t, calls)
	awaitExit(t, pods[2])
}

// lastWithoutForwarding is the last commit whose dataplanes do not forward.
const lastWithoutForwarding = "80308b5ce11829d01d8d052949a0bc503cebc1d9"

// releaseBefore builds stunnerd of that commit, unless bin/e2e has it, and returns its path.
func releaseBefore(t *testing.T) (program string) {
	t.Helper()
	root := bedtest.Root(t)
	program = filepath.Join(root, "bin/e2e/stunnerd-"+lastWithoutForwarding[:8])
	if _, err := os.Stat(program); err == nil {
		return program
	}
	const script = `set -euo pipefail
git -C "$1" archive "$2" | tar -x -C "$3"
GOWORK=off go -C "$3/services/stunnerd" build -o "$4.new" .
mv "$4.new" "$4"`
	if out, err := exec.CommandContext(
		t.Context(), "bash", "-c", script, "bash", root, lastWithoutForwarding, t.TempDir(), program,
	).CombinedOutput(); err != nil {
		t.Fatalf("build stunnerd of commit %s: %v\n%s\nIf the commit is missing: git fetch --unshallow",
			lastWithoutForwarding, err, out)
	}
	return program
}
