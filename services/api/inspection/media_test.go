package inspection

import (
	"reflect"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func ago(seconds int) time.Time { return noon.Add(-time.Duration(seconds) * time.Second) }

// dead returns the traffic of a peer that has answered nothing for 12 s. If received is not 0, the peer has answered
// before.
func dead(peer string, received uint64) PeerTraffic {
	p := PeerTraffic{
		Peer: peer, Cluster: "media/sfu", Sent: 900, Received: received, Unanswered: 600, LastSent: ago(0),
		UnansweredSince: ago(12),
	}
	if received > 0 {
		p.LastReceived = ago(13)
	}
	return p
}

// alive returns the traffic of a peer that answers.
func alive(peer string) PeerTraffic {
	return PeerTraffic{
		Peer: peer, Cluster: "media/sfu", Sent: 900, Received: 700, LastSent: ago(0), LastReceived: ago(0),
		Unanswered: 1, UnansweredSince: ago(0),
	}
}

// A call is silent if it sends to a cluster and gets nothing back from any peer of it, for longer than the checks of an
// idle ICE agent take.
func TestSilentCalls(t *testing.T) {
	quiet := func(change func(*PeerTraffic)) []PeerTraffic {
		p := dead("10.0.3.7:5000", 0)
		change(&p)
		return []PeerTraffic{p}
	}
	for name, test := range map[string]struct {
		peers           []PeerTraffic
		sending, silent bool
	}{
		"both directions":                   {[]PeerTraffic{alive("10.0.3.7:5000")}, true, false},
		"never answered":                    {[]PeerTraffic{dead("10.0.3.7:5000", 0)}, true, true},
		"stopped":                           {[]PeerTraffic{dead("10.0.3.7:5000", 748)}, true, true},
		"another peer of the route answers": {[]PeerTraffic{dead("10.0.3.7:5000", 0), alive("10.0.3.8:5000")}, true, false},
		"two peers, none answers":           {[]PeerTraffic{dead("10.0.3.7:5000", 0), dead("10.0.3.8:5000", 0)}, true, true},
		"begins to send": {quiet(func(p *PeerTraffic) {
			p.UnansweredSince = ago(9)
		}), true, false},
		"an idle call without one answer": {quiet(func(p *PeerTraffic) {
			p.Unanswered, p.UnansweredSince, p.LastReceived, p.Received = 3, ago(11), ago(16), 90
		}), true, false},
		"a first packet after a pause": {quiet(func(p *PeerTraffic) {
			p.Unanswered, p.UnansweredSince, p.LastReceived, p.Received = 10, ago(0), ago(600), 90
		}), true, false},
		"stopped sending": {quiet(func(p *PeerTraffic) {
			p.LastSent, p.UnansweredSince = ago(21), ago(60)
		}), false, false},
		"an answer of a peer to which nothing was sent": {
			append(quiet(func(*PeerTraffic) {}), PeerTraffic{
				Peer: "10.0.3.9:5000", Cluster: "media/sfu", Received: 9, LastReceived: ago(1),
			}), true, false,
		},
	} {
		tally := Tally{Now: noon}
		tally.AddCall(ago(60), test.peers)
		m := tally.Media()
		sending, silent := 0, 0
		for _, r := range m.Routes {
			sending, silent = sending+r.Sending, silent+r.Silent
		}
		if sending != number(test.sending) || silent != number(test.silent) || m.Calls != 1 || m.Unused != 0 {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// The calls of a route are counted, with the peer to which most of the silent calls send.
func TestTally(t *testing.T) {
	tally := Tally{Now: noon}
	for range 2 {
		tally.AddCall(ago(60), []PeerTraffic{alive("10.0.3.8:5000")})
	}
	for range 3 {
		tally.AddCall(ago(60), []PeerTraffic{dead("10.0.3.7:5000", 748)})
	}
	refused := dead("10.0.3.9:5000", 0)
	refused.ICMPErrors, refused.LastICMP = 4, ago(1)
	tally.AddCall(ago(60), []PeerTraffic{refused})
	restarted := dead("10.0.3.7:5000", 748) // its ICMP errors are older than its unanswered packets
	restarted.ICMPErrors, restarted.LastICMP = 4, ago(30)
	tally.AddCall(ago(60), []PeerTraffic{restarted})
	other := dead("192.0.2.9:7000", 0)
	other.Cluster = "games/server"
	tally.AddCall(ago(60), []PeerTraffic{alive("10.0.3.8:5000"), other})
	tally.AddCall(ago(9), nil)
	tally.AddCall(ago(10), []PeerTraffic{{Peer: "10.0.3.7:5000", Cluster: "media/sfu"}})
	want := Media{
		Calls: 10, Unused: 1,
		Routes: []RouteMedia{
			{
				Cluster: "media/sfu", Sending: 8, Silent: 5, Unreachable: 1, Stopped: 4, Peer: "10.0.3.7:5000",
				Sent: 4500, Received: 2992,
			},
			{Cluster: "games/server", Sending: 1, Silent: 1, Peer: "192.0.2.9:7000", Sent: 900},
		},
		Denied: []DeniedPeer{},
	}
	if got := tally.Media(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The Media of several dataplanes add up. A dataplane of an earlier release has none.
func TestMergeMedia(t *testing.T) {
	route := func(sending, silent int, peer string) []RouteMedia {
		return []RouteMedia{{Cluster: "media/sfu", Sending: sending, Silent: silent, Peer: peer, Stopped: silent, Sent: 10}}
	}
	denied := func(calls, failed, first, last int) []DeniedPeer {
		return []DeniedPeer{{
			Peer: "10.0.3.7:5000", Listener: "l", Reason: "peer_denied", Calls: calls, Failed: failed, First: ago(first),
			Last: ago(last),
		}}
	}
	got := MergeMedia(
		&Media{Calls: 3, Unused: 1, Ended: 2, Routes: route(3, 1, "10.0.3.8:5000"), Denied: denied(5, 1, 60, 20)}, nil,
		&Media{Calls: 4, Ended: 1, Routes: route(4, 2, "10.0.3.7:5000"), Denied: denied(30, 20, 90, 40)},
		&Media{Routes: []RouteMedia{{Cluster: "games/server", Sending: 1}}},
	)
	want := Media{
		Calls: 7, Unused: 1, Ended: 3,
		Routes: []RouteMedia{
			{Cluster: "media/sfu", Sending: 7, Silent: 3, Stopped: 3, Peer: "10.0.3.7:5000", Sent: 20},
			{Cluster: "games/server", Sending: 1},
		},
		Denied: denied(35, 21, 90, 20),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
