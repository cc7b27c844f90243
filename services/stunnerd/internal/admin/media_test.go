package admin

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// silentCalls makes n calls of a table send to a peer: the first ones to a peer that does not answer, and the others to
// a peer that does. Each call also has a peer to which nothing was sent.
func silentCalls(table *session.Table, n int) {
	for i, s := range table.All() {
		now := time.Now()
		p := session.PeerTraffic{
			Peer: netip.MustParseAddrPort("10.0.3.7:5000"), Cluster: "media/sfu", Sent: 900, Unanswered: 900, LastSent: now,
			UnansweredSince: now.Add(-inspection.SilentTime), ICMPErrors: 3, LastICMP: now,
		}
		if i >= n {
			p.Received, p.Unanswered, p.LastReceived, p.ICMPErrors = 700, 0, now, 0
		}
		s.Peers = func(show func(session.PeerTraffic)) {
			show(session.PeerTraffic{Peer: netip.MustParseAddrPort("10.0.3.9:5000"), Cluster: "media/sfu"})
			show(p)
		}
	}
}

// The status has the number of calls that send and receive nothing, and the metrics agree.
func TestMediaOfCalls(t *testing.T) {
	i := inspected(Access{Users: true})
	silentCalls(i.process.Sessions, 2)
	media := read[inspection.Status](t, i.Status(), "/status").Media
	if media == nil || media.Calls != 3 || len(media.Routes) != 1 {
		t.Fatalf("%+v", media)
	}
	want := inspection.RouteMedia{
		Cluster: "media/sfu", Sending: 3, Silent: 2, Unreachable: 2, Peer: "10.0.3.7:5000", Sent: 1800,
	}
	if media.Routes[0] != want {
		t.Errorf("%+v, want %+v", media.Routes[0], want)
	}
	c := &Collector{
		Meter: i.process.Meter, Sessions: i.process.Sessions, Capacity: func() int { return 1 },
		Offload:    func() inspection.OffloadStatus { return inspection.OffloadStatus{} },
		Forwarding: func() *inspection.ForwardingStatus { return nil },
		Journal:    func() *inspection.JournalStatus { return nil }, Usage: func() usage.Status { return usage.Status{} },
		Config: func() Config { return Config{} },
	}
	c.Meter.ICMPErrors.Add(3)
	if err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP stunner_allocations_unused_total TURN allocations that have ended without a packet to a peer.
# TYPE stunner_allocations_unused_total counter
stunner_allocations_unused_total 0
# HELP stunner_media_calls Calls that send packets to the peers of a cluster, by state: answered, or silent if no peer of the cluster has sent a packet for 10 seconds or more.
# TYPE stunner_media_calls gauge
stunner_media_calls{name="media/sfu",state="answered"} 1
stunner_media_calls{name="media/sfu",state="silent"} 2
# HELP stunner_peer_icmp_errors_total ICMP messages that report that packets to a peer of a call were not delivered, such as port unreachable.
# TYPE stunner_peer_icmp_errors_total counter
stunner_peer_icmp_errors_total 3
`), "stunner_media_calls", "stunner_peer_icmp_errors_total", "stunner_allocations_unused_total"); err != nil {
		t.Error(err)
	}
}

// A session lists the peers with packets, unless the list is long.
func TestSessionsListTheirPeers(t *testing.T) {
	i := inspected(Access{Users: true})
	silentCalls(i.process.Sessions, 3)
	for _, s := range read[inspection.SessionList](t, i.Sessions(), "/sessions").Sessions {
		if len(s.Peers) != 1 || s.Peers[0].Peer != "10.0.3.7:5000" || s.Peers[0].Sent != 900 || s.Peers[0].ICMPErrors != 3 ||
			s.Peers[0].Unanswered != 900 || s.Peers[0].LastSent.IsZero() || !s.Peers[0].LastReceived.IsZero() {
			t.Errorf("%+v", s.Peers)
		}
	}
	for _, s := range read[inspection.SessionList](t, i.Sessions(), "/sessions?limit=101").Sessions {
		if len(s.Peers) != 0 {
			t.Errorf("a long list has %+v", s.Peers)
		}
	}
	s := i.process.Sessions.List()[0]
	s.Peers = func(show func(session.PeerTraffic)) {
		for n := range 20 {
			show(session.PeerTraffic{
				Peer: netip.MustParseAddrPort(fmt.Sprintf("10.0.3.%d:5000", n)), Sent: 1,
				LastSent: time.Unix(int64(n), 0),
			})
		}
	}
	peers := read[inspection.SessionList](t, i.Sessions(), "/sessions").Sessions[0].Peers
	if len(peers) != inspection.MaxPeers || peers[0].Peer != "10.0.3.19:5000" {
		t.Errorf("%+v", peers)
	}
}

// The status lists the denied peers that no route allows now. A peer that has a route meanwhile is left out.
func TestDeniedPeersOfCalls(t *testing.T) {
	table := session.NewTable()
	process := Process{
		Sessions: table, Meter: meter.New(), Listeners: func() []config.Listener { return nil },
		Status: func() inspection.Status { return inspection.Status{} },
	}
	missing, added := netip.MustParseAddrPort("10.0.3.7:5000"), netip.MustParseAddrPort("10.0.3.8:5000")
	process.Reach = func(peer netip.AddrPort) []inspection.ListenerReach {
		return []inspection.ListenerReach{{Listener: "l", Allowed: peer == added}}
	}
	now := time.Now()
	for n := range 35 {
		s := &session.Session{UserID: fmt.Sprint(n), Listener: "l", Started: now.Add(-inspection.SetupTime)}
		table.Restore(s)
		s.Deny(missing, false, now)
		s.Deny(added, true, now)
	}
	retired := &session.Session{Listener: "removed", Started: now}
	table.Restore(retired)
	retired.Deny(missing, false, now)
	denied := read[inspection.Status](t, NewInspector(process, Access{}).Status(), "/status").Media.Denied
	if len(denied) != 1 {
		t.Fatalf("%+v", denied)
	}
	got := denied[0]
	if got.Peer != missing.String() || got.Calls != 35 || got.Failed != 35 || got.Reason != "peer_denied" ||
		got.Listener != "l" || got.First.IsZero() || got.Last.IsZero() {
		t.Errorf("%+v", got)
	}
}
