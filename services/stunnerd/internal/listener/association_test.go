package listener

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
)

// record returns a DTLS record.
func record(kind byte, version, epoch uint16, sequence uint64, content []byte) []byte {
	r := binary.BigEndian.AppendUint16([]byte{kind}, version)
	r = binary.BigEndian.AppendUint64(r, uint64(epoch)<<48|sequence)
	r = binary.BigEndian.AppendUint16(r, uint16(len(content)))
	return append(r, content...)
}

const (
	dtls12   = 0xFEFD
	finished = 20
)

// fragment returns a fragment of a handshake message, in a plain record.
func fragment(sequence uint64, message uint16, size, offset int, data []byte) []byte {
	header := []byte{clientKeyExchange, byte(size >> 16), byte(size >> 8), byte(size), byte(message >> 8), byte(message),
		byte(offset >> 16), byte(offset >> 8), byte(offset), byte(len(data) >> 16), byte(len(data) >> 8), byte(len(data))}
	return record(typeHandshake, dtls12, 0, sequence, append(header, data...))
}

// lossy is the socket of a client that loses and changes datagrams.
type lossy struct {
	net.PacketConn
	lose    func(sent bool, datagram []byte) bool
	divided bool // into a datagram for each record
	// fragmented divides ClientKeyExchange into two fragments, each in a datagram of its own, in the reverse order.
	// Their record numbers differ by less than the replay window of 64.
	fragmented bool
}

func (l lossy) ReadFrom(to []byte) (n int, from net.Addr, err error) {
	for {
		n, from, err = l.PacketConn.ReadFrom(to)
		if err != nil || !l.lose(false, to[:n]) {
			return n, from, err
		}
	}
}

func (l lossy) WriteTo(datagram []byte, to net.Addr) (int, error) {
	if l.lose(true, datagram) {
		return len(datagram), nil
	}
	for rest := datagram; len(rest) > 0; {
		size := len(rest)
		if l.divided || l.fragmented {
			size = recordHeader + int(binary.BigEndian.Uint16(rest[11:]))
		}
		if r := rest[:size]; l.fragmented && epochOf(r) == 0 && r[recordHeader] == clientKeyExchange {
			body, sequence := r[recordHeader+messageHeader:], binary.BigEndian.Uint64(r[3:])
			message, half := binary.BigEndian.Uint16(r[recordHeader+4:]), len(body)/2
			second := fragment(sequence+20, message, len(body), half, body[half:])
			if _, err := l.PacketConn.WriteTo(second, to); err != nil {
				return 0, err
			}
			rest = append(fragment(sequence, message, len(body), 0, body[:half]), rest[size:]...)
			size = recordHeader + messageHeader + half
		}
		if _, err := l.PacketConn.WriteTo(rest[:size], to); err != nil {
			return 0, err
		}
		rest = rest[size:]
	}
	return len(datagram), nil
}

// TestLostFlights: a handshake completes although flights are lost, with several records in a datagram, one record in
// a datagram, and messages in several fragments. A client that has lost the last flight of the server repeats its own
// last flight, to an association that is established (RFC 6347 §4.2.4).
func TestLostFlights(t *testing.T) {
	has := func(datagram []byte, kind byte) bool {
		for rest := datagram; len(rest) >= recordHeader; {
			if rest[0] == kind {
				return true
			}
			rest = rest[min(len(rest), recordHeader+int(binary.BigEndian.Uint16(rest[11:]))):]
		}
		return false
	}
	for name, lost := range map[string]func(sent bool, datagram []byte) bool{
		"none": func(bool, []byte) bool { return false },
		"ClientHello": func(sent bool, d []byte) bool {
			return sent && d[0] == typeHandshake && d[recordHeader] == clientHello
		},
		"ServerHello":             func(sent bool, d []byte) bool { return !sent && d[recordHeader] == serverHello },
		"last flight of a client": func(sent bool, d []byte) bool { return sent && has(d, typeChangeCipherSpec) },
		"last flight of a server": func(sent bool, d []byte) bool { return !sent && has(d, typeChangeCipherSpec) },
	} {
		for form, c := range map[string]struct {
			divided, fragmented bool
		}{"records together": {}, "records divided": {divided: true}, "fragments": {fragmented: true}} {
			for _, times := range []int32{1, 2} {
				t.Run(fmt.Sprint(name, ", ", form, ", lost ", times, " times"), func(t *testing.T) {
					t.Parallel()
					l, server := openSecure(t, oneCertificate(t))
					address := newRaw(t, server)
					var losses atomic.Int32
					lose := func(sent bool, d []byte) bool { return lost(sent, d) && losses.Add(1) <= times }
					socket := lossy{address.UDPConn, lose, c.divided, c.fragmented}
					client, err := dtls.ClientWithOptions(
						socket, server, dtls.WithInsecureSkipVerify(true),
						dtls.WithFlightInterval(100*time.Millisecond),
					)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { client.Close() })
					ctx, cancel := context.WithTimeout(t.Context(), soon)
					defer cancel()
					if err := client.HandshakeContext(ctx); err != nil {
						t.Fatalf("%v, %d losses, drops %v", err, losses.Load(), l.opt.Meter.Drops())
					}
					if err := binding(t, client); err != nil {
						t.Errorf("after the handshake: %v", err)
					}
					if n := losses.Load(); name != "none" && n < times {
						t.Errorf("%d datagrams were lost, want %d", n, times)
					}
				})
			}
		}
	}
}

