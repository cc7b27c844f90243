package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// lifetime returns a LIFETIME attribute, or none, and the lifetime to be granted (RFC 8656 §7.2). It is 0 for an
// attribute that does not have 32 bits.
func (m *trial) lifetime() (attrs []stun.Setter, granted uint32) {
	switch asked := pick[uint32](m, 0, 0, 0, 0, 1, 600, 1800, 3000, 3599, 3600, 1<<31); {
	case m.often(2):
		return []stun.Setter{stun.RawAttribute{Type: stun.AttrLifetime, Value: []byte{14, 16}}}, 0
	case asked == 0:
		return nil, 600
	default:
		return []stun.Setter{lifetime(asked)}, min(max(asked, 600), 3600)
	}
}

// wish is the content of an Allocate request.
type wish struct {
	granted   uint32
	transport uint32 // 0 for none
	even, two bool   // EVEN-PORT, and whether it also reserves the next port
	token     *relay.Token
	family    byte // 0 for any
	also      byte // ADDITIONAL-ADDRESS-FAMILY
	whole     bool // DONT-FRAGMENT
}

func (m *trial) wish() (w wish, attrs []stun.Setter) {
	attrs, w.granted = m.lifetime()
	if w.transport = uint32(m.mostly(17, 0, 6)); w.transport != 0 {
		attrs = append(attrs, number(stun.AttrRequestedTransport, w.transport<<24))
	}
	if w.whole = m.often(10); w.whole {
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrDontFragment})
	}
	if m.often(15) {
		token := m.token()
		w.token = &token
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrReservationToken, Value: token[:]})
	}
	alone := w.token != nil && m.often(80) // a token is valid only with few other attributes
	if w.even = !alone && m.often(20); w.even {
		bit := byte(0)
		if w.two = m.often(60); w.two {
			bit = 0x80
		}
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrEvenPort, Value: []byte{bit}})
	}
	if !alone && m.often(25) {
		w.family = pick[byte](m, 1, 2, 2, 2, 2, 2, 7)
		attrs = append(attrs, number(stun.AttrRequestedAddressFamily, uint32(w.family)<<24))
	}
	if !alone && m.often(5) {
		w.also = pick[byte](m, 2, 2, 2, 1)
		attrs = append(attrs, number(stunmsg.AttrAdditionalFamily, uint32(w.also)<<24))
	}
	return w, attrs
}

// token returns a token of the model, usually the token of the lowest port, or an unknown token.
func (m *trial) token() (token relay.Token) {
	binary.BigEndian.PutUint64(token[:], m.rng.Uint64())
	lowest := uint16(0)
	for given, r := range m.reserved {
		if lowest == 0 || r.at.Port() < lowest {
			token, lowest = given, r.at.Port()
		}
	}
	return token
}

func (m *trial) allocate(a *actor) outcome {
	w, attrs := m.wish()
	o := m.request(a, stun.MethodAllocate, w, attrs, func(l login) (stun.ErrorCode, func(*stun.Message) error) {
		want := netip.AddrPortFrom(relay4, 0)
		if w.family == stunmsg.FamilyIPv6 {
			want = netip.AddrPortFrom(relay6, 0)
		}
		switch {
		case a.alloc != nil:
			return 437, nil
		case w.transport == 0:
			return 400, nil
		case w.transport != 17:
			return 442, nil
		case w.whole && m.net.Fragments:
			return 420, nil
		case w.granted == 0,
			w.token != nil && (w.even || w.family != 0 || w.also != 0), w.also != 0 &&
				(w.two || w.family != 0), w.also == stunmsg.FamilyIPv4:
			return 400, nil
		case w.family == 7:
			return 440, nil
		case m.retired:
			return 508, nil
		case w.token != nil:
			held, good := m.reserved[*w.token]
			if !good || held.owner.user != l.user {
				return 508, nil
			}
			m.seen["Allocate by token"]++
			want = held.at
			delete(m.reserved, *w.token)
		case m.overQuota(a, l, 0):
			return 486, nil
		case m.full(0):
			return 508, nil
		case w.two && m.overQuota(a, l, 1):
			return 486, nil
		case w.two && m.full(1):
			return 508, nil
		}
		a.alloc = &modelAllocation{
			username: l.username, user: l.user, source: a.addr.Addr(), login: l,
			permissions: map[netip.Addr]time.Time{}, channels: map[uint16]binding{},
		}
		a.alloc.grant(w.granted)
		return 0, func(answer *stun.Message) error { return m.allocated(a, w, answer, want) }
	})
	if o.name == "Allocate success" {
		a.alloc.request, a.alloc.born = m.last, a.born
	}
	return o
}

func (w wish) String() string {
	return fmt.Sprintf(
		"(%d s, transport %d, family %d+%d, even %t, two %t, token %t, whole %t)", w.granted, w.transport, w.family,
		w.also, w.even, w.two, w.token != nil, w.whole,
	)
}

func (al *modelAllocation) grant(seconds uint32) {
	al.granted, al.ends = seconds, time.Now().Add(time.Duration(seconds)*time.Second)
}

// full reports whether the process lacks capacity for this many more relay ports.
func (m *trial) full(more int) bool {
	capacity := int(m.bounds.Capacity[session.RelayPorts])
	return capacity > 0 && m.live()+len(m.reserved)+more >= capacity
}

