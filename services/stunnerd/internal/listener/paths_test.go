package listener

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// owner has the session of every client, and records the return paths of their datagrams.
type owner struct{ returnPaths chan forward.ReturnPath }

func (o owner) Serves(uint16) bool                                   { return true }
func (o owner) Has(forward.Client) bool                              { return o.returnPaths != nil }
func (o owner) All(func(forward.Client) bool)                        {}
func (o owner) Answer(forward.Client, []byte, *datagram.Source) bool { return false }
func (o owner) Unowned(forward.Client, []byte, *datagram.Source)     {}
func (o owner) Flush(time.Time)                                      {}
func (o owner) Sweep(time.Time)                                      {}

func (o owner) Take(forward.Client, []byte, time.Time, forward.ReturnPath, *datagram.Source) bool {
	return false
}
func (o owner) Begin(forward.Client, []byte, forward.ReturnPath) bool                { return false }
func (o owner) Version(forward.Client) (v forward.Version, ok bool)                  { return v, false }
func (o owner) Copy(forward.Client) ([]byte, bool)                                   { return nil, false }
func (o owner) TakeOver(forward.Client, forward.Version, []byte, time.Duration) bool { return false }
func (o owner) GiveUp(forward.Client, forward.Version)                               {}
func (o owner) FromPeer(forward.Client, forward.ReturnPath, netip.AddrPort, []byte, time.Time) bool {
	return false
}
func (o owner) ToPeer(forward.Client, forward.ReturnPath, netip.AddrPort, []byte) {}
func (o owner) Part(forward.Client, forward.ReturnPath)                           {}
func (o owner) Users(func(forward.User, int64) bool)                              {}
func (o owner) Deliver(_ forward.Client, _ []byte, w forward.ReturnPath, _ time.Time) bool {
	if o.returnPaths != nil {
		o.returnPaths <- w
	}
	return o.returnPaths != nil
}

// fronts returns the return paths to a client through a number of pods.
func fronts(t *testing.T, number int) (returnPaths []forward.ReturnPath) {
	t.Helper()
	home := owner{make(chan forward.ReturnPath, 1)}
	list := forward.Peers{Keys: []forward.Key{{ID: 1}}}
	var pods []*forward.Forwarder
	for i := range number + 1 {
		o := forward.Options{Local: netip.MustParseAddr("127.0.0.1"), Sessions: owner{}, Meter: meter.New()}
		if i == 0 {
			o.Sessions = home
		}
		f, err := forward.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		self := f.Self()
		self.Pod, self.Draining = string(rune('a'+i)), i > 0 // the owner is the home of every client
		list.Pods, pods = append(list.Pods, self), append(pods, f)
	}
	for _, f := range pods {
		f.SetPeers(list)
	}
	client := forward.Client{Addr: netip.MustParseAddrPort("198.18.0.1:5000"), Port: 3478}
	for _, f := range pods[1:] {
		out := f.Outbox()
		if !out.Pass(client, []byte{0x40, 0, 0, 0}, datagram.Source{}, time.Now()) {
			t.Fatal("nothing is forwarded")
		}
		out.Flush()
		returnPaths = append(returnPaths, <-home.returnPaths)
	}
	return returnPaths
}

// used returns the paths on which data is sent: the names of pods of fronts, and "" for this pod.
func (p *paths) used() (names []string) {
	pair := p.current.Load()
	if pair == nil {
		return []string{""}
	}
	for _, at := range []*path{pair.used, pair.second} {
		if at != nil {
			names = append(names, at.front.Pod())
		}
	}
	return names
}

const (
	away     = session.MovedAway
	returned = session.MovedHere
)

