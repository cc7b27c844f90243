package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// a cluster with a host name keeps its addresses while DNS fails, follows changes of the name, and never resolves
// to loopback. Cases that take minutes or a thousand addresses are tested in the resolver package.
func TestR16NameServer(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	const host = "sfu.faults.test"
	own, first, second := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr(
		"198.18.1.2",
	)
	b := newBench(t)
	for i := range b.config.Listeners {
		b.config.Listeners[i].Address = own.String() // a relay on loopback cannot reach the address of the name
	}
	b.config.Clusters = []config.Cluster{
		{Name: "faults/echo", Type: config.StrictDNS, Protocol: "UDP", Endpoints: []string{host}},
	}
	names := newNameServer(t, "198.18.0.53", first)
	b.runWith(names)

	to := func(peer netip.AddrPort) call.Options {
		o := b.options(call.UDP)
		o.Peer = peer
		return o
	}
	peer := to(bedtest.Echo(t, first))
	b.await("the address of the name is permitted", b.admits(peer))
	live := calls{b.call(peer)}
	for _, trouble := range []dnsmessage.RCode{dnsmessage.RCodeServerFailure, dnsmessage.RCodeNameError} {
		names.set(trouble)
		b.await(fmt.Sprintf("answered %s", trouble), names.answered)
		b.goOn(live)
	}
	b.unharmed(live, silence)

	live = calls{b.call(peer)}
	names.set(dnsmessage.RCodeSuccess, second, netip.MustParseAddr(bed.Loopback))
	b.await("the new addresses were returned", names.answered)
	moved := names.since()
	b.within(time.Second, "the new address of the name is permitted", b.admits(to(bedtest.Echo(t, second))))
	<-time.After(time.Until(moved.Add(1500 * time.Millisecond))) // no event signals that echoes have stopped
	b.cutOff(live, moved)
	if c, err := call.Start(t.Context(), to(b.peer)); !errors.Is(err, call.ErrRefused) ||
		!strings.Contains(err.Error(), "403") {
		t.Errorf("permission for loopback: %v, want 403", err)
		if err == nil {
			c.End(0)
		}
	}
	for kind, pause := range names.shortest() {
		if pause < time.Second {
			t.Errorf("query for %s repeated after %s", kind, pause)
		}
	}
}

// runWith starts the process with a name server in place of the system's.
func (b *bench) runWith(names *nameServer) {
	b.t.Helper()
	dir := b.t.TempDir()
	resolv := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(
		resolv, []byte("nameserver "+names.addr+"\noptions timeout:1 attempts:1\n"), 0o644,
	); err != nil {
		b.t.Fatal(err)
	}
	b.file = filepath.Join(dir, "config.json")
	b.write(b.config)
	b.startAs(bed.Command{Path: "/usr/bin/unshare",
		Args: []string{
			"-m", "/bin/sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolv, stunnerd,
		}}, b.file)
	b.inForce(b.config)
}

// nameServer returns the same response to every query.
type nameServer struct {
	addr string
	conn net.PacketConn

	mu    sync.Mutex
	code  dnsmessage.RCode
	addrs []netip.Addr
	told  time.Time // when the current response was first sent
	asked map[dnsmessage.Type][]time.Time
}

func newNameServer(t *testing.T, addr string, addrs ...netip.Addr) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp4", addr+":53")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{addr: addr, conn: conn, addrs: addrs, asked: map[dnsmessage.Type][]time.Time{}}
	var serving sync.WaitGroup
	serving.Go(s.serve)
	t.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
	return s
}

// set changes the response.
func (s *nameServer) set(code dnsmessage.RCode, addrs ...netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.addrs, s.told = code, addrs, time.Time{}
}

// answered returns nil when the current response has been sent.
func (s *nameServer) answered(context.Context) error {
	if s.since().IsZero() {
		return errors.New("no query yet")
	}
	return nil
}

func (s *nameServer) since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

// shortest returns the shortest interval between two queries by type.
func (s *nameServer) shortest() map[dnsmessage.Type]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	pauses := map[dnsmessage.Type]time.Duration{}
	for kind, times := range s.asked {
		var all []time.Duration
		for i := range times[1:] {
			all = append(all, times[i+1].Sub(times[i]))
		}
		pauses[kind] = slices.Min(all)
	}
	return pauses
}

func (s *nameServer) serve() {
	buf := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := s.answer(buf[:n]); answer != nil {
			_, _ = s.conn.WriteTo(answer, from)
		}
	}
}

func (s *nameServer) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[q.Type] = append(s.asked[q.Type], time.Now())
	if s.told.IsZero() && q.Type == dnsmessage.TypeA {
		s.told = time.Now()
	}
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true, RCode: s.code}
	m.Additionals = nil
	for _, a := range s.addrs {
		if q.Type == dnsmessage.TypeA {
			header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class} // TTL 0
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
		}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}
