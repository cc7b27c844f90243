package abuse

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

const (
	// recordsOfOrigin is the number of records of each of the five origins. They send 100,000 together.
	recordsOfOrigin = 20_000
	// firstRecords is the number of records before the memory of the server is measured, so that the garbage that
	// handshakes leave is not attributed to records.
	firstRecords = 1000
	// ownClients is the number of DTLS clients that send records from their own addresses. ownRounds is how often each
	// begins a handshake without completing it.
	ownClients, ownRounds = 8, 5
	// forgedSize is the longest content of a forged record, which must fit into one packet. ownSize is the longest
	// content of other records.
	forgedSize, ownSize = 1400, 8000
)

// An origin sends n records that are not authentic. The note describes the result.
type origin struct {
	name string
	send func(s *recordFlood, t *testing.T, n int) (note string)
}

var origins = []origin{
	{"forged addresses of running calls", (*recordFlood).asCallers},
	{"forged addresses of clients in their handshake", (*recordFlood).asNewCallers},
	{"clients after their handshake", (*recordFlood).afterHandshakes},
	{"clients in their handshake", (*recordFlood).duringHandshakes},
	{"many addresses without a handshake", (*recordFlood).withoutAssociation},
}

// T-16: 100,000 records that are not authentic do not grow the memory of the server. They have each content type, epoch
// 0 and later epochs, come from forged addresses and from clients without a credential, and arrive before, during and
// after handshakes. They harm neither running calls nor new calls. The control is calls at another server. With the
// same records, stunnerd must not be worse than coturn.
func TestRecordsBesideCoturn(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	quiet, noisy := newHosts(t, false), newHosts(t, false)
	for _, h := range []*hosts{quiet, noisy} {
		h.chain, h.key = certificateOf(t, serverAddr, key)
		h.roots.AppendCertsFromPEM(h.chain)
	}
	ours, theirs := figures{}, figures{}
	t.Run("stunnerd", func(t *testing.T) {
		var undisturbed figures
		ours, undisturbed = floodOfRecords(t, quiet, noisy, "stunnerd")
		if ours.grown > moreMemory {
			t.Errorf("the memory of the server grows by %d kB, limit %d MiB", ours.grown>>10, moreMemory>>20)
		}
		if ours.lost > undisturbed.lost+moreLost {
			t.Errorf("running calls are disturbed: %s; control: %.2f %% lost", ours, undisturbed.lost)
		}
		if ours.made < newCalls {
			t.Errorf("%d of %d new calls succeed within %s: %v", ours.made, newCalls, newCallDeadline, ours.errs)
		}
	})
	t.Run(coturn, func(t *testing.T) { theirs, _ = floodOfRecords(t, quiet, noisy, coturn) })
	if ours.sent == 0 || theirs.sent == 0 {
		return // -run has selected one server
	}
	t.Logf("stunnerd: %s", ours)
	t.Logf("coturn:   %s", theirs)
	if ours.lost > theirs.lost+moreLost || ours.made < theirs.made {
		t.Error("stunnerd is worse than coturn")
	}
}

