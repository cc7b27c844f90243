package abuse

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

const (
	// hoarders is the number of sessions that one user opens at a time, connectors that of connections without a session,
	// and repeats how often each session repeats its act at once.
	hoarders, connectors, repeats = 16, 64, 70
	// datagram is the size of a large request over UDP, in bytes.
	datagram = 1200
	// permitted is the number of peers of a session that sends data.
	permitted = 64
	// journalLimit is the size of the volume of the journal, in bytes.
	journalLimit = 4 << 20
)

var (
	largestFlag = flag.Bool("largest", false, "run TestLargestClients with each request, attribute and transport")
	// The memory of the server includes that of the kernel for it. The less it has, the sooner one user holds all of it.
	memoryFlag   = flag.Int64("memory", 64, "MiB of the server in TestLargestClients")
	hoardingFlag = flag.Duration("hoarding", 12*time.Second, "duration of the activity of one user in TestLargestClients")
)

// An act is a message that a user repeats, with other values each time, in as many sessions as it gets, some of
// them at once and four a second then. Sessions over TCP and TLS end with half of the largest message instead.
// The act idle is no message: see hoard.connection. In the act fromPeers peers send to the sessions, whose clients over
// TCP and TLS read nothing.
type act struct {
	over      call.Network
	request   string // of requests, or one of the constants below
	attribute string // of attributes
	as        string // of identities
}

func (a act) String() string {
	if a.request == idle {
		return fmt.Sprintf("idle connections over %s", a.over)
	}
	return fmt.Sprintf("%s with %s over %s%s", a.request, a.attribute, a.over, a.as)
}

// The identities of the sessions of an act, beside those of one user with one address.
const (
	manyUsers     = ", each with a user ID of 400 bytes"
	manyAddresses = ", each from another address"
)

const (
	// channelData is the request that is no STUN message.
	channelData = "ChannelData"
	// idle is the request of connections without a session.
	idle = "none"
	// fromPeers is the request of sessions to which peers without a channel send.
	fromPeers = "datagrams of peers"
)

// requests are the messages that a client may repeat.
var requests = map[string]stun.MessageType{
	"Allocate":         stun.NewType(stun.MethodAllocate, stun.ClassRequest),
	"Refresh":          stun.NewType(stun.MethodRefresh, stun.ClassRequest),
	"CreatePermission": stun.NewType(stun.MethodCreatePermission, stun.ClassRequest),
	"ChannelBind":      stun.NewType(stun.MethodChannelBind, stun.ClassRequest),
	"Binding":          stun.NewType(stun.MethodBinding, stun.ClassRequest),
	"Send":             stun.NewType(stun.MethodSend, stun.ClassIndication),
	channelData:        {},
}

// fixed are the attributes without which a request is refused. n is the number of the message.
var fixed = map[string]func(n int) []stun.Setter{
	"Allocate":         func(int) []stun.Setter { return []stun.Setter{ask.UDP()} },
	"CreatePermission": func(n int) []stun.Setter { return []stun.Setter{ask.Peer(somePeer(n))} },
	"ChannelBind": func(n int) []stun.Setter {
		return []stun.Setter{ask.Channel(channel + uint16(n%0x1000)), ask.Peer(somePeer(n))}
	},
	"Send": func(n int) []stun.Setter { return []stun.Setter{ask.Peer(somePeer(n % permitted))} },
}

const noAttribute = "no other attribute"

// attributes are those of requests (RFC 8489 §14, RFC 8656 §18) at their largest.
var attributes = map[string]func(n int) []stun.Setter{
	noAttribute: func(int) []stun.Setter { return nil },
	"XOR-PEER-ADDRESS as often as fits": func(n int) (all []stun.Setter) {
		for i := range datagram / 12 * 4 / 5 {
			all = append(all, ask.Peer(somePeer(n*100+i)))
		}
		return all
	},
	"DATA":                          filled(stun.AttrData, datagram),
	"DATA that nominates a peer":    func(n int) []stun.Setter { return []stun.Setter{raw(stun.AttrData, check(n))} },
	"EVEN-PORT":                     filled(stun.AttrEvenPort, 1),
	"RESERVATION-TOKEN":             filled(stun.AttrReservationToken, 8),
	"LIFETIME":                      func(int) []stun.Setter { return []stun.Setter{ask.Lifetime(1<<32 - 1)} },
	"REQUESTED-ADDRESS-FAMILY":      func(int) []stun.Setter { return []stun.Setter{ask.Family(serverAddr)} },
	"DONT-FRAGMENT":                 filled(stun.AttrDontFragment, 0),
	"SOFTWARE":                      filled(stun.AttrSoftware, 763),
	"an unknown optional attribute": filled(0xC0FE, datagram-100),
	"unknown required attributes": func(n int) (all []stun.Setter) {
		for i := range datagram / 4 * 3 / 4 {
			all = append(all, raw(stun.AttrType(0x4000+i), nil))
		}
		return all
	},
}

