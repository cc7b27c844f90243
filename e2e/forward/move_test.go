package forward

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// TestOfficeMovesToOtherPods: the calls of an office, whose clients share one address, lose no datagram: at one
// pod (sessionAffinity: ClientIP), at three pods (None), and when two of three calls are then sent to another pod,
// because the nodes have lost their conntrack entries.
func TestOfficeMovesToOtherPods(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	pods := g.add(3)
	const clients, every = 60, 50 * time.Millisecond
	costs := func(calls []*client) time.Duration {
		t.Helper()
		before := cpu(pods...)
		awaitMore(t, calls, 40)
		return (cpu(pods...) - before) / (2 * 40 * clients)
	}
	together := g.dialEach(clients, every, pods[0])
	atOne := costs(together)
	end(t, together...)
	spread := g.dialEach(clients/3, every, pods...)
	atThree := costs(spread)
	for i, c := range spread {
		c.move(pods[(i+i/3)%3])
	}
	awaitMore(t, spread, 20)
	forwarded := costs(spread)
	end(t, spread...)
	t.Logf("CPU of a relayed datagram: %s at one pod, %s at three pods, %s with two of three calls forwarded",
		atOne, atThree, forwarded)
	for _, p := range pods {
		if f := p.forwarding(); f.Passed == 0 || f.Answered == 0 || f.Delivered == 0 || f.Replied == 0 {
			t.Errorf("%s: %+v", p.name, f)
		}
	}
}

// retire terminates pods like a cluster with kube-proxy in mode ipvs: kube-proxy removes a terminating UDP endpoint at
// once, so the next datagram of each of its clients is sent to a remaining pod.
func retire(t *testing.T, calls []*client, stay []*pod, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		must(t, p.process.Signal(syscall.SIGTERM))
	}
	for i, c := range calls {
		if slices.Contains(pods, c.at) {
			c.move(stay[i%len(stay)])
		}
	}
	awaitMore(t, calls, 50)
}

// awaitExit waits until terminated pods, whose last call has ended, have exited with code 0.
func awaitExit(t *testing.T, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		select {
		case <-p.process.Done():
			if err := p.process.Err(); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
		case <-time.After(limit):
			t.Errorf("%s drains, although its last call has ended", p.name)
		}
	}
}

// TestUpdateAndScaleInLoseNothing: an update replaces one of three pods, and a scale-in leaves only the new pod.
// No call ends, and none loses a datagram.
func TestUpdateAndScaleInLoseNothing(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	old := g.add(3)
	calls := g.dialEach(5, voice, old...)
	added := g.add(1)
	settle(t, calls)
	retire(t, calls, append(added, old[1:]...), old[0])
	retire(t, calls, added, old[1:]...)
	end(t, calls...)
	awaitExit(t, old...)
}

// settle waits until each home of a client knows the owner again after a change of the list of pods. It measures time
// by the echoes of calls. An owner announces its sessions at once, and again 1.5 s later, because a home may receive
// the list later than the owner.
func settle(t *testing.T, calls []*client) {
	t.Helper()
	awaitMore(t, calls, int(2*time.Second/voice))
}

// While clients move to another pod at random, a pod is killed and another pod is added. Every call whose owner
// still runs continues, and loses at most two datagrams each time it moves.
func TestCallsOfRunningPodsContinue(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	pods := g.add(3)
	calls := g.dialEach(8, voice, pods...)
	dice := rand.New(rand.NewPCG(1, 2))
	moves := map[*client]int{}
	move := func(calls []*client) {
		for _, c := range calls {
			others := slices.DeleteFunc(slices.Clone(pods), func(p *pod) bool { return p == c.at })
			c.move(others[dice.IntN(len(others))])
			moves[c]++
		}
	}
	for round := range 24 {
		switch round {
		case 8:
			killed := pods[2]
			pods = pods[:2]
			// The end of the pod ends its calls.
			for i, c := range calls {
				if i%3 == 2 {
					defer c.End(0)
				}
			}
			kept := slices.DeleteFunc(slices.Clone(calls), func(c *client) bool { return slices.Index(calls, c)%3 == 2 })
			must(t, killed.process.Kill())
			calls = kept
			move(slices.DeleteFunc(slices.Clone(calls), func(c *client) bool { return c.at != killed }))
		case 12:
			pods = append(pods, g.add(1)...)
			settle(t, calls)
		case 20: // the operator does the same some time after the last report
			g.announce(func() { delete(g.reported, "pod3") })
			settle(t, calls)
		}
		if round < 6 || round > 8 { // before the kill, each pod has handled the latest moves
			move(calls)
		}
		awaitMore(t, calls, 15)
	}
	total, lost := 0, 0
	for i, c := range calls {
		s := c.End(time.Second)
		total, lost = total+moves[c], lost+s.Lost
		if s.Lost > 2*moves[c] {
			t.Errorf("call %d: %d moves: %s", i, moves[c], s)
		}
	}
	t.Logf("%d moves, %d datagrams lost", total, lost)
}

// TestPodOfThePreviousRelease: a pod of the last release without forwarding is not in the list of peers. It keeps
// its calls. The other pods keep their calls when clients move between them and one of them terminates.
func TestPodOfThePreviousRelease(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	before := g.pod()
	g.program = releaseBefore(t)
	before.start()
	g.program = filepath.Join(filepath.Dir(g.program), "stunnerd")
	pods := g.add(3)
	g.awaitPeers(pods...)
	ofBefore, others := g.dialEach(3, voice, before), g.dialEach(3, voice, pods...)
	for i, c := range others {
		c.move(pods[(slices.Index(pods, c.at)+1+i%2)%len(pods)])
	}
	awaitMore(t, others, 50)
	retire(t, others, pods[:2], pods[2])
	end(t, append(ofBefore, others...)...)
	awaitExit(t, pods[2])
	if g.reported[before.name].Pod != "" {
		t.Error("a pod without forwarding is in the list of peers")
	}
}

// lastWithoutForwarding is the last commit whose dataplanes do not forward.
const lastWithoutForwarding = "80308b5ce11829d01d8d052949a0bc503cebc1d9"

// releaseBefore builds stunnerd of that commit, unless bin/e2e has it, and returns its path.
func releaseBefore(t *testing.T) (program string) {
	t.Helper()
	root := harnesstest.Root(t)
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
