package discovery

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

// forwarders is a server whose clients send the name of their pod in the query. The grant of a client is for this pod.
type forwarders struct {
	*testing.T
	*Server
	client *http.Client

	mu      sync.Mutex
	refused map[Refusal]int
	lists   map[*websocket.Conn][]sentList
}

// sentList is a list of peers with the time of its arrival.
type sentList struct {
	Peers
	at time.Time
}

func newForwarders(t *testing.T, change func(*ServerOptions)) *forwarders {
	f := &forwarders{T: t, refused: map[Refusal]int{}, lists: map[*websocket.Conn][]sentList{}}
	o := ServerOptions{
		Permissive: true,
		Authorize: func(r *http.Request) (Grant, error) {
			switch pod := r.URL.Query().Get("node"); pod {
			case "":
				return Grant{}, ErrRejected
			case "reader":
				return Grant{All: true}, nil
			default:
				return Grant{ID: "media/" + pod[:1], Pod: pod}, nil
			}
		},
		OnRefusal: func(why Refusal) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.refused[why]++
		},
	}
	change(&o)
	f.Server = NewServer(o)
	f.client = piped(t, f.Server)
	return f
}

// pod opens a stream and records its lists of peers. Other frames are ignored.
func (f *forwarders) pod(name string) *websocket.Conn {
	f.Helper()
	gateway := "/media/a"
	if strings.HasPrefix(name, "b") {
		gateway = "/media/b"
	}
	conn := follows(f.T, f.client, gateway+"?watch=true&node="+name)
	go func() {
		for {
			_, data, err := conn.Read(f.Context())
			if err != nil {
				return
			}
			if !isPeers(data) {
				continue
			}
			list, err := parsePeers(data)
			if err != nil {
				f.Error(err)
			}
			f.mu.Lock()
			f.lists[conn] = append(f.lists[conn], sentList{list, time.Now()})
			f.mu.Unlock()
		}
	}()
	return conn
}

func (f *forwarders) report(conn *websocket.Conn, pod, peer, sender string) {
	f.Helper()
	r := Report{ID: "media/" + pod[:1], Pod: pod, Accepted: true, Peer: peer, Sender: sender}
	data, err := json.Marshal(clientFrame{Report: &r})
	if err == nil {
		err = conn.Write(f.Context(), websocket.MessageText, data)
	}
	if err != nil {
		f.Fatal(err)
	}
	synctest.Wait()
}

// received returns the lists that a stream has received.
func (f *forwarders) received(conn *websocket.Conn) []sentList {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists[conn]
}

func (f *forwarders) set(id string, generation uint64, pods ...string) {
	f.Helper()
	if err := f.SetPeers(id, new(listOfPeers(generation, pods...))); err != nil {
		f.Fatal(err)
	}
}

func listOfPeers(generation uint64, pods ...string) Peers {
	p := Peers{Generation: generation, Keys: []PeerKey{{ID: 7, Secret: PeerSecret{1, 2}}}, Pods: []Peer{}}
	for i, pod := range pods {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 4000)
		p.Pods = append(p.Pods, Peer{Pod: pod, Address: address, Sender: Sender{1, byte(i + 1)}})
	}
	return p
}

const senderText = "0123456789abcdef"

func inForwarding(t *testing.T, change func(*ServerOptions), run func(f *forwarders)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newForwarders(t, change)
		run(f)
		f.client.CloseIdleConnections()
	})
}

func noChange(*ServerOptions) {}

// A list of peers is sent to the pods of its Gateway that report a peer, and to no other client.
func TestPeersAreSentToPodsThatForward(t *testing.T) {
	inForwarding(t, noChange, func(f *forwarders) {
		f.set("media/a", 1, "a1", "a2")
		forwards, former, other, foreign := f.pod("a1"), f.pod("a2"), f.pod("b1"), f.pod("reader")
		f.report(forwards, "a1", "10.0.0.1:4000", senderText)
		f.report(former, "a2", "", "")
		f.report(other, "b1", "10.0.0.3:4000", senderText)
		f.report(foreign, "a3", "10.0.0.4:4000", senderText)
		if got := f.received(forwards); len(got) != 1 || !reflect.DeepEqual(got[0].Peers, listOfPeers(1, "a1", "a2")) {
			f.Errorf("a pod that forwards receives %+v", got)
		}
		for name, conn := range map[string]*websocket.Conn{"without peer": former, "of another Gateway": other} {
			if got := f.received(conn); len(got) != 0 {
				f.Errorf("a pod %s receives %+v", name, got)
			}
		}
		if got := f.received(foreign); len(got) != 1 || len(got[0].Keys)+len(got[0].Pods) > 0 || got[0].Problem != noPeersWithoutPod {
			f.Errorf("a reader that is no pod receives %+v", got)
		}
		if r := f.Reports(); len(r) != 4 || r[0].Peer == "" || r[0].Sender != senderText || r[1].Peer != "" || r[2].Peer != "" || r[3].Peer == "" {
			f.Errorf("reports %+v", r)
		}
		// A pod that has stopped forwarding receives no more lists.
		f.report(forwards, "a1", "", "")
		time.Sleep(time.Minute)
		f.set("media/a", 2, "a2")
		time.Sleep(time.Minute)
		if got := f.received(forwards); len(got) != 1 {
			f.Errorf("a pod that no longer forwards receives %+v", got[1:])
		}
	})
}

