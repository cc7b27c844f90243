package probe

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// source is where a client comes from, and the nonce that the server gave to that place. Servers limit what they answer to strangers
// by source address, so that a prober with one address must not ask for a new nonce with each check.
type source struct {
	addr netip.Addr // the zero value leaves the choice to the system

	mu           sync.Mutex
	realm, nonce string
}

// sources hands out sources: on 127.0.0.0/8 each is another address, elsewhere there is one.
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