// After each datagram of a client, data is sent on the expected paths. A client loses a path only by a signed request
// on the other path, or if the path is silent for some time while datagrams arrive on the other path.
func TestPathsOfAClient(t *testing.T) {
	here, returnPaths := forward.ReturnPath{}, fronts(t, 2)
	b, c := returnPaths[0], returnPaths[1]
	const media, second = 20 * time.Millisecond, time.Second
	type step struct {
		after time.Duration
		front forward.ReturnPath
		// times repeats the step.
		times int
		// signed is set for an authentic request.
		signed bool
		moved  session.Move
		used   []string
	}
	for name, steps := range map[string][]step{
		"stays": {{after: media, times: 100, used: []string{""}}},
		"sends media and moves": {
			{after: media, front: here, times: 50, used: []string{""}},
			{after: media, front: b, moved: away, used: []string{"", "b"}},
			{after: media, front: b, times: 5000, used: []string{"", "b"}},
			{after: media, front: b, signed: true, used: []string{"b"}},
			{after: media, front: b, times: 50, used: []string{"b"}},
			{after: media, front: c, times: 5000, used: []string{"b", "c"}},
			{after: media, front: c, signed: true, used: []string{"c"}},
			{after: media, front: here, times: 5000, used: []string{"c", ""}},
			{after: media, front: here, signed: true, moved: returned, used: []string{""}},
		},
		"moves by a signed request": {
			{after: media, front: b, signed: true, moved: away, used: []string{"b"}},
			{after: media, front: c, signed: true, used: []string{"c"}},
			{after: media, front: here, signed: true, moved: returned, used: []string{""}},
			{after: media, front: here, signed: true, used: []string{""}},
		},
		"decides by a signed request": {
			{after: media, front: here, times: 50, used: []string{""}},
			{after: media, front: b, moved: away, used: []string{"", "b"}},
			{after: media, front: here, signed: true, moved: returned, used: []string{""}},
			{after: media, front: b, moved: away, used: []string{"", "b"}},
			{after: media, front: b, signed: true, used: []string{"b"}},
		},
		"moves twice before a signed request": {
			{after: media, front: b, moved: away, used: []string{"", "b"}},
			{after: media, front: c, used: []string{"", "c"}},
			{after: media, front: here, used: []string{"", "c"}},
			{after: media, front: b, used: []string{"", "b"}},
		},
		"sends media while another forges": {
			{after: media, front: here, times: 50, used: []string{""}},
			{after: 0, front: b, moved: away, used: []string{"", "b"}},
			{after: media, front: here, used: []string{"", "b"}},
			{after: 0, front: b, used: []string{"", "b"}},
			{after: media, front: here, times: int(secondIdle/media) - 1, used: []string{"", "b"}},
			{after: media, front: here, moved: returned, used: []string{""}}, // the kernel may send to the client again
		},
		"sends nothing while another forges": {
			{after: media, front: here, times: 50, used: []string{""}},
			{after: second / 4, front: b, moved: away, used: []string{"", "b"}},
			{after: second / 4, front: b, times: 1000, used: []string{"", "b"}},
			{after: time.Hour, front: b, used: []string{"", "b"}},
			{after: media, front: here, used: []string{"", "b"}},
			{after: media, front: here, signed: true, moved: returned, used: []string{""}},
		},
		"sends nothing while another forges at two pods": {
			{after: second / 4, front: b, moved: away, used: []string{"", "b"}},
			{after: second / 4, front: c, used: []string{"", "c"}},
			{after: time.Hour, front: b, used: []string{"", "b"}},
		},
		"moves, and sends little while another forges at the path before": {
			{after: second, front: b, moved: away, used: []string{"", "b"}},
			{after: second / 4, front: here, times: 110, used: []string{"", "b"}},
			{after: second, front: b, used: []string{"", "b"}},
			{after: second / 4, front: here, times: 110, used: []string{"", "b"}},
			{after: second, front: b, signed: true, used: []string{"b"}},
			{after: second / 4, front: here, times: 110, used: []string{"b", ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var p paths
			now := time.Now()
			for i, s := range steps {
				for range max(s.times, 1) {
					now = now.Add(s.after)
					at := p.arrived
					if s.signed {
						at = p.follow
					}
					if moved, used := at(s.front, now), p.used(); moved != s.moved || !slices.Equal(used, s.used) {
						t.Fatalf("step %d: moved %d, paths %q, want %d, %q", i, moved, used, s.moved, s.used)
					}
				}
			}
		})
	}
}

// Elsewhere returns another pod when an authentic datagram has arrived there and no authentic datagram has
// arrived at another pod since. Forged datagrams neither change the pod nor restart the time.
func TestPodThatAClientUses(t *testing.T) {
	here, returnPaths := forward.ReturnPath{}, fronts(t, 2)
	b, c := returnPaths[0], returnPaths[1]
	type step struct {
		at     time.Duration
		front  forward.ReturnPath
		signed bool
	}
	for name, row := range map[string]struct {
		steps []step
		front forward.ReturnPath
		since time.Duration
	}{
		"none":                     {},
		"media only":               {steps: []step{{1, b, false}, {2, b, false}}},
		"signed":                   {[]step{{1, b, true}}, b, 1},
		"signed twice":             {[]step{{1, b, true}, {5, b, false}, {9, b, true}}, b, 1},
		"another forges":           {[]step{{1, b, true}, {5, c, false}, {6, b, false}}, here, 0},
		"another has forged":       {[]step{{1, b, true}, {5, c, false}, {6, b, true}}, b, 1},
		"another has forged here":  {[]step{{1, b, true}, {5, here, false}, {6, b, true}}, b, 1},
		"another forged long ago":  {[]step{{1, b, true}, {5, c, false}, {5 + secondIdle, b, false}}, b, 1},
		"moves on":                 {[]step{{1, b, true}, {5, c, true}}, c, 5},
		"moves to and fro":         {[]step{{1, b, true}, {5, c, true}, {7, b, true}}, b, 7},
		"returns":                  {[]step{{1, b, true}, {5, here, true}}, here, 0},
		"returns and leaves again": {[]step{{1, b, true}, {5, here, true}, {6, b, false}, {7, b, true}}, b, 7},
	} {
		t.Run(name, func(t *testing.T) {
			for _, restored := range []bool{false, true} {
				var p paths
				if restored {
					p.hold()
				}
				begun := time.Now()
				for _, s := range row.steps {
					if s.signed {
						p.follow(s.front, begun.Add(s.at))
					} else {
						p.arrived(s.front, begun.Add(s.at))
					}
				}
				at, since, ok := p.elsewhere()
				if want := row.front != here; ok != want || ok && at.front != row.front {
					t.Fatalf("restored %v: uses another pod: %v, want %v", restored, ok, want)
				}
				if ok && !since.Equal(begun.Add(row.since)) {
					t.Errorf("restored %v: since %v, want %v", restored, since.Sub(begun), row.since)
				}
			}
		})
	}
}

// A restored client that may have used another pod gets no data before its first datagram, which shows its path.
func TestPathsOfARestoredClient(t *testing.T) {
	b := fronts(t, 1)[0]
	for _, c := range []struct {
		front forward.ReturnPath
		moved session.Move
		used  []string
	}{{b, session.Reached, []string{"b"}}, {forward.ReturnPath{}, returned, []string{""}}} {
		var client udpClient
		client.paths.hold()
		packets := make([]datagram.Packet, 2)
		client.SendAll(packets)
		if packets[0].Err != errNoPath || packets[1].Err != errNoPath || client.Local().IsValid() || client.Front().IsValid() {
			t.Errorf("before the first datagram: errors %v, %v, path %v", packets[0].Err, packets[1].Err, client.paths.used())
		}
		if moved := client.paths.arrived(c.front, time.Now()); moved != c.moved || !slices.Equal(client.paths.used(), c.used) {
			t.Errorf("moved %d, paths %q, want %d, %q", moved, client.paths.used(), c.moved, c.used)
		}
	}
}

// When several readers handle datagrams of a client concurrently, the paths end in a state that one of the datagrams
// has caused.
func TestPathsOfReadersAtATime(t *testing.T) {
	returnPaths := append(fronts(t, 2), forward.ReturnPath{})
	var p paths
	var readers sync.WaitGroup
	for i, front := range returnPaths {
		readers.Go(func() {
			now := time.Now()
			for n := range 3000 {
				now = now.Add(time.Duration(n%7) * secondIdle / 2)
				if n%50 == i {
					p.follow(front, now)
				} else {
					p.arrived(front, now)
				}
				p.front()
				p.undecided()
			}
		})
	}
	readers.Wait()
	if used := p.used(); len(used) < 1 || len(used) > 2 || len(used) == 2 && used[0] == used[1] {
		t.Errorf("paths %q", used)
	}
}

func TestPathsAllocateNothing(t *testing.T) {
	b, now := fronts(t, 1)[0], time.Now()
	for _, front := range []forward.ReturnPath{{}, b} {
		var p paths
		p.follow(front, now)
		if n := testing.AllocsPerRun(100, func() {
			now = now.Add(time.Millisecond)
			p.arrived(front, now)
		}); n != 0 {
			t.Errorf("front %q: %g allocations", front.Pod(), n)
		}
	}
}