// A pod that connects gets the list at once. The next list, which contains this pod, reaches the other pods at once
// too.
func TestAPodThatConnectsDelaysNoList(t *testing.T) {
	inForwarding(t, noChange, func(f *forwarders) {
		f.set("media/a", 1, "a1")
		first := f.pod("a1")
		f.report(first, "a1", "10.0.0.1:4000", senderText)
		time.Sleep(time.Minute)
		second := f.pod("a2")
		f.report(second, "a2", "10.0.0.2:4000", senderText)
		connected := time.Now()
		f.set("media/a", 2, "a1", "a2")
		time.Sleep(time.Second)
		for conn, want := range map[*websocket.Conn]time.Duration{first: 0, second: peersInterval} {
			if got := f.received(conn); len(got) != 2 || got[1].Generation != 2 || got[1].at.Sub(connected) != want {
				f.Errorf("lists %+v, want one of generation 2 %s after %s", got, want, connected)
			}
		}
	})
}

// A list is sent at once, and then at most one list every 200 ms. The last list is always sent, within 200 ms.
func TestPeersAreSentAtABoundedRate(t *testing.T) {
	inForwarding(t, noChange, func(f *forwarders) {
		conn := f.pod("a1")
		f.report(conn, "a1", "10.0.0.1:4000", senderText)
		if got := f.received(conn); len(got) != 0 {
			f.Errorf("received before there is a list: %+v", got)
		}
		for i := range uint64(1000) {
			f.set("media/a", i, fmt.Sprint("a", i))
			synctest.Wait()
			time.Sleep(3 * time.Millisecond)
		}
		last := time.Now()
		f.set("media/a", 9999, "last")
		time.Sleep(time.Second)
		got := f.received(conn)
		if n := len(got); n < 10 || got[n-1].Generation != 9999 || got[n-1].at.Sub(last) > peersInterval {
			f.Fatalf("%d lists, the last one %+v", n, got[n-1])
		}
		for i := 1; i < len(got); i++ {
			if gap := got[i].at.Sub(got[i-1].at); gap < peersInterval {
				f.Errorf("two lists within %s", gap)
			}
			if got[i].Generation <= got[i-1].Generation {
				f.Errorf("generation %d after %d", got[i].Generation, got[i-1].Generation)
			}
		}
		// An unchanged list is not sent again.
		f.set("media/a", 9999, "last")
		time.Sleep(time.Minute)
		if n := len(f.received(conn)); n != len(got) {
			f.Errorf("%d lists more", n-len(got))
		}
		// A pod that connects between two lists receives the current list. A list that was removed is not sent.
		late := f.pod("a2")
		f.report(late, "a2", "10.0.0.2:4000", senderText)
		if all := f.received(late); len(all) != 1 || all[0].Generation != 9999 {
			f.Errorf("received %+v", all)
		}
		if err := f.SetPeers("media/a", nil); err != nil {
			f.Fatal(err)
		}
		f.report(f.pod("a3"), "a3", "10.0.0.3:4000", senderText)
		for _, c := range []*websocket.Conn{conn, late} {
			_ = c.CloseNow()
		}
	})
}

// The list of a Gateway is forgotten with the Gateway and its streams.
func TestListsOfPeersAreForgotten(t *testing.T) {
	inForwarding(t, noChange, func(f *forwarders) {
		conn := f.pod("a1")
		f.report(conn, "a1", "10.0.0.1:4000", senderText)
		f.set("media/a", 1, "a1")
		_ = conn.CloseNow()
		synctest.Wait()
		if n := len(f.peers.lists["media/a"].readers); n != 0 {
			f.Errorf("%d readers are left", n)
		}
		if err := f.SetPeers("media/a", nil); err != nil || len(f.peers.lists) != 0 {
			f.Errorf("%d lists are left, %v", len(f.peers.lists), err)
		}
		time.Sleep(time.Second)
	})
}

