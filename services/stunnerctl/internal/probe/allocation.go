package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

const (
	// datagrams is the number of datagrams to each backend. pause is the time between two datagrams.
	datagrams = 3
	pause     = 200 * time.Millisecond
	// lastAnswers is how long a probe waits for answers of backends after the last datagram.
	lastAnswers = time.Second
	// staleNonces is how often a request is repeated with a new nonce (RFC 8489 §9.2.5).
	staleNonces = 2
	// attrICMP is the attribute ICMP of Data indications (RFC 8656 §18.13).
	attrICMP stun.AttrType = 0x8004
	// udpTransport is the protocol number of UDP in REQUESTED-TRANSPORT.
	udpTransport = 17
)

// attrIgnored is a comprehension-optional attribute that no server understands, which makes a datagram longer. Servers
// ignore it, and refuse PADDING (RFC 8489 §6.3.1).
const attrIgnored stun.AttrType = 0xFFFE

// codeError is an error response.
type codeError int

func (e codeError) Error() string { return fmt.Sprintf("error %d", int(e)) }

// session is an allocation.
type session struct {
	*serverConn
	credential   credential.Credential
	realm, nonce []byte
	// relay is the relayed address. client is the address of the client as the server has received it.
	relay, client netip.AddrPort
	seen          func(*stun.Message)
}

// open makes an allocation at a target with a relayed address of a family.
func (t target) open(ctx context.Context, c credential.Credential, family turncat.Family) (*session, error) {
	w, err := dial(ctx, t.uri.Protocol(), t.address, t.uri.Host)
	if err != nil {
		return nil, err
	}
	s := &session{serverConn: w, credential: c}
	attributes := []stun.Setter{stun.RawAttribute{
		Type: stun.AttrRequestedTransport, Value: []byte{udpTransport, 0, 0, 0},
	}}
	if family != turncat.AnyFamily {
		attributes = append(attributes, stun.RawAttribute{
			Type: stun.AttrRequestedAddressFamily, Value: []byte{byte(family), 0, 0, 0},
		})
	}
	answer, err := s.request(ctx, stun.MethodAllocate, attributes...)
	if err != nil {
		w.end()
		return nil, err
	}
	if s.relay = addressIn(answer, stun.AttrXORRelayedAddress); !s.relay.IsValid() {
		w.end()
		return nil, errors.New("the answer has no relayed address")
	}
	s.client = addressIn(answer, stun.AttrXORMappedAddress)
	if bye, err := s.build(stun.MethodRefresh, noLifetime); err == nil {
		w.lastMessage.Store(&bye.Raw)
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

// build returns a signed request. Before the realm is known, the request has no signature.
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
			s.lastMessage.Store(nil)
		}
	}
	s.end()
}

// allocate makes an allocation at each URL that has answered, one after another, because a user may have few
// allocations. Through the first allocation of a listener it tests the backends.
func (o Options) allocate(ctx context.Context, p *diagnose.Probe, targets []target, c credential.Credential) {
	first := map[string]int{}
	for i, t := range targets {
		u := &p.URLs[i]
		if u.Result != diagnose.ProbeAnswered || ctx.Err() != nil {
			continue
		}
		s, err := t.open(ctx, c, turncat.AnyFamily)
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
		if t.longNeedsSession() {
			if u.Long.Sent = 1; s.passes(ctx, u.Long.Bytes) {
				u.Long.Answered = 1
			}
		}
		s.close(ctx)
		if _, known := first[t.listener.Name]; !known {
			first[t.listener.Name] = i
		}
	}
	for _, l := range o.Config.Listeners {
		i, ok := first[l.Name]
		if !ok {
			continue
		}
		all, omitted := o.backends(l, MaxBackends-len(p.Backends), p.Backends)
		p.OmittedBackends += omitted
		for _, family := range []turncat.Family{turncat.IPv4, turncat.IPv6} {
			of := slices.DeleteFunc(slices.Clone(all), func(b diagnose.ProbedBackend) bool {
				return turncat.FamilyOf(b.Peer.Addr()) != family
			})
			if len(of) > 0 {
				o.exchange(ctx, targets[i], c, family, &exchange{all: of, long: p.URLs[i].Long.Passes()})
				p.Backends = append(p.Backends, of...)
			}
		}
	}
}

