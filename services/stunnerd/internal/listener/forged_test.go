package listener

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// TestForgedRecordsEndNoCall: no forged datagram with the address of a client ends its call, for any type, version,
// epoch and size of its records, alone or after another record.
func TestForgedRecordsEndNoCall(t *testing.T) {
	l, server := openWithUser(t)
	address := newRaw(t, server)
	conn := address.dial()
	client := allocateOver(t, conn)
	sequence, sent := uint64(1000), 0
	forge := func(datagram []byte) {
		t.Helper()
		if _, err := address.WriteTo(datagram, server); err != nil {
			t.Fatal(err)
		}
		if sent++; sent%50 == 0 { // fewer datagrams than fit into the queues
			for len(address.seen) > 0 {
				<-address.seen
			}
			answers(t, client, fmt.Sprintf("before %x", datagram[:min(len(datagram), 40)]))
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	contents := [][]byte{
		nil, {0}, {1}, {2, 40}, {1, 0}, {2, 0, 0}, // the third is a ChangeCipherSpec, the next two are alerts
		fragment(0, 2, 1, 0, []byte{0})[recordHeader:], fragment(0, 0, 0, 0, nil)[recordHeader:], make([]byte, 100),
	}
	for kind := range 256 {
		for _, version := range []uint16{dtls12, 0xFEFF, 0xFEFC, 0x0303, 0} {
			for _, epoch := range []uint16{0, 1, 2, 0xFFFF} {
				for _, content := range contents {
					sequence++
					forged := record(byte(kind), version, epoch, sequence, content)
					forge(forged)
					if version == dtls12 && len(content) == 1 {
						sequence++
						forge(append(record(typeApplicationData, dtls12, 1, sequence, make([]byte, 40)), forged...))
						forge(forged[:len(forged)-1])
					}
				}
			}
		}
	}
	for size := range 2 * recordHeader {
		forge(make([]byte, size))
	}
	answers(t, client, "at the end")
	if n := l.gate.Sessions(); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
	if n := l.opt.Meter.Drops()[meter.UnexpectedRecord.String()]; n < 1000 {
		t.Errorf("%d datagrams with dropped records are counted", n)
	}
}

// forging is the socket of a client. Another host sends datagrams with the address of the client before and after each
// datagram of its handshake.
type forging struct {
	*raw
	// forged returns the datagrams of the other host. next is the number of the next record of the client. late is set
	// before the last flight of the client, when its ClientKeyExchange is expected.
	forged func(next uint64, late bool) [][]byte
	done   bool // set with the last flight
}

func (f *forging) WriteTo(datagram []byte, to net.Addr) (int, error) {
	if f.done || epochOf(datagram) != 0 {
		return f.raw.WriteTo(datagram, to)
	}
	next := binary.BigEndian.Uint64(datagram[3:])
	late := datagram[recordHeader] == clientKeyExchange
	f.done = late
	if err := f.send(f.forged(next, late), to); err != nil {
		return 0, err
	}
	n, err := f.raw.WriteTo(datagram, to)
	if err == nil && !late {
		err = f.send(f.forged(next+1, late), to)
	}
	return n, err
}

func (f *forging) send(datagrams [][]byte, to net.Addr) error {
	for _, d := range datagrams {
		if _, err := f.raw.WriteTo(d, to); err != nil {
			return err
		}
	}
	return nil
}

// TestForgedRecordsEndNoHandshake: no forged datagram with the address of a client ends its handshake, for any type,
// epoch, number and size of its records, at any time in the handshake. The exception is a datagram that the client
// itself could have sent: a well-formed ClientKeyExchange when the server expects it.
func TestForgedRecordsEndNoHandshake(t *testing.T) {
	limits := NewLimits(0)
	limits.turns = newHandshakeLimiter(1 << 20) // so that all handshakes compute at once
	_, server := openLimited(t, oneCertificate(t), limits)
	contents := [][]byte{
		{0}, {1}, {2, 40}, {1, 0}, {2, 0, 0}, make([]byte, 100), make([]byte, 8000), make([]byte, 8100),
		fragment(0, 0, 0, 0, nil)[recordHeader:], fragment(0, 5, 100, 3, []byte{1})[recordHeader:],
		fragment(0, 2, 1, 1, []byte{1})[recordHeader:], fragment(0, 2, 1<<20, 1, []byte{1})[recordHeader:],
		fragment(0, 2, 4000, 1, []byte{1})[recordHeader:], fragment(0, 2, 4000, 0, []byte{1})[recordHeader:],
		someHello(t, 3, 1, 1, make([]byte, cookieSize))[recordHeader:], someHello(t, 3, 1, 0, nil)[recordHeader:50],
		{finished, 0, 0, 12, 0, 3, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	}
	well := fragment(0, 2, keyExchangeOfSome, 0, make([]byte, keyExchangeOfSome))[recordHeader:]
	for name, kinds := range map[string][]byte{
		"ChangeCipherSpec": {20}, "alert": {21}, "handshake": {22}, "application data": {23},
		"others": {0, 19, 24, 25, 26, 255},
	} {
		for _, epoch := range []uint16{0, 1, 2, 0xFFFF} {
			for _, ahead := range []uint64{0, 1, 30, 1 << 32} {
				address := &forging{raw: newRaw(t, server)}
				address.forged = func(next uint64, late bool) (all [][]byte) {
					forged := contents
					if kinds[0] != typeHandshake || epoch != 0 || !late {
						forged = append(slices.Clip(contents), well)
					}
					for _, kind := range kinds {
						for _, content := range forged {
							all = append(all, record(kind, dtls12, epoch, next+ahead, content))
						}
					}
					return all
				}
				client, err := dtls.ClientWithOptions(address, server, dtls.WithInsecureSkipVerify(true))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				if err := client.HandshakeContext(ctx); err != nil || !address.done {
					t.Fatalf("%s, epoch %d, number +%d: %v", name, epoch, ahead, err)
				}
				cancel()
				_ = client.Close()
			}
		}
	}
}

// forgedFlight is the socket of a client. Another host sends datagrams with the address of the client before the first
// ClientKeyExchange of the client.
type forgedFlight struct {
	*net.UDPConn
	forged  func(i int) []byte
	flights atomic.Int32 // with ClientKeyExchange
}

func (f *forgedFlight) WriteTo(datagram []byte, to net.Addr) (int, error) {
	if epochOf(datagram) == 0 && datagram[recordHeader] == clientKeyExchange && f.flights.Add(1) == 1 {
		for i := range inbox / 2 { // less than the association keeps
			if _, err := f.UDPConn.WriteTo(f.forged(i), to); err != nil {
				return 0, err
			}
		}
	}
	return f.UDPConn.WriteTo(datagram, to)
}

// T-16: no flood of records with the address of a client, and with the record numbers of the client, ends the handshake
// or delays it by more than one retransmission. In a second handshake of the address, the server has an association.
func TestForgedFloodsEndNoHandshake(t *testing.T) {
	sizes := []int{33, 66} // of the ClientKeyExchange with X25519 and P-256
	for name, forged := range map[string]func(i int) []byte{
		"ChangeCipherSpec": func(i int) []byte { return record(typeChangeCipherSpec, dtls12, 0, uint64(i/2), []byte{1}) },
		"fragments of ClientKeyExchange": func(i int) []byte {
			return fragment(uint64(i/2), keyExchangeMessage, sizes[i%2], 1+i/2%30, []byte{1})
		},
		"encrypted messages": func(i int) []byte { return record(typeHandshake, dtls12, 1, uint64(i), make([]byte, finishedSize)) },
		"encrypted data":     func(i int) []byte { return record(typeApplicationData, dtls12, 1, uint64(i), make([]byte, 40)) },
		"encrypted alerts":   func(i int) []byte { return record(21, dtls12, 1, uint64(i), make([]byte, 26)) },
	} {
		for _, second := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", second ", second), func(t *testing.T) {
				t.Parallel()
				l, server := openSecure(t, oneCertificate(t))
				address := &forgedFlight{UDPConn: newRaw(t, server).UDPConn, forged: forged}
				if second {
					lost := forgetful{UDPConn: address.UDPConn, end: make(chan struct{})}
					client, err := dtls.ClientWithOptions(lost, server, dtls.WithInsecureSkipVerify(true))
					if err != nil {
						t.Fatal(err)
					}
					if err := client.HandshakeContext(t.Context()); err != nil {
						t.Fatal(err)
					}
					close(lost.end) // the client loses its state and sends no alert
					_ = client.Close()
					_ = address.SetReadDeadline(time.Time{})
				}
				client, err := dtls.ClientWithOptions(
					address, server, dtls.WithInsecureSkipVerify(true), dtls.WithFlightInterval(200*time.Millisecond),
				)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { client.Close() })
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				defer cancel()
				if err := client.HandshakeContext(ctx); err != nil {
					t.Fatalf("%v, drops %v", err, l.opt.Meter.Drops())
				}
				if n := address.flights.Load(); n > 2 {
					t.Errorf("%d flights of the client", n)
				}
				socket, at := l.association(t).socket, address.LocalAddr().(*net.UDPAddr).AddrPort()
				for socket.find(at).handshaking() { // during its handshake, the server discards data as forged
					runtime.Gosched()
				}
				if err := binding(t, client); err != nil {
					t.Errorf("after the handshake: %v", err)
				}
			})
		}
	}
}