// A malformed or foreign address is counted and ignored. The rest of the report counts.
func TestMalformedPeersLeaveTheReportInForce(t *testing.T) {
	verify := func(o *ServerOptions) {
		o.VerifyPeer = func(id string, p Peer) error {
			if id != "media/a" || p.Address.Addr() != netip.MustParseAddr("10.0.0.1") {
				return fmt.Errorf("not an address of pod %s", p.Pod)
			}
			return nil
		}
	}
	for _, c := range []struct{ peer, sender string }{
		{"10.0.0.2:4000", senderText}, {"10.0.0.1", senderText}, {"10.0.0.1:0", senderText}, {"10.0.0.1:70000", senderText},
		{"host:4000", senderText}, {"[fe80::1%eth0]:4000", senderText}, {"0.0.0.0:4000", senderText},
		{"224.0.0.1:4000", senderText}, {"[::]:4000", senderText}, {"10.0.0.1:4000", ""}, {"10.0.0.1:4000", "01234567"},
		{"10.0.0.1:4000", senderText + "00"}, {"10.0.0.1:4000", "0123456789abcdeg"},
		{"10.0.0.1:4000", "0000000000000000"}, {strings.Repeat("1", 60<<10), senderText},
	} {
		inForwarding(t, verify, func(f *forwarders) {
			f.set("media/a", 1, "a1")
			conn := f.pod("a1")
			f.report(conn, "a1", c.peer, c.sender)
			r := f.Reports()
			if len(r) != 1 || !r[0].Accepted || r[0].Peer != "" || r[0].Sender != "" {
				f.Errorf("%.50s %s: reports %+v", c.peer, c.sender, r)
			}
			f.mu.Lock()
			n := f.refused[Misreported]
			f.mu.Unlock()
			if got := f.received(conn); len(got) != 0 || n != 1 {
				f.Errorf("%.50s %s: %d lists, misreported %d times", c.peer, c.sender, len(got), n)
			}
			time.Sleep(reportInterval)
			f.report(conn, "a1", "[::ffff:10.0.0.1]:4000", strings.ToUpper(senderText))
			if r := f.Reports(); r[0].Peer != "10.0.0.1:4000" || r[0].Sender != senderText || len(f.received(conn)) != 1 {
				f.Errorf("after a valid peer: %+v", r)
			}
		})
	}
}

// Without authentication, and for a reader of configs without secrets, there are no keys. The pod receives the reason
// once.
func TestPeersNeedAuthentication(t *testing.T) {
	for _, c := range []struct {
		name, problem string
		change        func(*ServerOptions)
	}{
		{"off", noPeersWithoutAuth, func(o *ServerOptions) { o.Authorize, o.Permissive = nil, false }},
		{"redacted", noPeersWithoutPod, noChange},
		{"auth service", noPeersWithoutPod, func(o *ServerOptions) {
			o.Authorize = func(*http.Request) (Grant, error) { return Grant{All: true, ForAuth: true}, nil }
		}},
	} {
		inForwarding(t, c.change, func(f *forwarders) {
			f.set("media/a", 1, "a1")
			conn := f.pod("")
			for range 3 {
				f.report(conn, "a1", "10.0.0.1:4000", senderText)
				time.Sleep(reportInterval)
			}
			got := f.received(conn)
			if len(got) != 1 || got[0].Problem != c.problem || len(got[0].Keys)+len(got[0].Pods) > 0 {
				f.Errorf("%s: received %+v", c.name, got)
			}
			for _, r := range f.Reports() {
				if r.Peer != "" || r.Sender != "" {
					f.Errorf("%s: report %+v", c.name, r)
				}
			}
		})
	}
}

// A client delivers the lists of peers if it reports a peer. It ignores an invalid list, and no list changes its
// config.
func TestClientsDeliverPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForwarders(t, noChange)
		f.Publish(sample("media/a", "r"))
		f.set("media/a", 1, "a1", "a2")
		source := open(t, "http://discovery", Options{ID: "media/a", Node: "a1"})
		source.(*client).dial = f.client.Transport.(*http.Transport).DialContext
		events := follow(t, source)
		if e := next(t, events); !e.Connected {
			t.Fatalf("event %+v", e)
		}
		if e := next(t, events); e.ID != "media/a" || e.Config.Admin.Name != "media/a" || e.Peers != nil {
			t.Fatalf("event %+v", e)
		}
		source.(Reporter).Report(Report{ID: "media/a", Pod: "a1", Accepted: true, Peer: "10.0.0.1:4000", Sender: senderText})
		e := next(t, events)
		if e.Peers == nil || !reflect.DeepEqual(*e.Peers, listOfPeers(1, "a1", "a2")) || e.ID != "media/a" || e.Err != nil {
			t.Fatalf("event %+v", e)
		}
		// Only the newest of several lists is delivered, and a config is delivered beside them.
		for i := range uint64(5) {
			f.set("media/a", 2+i, fmt.Sprint("a", i))
			time.Sleep(time.Second)
		}
		f.Publish(sample("media/a", "next"))
		synctest.Wait()
		if e := next(t, events); e.Peers == nil || e.Peers.Generation != 2 {
			t.Errorf("event %+v", e) // this event was taken from the queue before the later lists arrived
		}
		if e := next(t, events); e.Peers == nil || e.Peers.Generation != 6 {
			t.Errorf("event %+v", e)
		}
		if e := next(t, events); e.Config.Auth.Realm != "next" {
			t.Errorf("event %+v", e)
		}
	})
}