// floodOfRecords sends the records of all origins to a server. It returns the figures of the calls of this server, and
// of the calls of the control.
func floodOfRecords(t *testing.T, quiet, noisy *hosts, name string) (f, undisturbed figures) {
	t.Helper()
	quiet.run(t, server{name: "stunnerd", engine: "None"})
	noisy.run(t, server{name: name, engine: "None"})
	control, calls := quiet.calls(t, call.DTLS), noisy.calls(t, call.DTLS)
	s := &recordFlood{hosts: noisy}
	noisy.lan.Do(func() { s.raw = netns.NewRawSocket(t) })
	atStart := noisy.memory(t)
	s.duringHandshakes(t, firstRecords)
	before := noisy.memory(t)
	t.Logf("memory of %s: %d kB with %d calls, %d kB after %d records", name, atStart>>10, len(calls), before>>10,
		s.sent)
	s.sent = 0
	udp := func(name string) int { return counter(t, noisy.server, "Udp:", name) }
	read, dropped := udp("InDatagrams"), udp("RcvbufErrors")
	for _, o := range origins {
		sent, began := s.sent, time.Now()
		note := o.send(s, t, recordsOfOrigin)
		now := noisy.memory(t)
		f.grown = max(f.grown, now-before)
		t.Logf("%d records of %s in %s: memory %+d kB%s", s.sent-sent, o.name, time.Since(began).Round(time.Millisecond),
			(now-before)>>10, note)
	}
	read, dropped = udp("InDatagrams")-read, udp("RcvbufErrors")-dropped
	if least := len(origins) * recordsOfOrigin; s.sent < least || read < s.sent*9/10 || dropped > s.sent/100 {
		t.Fatalf("TEST NOT VALID: %s has read %d datagrams, and %d were dropped, of %d records", name, read, dropped,
			s.sent)
	}
	f.made, f.slowest, f.errs = s.joined.made, s.joined.slowest, s.joined.errs
	ctx, cancel := context.WithTimeout(t.Context(), newCallDeadline)
	defer cancel()
	for i, c := range calls {
		if err := c.AwaitMore(ctx, 10); err != nil && name != coturn {
			t.Errorf("call %d has ended: %v", i, err)
		}
	}
	undisturbed.end(control)
	f.end(calls)
	t.Logf("%s; control: %.2f %% lost", f, undisturbed.lost)
	return f, undisturbed
}

// recordFlood sends records to a server, only as fast as the server reads them. Datagrams that the kernel drops would
// not test the server.
type recordFlood struct {
	*hosts
	raw    netns.RawSocket
	sent   int
	queue  int     // bytes since the queue of the server was empty
	joined figures // of the new calls in asNewCallers
}

// count counts a sent datagram, and waits for the server before its queue is full.
func (s *recordFlood) count(t *testing.T, size int) {
	t.Helper()
	const least, most = 768, 48 << 10 // the space of a datagram in a receive buffer, and a part of the buffer
	s.sent++
	if s.queue += least + size; s.queue < most {
		return
	}
	s.queue = 0
	for late := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		waiting := 0
		s.server.Do(func() { waiting = queued(t, dtlsServer.Port()) })
		if waiting == 0 {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("the server does not read its queue of %d bytes", waiting)
		}
	}
}

func (s *recordFlood) forge(t *testing.T, from netip.AddrPort, record []byte) {
	t.Helper()
	must(t, s.raw.Send(from, dtlsServer, record))
	s.count(t, len(record))
}

// asCallers forges the addresses of the running calls.
func (s *recordFlood) asCallers(t *testing.T, n int) string {
	for i := range n {
		s.forge(t, s.options(call.DTLS, uint16(1+i%runningCalls)).Local, someRecord(i/runningCalls, forgedSize))
	}
	return ""
}

// asNewCallers forges the addresses of new calls while these make their handshakes.
func (s *recordFlood) asNewCallers(t *testing.T, n int) string {
	joined := make(chan figures, 1)
	go func() { joined <- s.join(t.Context(), call.DTLS) }()
	for i, done := 0, false; !done || i < n; i++ {
		s.forge(t, s.options(call.DTLS, uint16(1000+i%newCalls)).Local, someRecord(i/newCalls, forgedSize))
		select {
		case s.joined = <-joined:
			done = true
		default:
		}
	}
	return fmt.Sprintf("; %d of %d new calls", s.joined.made, newCalls)
}