func raw(kind stun.AttrType, value []byte) stun.Setter {
	return stun.RawAttribute{Type: kind, Value: value}
}

// filled returns an attribute with a random value.
func filled(kind stun.AttrType, size int) func(int) []stun.Setter {
	return func(int) []stun.Setter {
		value := make([]byte, size)
		for i := range value {
			value[i] = byte(rand.Uint32())
		}
		return []stun.Setter{raw(kind, value)}
	}
}

// somePeer returns one of about 65,000 peers with a route.
func somePeer(n int) netip.AddrPort {
	return netip.AddrPortFrom(host(peerNet, 300+uint16(n%0xFE00)), 9)
}

// check returns a connectivity check that nominates (RFC 8445 §7.2.2).
func check(n int) []byte {
	return stun.MustBuild(stun.TransactionID, stun.BindingRequest, stun.NewUsername(fmt.Sprintf("%0100d", n)),
		raw(stun.AttrPriority, []byte{110, 0, 1, 255}), raw(stun.AttrUseCandidate, nil)).Raw
}

// acts are those that some findings are made of, or with -largest all: each request with each attribute over each
// transport.
func acts() (all []act) {
	if !*largestFlag {
		return []act{
			{over: call.TCP, request: "ChannelBind", attribute: noAttribute},
			{over: call.UDP, request: "CreatePermission", attribute: "XOR-PEER-ADDRESS as often as fits"},
			{over: call.UDP, request: "Send", attribute: "DATA that nominates a peer"},
			{over: call.DTLS, request: idle}, {over: call.TLS, request: idle}, {over: call.TCP, request: idle},
			{over: call.UDP, request: eachRequest, attribute: eachAttribute},
			{over: call.UDP, request: "ChannelBind", attribute: noAttribute, as: manyUsers},
			{over: call.UDP, request: "CreatePermission", attribute: "XOR-PEER-ADDRESS as often as fits", as: manyAddresses},
			{over: call.UDP, request: fromPeers, attribute: noAttribute}, {over: call.TCP, request: fromPeers, attribute: noAttribute},
		}
	}
	for _, over := range []call.Network{call.TCP, call.TLS, call.DTLS} {
		all = append(all, act{over: over, request: idle})
	}
	for request := range requests {
		for _, over := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
			for attribute := range attributes {
				all = append(all, act{over: over, request: request, attribute: attribute})
			}
		}
		for _, as := range []string{manyUsers, manyAddresses} {
			all = append(all, act{over: call.UDP, request: request, attribute: noAttribute, as: as})
		}
	}
	for _, over := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		all = append(all, act{over: over, request: fromPeers, attribute: noAttribute},
			act{over: over, request: eachRequest, attribute: eachAttribute})
	}
	return all
}

// TestLargestClients: one user with one address repeats a message with different values in as many sessions as it gets.
// The server lives in its memory limit, running calls lose no more than those of another server, new calls of other
// users succeed, and all running calls continue after SIGKILL.
func TestLargestClients(t *testing.T) {
	quiet, noisy := newHosts(t, false), newHosts(t, false)
	for _, h := range []*hosts{quiet, noisy} {
		h.ephemeral = true
		key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader) // an attacker gets more connections than with RSA
		must(t, err)
		h.chain, h.key = certificateOf(t, serverAddr, key)
		h.roots.AppendCertsFromPEM(h.chain)
	}
	fromSource(t)
	for _, a := range acts() {
		t.Run(a.String(), func(t *testing.T) { survive(t, quiet, noisy, a) })
	}
}

