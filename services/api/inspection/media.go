package inspection

import (
	"cmp"
	"slices"
	"time"
)

// PeerTraffic counts the packets between the relay of a session and one peer.
type PeerTraffic struct {
	// Peer is IP:PORT.
	Peer string `json:"peer"`
	// Cluster is the name of the cluster that allows the peer, or "" if no route allows it any more.
	Cluster string `json:"cluster,omitempty"`
	// Sent counts packets to the peer, and Received packets of the peer.
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	// Unanswered is the number of packets to the peer since its last packet.
	Unanswered uint64 `json:"unanswered,omitempty"`
	// LastSent and LastReceived are the times of the last packets; zero if there was none.
	LastSent     time.Time `json:"lastSent,omitzero"`
	LastReceived time.Time `json:"lastReceived,omitzero"`
	// ICMPErrors counts ICMP messages that report that packets to the peer were not delivered.
	ICMPErrors uint64 `json:"icmpErrors,omitempty"`

	// UnansweredSince is the time of the first unanswered packet; zero if there is none.
	UnansweredSince time.Time `json:"-"`
	// LastICMP is the time of the last ICMP message; zero if there was none.
	LastICMP time.Time `json:"-"`
}

// MaxRoutes is the maximum number of RouteMedia of a Media: the routes with the most silent calls.
const MaxRoutes = 64

// MaxPeers is the maximum number of peers of a Session: the last active ones. Sessions have peers if their request has
// a limit of at most DefaultLimit.
const MaxPeers = 8

// Media contains the packet counts of the live calls. It has no names and addresses of clients.
type Media struct {
	// Calls is the number of live calls. Unused is how many of them are older than SetupTime and have sent no packet to
	// a peer.
	Calls  int `json:"calls"`
	Unused int `json:"unused"`
	// Ended is the number of calls that have ended without a packet to a peer, since the start of the process.
	Ended uint64 `json:"endedUnused"`
	// Routes are the clusters to whose peers calls send packets now.
	Routes []RouteMedia `json:"routes"`
	// Denied are the peers that calls were denied in the last DeniedTime because no route allows them.
	Denied []DeniedPeer `json:"denied"`
}

// RouteMedia contains the packet counts between calls and the peers of one cluster.
type RouteMedia struct {
	// Cluster is the name of the cluster: NAMESPACE/NAME of the route.
	Cluster string `json:"cluster"`
	// Sending is the number of calls that have sent packets to peers of the cluster in the last SendingTime.
	Sending int `json:"sending"`
	// Silent is how many of the sending calls have sent for at least SilentTime without a packet back from any peer of
	// the cluster.
	Silent int `json:"silent"`
	// Unreachable is the number of silent calls for whose packets there were ICMP errors.
	Unreachable int `json:"unreachable,omitempty"`
	// Stopped is the number of silent calls to which a peer of the cluster has sent packets before.
	Stopped int `json:"stopped,omitempty"`
	// Peer is the peer that has sent nothing to most silent calls, IP:PORT.
	Peer string `json:"peer,omitempty"`
	// Sent and Received count the packets of silent calls.
	Sent     uint64 `json:"sent,omitempty"`
	Received uint64 `json:"received,omitempty"`
}