// lateForging is the socket of a client that loses the last flight of the server when the server sends it for the first
// time. Another host then sends records of the size of Finished with the address of the client.
type lateForging struct {
	*net.UDPConn
	server net.Addr
	forged [][]byte
	lost   *bool
}

func (f lateForging) ReadFrom(to []byte) (int, net.Addr, error) {
	n, from, err := f.UDPConn.ReadFrom(to)
	if err != nil || *f.lost || to[0] != typeChangeCipherSpec {
		return n, from, err
	}
	*f.lost = true
	for _, d := range f.forged {
		if _, err := f.UDPConn.WriteTo(d, f.server); err != nil {
			return 0, nil, err
		}
	}
	return f.drain(to)
}

// drain reads and discards the datagrams that the server sends because of the forged ones. The client loses them too.
func (f lateForging) drain(to []byte) (int, net.Addr, error) {
	for late := time.Now().Add(silent); ; {
		_ = f.UDPConn.SetReadDeadline(late)
		if _, _, err := f.UDPConn.ReadFrom(to); err != nil {
			_ = f.UDPConn.SetReadDeadline(time.Time{})
			return f.UDPConn.ReadFrom(to)
		}
	}
}

// A client that has lost the last flight of the server gets it again although another host sends forged records of the
// size of Finished, alone and after a ClientKeyExchange (RFC 6347 §4.2.4).
func TestForgedFinishedEndsNoHandshake(t *testing.T) {
	l, server := openSecure(t, oneCertificate(t))
	address := lateForging{newRaw(t, server).UDPConn, server, nil, new(bool)}
	for i := range inbox / 2 {
		forged := record(typeHandshake, dtls12, 1, uint64(10+i), make([]byte, finishedSize))
		for _, size := range []int{33, 66} { // of the ClientKeyExchange with X25519 and P-256
			whole := fragment(uint64(i), keyExchangeMessage, size, 0, make([]byte, size))
			address.forged = append(address.forged, append(whole, forged...))
		}
		address.forged = append(address.forged, forged)
	}
	client, err := dtls.ClientWithOptions(
		address, server, dtls.WithInsecureSkipVerify(true), dtls.WithFlightInterval(time.Second),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := client.HandshakeContext(ctx); err != nil || !*address.lost {
		t.Fatalf("%v, lost %v, drops %v", err, *address.lost, l.opt.Meter.Drops())
	}
	if err := binding(t, client); err != nil {
		t.Errorf("after the handshake: %v", err)
	}
}

// forgetful is the socket of a client that sends nothing after end.
type forgetful struct {
	*net.UDPConn
	end chan struct{}
}

func (f forgetful) WriteTo(datagram []byte, to net.Addr) (int, error) {
	select {
	case <-f.end:
		return len(datagram), nil
	default:
		return f.UDPConn.WriteTo(datagram, to)
	}
}

// Close interrupts the reader of the client. The socket stays open.
func (f forgetful) Close() error { return f.SetReadDeadline(time.Unix(1, 0)) }

// helloForging is the socket of a client. Before each datagram of the client, another host sends ClientHellos with the
// address of the client and the given record numbers.
type helloForging struct {
	*net.UDPConn
	hellos [][]byte
}

func (f helloForging) WriteTo(datagram []byte, to net.Addr) (int, error) {
	for _, h := range f.hellos {
		if _, err := f.UDPConn.WriteTo(h, to); err != nil {
			return 0, err
		}
	}
	return f.UDPConn.WriteTo(datagram, to)
}

// T-16: forged ClientHellos end no handshake, although their answers reach the client. The cookie in an answer is valid
// for the ClientHello of the client, too. The record number of an answer does not make the client discard later
// records.
func TestForgedHelloEndsNoHandshake(t *testing.T) {
	_, server := openSecure(t, oneCertificate(t))
	all := make([]uint64, 128) // two replay windows of pion/dtls
	for i := range all {
		all[i] = uint64(i)
	}
	descending := slices.Clone(all)
	slices.Reverse(descending)
	for name, numbers := range map[string][]uint64{
		"as the client": {0}, "1": {1}, "9": {9}, "63": {63}, "64": {64}, "4000": {4000}, "largest": {1<<48 - 1},
		"ascending": all, "descending": descending,
	} {
		t.Run(name, func(t *testing.T) {
			address := helloForging{UDPConn: newRaw(t, server).UDPConn}
			for _, n := range numbers {
				address.hellos = append(address.hellos, someHello(t, 9, n, 0, nil))
			}
			client, err := dtls.ClientWithOptions(address, server, dtls.WithInsecureSkipVerify(true))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			if err := client.HandshakeContext(ctx); err != nil {
				t.Error(err)
			}
			_ = client.Close()
		})
	}
}
