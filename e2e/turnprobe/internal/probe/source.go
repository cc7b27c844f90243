package probe

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// source is a source address for clients, with the nonce that the server issued for it. Servers limit unauthenticated
// requests by source address, so a prober with one address must reuse its nonce.
type source struct {
	addr netip.Addr // the zero value means the kernel's choice

	mu           sync.Mutex
	realm, nonce string
}

// sources allocates sources. For a server on 127.0.0.0/8 each source has another address; otherwise all share one.
type sources struct {
	many   bool
	next   atomic.Uint32
	shared source
}

func newSources(server netip.Addr) *sources {
	return &sources{many: server.Is4() && server.IsLoopback()}
}

func (s *sources) take() *source {
	if !s.many {
		return &s.shared
	}
	n := s.next.Add(1)
	return &source{addr: netip.AddrFrom4([4]byte{127, 64 + byte(n>>16), byte(n >> 8), byte(n)})}
}

func (s *source) know() (realm, nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.realm, s.nonce
}

func (s *source) learn(realm, nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.realm, s.nonce = realm, nonce
}