// afterHandshakes sends from clients with a complete handshake and without a credential.
func (s *recordFlood) afterHandshakes(t *testing.T, n int) string {
	var conns []*net.UDPConn
	ctx, cancel := context.WithTimeout(t.Context(), newCallDeadline)
	defer cancel()
	complete := 0
	for range ownClients {
		conn := socket(t, s.far, netip.AddrPortFrom(abuserAddr, 0))
		secure, err := dtls.ClientWithOptions(conn, net.UDPAddrFromAddrPort(dtlsServer), dtls.WithRootCAs(s.roots),
			dtls.WithServerName(serverAddr.String()))
		must(t, err)
		if secure.HandshakeContext(ctx) == nil {
			complete++
		}
		conns = append(conns, conn)
	}
	for i := range n {
		r := ownRecord(i, n)
		_, _ = conns[i%len(conns)].WriteToUDPAddrPort(r, dtlsServer) // the handshake may have closed the socket
		s.count(t, len(r))
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	return fmt.Sprintf("; %d of %d handshakes are complete", complete, ownClients)
}

// duringHandshakes sends from clients that have returned their cookie and have got a certificate.
func (s *recordFlood) duringHandshakes(t *testing.T, n int) string {
	var answered atomic.Int64
	for range ownRounds {
		var conns []*net.UDPConn
		var group sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), newCallDeadline/2)
		for range ownClients {
			conn, err := dialDTLS(s.far.Do, abuserAddr, dtlsServer)
			must(t, err)
			conns = append(conns, conn)
			group.Go(func() {
				if beginDTLS(ctx, conn) {
					answered.Add(1)
				}
				_ = conn.SetDeadline(time.Time{})
			})
		}
		group.Wait()
		cancel()
		for i := range n / ownRounds {
			r := ownRecord(i, n/ownRounds)
			_, _ = conns[i%ownClients].Write(r) // an ICMP error about an earlier record
			s.count(t, len(r))
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	return fmt.Sprintf("; %d of %d handshakes got a certificate", answered.Load(), ownRounds*ownClients)
}

// withoutAssociation forges addresses without an association. Half of the datagrams begin a handshake and have no valid
// cookie.
func (s *recordFlood) withoutAssociation(t *testing.T, n int) string {
	for i := range n {
		r := someRecord(i/2, forgedSize)
		if i%2 == 0 {
			r = [][]byte{
				clientHello(random(), 0, nil), clientHello(random(), 1, make([]byte, 20)),
				append(clientHello(random(), 0, nil), r[:min(len(r), forgedSize/2)]...),
			}[i/2%3]
		}
		s.forge(t, netip.AddrPortFrom(host(farClients, 0x8000|uint16(i)), uint16(10_000+i)), r)
	}
	return ""
}

// ownRecord returns one of n records of a client. These need not fit into a packet: first fragments, then records that
// could end the association.
func ownRecord(i, n int) []byte {
	if i < n/2 {
		return oneByte(i, ownSize)
	}
	return someRecord(i, ownSize)
}

// oneByte returns a record with a fragment of one byte of a ClientKeyExchange, at another offset each time (RFC 6347
// §4.2.2), and useless bytes after it. The numbers of the message and of the record alternate between the numbers of a
// real client and larger numbers, for which the server could wait for earlier messages.
func oneByte(number, more int) []byte {
	size, sequence, message := 16_000, number+2, byte(5)
	if number%2 == 0 {
		size, sequence, message = 4000, 2+number/2%60, 2
	}
	offset := number % size
	fragment := []byte{16, 0, byte(size >> 8), byte(size), 0, message, 0, byte(offset >> 8), byte(offset), 0, 0, 1, 0}
	return record(recordHandshake, sequence, append(fragment, make([]byte, more)...))
}

// someRecord returns one of the combinations of a content type, an epoch and content up to a size. Nothing in it is
// authentic.
func someRecord(number, size int) []byte {
	// 20 to 23 are the content types of DTLS 1.2 (RFC 5246 §6.2.1)
	kinds := []byte{20, 21, recordHandshake, 23, 24, 25, 26, 27, 0, 255}
	epochs := []uint16{0, 1, 2, 0xFFFF}
	hello := clientHello(random(), 0, nil)[recordHeader:]
	contents := [][]byte{
		{0}, {1}, {2, 40}, {1, 0}, nil, oneByte(number, 0)[recordHeader:], hello, hello[:40], make([]byte, size),
	}
	i := number
	next := func(n int) (at int) { at, i = i%n, i/n; return at }
	kind, epoch := kinds[next(len(kinds))], epochs[next(len(epochs))]
	r := record(kind, number, contents[next(len(contents))])
	binary.BigEndian.PutUint16(r[3:], epoch)
	return r
}