// backends returns at most a number of backends of a listener that are single addresses with a known port, and the
// number of further such backends. A backend of an earlier listener is left out without being counted.
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

// exchange are datagrams to backends of one family through one allocation, and their answers.
type exchange struct {
	all []diagnose.ProbedBackend
	// long is set to send long datagrams too.
	long bool
	// lengths are the lengths of the requests, by transaction ID. matched counts the answers to short requests, by
	// peer.
	lengths map[[stun.TransactionIDSize]byte]int
	matched map[netip.AddrPort]int
	// trains are the trains to backends, by their index.
	trains map[int]*train
	// unexpected are the addresses that have sent datagrams although nothing was sent to them.
	unexpected []netip.AddrPort
}

// exchange sends datagrams to backends, and counts the answers. The datagrams are STUN Binding requests as in ICE, but
// without a credential.
func (o Options) exchange(ctx context.Context, t target, c credential.Credential, family turncat.Family, e *exchange) {
	s, err := t.open(ctx, c, family)
	if err != nil {
		for i := range e.all {
			e.all[i].Result, e.all[i].Detail = diagnose.ProbeFailed, "no allocation of its address family: "+err.Error()
		}
		return
	}
	defer s.close(ctx)
	begun := time.Now()
	s.seen, e.lengths, e.matched = e.count, map[[stun.TransactionIDSize]byte]int{}, map[netip.AddrPort]int{}
	for i := range e.all {
		e.all[i].Result, e.all[i].Detail = s.permit(ctx, e.all[i].Peer)
	}
	for range datagrams {
		for i := range e.all {
			if b := &e.all[i]; b.Result == diagnose.ProbeNoAnswer || b.Result == diagnose.ProbeAnswered {
				e.send(s, b, 0)
				if e.long {
					e.send(s, b, min(longest(t.uri.Protocol()), longest(config.TURNUDP))-indicationHeader)
				}
			}
		}
		s.listen(ctx, pause)
	}
	missing := func(b diagnose.ProbedBackend) bool {
		return b.Result == diagnose.ProbeNoAnswer ||
			b.Result == diagnose.ProbeAnswered && (b.Returned < b.Sent || b.Long.Answered < b.Long.Sent)
	}
	for end := time.Now().Add(lastAnswers); slices.ContainsFunc(e.all, missing) && ctx.Err() == nil && time.Now().Before(end); {
		s.listen(ctx, pause/4)
	}
	e.sendTrains(ctx, s)
	silent := func(b diagnose.ProbedBackend) bool { return b.Result == diagnose.ProbeNoAnswer }
	var seen Seen
	if o.Seen != nil && slices.ContainsFunc(e.all, silent) {
		seen = o.Seen(ctx, c.Username, s.client.Addr(), begun)
	}
	for _, a := range seen.Unexpected {
		if turncat.FamilyOf(a.Addr()) == family {
			e.addUnexpected(a)
		}
	}
	for i := range e.all {
		b := &e.all[i]
		switch {
		case silent(*b) && slices.Contains(seen.Undelivered, b.Peer):
			b.Result = diagnose.ProbeUndelivered
		case silent(*b):
			b.Elsewhere = e.otherSources(b.Peer)
		}
		if e.matched[b.Peer] == 0 {
			b.Long = diagnose.ProbedLong{} // the answer cannot be attributed to a datagram
		}
	}
}

// indicationHeader is the length of a Send indication to an IPv6 peer without the data.
const indicationHeader = 20 + 24 + 4

// send sends a STUN Binding request of at least a length to a backend in a Send indication.
func (e *exchange) send(s *session, b *diagnose.ProbedBackend, length int) {
	data, err := bindingRequest(attrIgnored, length)
	if err != nil {
		return
	}
	e.lengths[data.TransactionID] = length
	if s.indicate(b.Peer, data) != nil {
		return
	}
	if length == 0 {
		b.Sent++
	} else {
		b.Long.Bytes = length
		b.Long.Sent++
	}
}

// indicate sends a message to a peer in a Send indication.
func (s *session) indicate(peer netip.AddrPort, data *stun.Message) error {
	m, err := stun.Build(stun.TransactionID, stun.NewType(stun.MethodSend, stun.ClassIndication), peerAddress(peer),
		stun.RawAttribute{Type: stun.AttrData, Value: data.Raw})
	if err == nil {
		_, err = s.Write(m.Raw)
	}
	return err
}

