package resolve

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a name server on loopback with one reply for all questions, over UDP if it fits, else over TCP.
type nameServer struct {
	udp net.PacketConn
	tcp net.Listener

	mu    sync.Mutex
	reply reply
}

// reply is the answer of a name server.
type reply struct {
	code dnsmessage.RCode
	// addrs are the addresses in the answers to questions of their family.
	addrs []netip.Addr
	// alias adds a CNAME before the addresses.
	alias bool
	// lame clears the flags of an authoritative or recursive server.
	lame bool
	// silent sends no answer; raw sends these bytes instead of one.
	silent bool
	raw    string
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{udp: udp, tcp: tcp}
	var serving sync.WaitGroup
	serving.Go(s.datagrams)
	serving.Go(s.connections)
	t.Cleanup(func() {
		_, _ = udp.Close(), tcp.Close()
		serving.Wait()
	})
	return s
}

func (s *nameServer) set(r reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = r
}

// dial connects to this name server instead of the configured one.
func (s *nameServer) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	if network == "udp" {
		return d.DialContext(ctx, network, s.udp.LocalAddr().String())
	}
	return d.DialContext(ctx, network, s.tcp.Addr().String())
}

func (s *nameServer) datagrams() {
	const fits = 1232 // the UDP payload size that net.Resolver announces
	buf := make([]byte, 4096)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := s.answer(buf[:n], fits); answer != nil {
			_, _ = s.udp.WriteTo(answer, from)
		}
	}
}

func (s *nameServer) connections() {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.connection(conn)
	}
}

// connection answers one question over TCP, with length prefixes (RFC 1035 §4.2.2).
func (s *nameServer) connection(conn net.Conn) {
	defer conn.Close()
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return
	}
	answer := s.answer(query, 1<<16-1)
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
}

func (s *nameServer) answer(query []byte, fits int) []byte {
	s.mu.Lock()
	r := s.reply
	s.mu.Unlock()
	switch {
	case r.silent:
		return nil
	case r.raw != "":
		return []byte(r.raw)
	}
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: !r.lame, RCode: r.code}
	m.Answers, m.Additionals = r.records(m.Questions[0]), nil
	packed, err := m.Pack()
	if err == nil && len(packed) > fits {
		m.Truncated, m.Answers = true, nil
		packed, err = m.Pack()
	}
	if err != nil {
		return nil
	}
	return packed
}

func (r reply) records(q dnsmessage.Question) (list []dnsmessage.Resource) {
	header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
	if r.alias {
		alias := dnsmessage.MustNewName("alias.test.")
		list = append(list, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeCNAME, Class: q.Class},
			Body:   &dnsmessage.CNAMEResource{CNAME: alias},
		})
		header.Name = alias
	}
	for _, a := range r.addrs {
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			list = append(list, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			list = append(list, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return list
}
