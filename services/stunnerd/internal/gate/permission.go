package gate

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// MaxPermissions bounds the peer addresses for which one allocation may hold a permission: pion/turn keeps a timer for each.
	MaxPermissions = 256
	// permissionLifetime is how long a permission lasts without a refresh (RFC 8656 §9).
	permissionLifetime = 5 * time.Minute
)

// permissions counts the permissions of an allocation. pion/turn decides what they allow; this is how many there are.
type permissions struct {
	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

// room tells whether permissions for these peers, on top of what there is, stay within the bound.
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

// grant notes permissions that pion/turn has installed or refreshed.
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
	for addr, until := range p.until {
		if now.After(until) {
			delete(p.until, addr)
		}
	}
}
