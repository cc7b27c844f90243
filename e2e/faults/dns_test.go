package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// a cluster with a host name keeps its addresses while DNS fails, and follows changes of the name. The tests of
// the resolver, of the server and of clusters cover pace, number of addresses, and names that resolve to loopback.
func TestClusterKeepsItsAddressesWhileDNSFails(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	const server = "198.18.0.53"
	first, second := netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.1.2")
	d := newDataplane(t)
	for i := range d.config.Listeners {
		d.config.Listeners[i].Address = "198.18.0.1" // a relay on loopback cannot reach the address of the name
	}
	d.config.Clusters[0].Type, d.config.Clusters[0].Endpoints = config.StrictDNS, []string{"sfu.faults.test"}
	names := newNameServer(t, server, first)
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+server+"\noptions timeout:1 attempts:1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.serve(inMounts(`mount --bind "$0" /etc/resolv.conf`, resolv))

	to := d.options(call.UDP)
	to.Peer = harnesstest.Echo(t, first)
	d.await("the address of the name is permitted", admits(to))
	live := []*call.Call{d.call(to)}
	for _, code := range []dnsmessage.RCode{dnsmessage.RCodeServerFailure, dnsmessage.RCodeNameError} {
		names.set(code)
		d.await(fmt.Sprintf("answered %s", code), names.answered)
		d.awaitEchoes(live...)
	}
	d.undisturbed(live)

	live = []*call.Call{d.call(to)}
	names.set(dnsmessage.RCodeSuccess, second)
	d.await("the new address was returned", names.answered)
	moved := names.since()
	to.Peer = harnesstest.Echo(t, second)
	d.within(time.Second, "the new address of the name is permitted", admits(to))
	<-time.After(time.Until(moved.Add(1500 * time.Millisecond))) // there is no event for the end of echoes
	d.cutOff(live, moved)
}

// nameServer returns the same response to every query.
type nameServer struct {
	mu    sync.Mutex
	code  dnsmessage.RCode
	addrs []netip.Addr
	sent  time.Time // when the current response was first sent
}

func newNameServer(t *testing.T, addr string, addrs ...netip.Addr) *nameServer {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(addr), Port: 53})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := &nameServer{addrs: addrs}
	go receive(conn, func(query []byte, from netip.AddrPort) {
		if answer, err := s.answer(query); err == nil {
			_, _ = conn.WriteToUDPAddrPort(answer, from)
		}
	})
	return s
}

// set changes the response.
func (s *nameServer) set(code dnsmessage.RCode, addrs ...netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.addrs, s.sent = code, addrs, time.Time{}
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
	return s.sent
}

func (s *nameServer) answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return nil, fmt.Errorf("%d questions: %w", len(m.Questions), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true, RCode: s.code}
	m.Additionals = nil
	if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
		if s.sent.IsZero() {
			s.sent = time.Now()
		}
		for _, a := range s.addrs {
			header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class} // the TTL is 0
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
		}
	}
	return m.Pack()
}
