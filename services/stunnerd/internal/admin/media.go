package admin

import (
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// status returns the status of the process, with the packet counts of its sessions.
func (i *Inspector) status() inspection.Status {
	status, now := i.process.Status(), time.Now()
	media := mediaOf(i.process.Sessions, now)
	for _, d := range i.process.Sessions.Denied(now.Add(-inspection.DeniedTime), now) {
		if !i.reaches(d.Listener, d.Peer) {
			media.Denied = append(media.Denied, deniedPeer(d))
		}
	}
	status.Media = &media
	return status
}

// mediaOf returns the packet counts of the live sessions, without denied peers. The caller must have refreshed the
// counters.
func mediaOf(sessions *session.Table, now time.Time) inspection.Media {
	tally := inspection.Tally{Now: now}
	var peers []inspection.PeerTraffic
	for _, s := range sessions.All() {
		peers = peers[:0]
		s.EachPeer(func(p session.PeerTraffic) { peers = append(peers, peerTraffic(p)) })
		tally.AddCall(s.Started, peers)
	}
	media := tally.Media()
	media.Ended = sessions.WithoutMedia()
	return media
}

// reaches reports whether the clients of a listener may reach a peer now. It returns true for a listener that no longer
// runs.
func (i *Inspector) reaches(listener string, peer netip.AddrPort) bool {
	all := i.process.Reach(peer)
	at := slices.IndexFunc(all, func(l inspection.ListenerReach) bool { return l.Listener == listener })
	return at < 0 || all[at].Allowed
}

func deniedPeer(d session.Denied) inspection.DeniedPeer {
	reason := meter.PeerDenied
	if d.PortOnly {
		reason = meter.PortDenied
	}
	return inspection.DeniedPeer{
		Peer: d.Peer.String(), Listener: d.Listener, Reason: reason.String(), Calls: d.Sessions, Failed: d.Failed,
		First: d.First.UTC().Truncate(time.Millisecond), Last: d.Last.UTC().Truncate(time.Millisecond),
	}
}

func peerTraffic(p session.PeerTraffic) inspection.PeerTraffic {
	return inspection.PeerTraffic{
		Peer: p.Peer.String(), Cluster: p.Cluster, Sent: p.Sent, Received: p.Received, Unanswered: p.Unanswered,
		LastSent: p.LastSent, LastReceived: p.LastReceived, UnansweredSince: p.UnansweredSince, ICMPErrors: p.ICMPErrors,
		LastICMP: p.LastICMP,
	}
}

// shownTime formats a time for an answer.
func shownTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Millisecond)
}

// lastPeers returns the traffic of the last active peers of a session.
func lastPeers(s *session.Session) (peers []inspection.PeerTraffic) {
	s.EachPeer(func(p session.PeerTraffic) {
		if p.Sent > 0 || p.Received > 0 || p.ICMPErrors > 0 {
			p.LastSent, p.LastReceived = shownTime(p.LastSent), shownTime(p.LastReceived)
			peers = append(peers, peerTraffic(p))
		}
	})
	active := func(p inspection.PeerTraffic) time.Time {
		if p.LastReceived.After(p.LastSent) {
			return p.LastReceived
		}
		return p.LastSent
	}
	slices.SortStableFunc(peers, func(a, b inspection.PeerTraffic) int { return active(b).Compare(active(a)) })
	return peers[:min(len(peers), inspection.MaxPeers)]
}