func survive(t *testing.T, quiet, noisy *hosts, a act) {
	group := bedtest.MemoryGroup(t, "abuse", *memoryFlag<<20)
	confined := server{name: "stunnerd", engine: "None", memory: group, state: volume(t)}
	quiet.run(t, server{name: "stunnerd", engine: "None"})
	noisy.run(t, confined)
	control, calls := quiet.calls(t, call.UDP), noisy.calls(t, call.UDP)
	defer func() {
		for _, c := range append(calls, control...) {
			c.End(0)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), *hoardingFlag)
	defer cancel()
	hoard := &hoard{hosts: noisy, act: a, peer: socket(t, noisy.peers, netip.AddrPortFrom(noisy.echo[0].Addr(), 0))}
	defer hoard.close()
	hoard.fill(ctx)
	over := call.UDP
	if a.request == idle {
		over = a.over
	}
	f := noisy.join(t.Context(), over)
	peak, err := group.Peak()
	must(t, err)
	note := fmt.Sprintf("%d sessions, %d connections without, %d refused, %d messages; peak %d MiB", hoard.open.Load(),
		hoard.idle.Load(), hoard.refused.Load(), hoard.sent.Load(), peak>>20)
	if hoard.open.Load() == 0 || a.request == idle && hoard.idle.Load() == 0 {
		t.Fatalf("TEST NOT VALID: %s: %v", note, hoard.failed)
	}
	if least := combinations(t); a.request == eachRequest && int(hoard.open.Load())*repeats < least {
		t.Fatalf("TEST NOT VALID: %s: there are %d combinations", note, least)
	}
	lost := losses(calls)
	undisturbed := losses(control)
	t.Logf("%s; %.2f %% lost, control %.2f %%; %d of %d new calls, the slowest after %s", note, lost, undisturbed, f.made,
		newCalls, f.slowest)
	select {
	case <-noisy.process.Done():
		t.Fatalf("the server has ended: %v", noisy.process.Err())
	default:
	}
	if lost > undisturbed+moreLost {
		t.Errorf("running calls lose %.2f %%, those of the control %.2f %%", lost, undisturbed)
	}
	if f.made < newCalls {
		t.Errorf("%d of %d new calls succeed within %s: %v", f.made, newCalls, newCallDeadline, f.errs)
	}

	hoard.close()
	must(t, noisy.process.Kill())
	noisy.run(t, confined)
	again, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i, c := range calls {
		if err := c.AwaitMore(again, 10); err != nil {
			t.Errorf("call %d does not continue after SIGKILL: %v", i, err)
		}
	}
}

// volume returns a folder of a small file system, such as that of the journal in a pod.
func volume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", journalLimit)))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// losses returns how many datagrams of calls are lost, in percent. The last ones, which may be on their way, do not count.
func losses(calls []*call.Call) float64 {
	const late = 25 // half a second of a call
	sent, lost := 0, 0
	for _, c := range calls {
		s := c.Stats()
		sent += s.Sent
		lost += max(s.Sent-s.Received-late, 0)
	}
	return 100 * float64(lost) / float64(max(sent, 1))
}

// A hoard holds the sessions of one user at one address.
type hoard struct {
	*hosts
	act
	peer                      *net.UDPConn // of the act fromPeers
	open, idle, refused, sent atomic.Int64
	group                     sync.WaitGroup // of the sessions

	mu     sync.Mutex
	conns  []io.Closer
	failed error // a failure that is no refusal
	// exposed are the relayed addresses of the act fromPeers.
	exposed []netip.AddrPort
}

