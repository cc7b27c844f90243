package relay

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// restoredPermission is the shortest time for which the peer of a restored channel may send data in the channel. The
// journal does not contain the end of that permission, which ChannelData of the client extends (see channel.permitted).
// An ICE agent in a call sends a check at least this often (RFC 7675 §5.1), and each check extends the permission
// again.
const restoredPermission = 30 * time.Second

// longAnswered is the field answered of restored channels, whose ChannelBind was answered long ago.
var longAnswered = make(chan struct{})

func init() { close(longAnswered) }

// Restore binds the channels of a session that a previous process has created. The channels keep the times at which
// they expire. It must be called before Start. permissions are the permissions of the session that CreatePermission has
// installed.
func (r *Relay) Restore(channels []session.ChannelRecord, permissions []session.Permission) {
	wall, now := time.Now(), r.now()
	left := func(end time.Time, most time.Duration) time.Duration { return min(end.Sub(wall), most) }
	var live []*channel
	for _, saved := range channels {
		until := left(saved.Until, ChannelLifetime)
		if until <= 0 {
			continue
		}
		// ChannelBind installs a permission together with the binding.
		installed := until - (ChannelLifetime - PermissionLifetime)
		permitted := max(installed, restoredPermission)
		for _, p := range permissions {
			if p.Peer == saved.Peer.Addr() {
				permitted = max(permitted, left(p.Until, PermissionLifetime))
			}
		}
		c := &channel{
			number: saved.Number, peer: saved.Peer, since: saved.Installed, answered: longAnswered,
			count: &peerCount{addr: saved.Peer},
		}
		c.until.Store(int64(now + until))
		c.permitted.Store(int64(now + permitted))
		c.installed.Store(int64(now + installed))
		c.verdict.Store(new(verdict))
		live = append(live, c)
	}
	r.channels.Store(&live)
}

// ChannelRecords returns the channel bindings that have not ended.
func (r *Relay) ChannelRecords() (list []session.ChannelRecord) {
	wall, now := time.Now(), r.now()
	for _, c := range *r.channels.Load() {
		if r.live(c, now) {
			until := wall.Add(time.Duration(c.until.Load()) - now)
			list = append(list, session.ChannelRecord{Number: c.number, Peer: c.peer, Until: until, Installed: c.since})
		}
	}
	return list
}

// BoundSince returns when a channel was first bound to a peer, or now if it is not bound.
func (r *Relay) BoundSince(number uint16, peer netip.AddrPort, now time.Time) time.Time {
	if c := r.byNumber(number, r.since(now)); c != nil && c.peer == peer {
		return c.since
	}
	return now
}