// overQuota reports whether this many more relay ports exceed the quota of the user or of the source, or the capacity
// of the process.
func (m *trial) overQuota(a *actor, l login, more int) bool {
	users, sources := more, more
	for _, r := range m.reserved {
		if r.owner.user == l.user {
			users++
		}
		if r.owner.source == a.addr.Addr() {
			sources++
		}
	}
	for _, other := range m.actors {
		if other.alloc == nil {
			continue
		}
		if other.alloc.user == l.user {
			users++
		}
		if other.addr.Addr() == a.addr.Addr() {
			sources++
		}
	}
	return m.bounds.UserSessions > 0 && users >= m.bounds.UserSessions || m.bounds.SourceSessions > 0 &&
		sources >= m.bounds.SourceSessions
}

// allocated checks the answer to an Allocate and records the relayed address. The port of want counts only for a token.
func (m *trial) allocated(a *actor, w wish, answer *stun.Message, want netip.AddrPort) error {
	at, err := m.relayOf(a, answer)
	if err != nil {
		return err
	}
	port := at.Port()
	given, tokenErr := answer.Get(stun.AttrReservationToken)
	switch {
	case at.Addr() != want.Addr(), w.token != nil && at != want:
		return fmt.Errorf("relay %s, want %s", at, want)
	case w.even && port%2 != 0:
		return fmt.Errorf("port %d is not even", port)
	case w.two != (tokenErr == nil && len(given) == 8):
		return fmt.Errorf("reservation token % x, want one: %t", given, w.two)
	case answer.Contains(stunmsg.AttrAddressErrorCode) != (w.also != 0):
		return fmt.Errorf("ADDRESS-ERROR-CODE in the answer to additional family %d: %t", w.also, w.also == 0)
	}
	if m.taken(at) {
		return fmt.Errorf("relay %s is somebody else's", at)
	}
	if w.two {
		next := netip.AddrPortFrom(at.Addr(), port+1)
		if m.taken(next) {
			return fmt.Errorf("reserved port %s is somebody else's", next)
		}
		m.reserved[relay.Token(given)] = reservedPort{next, time.Now().Add(30 * time.Second), a.alloc}
	}
	a.alloc.relay, a.relay = at, at
	return nil
}

// relayOf checks the answer to an Allocate and returns the relayed address.
func (m *trial) relayOf(a *actor, answer *stun.Message) (netip.AddrPort, error) {
	var relayed, mapped stun.XORMappedAddress
	if err := errors.Join(relayed.GetFromAs(answer, stun.AttrXORRelayedAddress), mapped.GetFrom(answer)); err != nil {
		return netip.AddrPort{}, err
	}
	if mapped.String() != a.addr.String() {
		return netip.AddrPort{}, fmt.Errorf("mapped address %s", mapped)
	}
	ip, _ := netip.AddrFromSlice(relayed.IP)
	return netip.AddrPortFrom(ip.Unmap(), uint16(relayed.Port)), grants(answer, a.alloc.granted)
}

func grants(answer *stun.Message, want uint32) error {
	if v, err := answer.Get(stun.AttrLifetime); err != nil || binary.BigEndian.Uint32(v) != want {
		return fmt.Errorf("lifetime % x, %w, want %d", v, err, want)
	}
	return nil
}

func (m *trial) taken(at netip.AddrPort) bool {
	for _, r := range m.reserved {
		if r.at == at {
			return true
		}
	}
	return m.holder(at) != nil
}

// holder returns the client with a relayed address, or nil.
func (m *trial) holder(relay netip.AddrPort) *actor {
	for _, a := range m.actors {
		if a.alloc != nil && a.alloc.relay == relay {
			return a
		}
	}
	return nil
}

// repeatAllocate retransmits the Allocate of an allocation, which changes nothing (RFC 8656 §7.2).
func (m *trial) repeatAllocate(a *actor) outcome {
	if a.alloc == nil {
		return m.allocate(a)
	}
	al := a.alloc
	if !al.born.Equal(a.born) || a.nonceAtItsEnd() {
		return m.allocate(a) // the nonce is about to expire
	}
	code, key := m.meet(a, al.login, stun.MethodRefresh, sound) // a former credential is valid, as for a Refresh
	m.seen["Allocate once more"]++
	m.Receive(al.request.Raw, a)
	return m.said(m.answered(a, stun.MethodAllocate, al.request, code, key, func(answer *stun.Message) error {
		at, err := m.relayOf(a, answer)
		if err == nil && at != al.relay {
			err = fmt.Errorf("relay %s, was %s", at, al.relay)
		}
		return err
	}), "%s repeats its Allocate", a.name)
}

func (m *trial) refresh(a *actor) outcome {
	attrs, granted := m.lifetime()
	unreadable, end := granted == 0, m.often(25)
	if end {
		attrs, granted, unreadable = []stun.Setter{lifetime(0)}, 0, false
	}
	family := byte(0)
	if m.often(15) {
		family = pick[byte](m, 1, 2)
		attrs = append(attrs, number(stun.AttrRequestedAddressFamily, uint32(family)<<24))
	}
	return m.request(a, stun.MethodRefresh, wish{granted: granted, family: family}, attrs, func(l login) (
		stun.ErrorCode, func(*stun.Message) error,
	) {
		switch code := a.owned(l); {
		case code != 0:
			return code, nil
		case unreadable:
			return 400, nil
		case family != 0 && family != stunmsg.Family(a.alloc.relay.Addr()):
			return 443, nil
		case end:
			a.alloc = nil
			return 0, func(answer *stun.Message) error { return grants(answer, 0) }
		}
		a.alloc.grant(granted)
		return 0, func(answer *stun.Message) error { return grants(answer, granted) }
	})
}

// owned returns the code for a request without an allocation, or for a request of a user that does not own the
// allocation.
func (a *actor) owned(l login) stun.ErrorCode {
	switch {
	case a.alloc == nil:
		return 437
	case a.alloc.username != l.username:
		return 441
	}
	return 0
}