// fill opens sessions until the context ends.
func (h *hoard) fill(ctx context.Context) {
	parallel := hoarders
	if h.request == idle {
		parallel = connectors
	}
	if h.request == fromPeers {
		h.group.Go(func() { h.flood(ctx) })
	}
	for i := range parallel {
		h.group.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				do := h.session
				if h.request == idle && n%4 != 0 {
					do = map[int]func(context.Context) error{1: h.connection, 2: h.connection, 3: h.handshake}[n%4]
				}
				if err := do(ctx); err != nil && ctx.Err() == nil {
					h.mu.Lock()
					h.failed = err
					h.mu.Unlock()
					select { // a refused client tries again soon
					case <-time.After(100 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	h.group.Wait()
}

// errRefused is the error of a session that the server refuses.
var errRefused = errors.New("refused")

// session opens a session, repeats the act in it, and keeps the session.
func (h *hoard) session(ctx context.Context) error {
	conn, o, err := h.dial(ctx)
	if err != nil {
		return err
	}
	u := mint(h.user())
	c := &client{PacketConn: conn, Client: ask.Client{Username: u.Username, Password: string(u.Password)}, to: net.UDPAddrFromAddrPort(o.Gateway)}
	if _, err := c.exchange(stun.MethodAllocate, ask.UDP()); err != nil { // 401
		return err
	}
	answer, err := c.exchange(stun.MethodAllocate, ask.UDP())
	if err != nil || ask.Code(answer) != 0 {
		h.refused.Add(1)
		return errors.Join(err, conn.Close(), errRefused)
	}
	opened := h.open.Add(1)
	switch h.request {
	case idle:
		return nil
	case fromPeers:
		return h.expose(c, answer)
	}
	if h.request == channelData || h.request == "Send" {
		var peers []stun.Setter
		for n := range permitted {
			peers = append(peers, ask.Peer(somePeer(n)))
		}
		_, err1 := c.exchange(stun.MethodCreatePermission, peers...)
		_, err2 := c.exchange(stun.MethodChannelBind, ask.Channel(channel), ask.Peer(somePeer(0)))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
	}
	first := 0
	if h.request == eachRequest { // each session continues where the one before ends
		first = int(opened-1) * repeats
	}
	send := func(n int) (err error) {
		_, err = conn.WriteTo(h.message(c, first+n), c.to)
		h.sent.Add(1)
		return err
	}
	for n := range repeats {
		if err := errors.Join(ctx.Err(), send(n)); err != nil {
			return err
		}
	}
	if h.over == call.UDP || h.over == call.DTLS {
		h.group.Go(func() { pace(ctx, 4, func(n int) { _ = send(repeats + n) }) })
	}
	if h.over == call.TCP || h.over == call.TLS {
		const size = 0xFFFC
		half := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, channel), size)
		_, err = conn.WriteTo(append(half, make([]byte, size/2)...), c.to)
	}
	return err
}

// user returns the user ID of a session.
func (h *hoard) user() string {
	if h.as == manyUsers {
		return fmt.Sprintf("%0400d", h.open.Load()+h.refused.Load())
	}
	return "hoarder"
}

// expose makes a peer send to a session, whose client over TCP and TLS reads nothing.
func (h *hoard) expose(c *client, allocated *stun.Message) error {
	relayed, err := ask.Relayed(allocated)
	if err != nil {
		return err
	}
	from := h.peer.LocalAddr().(*net.UDPAddr).AddrPort()
	if _, err := c.exchange(stun.MethodCreatePermission, ask.Peer(from)); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exposed = append(h.exposed, relayed)
	return nil
}

// flood sends to the exposed sessions, without a channel, until the context ends: bursts, or over TCP and TLS the longest
// datagrams. The rate is one that the server can relay: the act is about memory.
func (h *hoard) flood(ctx context.Context) {
	size, burst, rate := datagram, 40, 75
	if h.over == call.TCP || h.over == call.TLS {
		size, burst, rate = 60_000, 1, 150
	}
	payload := make([]byte, size)
	pace(ctx, rate, func(n int) {
		h.mu.Lock()
		exposed := h.exposed
		h.mu.Unlock()
		for range burst {
			if len(exposed) > 0 {
				_, _ = h.peer.WriteToUDPAddrPort(payload, exposed[n%len(exposed)]) // a burst may not fit into the buffer
				h.sent.Add(1)
			}
		}
	})
}

// keep keeps a connection open until close.
func (h *hoard) keep(conn io.Closer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, conn)
}

// dial opens a connection, and keeps it.
func (h *hoard) dial(ctx context.Context) (net.PacketConn, call.Options, error) {
	o := h.options(h.over, 0)
	o.Local = netip.AddrPortFrom(abuserAddr, 0)
	if h.as == manyAddresses {
		o.Local = netip.AddrPortFrom(host(farClients, 6000+uint16((h.open.Load()+h.refused.Load())%4000)), 0)
	}
	limited, cancel := context.WithTimeout(ctx, newCallDeadline)
	defer cancel()
	conn, err := call.Dial(limited, o)
	if err != nil {
		h.refused.Add(1)
		return nil, o, err
	}
	h.keep(conn)
	return conn, o, nil
}

// connection opens a connection and sends nothing.
func (h *hoard) connection(ctx context.Context) error {
	_, _, err := h.dial(ctx)
	if err == nil {
		h.idle.Add(1)
	}
	return err
}

// handshake begins a handshake, or over TCP a message, of as many bytes as the server reads, and does not complete it.
func (h *hoard) handshake(ctx context.Context) (err error) {
	limited, cancel := context.WithTimeout(ctx, newCallDeadline)
	defer cancel()
	if h.over == call.DTLS {
		conn, err := dialDTLS(h.far.Do, abuserAddr, dtlsServer)
		if err != nil {
			return err
		}
		h.keep(conn)
		if !beginDTLS(limited, conn) {
			h.refused.Add(1)
			return errRefused
		}
		fragment := []byte{
			recordHandshake, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 9, 0, 13, // the record, and a part of a message of 16 bytes
			16, 0, 0, 16, 0, 2, 0, 0, 0, 0, 0, 1, 0,
		}
		for range 200 {
			_, err = conn.Write(fragment)
		}
		h.idle.Add(1)
		return err
	}
	var conn net.Conn
	h.far.Do(func() {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(abuserAddr, 0))}
		conn, err = dialer.DialContext(limited, "tcp4", h.options(h.over, 0).Gateway.String())
	})
	if err != nil {
		h.refused.Add(1)
		return err
	}
	h.keep(conn)
	h.idle.Add(1)
	begun := make([]byte, 1000) // a request of 1,020 bytes in part
	copy(begun, []byte{0, 3, 1000 >> 8, 1000 & 0xFF})
	if h.over == call.TLS { // records with a ClientHello of 65,000 bytes in part
		begun = nil
		record := append([]byte{recordHandshake, 3, 1, 0x3E, 0x80}, make([]byte, 16_000)...)
		for range 4 {
			begun = append(begun, record...)
		}
		copy(begun[5:], []byte{1, 0, 65_000 >> 8, 65_000 & 0xFF})
	}
	_ = conn.SetWriteDeadline(time.Now().Add(newCallDeadline)) // the server may not read all
	_, _ = conn.Write(begun)
	return nil
}

