// Package ice implements the part of ICE (RFC 8445) that is needed when a relayed address changes: the connectivity
// checks of a client, and a peer with a lite agent, as in media servers.
package ice

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/stun/v2"
)

// Interval is the time between two checks of a client whose call works, as in Chromium.
const Interval = 2500 * time.Millisecond

const password = "the password of the peer"

// Session is the ICE session of a client. username is the USERNAME of its checks.
type Session struct{ username stun.Username }

// NewSession returns a session with a number.
func NewSession(number int) *Session {
	return &Session{stun.NewUsername(fmt.Sprintf("peer:%d", number))}
}

// Check returns a connectivity check with USE-CANDIDATE.
func (s *Session) Check() []byte {
	m, err := stun.Build(stun.TransactionID, stun.BindingRequest, s.username,
		stun.RawAttribute{Type: stun.AttrUseCandidate}, stun.NewShortTermIntegrity(password), stun.Fingerprint)
	if err != nil {
		panic(err) // the only error is a username that is too long
	}
	return m.Raw
}

// peer is an echo peer with a lite agent.
type peer struct {
	conn *net.UDPConn
	mu   sync.Mutex
	// valid maps the source address of each check to its USERNAME. selected maps a USERNAME to its latest nominated
	// address.
	valid    map[netip.AddrPort]string
	selected map[string]netip.AddrPort
}

// Serve is an echo peer with a lite agent, until the socket is closed. It accepts data only from addresses from which
// an authentic check has arrived, and sends the echo to the address that the client has nominated last.
func Serve(conn *net.UDPConn) {
	p := &peer{conn: conn, valid: map[netip.AddrPort]string{}, selected: map[string]netip.AddrPort{}}
	p.serve()
}

func (p *peer) serve() {
	buf := make([]byte, 2048)
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // an ICMP error belongs to an ended relay
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if stun.IsMessage(buf[:n]) {
			p.check(buf[:n], from)
		} else if to, ok := p.echo(from); ok {
			_, _ = p.conn.WriteToUDPAddrPort(buf[:n], to) // callers count losses
		}
	}
}

// check answers an authentic check, and selects the source address of a check with USE-CANDIDATE.
func (p *peer) check(b []byte, from netip.AddrPort) {
	var m stun.Message
	var username stun.Username
	key := stun.NewShortTermIntegrity(password)
	if stun.Decode(b, &m) != nil || m.Type != stun.BindingRequest || username.GetFrom(&m) != nil || key.Check(&m) != nil {
		return
	}
	answer, err := stun.Build(stun.NewTransactionIDSetter(m.TransactionID), stun.BindingSuccess,
		&stun.XORMappedAddress{IP: from.Addr().AsSlice(), Port: int(from.Port())}, key, stun.Fingerprint)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.valid[from] = username.String()
	if m.Contains(stun.AttrUseCandidate) {
		p.selected[username.String()] = from
	}
	p.mu.Unlock()
	_, _ = p.conn.WriteToUDPAddrPort(answer.Raw, from)
}

// echo returns the address that is selected for a valid address.
func (p *peer) echo(from netip.AddrPort) (netip.AddrPort, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	to, ok := p.selected[p.valid[from]]
	return to, ok
}
