package gate

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// MaxPermissions bounds the permissions of one allocation, because the allocation engine keeps a timer for each.
	MaxPermissions = 256
	// permissionLifetime is how long a permission lasts without a refresh (RFC 8656 §9).
	permissionLifetime = 5 * time.Minute
)

// permissions counts the permissions of an allocation for the limit MaxPermissions, and charges the session for its
// permissions and channels. The allocation engine enforces the permissions themselves, except restored permissions,
// because the engine would restart their lifetime.
type permissions struct {
	mu   sync.Mutex
	list []permission // a map would take 400 bytes more for an allocation with one peer
	// memory is the claim for the memory of the permissions and channels.
	memory session.Claim
}

type permission struct {
	peer  netip.Addr
	until time.Time
	// restored is set for a permission that a previous process has granted. Such a permission ends at until.
	restored bool
}

// errPermissions is the error of reserve if the allocation would have more than MaxPermissions permissions.
var errPermissions = errors.New("the allocation has as many permissions as it may have")

// reserve makes room for permissions for the given peers, so that grant may add them. If some of them are new, or if
// the request adds a channel, it charges the session for all its permissions and channels. The error is errPermissions
// or an error of session.Claim.Set. Existing permissions and channels are never refused.
func (p *permissions) reserve(peers []netip.AddrPort, channels int, channel bool, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fresh := p.fresh(peers); fresh == 0 && !channel {
		return nil
	}
	p.list = slices.DeleteFunc(p.list, func(held permission) bool { return now.After(held.until) })
	all := len(p.list) + p.fresh(peers)
	if all > MaxPermissions {
		return errPermissions
	}
	return p.memory.Set(session.PriceOfMore(all, channels))
}

// fresh returns how many of the peers have no permission. The result is at most MaxPermissions+1.
func (p *permissions) fresh(peers []netip.AddrPort) int {
	var fresh []netip.Addr
	for _, peer := range peers {
		if len(fresh) <= MaxPermissions && p.held(peer.Addr()) == nil && !slices.Contains(fresh, peer.Addr()) {
			fresh = append(fresh, peer.Addr())
		}
	}
	return len(fresh)
}

// charge charges the session for permissions and channels that a previous process has granted.
func (p *permissions) charge(channels int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.memory.Force(session.PriceOfMore(len(p.list), channels))
}

// release frees the charged memory. It is called when the session has ended.
func (p *permissions) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.memory.Release()
}

func (p *permissions) held(peer netip.Addr) *permission {
	for i := range p.list {
		if p.list[i].peer == peer {
			return &p.list[i]
		}
	}
	return nil
}

// grant records permissions that the allocation engine has installed or refreshed.
func (p *permissions) grant(peers []netip.AddrPort, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, peer := range peers {
		held := p.held(peer.Addr())
		if held == nil {
			p.list = append(p.list, permission{peer: peer.Addr()})
			held = &p.list[len(p.list)-1]
		}
		held.until = now.Add(permissionLifetime)
	}
}

// restore adds permissions that a previous process has granted, with their remaining lifetimes.
func (p *permissions) restore(saved []session.Permission, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range saved {
		if left := min(s.Until.Sub(now), permissionLifetime); left > 0 {
			p.list = append(p.list, permission{peer: s.Peer, until: now.Add(left), restored: true})
		}
	}
}

// records returns the permissions that have not expired, at most session.MaxPermissions.
func (p *permissions) records(now time.Time) (list []session.Permission) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, held := range p.list {
		if now.Before(held.until) && len(list) < session.MaxPermissions {
			list = append(list, session.Permission{Peer: held.peer, Until: held.until})
		}
	}
	return list
}

// restored reports whether a peer has a permission that a previous process has granted. Requests to this process extend
// it too.
func (p *permissions) restored(peer netip.Addr, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := p.held(peer)
	return held != nil && held.restored && now.Before(held.until)
}

// permits reports whether the IP address of a peer has a permission that CreatePermission has installed.
func (f *flow) permits(peer netip.AddrPort) bool {
	return f.permitted.restored(peer.Addr(), time.Now()) || f.allocation.Permitted(peer)
}