// message encodes the act.
func (h *hoard) message(c *client, n int) []byte {
	name := h.request
	if name == eachRequest {
		names := inTurn()
		name, n = names[n%len(names)], n/len(names)
	}
	more := attributes[h.attribute](n)
	if name == channelData {
		payload := make([]byte, datagram)
		if strings.HasPrefix(h.attribute, "DATA that") {
			payload = check(n)
		}
		return ask.ChannelData(channel, append(payload, make([]byte, -len(payload)&3)...))
	}
	if of := fixed[name]; of != nil {
		more = append(of(n), more...)
	}
	if kind := requests[name]; kind.Class == stun.ClassIndication {
		return stun.MustBuild(append([]stun.Setter{stun.TransactionID, kind}, more...)...).Raw
	}
	return c.Request(requests[name].Method, more...)
}

// close closes all connections, without a word to the server over UDP.
func (h *hoard) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, conn := range h.conns {
		_ = conn.Close()
	}
	h.conns = nil
}

// client is a client over any transport that encodes its messages itself.
type client struct {
	net.PacketConn
	ask.Client
	to net.Addr
}

// exchange sends a request, three times over UDP, and learns from the response.
func (c *client) exchange(method stun.Method, attrs ...stun.Setter) (*stun.Message, error) {
	request, buf := c.Request(method, attrs...), make([]byte, 2048)
	for range 3 {
		if _, err := c.WriteTo(request, c.to); err != nil {
			return nil, err
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, _, err := c.ReadFrom(buf)
			if isTimeout(err) {
				break
			}
			if err != nil {
				return nil, err
			}
			m := &stun.Message{Raw: buf[:n]}
			if m.Decode() == nil && m.TransactionID == [stun.TransactionIDSize]byte(request[8:20]) {
				c.Learn(m)
				return m, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: no answer to %s", errRefused, method)
}

func isTimeout(err error) bool {
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}