// Only the first fragment of a ServerKeyExchange has the size of the key. Datagrams that end early have none.
func TestKeyExchangeSize(t *testing.T) {
	message := append([]byte{serverKeyExchange, 0, 0, 70, 0, 3, 0, 0, 0, 0, 0, 70, 3, 0, 23, 65}, make([]byte, 66)...)
	first, later := record(typeHandshake, dtls12, 0, 7, message), record(typeHandshake, dtls12, 0, 8, message)
	later[recordHeader+8] = 66 // the offset of the fragment
	other := record(typeHandshake, dtls12, 0, 6, make([]byte, 40))
	for name, c := range map[string]struct {
		datagram []byte
		want     int64
	}{
		"first fragment": {first, keyExchangeOfSome}, "after another message": {slices.Concat(other, first), keyExchangeOfSome},
		"later fragment": {later, 0}, "another message": {other, 0},
		"encrypted": {record(typeHandshake, dtls12, 1, 0, message), 0}, "short": {first[:recordHeader+15], 0},
	} {
		if got := keyExchangeSize(c.datagram); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// keyExchangeOfSome is the size of the ClientKeyExchange after someHello, which offers the curve P-256.
const keyExchangeOfSome = 66

// floods are sequences of 1,000 datagrams of a client that pion/dtls might keep. Each function returns the i-th
// datagram. None completes the ClientKeyExchange: an invalid one ends the handshake.
var floods = map[string]func(i int) []byte{
	"ClientKeyExchange in long fragments": func(i int) []byte {
		return fragment(uint64(3+i%60), keyExchangeMessage, keyExchangeOfSome, i%6, make([]byte, 60))
	},
	"ClientKeyExchange in fragments of one byte": func(i int) []byte {
		return fragment(uint64(3+i%60), keyExchangeMessage, keyExchangeOfSome, 1+i%(keyExchangeOfSome-1), make([]byte, 1))
	},
	"ClientKeyExchange in many fragments in a record": func(i int) []byte {
		r := record(typeHandshake, dtls12, 0, uint64(3+i%60), nil)
		for k := range 300 {
			r = append(r, fragment(0, keyExchangeMessage, keyExchangeOfSome, 1+(k+i)%(keyExchangeOfSome-1), []byte{0})[recordHeader:]...)
		}
		binary.BigEndian.PutUint16(r[11:], uint16(len(r)-recordHeader))
		return r
	},
	"long fragments": func(i int) []byte {
		return fragment(uint64(1000+i), uint16(5+i), 1<<20, 0, make([]byte, 8100))
	},
	"fragments of one byte in long records": func(i int) []byte {
		r := fragment(uint64(1000+i), uint16(5+i), 1<<20, i, make([]byte, 1))
		rest := fragment(0, 0, 0, 0, make([]byte, 8000))[recordHeader:] // message 0 is complete
		r = append(r, rest...)
		binary.BigEndian.PutUint16(r[11:], uint16(len(r)-recordHeader))
		return r
	},
	"many fragments in a record": func(i int) (r []byte) {
		r = record(typeHandshake, dtls12, 0, uint64(1000+i), nil)
		for k := range 600 {
			r = append(r, fragment(0, uint16(5+i*600+k), 1<<20, k, nil)[recordHeader:]...)
		}
		binary.BigEndian.PutUint16(r[11:], uint16(len(r)-recordHeader))
		return r
	},
	"many records in a datagram": func(i int) (d []byte) {
		for k := range 200 {
			n := i*200 + k
			d = append(d, fragment(uint64(1000+n), uint16(5+n), 1<<20, n, make([]byte, 1))...)
		}
		return d
	},
	"ChangeCipherSpec": func(i int) []byte {
		return record(typeChangeCipherSpec, dtls12, 0, uint64(3+i%60), []byte{1})
	},
	"encrypted data": func(i int) []byte {
		return record(typeApplicationData, dtls12, 1, uint64(i), make([]byte, 8100))
	},
	"encrypted messages of the size of Finished": func(i int) []byte {
		return record(typeHandshake, dtls12, 1, uint64(i), make([]byte, finishedSize))
	},
	"encrypted handshake messages": func(i int) []byte {
		return record(typeHandshake, dtls12, 1, uint64(i), make([]byte, 8100))
	},
}

// TestFloodsOverDTLSAreNotBuffered: a client sends 1,000 datagrams. During the handshake, an association keeps at most
// handshakeBytes of them. After the handshake, it keeps no plain record and no handshake record. The control is a flood
// that pion/dtls discards.
func TestFloodsOverDTLSAreNotBuffered(t *testing.T) {
	const most = 1 << 20 // a flood that an association keeps takes 8 MB
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // frees the memory of pools
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	control := func(i int) []byte { return record(typeApplicationData, dtls12, 2, uint64(i), make([]byte, 8100)) }
	for _, established := range []bool{false, true} {
		for name, flood := range floods {
			t.Run(fmt.Sprint(name, ", established ", established), func(t *testing.T) {
				l, server := openSecure(t, oneCertificate(t))
				address := newRaw(t, server)
				if established {
					if err := binding(t, address.dial()); err != nil { // the handshake is complete
						t.Fatal(err)
					}
				} else {
					address.alone()
					if address.ask(someHello(t, 8, 2, 1, address.cookie(8, 1)), serverHello, soon) == nil {
						t.Fatal("no ServerHello")
					}
				}
				began, a := time.Now(), l.association(t)
				pass := func(flood func(i int) []byte) uint64 {
					before := heap()
					for i := range 1000 {
						a.socket.receive(flood(i), a.client, nil)
						for len(a.inbox) > inbox/2 {
							runtime.Gosched()
						}
					}
					for len(a.inbox) > 0 {
						runtime.Gosched()
					}
					after := heap()
					return after - min(before, after)
				}
				base := pass(control)
				if kept := pass(flood); kept > base+most {
					t.Errorf("%d bytes are kept, %d of the control", kept, base)
				}
				late := !established && time.Since(began) > handshakeTimeout // on a busy machine
				if n := l.count(); n != 1 && !late {
					t.Errorf("%d associations, want 1", n)
				}
			})
		}
	}
}

// TestAcceptedBytes: an association passes at most handshakeBytes to pion/dtls in its handshake, for any records, and
// at most one copy of its ClientHello at a time.
func TestAcceptedBytes(t *testing.T) {
	h, _ := parseHello(someHello(t, 1, 5, 1, make([]byte, cookieSize)))
	for name, flood := range floods {
		a := &association{inbox: make(chan received, inbox)}
		a.keyExchange.Store(keyExchangeOfSome)
		passed := 0
		for i := range 1000 {
			accepted, _ := a.accepted(flood(i))
			passed += len(accepted)
		}
		if passed > handshakeBytes {
			t.Errorf("%s: %d bytes", name, passed)
		}
	}
	early := &association{inbox: make(chan received, inbox)}
	if accepted, _ := early.accepted(fragment(3, keyExchangeMessage, 0, 0, nil)); len(accepted) > 0 {
		t.Error("an empty ClientKeyExchange is accepted before the ServerKeyExchange")
	}
	a := &association{inbox: make(chan received, inbox), opening: sha256.Sum256(h.head)}
	for range 100 {
		if accepted, _ := a.accepted(h.record); len(accepted) > 0 {
			a.inbox <- received{records: accepted}
		}
	}
	if n := len(a.inbox); n != 1 {
		t.Errorf("%d copies of the ClientHello are queued", n)
	}
}

// association returns the only association of a listener.
func (l *connections) association(t *testing.T) *association {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		return c.raw.(dtlsClient).association
	}
	t.Fatal("no association")
	return nil
}
