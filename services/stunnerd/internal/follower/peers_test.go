package follower

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

func peersOf(generation uint64) discovery.Peers {
	return discovery.Peers{
		Generation: generation, Keys: []discovery.PeerKey{{ID: 1, Secret: discovery.PeerSecret{7}}},
		Pods: []discovery.Peer{{
			Pod: "pod-1", Address: netip.MustParseAddrPort("10.0.0.1:4000"), Sender: discovery.Sender{1},
		}},
	}
}

// forwards runs a follower that takes part in forwarding, and returns the lists that it has put in force.
func forwards(t *testing.T, dir string) (*hand, <-chan discovery.Peers) {
	t.Helper()
	lists := make(chan discovery.Peers, 16)
	_, h := followWith(t, func(o *Options) {
		o.Last.Dir = dir
		o.Self = func() (string, string) { return "10.0.0.1:4000", "0100000000000000" }
		o.Peers = func(p discovery.Peers) { lists <- p }
	})
	return h, lists
}

func expect(t *testing.T, lists <-chan discovery.Peers, want ...discovery.Peers) {
	t.Helper()
	synctest.Wait()
	if len(lists) != len(want) {
		t.Fatalf("%d lists in force, want %d", len(lists), len(want))
	}
	for _, w := range want {
		if got := <-lists; !reflect.DeepEqual(got, w) {
			t.Errorf("list %+v, want %+v", got, w)
		}
	}
}

// K-15: a list of peers is put in force and saved in a file of mode 0600. A process that starts without its source uses
// the saved list. If the source reports a problem, the list stays.
func TestPeersArePutInForceAndKept(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h, lists := forwards(t, dir)
		h.events <- discovery.Event{Connected: true}
		r := h.reported(t, func(discovery.Report) bool { return true })
		if r.Peer != "10.0.0.1:4000" || r.Sender != "0100000000000000" {
			t.Errorf("report %+v", r)
		}
		h.events <- discovery.Event{ID: id, Peers: new(discovery.Peers{Problem: "no token"})}
		expect(t, lists, discovery.Peers{Problem: "no token"})
		for i := range uint64(2) {
			h.events <- discovery.Event{ID: id, Peers: new(peersOf(i))}
			expect(t, lists, peersOf(i))
		}
		h.events <- discovery.Event{ID: id, Peers: new(discovery.Peers{Problem: "no token"})}
		kept := peersOf(1)
		kept.Problem = "no token"
		expect(t, lists, kept)
		time.Sleep(time.Minute)
		expect(t, lists)
	})
	info, err := os.Stat(filepath.Join(dir, peersFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("list of peers: %v, %v", info, err)
	}
	for name, change := range map[string]func(h *hand){
		"the source is unreachable": func(h *hand) { h.events <- discovery.Event{Err: errors.New("refused")} },
		"the source is silent":      func(*hand) { time.Sleep(coldStart + time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, lists := forwards(t, dir)
				expect(t, lists)
				change(h)
				expect(t, lists, peersOf(1))
				h.events <- discovery.Event{ID: id, Peers: new(peersOf(2))}
				expect(t, lists, peersOf(2))
				if err := (LastGood{Dir: dir, ID: id}).SavePeers(peersOf(1), time.Now()); err != nil {
					t.Error(err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h, lists := forwards(t, dir)
		h.events <- discovery.Event{ID: id, Peers: new(peersOf(3))}
		time.Sleep(time.Minute)
		expect(t, lists, peersOf(3)) // the follower does not deliver the kept list
	})
}

// A process that does not take part in forwarding ignores lists and saves none.
func TestPeersAreIgnoredWithoutForwarding(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		_, h := follow(t, dir)
		h.events <- discovery.Event{ID: id, Peers: new(peersOf(1))}
		h.events <- discovery.Event{Err: errors.New("refused")}
		if r := h.reported(t, func(discovery.Report) bool { return true }); r.Peer != "" || r.Sender != "" {
			t.Errorf("report %+v", r)
		}
	})
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("kept %v, %v", entries, err)
	}
}

// A saved list that is damaged, old or of another Gateway is not used.
func TestInvalidSavedPeersAreNotUsed(t *testing.T) {
	l, now := LastGood{Dir: t.TempDir(), ID: id}, time.Now()
	if _, err := l.LoadPeers(now); !errors.Is(err, errNothingSaved) {
		t.Errorf("no file: %v", err)
	}
	if _, err := (LastGood{}).LoadPeers(now); !errors.Is(err, errNothingSaved) {
		t.Errorf("no folder: %v", err)
	}
	if err := l.SavePeers(peersOf(1), now); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(l.Dir, peersFile)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.LoadPeers(now.Add(MaxAge)); err != nil || !reflect.DeepEqual(got, peersOf(1)) {
		t.Errorf("loaded %+v, %v", got, err)
	}
	if _, err := (LastGood{Dir: l.Dir, ID: "media/other"}).LoadPeers(now); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("of another Gateway: %v", err)
	}
	if _, err := l.LoadPeers(now.Add(MaxAge + time.Second)); err == nil {
		t.Error("an old list is used")
	}
	for i := range good {
		if err := os.WriteFile(file, good[:i], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.LoadPeers(now); err == nil {
			t.Fatalf("a list cut at byte %d is used", i)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(good), "10.0.0.1:4000", "10.0.0.1:0", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.LoadPeers(now); err == nil || !strings.Contains(err.Error(), "pods[0].address") {
		t.Errorf("an invalid list: %v", err)
	}
}
