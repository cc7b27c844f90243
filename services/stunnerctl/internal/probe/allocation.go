package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

const (
	// datagrams is the number of datagrams to each backend, and pause the time between two.
	datagrams = 3
	pause     = 200 * time.Millisecond
	// lastAnswers is the wait for the answers of backends after the last datagram.
	lastAnswers = time.Second
	// staleNonces is how often a request is repeated with a new nonce (RFC 8489 §9.2.5).
	staleNonces = 2
	// attrICMP is the attribute ICMP of Data indications (RFC 8656 §18.13).
	attrICMP stun.AttrType = 0x8004
	// udpTransport is the protocol number of UDP in REQUESTED-TRANSPORT.
	udpTransport = 17
)

// families are the values of REQUESTED-ADDRESS-FAMILY (RFC 8656 §18.8).
const (
	anyFamily byte = 0
	ipv4      byte = 1
	ipv6      byte = 2
)

func familyOf(a netip.Addr) byte {
	if a.Unmap().Is4() {
		return ipv4
	}
	return ipv6
}

// codeError is an error response.
type codeError int

func (e codeError) Error() string { return fmt.Sprintf("error %d", int(e)) }

// session is an allocation.
type session struct {
	*wire
	credential   credential.Credential
	realm, nonce []byte
	relay        netip.AddrPort
	seen         func(*stun.Message)
}

// open makes an allocation at a target with a relayed address of a family.
func (t target) open(ctx context.Context, c credential.Credential, family byte) (*session, error) {
	w, err := dial(ctx, t.uri.Protocol(), t.address, t.uri.Host)
	if err != nil {
		return nil, err
	}
	s := &session{wire: w, credential: c}
	attributes := []stun.Setter{stun.RawAttribute{
		Type: stun.AttrRequestedTransport, Value: []byte{udpTransport, 0, 0, 0},
	}}
	if family != anyFamily {
		attributes = append(attributes, stun.RawAttribute{
			Type: stun.AttrRequestedAddressFamily, Value: []byte{family, 0, 0, 0},
		})
	}
	answer, err := s.request(ctx, stun.MethodAllocate, attributes...)
	if err != nil {
		w.end()
		return nil, err
	}
	var relayed stun.XORMappedAddress
	if err := relayed.GetFromAs(answer, stun.AttrXORRelayedAddress); err != nil {
		w.end()
		return nil, errors.New("the answer has no relayed address")
	}
	a, _ := netip.AddrFromSlice(relayed.IP)
	s.relay = netip.AddrPortFrom(a.Unmap(), uint16(relayed.Port))
	if bye, err := s.build(stun.MethodRefresh, noLifetime); err == nil {
		w.farewell.Store(&bye.Raw)
	}
	return s, nil
}

// noLifetime makes a Refresh request delete the allocation.
var noLifetime = stun.RawAttribute{Type: stun.AttrLifetime, Value: make([]byte, 4)}

// peerAddress is the attribute XOR-PEER-ADDRESS.
type peerAddress netip.AddrPort

// AddTo adds the attribute to a message.
func (p peerAddress) AddTo(m *stun.Message) error {
	a := netip.AddrPort(p)
	return stun.XORMappedAddress{IP: a.Addr().AsSlice(), Port: int(a.Port())}.AddToAs(m, stun.AttrXORPeerAddress)
}

// build returns a signed request, or one without a signature before the realm is known.
func (s *session) build(method stun.Method, attributes ...stun.Setter) (*stun.Message, error) {
	setters := append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attributes...)
	if s.realm != nil {
		setters = append(setters, stun.NewUsername(s.credential.Username), stun.Realm(s.realm), stun.Nonce(s.nonce),
			stun.NewLongTermIntegrity(s.credential.Username, string(s.realm), string(s.credential.Password)))
	}
	return stun.Build(append(setters, stun.Fingerprint)...)
}

