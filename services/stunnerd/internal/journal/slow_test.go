package journal

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// stuck is a file whose writes wait until it is free.
type stuck struct {
	file
	writing chan<- struct{}
	free    <-chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	select {
	case s.writing <- struct{}{}:
	default:
	}
	<-s.free
	return s.file.Write(b)
}

// stalled returns a journal with one session whose writes wait, and the function that lets them continue. The writer
// waits at the entry of the session.
func stalled(t *testing.T, o Options, timeout time.Duration) (*Journal, ID, func()) {
	t.Helper()
	writing, free := make(chan struct{}, 1), make(chan struct{})
	start := make(chan struct{})
	close(start)
	slow := stuck{writing: make(chan struct{}), free: start} // writing the first file does not wait
	j, _ := open(o, hooks{
		room: unlimited, minimum: maxSize, timeout: timeout,
		open: func(name string, flags int) (file, error) {
			f, err := osFile(name, flags)
			return &switched{file: f, slow: &slow}, err
		},
	})
	slow = stuck{writing: writing, free: free}
	id := j.Add(sample(o.Now()))
	<-writing
	return j, id, sync.OnceFunc(func() { close(free) })
}

// switched is a file that becomes slow.
type switched struct {
	file
	slow *stuck
}

func (s *switched) Write(b []byte) (int, error) {
	return stuck{s.file, s.slow.writing, s.slow.free}.Write(b)
}

// While writes to the volume block, no caller waits, the memory for queued changes is bounded, and answers to clients
// are sent after a timeout. When writes succeed again, the journal has the newest states.
func TestSlowVolumeDelaysNoCaller(t *testing.T) {
	now := time.UnixMilli(1795470000123)
	o := Options{Dir: t.TempDir(), Now: func() time.Time { return now }}
	j, id, proceed := stalled(t, o, 50*time.Millisecond)
	defer proceed()
	answered := make(chan struct{})
	j.After(func() { close(answered) })
	peers := []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	check := session.Check{Peer: netip.MustParseAddrPort("10.0.0.9:1"), Message: make([]byte, session.MaxCheck)}
	const changes = 20_000
	for i := range uint32(changes) {
		j.Refresh(id, 600+i%600, now.Add(10*time.Minute))
		j.Permit(id, peers, now.Add(time.Minute))
		j.Bind(id, session.ChannelRecord{Number: 0x4000, Peer: check.Peer, Until: now.Add(time.Minute), Installed: now})
		check.Message[0] = byte(i)
		j.Check(id, check)
		j.Move(id, i%2 == 0)
		j.End(j.Add(sample(now)))
	}
	late := j.Add(sample(now))
	j.mu.Lock()
	queued, whole := len(j.queue.entries), len(j.queue.whole)
	j.mu.Unlock()
	if queued > maxQueue+1<<16 || whole > 2+maxQueue/50 {
		t.Errorf("%d bytes and %d sessions are queued after %d changes", queued, whole, changes)
	}
	<-answered
	if s := j.Status(); !strings.Contains(s.Problem, "longer than 50ms") || s.Errors != 1 {
		t.Errorf("%+v", s)
	}
	at := false
	if j.After(func() { at = true }); !at {
		t.Error("an answer waits for a volume that is known to be slow")
	}
	proceed()
	within(t, "the volume takes writes again", func() bool { return j.Status().Problem == "" })
	end(t, j)
	j, r := Open(o)
	if len(r.Sessions) != 2 || r.Sessions[0].ID != id || r.Sessions[1].ID != late {
		t.Fatalf("%+v", r.Sessions)
	}
	if e := r.Sessions[0]; e.Lifetime != 600+(changes-1)%600 || e.Away || len(e.Permissions) != 1 || len(e.Channels) != 1 ||
		len(e.Checks) != 1 || e.Checks[0].Message[0] != check.Message[0] {
		t.Errorf("%+v", e)
	}
	end(t, j)
}

// An answer is sent only when the preceding change is in the file.
func TestAnswerFollowsTheWrite(t *testing.T) {
	now := time.UnixMilli(1795470000123)
	o := Options{Dir: t.TempDir(), Now: func() time.Time { return now }}
	j, id, proceed := stalled(t, o, time.Hour)
	defer proceed()
	restored := make(chan int, 1)
	answer := func() {
		data, err := os.ReadFile(filepath.Join(o.Dir, fileName))
		if err != nil {
			t.Error(err)
		}
		r, _, _ := restore(t, data, now)
		restored <- len(r.Sessions)
	}
	j.End(id)
	j.After(answer)
	select {
	case <-restored:
		t.Error("answered before the write")
	default:
	}
	proceed()
	if n := <-restored; n != 0 {
		t.Errorf("%d sessions are in the file when the end of the only one is answered", n)
	}
	end(t, j)
}

// If too many answers wait for a slow volume, further answers are sent at once.
func TestWaitingAnswersAreBounded(t *testing.T) {
	o := Options{Dir: t.TempDir(), Now: time.Now}
	j, _, proceed := stalled(t, o, time.Hour)
	defer proceed()
	var sent sync.WaitGroup
	for range maxWaiting + 1 {
		sent.Add(1)
		j.After(sent.Done)
	}
	sent.Wait()
	proceed()
	end(t, j)
}

// Sessions that are queued as a whole because the queue was full are written even if the queue is full again.
func TestSessionsAreWrittenWhileTheQueueIsFull(t *testing.T) {
	j, _ := byHand(Options{Dir: t.TempDir()}, osFile)
	now := time.Now()
	busy, other := j.Add(sample(now)), j.Add(sample(now))
	j.work()
	full := func() {
		for len(j.queue.entries) < j.queueSize() {
			j.Refresh(busy, 600, now)
		}
	}
	full()
	j.Refresh(other, 1200, now)
	j.mu.Lock()
	_, queued := j.queue.whole[other]
	entries, _ := j.take()
	_, left := j.queue.whole[other]
	j.mu.Unlock()
	if !queued || left || len(entries) < j.queueSize() {
		t.Errorf("queued %v, left %v behind %d bytes of entries", queued, left, len(entries))
	}
	end(t, j)
}

// On a volume with room for a few bytes, the writer empties the queue once, and then waits.
func TestWriterWaitsOnAFullVolume(t *testing.T) {
	for capacity := range int64(65) {
		now := time.UnixMilli(1795470000123)
		j, _ := byHand(Options{Dir: t.TempDir(), Now: func() time.Time { return now }}, osFile)
		id := j.Add(sample(now))
		flush(j)
		j.mu.Lock()
		j.shares.capacity = capacity
		j.rewrite(id, j.sessions[id])
		j.mu.Unlock()
		for range 3 {
			j.Permit(id, []netip.Addr{netip.MustParseAddr("10.0.0.9")}, now.Add(time.Minute))
		}
		rests := make(chan struct{})
		go func() {
			defer close(rests)
			j.work()
		}()
		select {
		case <-rests:
		case <-time.After(30 * time.Second):
			t.Fatalf("with room for %d bytes the writer does not end", capacity)
		}
		end(t, j)
	}
}
