package gate

import (
	"maps"
	"net/netip"
	"sync"
	"time"
)

const (
	// MaxPermissions bounds the permissions of one allocation, because the allocation engine keeps a timer for each.
	MaxPermissions = 256
	// permissionLifetime is how long a permission lasts without a refresh (RFC 8656 §9).
	permissionLifetime = 5 * time.Minute
)

// permissions counts the permissions of an allocation for the limit MaxPermissions. The allocation engine enforces the
// permissions themselves.
type permissions struct {
	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

// room reports whether the allocation has at most MaxPermissions permissions if permissions for the given peers are
// added.
func (p *permissions) room(peers []netip.AddrPort, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := map[netip.Addr]bool{}
	for _, peer := range peers {
		if _, held := p.until[peer.Addr()]; !held {
			fresh[peer.Addr()] = true
		}
	}
	if len(p.until)+len(fresh) > MaxPermissions {
		p.expire(now)
	}
	return len(p.until)+len(fresh) <= MaxPermissions
}

// grant records permissions that the allocation engine has installed or refreshed.
func (p *permissions) grant(peers []netip.AddrPort, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until = map[netip.Addr]time.Time{}
	}
	for _, peer := range peers {
		p.until[peer.Addr()] = now.Add(permissionLifetime)
	}
}

func (p *permissions) expire(now time.Time) {
	maps.DeleteFunc(p.until, func(_ netip.Addr, until time.Time) bool { return now.After(until) })
}