// request sends a request, and again with the realm and the nonce of the error response if it needs them. Other error
// responses are a codeError.
func (s *session) request(
	ctx context.Context,
	method stun.Method,
	attributes ...stun.Setter,
) (*stun.Message, error) {
	for stale := 0; ; {
		m, err := s.build(method, attributes...)
		if err != nil {
			return nil, err
		}
		answer, err := s.ask(ctx, m, s.seen)
		if err != nil {
			return nil, err
		}
		if answer.Type.Class == stun.ClassSuccessResponse {
			return answer, nil
		}
		var code stun.ErrorCodeAttribute
		if err := code.GetFrom(answer); err != nil {
			return nil, errors.New("the error response has no code")
		}
		realm, _ := answer.Get(stun.AttrRealm)
		nonce, _ := answer.Get(stun.AttrNonce)
		switch {
		case code.Code == stun.CodeUnauthorized && s.realm == nil && len(realm) > 0 && len(nonce) > 0:
		case code.Code == stun.CodeStaleNonce && stale < staleNonces && len(nonce) > 0:
			stale++
		default:
			return nil, codeError(code.Code)
		}
		if len(realm) > 0 {
			s.realm = slices.Clone(realm)
		}
		s.nonce = slices.Clone(nonce)
	}
}

// close deletes the allocation.
func (s *session) close(ctx context.Context) {
	if bye, err := s.build(stun.MethodRefresh, noLifetime); err == nil {
		if _, err = s.ask(ctx, bye, nil); err == nil {
			s.farewell.Store(nil)
		}
	}
	s.end()
}

// allocate makes an allocation at each URL that has answered, one after another, because a user may have few. Through
// the first one of a listener it tests the backends.
func (o Options) allocate(ctx context.Context, p *diagnose.Probe, targets []target, c credential.Credential) {
	first := map[string]target{}
	for i, t := range targets {
		u := &p.URLs[i]
		if u.Result != diagnose.ProbeAnswered || ctx.Err() != nil {
			continue
		}
		s, err := t.open(ctx, c, anyFamily)
		if ctx.Err() != nil && err != nil {
			return // the time is over
		}
		u.Allocation = &diagnose.ProbedAllocation{}
		if code := codeError(0); errors.As(err, &code) {
			u.Allocation.Code = int(code)
			continue
		} else if err != nil {
			u.Allocation.Error = err.Error()
			continue
		}
		u.Allocation.Relay = s.relay
		s.close(ctx)
		if _, known := first[t.listener.Name]; !known {
			first[t.listener.Name] = t
		}
	}
	for _, l := range o.Config.Listeners {
		t, ok := first[l.Name]
		if !ok {
			continue
		}
		all, omitted := o.backends(l, MaxBackends-len(p.Backends), p.Backends)
		p.OmittedBackends += omitted
		for _, family := range []byte{ipv4, ipv6} {
			of := slices.DeleteFunc(slices.Clone(all), func(b diagnose.ProbedBackend) bool { return familyOf(b.Peer.Addr()) != family })
			if len(of) > 0 {
				p.Backends = append(p.Backends, t.exchange(ctx, c, family, of)...)
			}
		}
	}
}

// backends returns at most a number of backends of a listener that are single addresses with a known port, and how many
// there are besides. A backend of an earlier listener is left out without being counted.
func (o Options) backends(l config.Listener, most int, earlier []diagnose.ProbedBackend) (all []diagnose.ProbedBackend, omitted int) {
	for _, cluster := range o.Config.Clusters {
		if !slices.Contains(l.Routes, cluster.Name) {
			continue
		}
		for _, text := range cluster.Endpoints {
			e, err := config.ParseEndpoint(text)
			if err != nil || !e.Prefix.IsSingleIP() || e.Ports == config.AllPorts {
				omitted++
				continue
			}
			peer := netip.AddrPortFrom(e.Prefix.Addr(), e.Ports.First)
			if slices.ContainsFunc(slices.Concat(earlier, all), func(b diagnose.ProbedBackend) bool {
				return b.Peer == peer && b.Route == cluster.Name
			}) {
				continue
			}
			if len(all) >= most {
				omitted++
				continue
			}
			all = append(all, diagnose.ProbedBackend{
				Listener: name(l.Name), Route: cluster.Name, Peer: peer, OnePort: e.Ports.First == e.Ports.Last,
			})
		}
	}
	return all, omitted
}