// A client that reports no peer delivers no list, and an invalid list is dropped.
func TestClientsIgnorePeersThatTheyDidNotRequest(t *testing.T) {
	good, err := json.Marshal(peersFrame{listOfPeers(1, "a1")})
	if err != nil {
		t.Fatal(err)
	}
	c, w := newClient(url.URL{}, "media/a", Options{Log: slog.New(slog.DiscardHandler)}), newWatch("test", "media/a")
	c.receivePeers(w, good)
	if e, ok := w.events.pop(); ok {
		t.Errorf("without a peer: %+v", e)
	}
	c.Report(Report{ID: "media/a", Peer: "10.0.0.1:4000", Sender: senderText})
	for _, bad := range invalidPeers {
		c.receivePeers(w, []byte(bad))
		if e, ok := w.events.pop(); ok {
			t.Errorf("%s: %+v", bad, e)
		}
	}
	c.receivePeers(w, good)
	if e, ok := w.events.pop(); !ok || e.Peers == nil {
		t.Errorf("event %+v", e)
	}
}

const onePeer = `{"pod":"a","address":"10.0.0.1:1","sender":"` + senderText + `"}`

var invalidPeers = []string{
	`{"peers":`, `{"peers":7}`, `{"peers":{"generation":-1}}`, `{"peers":{"keys":[{"id":256}]}}`,
	`{"peers":{"keys":[{"id":1,"key":"AAAA"}]}}`, `{"peers":{"keys":[{"id":1,"key":"%"}]}}`,
	`{"peers":{"keys":[{"id":1},{"id":1}]}}`, `{"peers":{"pods":[` + onePeer + `,` + onePeer + `]}}`,
	`{"peers":{"pods":[{"pod":"","address":"10.0.0.1:1","sender":"` + senderText + `"}]}}`,
	`{"peers":{"pods":[{"pod":"a","address":"10.0.0.1:0","sender":"` + senderText + `"}]}}`,
	`{"peers":{"pods":[{"pod":"a","address":"x:1","sender":"` + senderText + `"}]}}`,
	`{"peers":{"pods":[{"pod":"a","address":"10.0.0.1:1"}]}}`,
	`{"peers":{"pods":[{"pod":"a","address":"10.0.0.1:1","other":"::","sender":"` + senderText + `"}]}}`,
	`{"peers":{"pods":[{"pod":"a","address":"10.0.0.1:1","other":"fe80::1%1","sender":"` + senderText + `"}]}}`,
	`{"peers":{"keys":[` + strings.Repeat(`{"id":1},`, maxPeerKeys) + `{"id":2}]}}`,
}

// Keys are not printed.
func TestKeysOfPeersAreNotPrinted(t *testing.T) {
	p := Peers{Keys: []PeerKey{{ID: 1, Secret: PeerSecret([]byte("correct-horse-battery-staple-123"))}}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, value := range []any{p, &p, p.Keys, p.Keys[0], p.Keys[0].Secret, Event{Peers: &p}} {
			if got := fmt.Sprintf(verb, value); strings.Contains(got, "correct") || strings.Contains(got, "99, 111") ||
				strings.Contains(got, "0x63, 0x6f") {
				t.Errorf("%s of %T prints %s", verb, value, got)
			}
		}
	}
}

// FuzzPeersFrame checks that any list of peers is valid after parsing, and that it is parsed again to the same list.
func FuzzPeersFrame(f *testing.F) {
	good, err := json.Marshal(peersFrame{listOfPeers(1, "a1", "a2")})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range append(invalidPeers, string(good), `{"peers":{"problem":"\ud800"}}`, `{"peers":null}`, `{}`, `[`) {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p, err := parsePeers(frame)
		if err != nil {
			return
		}
		sent, err := json.Marshal(peersFrame{p})
		if err != nil || !isPeers(sent) {
			t.Fatalf("%+v is sent as %s, %v", p, sent, err)
		}
		if again, err := parsePeers(sent); err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%+v is read again as %+v, %v", p, again, err)
		}
		for _, peer := range p.Pods {
			peer.Other = netip.Addr{} // the operator adds it
			r := Report{Pod: peer.Pod, Draining: peer.Draining, Peer: peer.Address.String(), Sender: peer.Sender.String()}
			if again, err := r.AsPeer(); err != nil || again != peer {
				t.Errorf("%+v is reported as %+v, %v", peer, again, err)
			}
		}
	})
}
