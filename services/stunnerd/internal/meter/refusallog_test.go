package meter

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logged is the log of a Meter. It is safe for concurrent use.
type logged struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

// take returns the lines since the last call, without their time.
func (l *logged) take() (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.out.String()) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines = append(lines, rest)
	}
	l.out.Reset()
	return lines
}

// loggedMeter returns a meter that logs at the default level.
func loggedMeter() (*Meter, *logged) {
	m, out := New(), new(logged)
	m.LogRefusals(slog.New(slog.NewTextHandler(out, nil)))
	return m, out
}

// causes are the ways to count a refusal or drop.
var causes = map[string]func(*Meter, Reason){
	"refusal": func(m *Meter, r Reason) { m.RefuseNote(r, Note{Listener: "media/edge/udp"}) },
	"drop":    func(m *Meter, r Reason) { m.DropNote(r, Note{Listener: "media/edge/udp"}) },
	"other":   func(m *Meter, r Reason) { m.Decline(r, Note{}) },
	"session": func(m *Meter, r Reason) { m.Unrestore(r, 1, Note{}) },
}

func TestTheFirstRefusalWithEachReasonIsLoggedAtOnce(t *testing.T) {
	for how, count := range causes {
		for _, r := range All() {
			m, out := loggedMeter()
			count(m, r)
			lines := out.take()
			if r == NoCredential && how == "refusal" { // each client starts with it
				if len(lines) > 0 {
					t.Errorf("%s: %q", r, lines)
				}
				continue
			}
			if len(lines) != 1 || !strings.Contains(lines[0], " reason="+r.String()+" ") ||
				!strings.Contains(lines[0], " text=") || !strings.HasSuffix(lines[0], " times=1") {
				t.Errorf("%s %s: log %q, want one line with reason, text and times", how, r, lines)
			}
		}
	}
}

// The log has at most one line a minute with a reason, and the sum of times is the number of refusals.
func TestFurtherRefusalsAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, out := loggedMeter()
		times := func(want ...int) {
			t.Helper()
			synctest.Wait()
			var got []int
			for _, line := range out.take() {
				n := 0
				if _, err := fmt.Sscan(line[strings.LastIndex(line, "=")+1:], &n); err != nil {
					t.Fatalf("line %q: %v", line, err)
				}
				got = append(got, n)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("lines with times %v, want %v", got, want)
			}
		}
		for range 100_000 {
			m.DropNote(Malformed, noteOf(1))
		}
		times(1)
		time.Sleep(refusalInterval - time.Second)
		times()
		time.Sleep(time.Second)
		times(99_999)
		m.DropNote(Malformed, noteOf(2))
		m.RefuseNote(Malformed, noteOf(2))
		times()
		time.Sleep(refusalInterval)
		times(2)
		time.Sleep(10 * refusalInterval)
		times()
		m.DropNote(Malformed, noteOf(3)) // after a minute without drops, the next drop is logged at once
		times(1)
		m.DropNote(BadRequest, noteOf(3)) // another reason has lines of its own
		times(1)
	})
}

func TestALineNamesTheListenerAndThePeerButNoClient(t *testing.T) {
	m, out := loggedMeter()
	n := noteOf(7)
	n.Peer, n.User = netip.MustParseAddrPort("198.51.100.9:5000"), "ann\nlevel=ERROR"
	m.RefuseNote(PeerDenied, n)
	want := `level=INFO msg="refused or dropped" reason=peer_denied text="peer 198.51.100.9:5000 denied: no route of ` +
		`listener media/edge/udp allows it (GET /reach shows its routes)" listener=media/edge/udp times=1`
	if got := out.take(); len(got) != 1 || got[0] != want {
		t.Errorf("log %q, want %q", got, want)
	}
}

// Concurrent refusals are counted in the lines exactly once.
func TestNoRefusalIsLostBetweenTwoLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, out := loggedMeter()
		const goroutines, each = 8, 200
		for range goroutines {
			go func() {
				for range each {
					m.DropNote(Congested, noteOf(1))
					time.Sleep(refusalInterval / 7)
				}
			}()
		}
		time.Sleep(each*refusalInterval/7 + 2*refusalInterval)
		sum := 0
		for _, line := range out.take() {
			n := 0
			if _, err := fmt.Sscan(line[strings.LastIndex(line, "=")+1:], &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		if sum != goroutines*each {
			t.Errorf("the lines tell of %d drops, want %d", sum, goroutines*each)
		}
	})
}

func TestADropThatIsNotLoggedAllocatesNothing(t *testing.T) {
	m, _ := loggedMeter()
	m.DropNote(ByteRate, noteOf(1))
	if n := testing.AllocsPerRun(1000, func() { m.DropNote(ByteRate, noteOf(1)) }); n > 0 {
		t.Errorf("%v allocations for a drop", n)
	}
}