// exchange sends datagrams to backends of one family through one allocation, and counts the answers. The datagrams are
// STUN Binding requests without a credential, as those of ICE but for that.
func (t target) exchange(
	ctx context.Context,
	c credential.Credential,
	family byte,
	all []diagnose.ProbedBackend,
) []diagnose.ProbedBackend {
	s, err := t.open(ctx, c, family)
	if err != nil {
		for i := range all {
			all[i].Result, all[i].Detail = diagnose.ProbeFailed, "no allocation of its address family: "+err.Error()
		}
		return all
	}
	defer s.close(ctx)
	s.seen = func(m *stun.Message) { count(all, m) }
	for i := range all {
		all[i].Result, all[i].Detail = s.permit(ctx, all[i].Peer)
	}
	for range datagrams {
		for i := range all {
			if b := &all[i]; b.Result == diagnose.ProbeNoAnswer || b.Result == diagnose.ProbeAnswered {
				if s.send(b.Peer) == nil {
					b.Sent++
				}
			}
		}
		s.listen(ctx, pause)
	}
	complete := func() bool {
		return !slices.ContainsFunc(all, func(b diagnose.ProbedBackend) bool {
			return b.Result == diagnose.ProbeNoAnswer || b.Result == diagnose.ProbeAnswered && b.Returned < b.Sent
		})
	}
	for end := time.Now().Add(lastAnswers); !complete() && ctx.Err() == nil && time.Now().Before(end); {
		s.listen(ctx, pause/4)
	}
	return all
}

// permit creates a permission. Without one the result is final; with one it is ProbeNoAnswer until an answer arrives.
func (s *session) permit(ctx context.Context, peer netip.AddrPort) (diagnose.ProbeResult, string) {
	_, err := s.request(ctx, stun.MethodCreatePermission, peerAddress(peer))
	switch {
	case err == nil:
		return diagnose.ProbeNoAnswer, ""
	case errors.Is(err, codeError(stun.CodeForbidden)):
		return diagnose.ProbeDenied, err.Error()
	}
	return diagnose.ProbeFailed, "request for a permission: " + err.Error()
}

// send sends a STUN Binding request to a peer in a Send indication.
func (s *session) send(peer netip.AddrPort) error {
	data, err := stun.Build(stun.TransactionID, stun.BindingRequest, stun.Fingerprint)
	if err != nil {
		return err
	}
	m, err := stun.Build(stun.TransactionID, stun.NewType(stun.MethodSend, stun.ClassIndication), peerAddress(peer),
		stun.RawAttribute{Type: stun.AttrData, Value: data.Raw})
	if err != nil {
		return err
	}
	_, err = s.Write(m.Raw)
	return err
}

// listen passes messages to seen for a time.
func (s *session) listen(ctx context.Context, during time.Duration) {
	end := time.Now().Add(during)
	for ctx.Err() == nil {
		_ = s.SetReadDeadline(end)
		m, err := s.receive()
		if err == nil {
			s.seen(m)
			continue
		}
		if !errors.Is(err, errNotSTUN) || s.stream != nil { // a stream without STUN messages does not come back to them
			select { // a closed connection returns at once
			case <-ctx.Done():
			case <-time.After(time.Until(end)):
			}
			return
		}
	}
}

// count counts a Data indication for its peer. One with the attribute ICMP reports that the peer is not reached.
func count(all []diagnose.ProbedBackend, m *stun.Message) {
	var from stun.XORMappedAddress
	if m.Type != stun.NewType(stun.MethodData, stun.ClassIndication) || from.GetFromAs(m, stun.AttrXORPeerAddress) != nil {
		return
	}
	a, _ := netip.AddrFromSlice(from.IP)
	i := slices.IndexFunc(all, func(b diagnose.ProbedBackend) bool {
		return b.Peer == netip.AddrPortFrom(a.Unmap(), uint16(from.Port))
	})
	if i < 0 {
		return
	}
	if icmp, err := m.Get(attrICMP); err == nil && len(icmp) >= 4 {
		kind := binary.BigEndian.Uint16(icmp[2:4])
		all[i].Result = diagnose.ProbeRefused
		all[i].Detail = fmt.Sprintf("ICMP type %d, code %d", kind>>9, kind&0x1ff)
		return
	}
	all[i].Returned++
	all[i].Result = diagnose.ProbeAnswered
}