// DeniedPeer is a peer that clients tried to reach although no route allows it.
type DeniedPeer struct {
	// Peer is IP:PORT. The port is 0 if the request had none: a permission is for an IP address.
	Peer     string `json:"peer"`
	Listener string `json:"listener"`
	// Reason is peer_denied or port_denied.
	Reason string `json:"reason"`
	// Calls is the number of calls that were denied the peer. Failed is the number of these that have received nothing
	// from any peer, and have ended or are older than SetupTime.
	Calls  int       `json:"calls"`
	Failed int       `json:"failed"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

// Times by which a Media is computed.
const (
	// SetupTime is the time in which a client with a working path sends packets to a peer and receives some.
	SetupTime = 10 * time.Second
	// SendingTime is the maximum time since the last packet of a call that counts as sending.
	SendingTime = 20 * time.Second
	// SilentTime is longer than the time between two checks of an ICE agent (5 s with a variance of a fifth, RFC 7675
	// §5.1), so that one lost answer makes no call silent.
	SilentTime = 10 * time.Second
	// silentPackets is the number of unanswered packets of a silent call. It is more than the number of checks of an
	// ICE agent in SilentTime.
	silentPackets = 4
	// DeniedTime is the maximum time since the last denial of a peer that counts.
	DeniedTime = 10 * time.Minute
)

// callOf is the traffic between one call and the peers of one cluster.
type callOf struct {
	sending, silent, unreachable, stopped bool
	peer                                  string
	sent, received                        uint64
}

// judge evaluates the packets between one call and some peers at the time now. The call is silent if its packets to one
// peer are unanswered for SilentTime and no other peer has sent a packet in that time: an ICE agent checks several
// candidates of a media server, of which only one answers.
func judge(peers []PeerTraffic, now time.Time) (c callOf) {
	var answered time.Time
	for _, p := range peers {
		if p.LastReceived.After(answered) {
			answered = p.LastReceived
		}
		c.sending = c.sending || p.Sent > 0 && now.Sub(p.LastSent) <= SendingTime
		c.sent, c.received = c.sent+p.Sent, c.received+p.Received
		c.unreachable = c.unreachable || p.Unanswered > 0 && p.LastICMP.After(p.UnansweredSince)
	}
	c.stopped = c.received > 0
	var most uint64
	for _, p := range peers {
		silent := p.Unanswered >= silentPackets && now.Sub(p.LastSent) <= SendingTime &&
			p.LastSent.Sub(p.UnansweredSince) >= SilentTime && p.LastSent.Sub(answered) >= SilentTime
		if silent && p.Unanswered > most {
			c.silent, c.peer, most = true, p.Peer, p.Unanswered
		}
	}
	return c
}

// Tally computes the part of a Media that is about live calls. The zero Tally, with a time, is empty. Calls and Tallies
// may be added in any order.
type Tally struct {
	// Now is the time at which the traffic was read.
	Now time.Time

	media  Media
	routes map[string]*RouteMedia
	peers  map[string]map[string]int
	// of is the traffic of one call by cluster; AddCall reuses it.
	of map[string][]PeerTraffic
}

// AddCall adds a call that began at a time, with the traffic of its peers.
func (t *Tally) AddCall(started time.Time, peers []PeerTraffic) {
	t.media.Calls++
	if t.of == nil {
		t.of, t.routes, t.peers = map[string][]PeerTraffic{}, map[string]*RouteMedia{}, map[string]map[string]int{}
	}
	clear(t.of)
	used := false
	for _, p := range peers {
		used = used || p.Sent > 0
		if p.Cluster != "" && (p.Sent > 0 || p.Received > 0) {
			t.of[p.Cluster] = append(t.of[p.Cluster], p)
		}
	}
	if !used && t.Now.Sub(started) >= SetupTime {
		t.media.Unused++
	}
	for cluster, of := range t.of {
		if c := judge(of, t.Now); c.sending {
			t.add(cluster, c)
		}
	}
}

func (t *Tally) add(cluster string, c callOf) {
	r := t.routes[cluster]
	if r == nil {
		r = &RouteMedia{Cluster: cluster}
		t.routes[cluster], t.peers[cluster] = r, map[string]int{}
	}
	r.Sending++
	if !c.silent {
		return
	}
	r.Silent++
	r.Unreachable += number(c.unreachable)
	r.Stopped += number(c.stopped)
	r.Sent, r.Received = r.Sent+c.sent, r.Received+c.received
	t.peers[cluster][c.peer]++
}

func number(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Media returns the sum of the calls.
func (t *Tally) Media() Media {
	m := t.media
	m.Routes, m.Denied = []RouteMedia{}, []DeniedPeer{}
	for cluster, r := range t.routes {
		one, most := *r, 0
		for peer, n := range t.peers[cluster] {
			if n > most || n == most && peer < one.Peer {
				one.Peer, most = peer, n
			}
		}
		m.Routes = append(m.Routes, one)
	}
	m.Routes = bounded(m.Routes)
	return m
}

// bounded returns the routes with the most silent calls first.
func bounded(routes []RouteMedia) []RouteMedia {
	slices.SortFunc(routes, func(a, b RouteMedia) int {
		return cmp.Or(cmp.Compare(b.Silent, a.Silent), cmp.Compare(b.Sending, a.Sending), cmp.Compare(a.Cluster, b.Cluster))
	})
	return routes[:min(len(routes), MaxRoutes)]
}

// MergeMedia returns the sum of the Media of several dataplanes. Of a route, the peer of the dataplane with the most
// silent calls is named.
func MergeMedia(all ...*Media) Media {
	sum := Media{Routes: []RouteMedia{}, Denied: []DeniedPeer{}}
	routes, worst := map[string]*RouteMedia{}, map[string]int{}
	denied := map[[2]string]*DeniedPeer{}
	for _, m := range all {
		if m == nil {
			continue // an answer of an earlier release
		}
		sum.Calls, sum.Unused, sum.Ended = sum.Calls+m.Calls, sum.Unused+m.Unused, sum.Ended+m.Ended
		for _, r := range m.Routes {
			s := routes[r.Cluster]
			if s == nil {
				s = &RouteMedia{Cluster: r.Cluster}
				routes[r.Cluster] = s
			}
			s.Sending, s.Silent, s.Unreachable = s.Sending+r.Sending, s.Silent+r.Silent, s.Unreachable+r.Unreachable
			s.Stopped, s.Sent, s.Received = s.Stopped+r.Stopped, s.Sent+r.Sent, s.Received+r.Received
			if r.Silent > worst[r.Cluster] {
				s.Peer, worst[r.Cluster] = r.Peer, r.Silent
			}
		}
		for _, d := range m.Denied {
			key := [2]string{d.Peer, d.Reason}
			s := denied[key]
			if s == nil {
				s = new(d)
				denied[key] = s
				continue
			}
			s.Calls, s.Failed = s.Calls+d.Calls, s.Failed+d.Failed
			if d.First.Before(s.First) {
				s.First = d.First
			}
			if d.Last.After(s.Last) {
				s.Last, s.Listener = d.Last, d.Listener
			}
		}
	}
	for _, r := range routes {
		sum.Routes = append(sum.Routes, *r)
	}
	sum.Routes = bounded(sum.Routes)
	for _, d := range denied {
		sum.Denied = append(sum.Denied, *d)
	}
	slices.SortFunc(sum.Denied, func(a, b DeniedPeer) int {
		return cmp.Or(
			cmp.Compare(b.Failed, a.Failed), cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Peer, b.Peer),
			cmp.Compare(a.Reason, b.Reason),
		)
	})
	return sum
}