// count counts a Data indication for its peer. One with the attribute ICMP reports that the peer is not reached.
func (e *exchange) count(m *stun.Message) {
	from := addressIn(m, stun.AttrXORPeerAddress)
	if m.Type != stun.NewType(stun.MethodData, stun.ClassIndication) || !from.IsValid() {
		return
	}
	i := slices.IndexFunc(e.all, func(b diagnose.ProbedBackend) bool { return b.Peer == from })
	icmp, err := m.Get(attrICMP)
	switch isICMP := err == nil && len(icmp) >= 4; {
	case i < 0 && !isICMP:
		e.addUnexpected(from)
		return
	case i < 0:
		return
	case isICMP:
		kind := binary.BigEndian.Uint16(icmp[2:4])
		if result := icmpResult(from.Addr(), kind>>9, kind&0x1ff); e.all[i].Returned == 0 && result != "" {
			e.all[i].Result, e.all[i].Detail = result, fmt.Sprintf("ICMP type %d, code %d", kind>>9, kind&0x1ff)
		}
		return
	}
	b, data := &e.all[i], &stun.Message{}
	b.Result, b.Detail = diagnose.ProbeAnswered, ""
	raw, err := m.Get(stun.AttrData)
	length, known := 0, false
	if err == nil && stun.IsMessage(raw) && stun.Decode(raw, data) == nil {
		if t := e.trains[i]; t != nil && t.answered(data.TransactionID) {
			return
		}
		length, known = e.lengths[data.TransactionID]
	}
	switch {
	case length > 0:
		b.Long.Answered++
	case known:
		e.matched[from]++
		fallthrough
	default:
		b.Returned++
	}
	var code stun.ErrorCodeAttribute
	if data.Type.Class == stun.ClassErrorResponse && code.GetFrom(data) == nil {
		b.Code = int(code.Code)
	}
}

// icmpResult returns the meaning of an ICMP message about a datagram to an address. It returns "" if the message does
// not mean that the address is unreachable. The types and codes are defined in RFC 792, RFC 1812 §5.2.7.1 and RFC 4443.
func icmpResult(to netip.Addr, kind, code uint16) diagnose.ProbeResult {
	is := func(k uint16, codes ...uint16) bool { return kind == k && slices.Contains(codes, code) }
	v4 := to.Is4()
	switch {
	case v4 && is(3, 2, 3), !v4 && is(1, 4):
		return diagnose.ProbeRefused
	case v4 && is(3, 9, 10, 13), !v4 && is(1, 1, 5, 6):
		return diagnose.ProbeRejected
	case v4 && is(3, 4), !v4 && kind == 2:
		return "" // the datagram is too long, and is sent in fragments from now on
	}
	return diagnose.ProbeUnreachable
}

// addUnexpected adds an address to which nothing was sent.
func (e *exchange) addUnexpected(a netip.AddrPort) {
	asked := func(b diagnose.ProbedBackend) bool { return b.Peer == a }
	if !slices.ContainsFunc(e.all, asked) && !slices.Contains(e.unexpected, a) {
		e.unexpected = append(e.unexpected, a)
	}
}

// otherSources returns the addresses from which the answers of a silent peer may have arrived: other ports of it, and
// if no other peer is silent, addresses that belong to no other peer. If several peers are silent, the peer of such an
// answer is unknown.
func (e *exchange) otherSources(peer netip.AddrPort) string {
	var from []string
	silent := 0
	for _, b := range e.all {
		if b.Result == diagnose.ProbeNoAnswer {
			silent++
		}
	}
	for _, a := range e.unexpected {
		ofPeer := func(b diagnose.ProbedBackend) bool { return b.Peer.Addr() == a.Addr() }
		if len(from) < maxUnexpected && (a.Addr() == peer.Addr() || silent <= 1 && !slices.ContainsFunc(e.all, ofPeer)) {
			from = append(from, a.String())
		}
	}
	return strings.Join(from, ", ")
}

// maxUnexpected is the maximum number of addresses that a finding names.
const maxUnexpected = 4

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

// listen passes messages to seen for a time.
func (s *session) listen(ctx context.Context, during time.Duration) {
	s.serverConn.listen(ctx, during, s.seen)
}
