package listener

import (
	"bytes"
	"crypto/tls"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/stun/v2"
	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// memoryUsed returns the memory that the heap and the stacks use.
func memoryUsed() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// socketPrice is the memory of a socket of a client in the kernel: the structures of the socket, of its file, inode and
// directory entry (Linux 6.1, /proc/slabinfo).
const socketPrice = 4 << 10

// the charge of a connection without a session covers its largest memory. The clients are plain sockets, which
// need no memory of the process.
func TestPricesCoverConnectionsWithoutASession(t *testing.T) {
	// record is an incomplete TLS record. hellos are records with the first part of a ClientHello of 65,000 bytes.
	record := append([]byte{typeApplicationData, 3, 3, 0x40, 0}, make([]byte, 16_000)...)
	hello := append([]byte{typeHandshake, 3, 1, 0x3E, 0x80}, make([]byte, 16_000)...)
	hellos := bytes.Repeat(hello, 4)
	copy(hellos[5:], []byte{clientHello, 0, 65_000 >> 8, 65_000 & 0xFF})
	short := append([]byte{typeHandshake, 3, 1, 4000 >> 8, 4000 & 0xFF}, hellos[5:4005]...)
	send := func(content []byte) func(*testing.T, *net.UDPAddr) net.Conn {
		return func(t *testing.T, server *net.UDPAddr) net.Conn {
			conn := dialFrom(t, nil, &net.TCPAddr{IP: server.IP, Port: server.Port})
			_, _ = conn.Write(content) // fails if the server has closed the connection
			return conn
		}
	}
	// Over DTLS, the server does not detect the end of its clients.
	rounds := map[config.Protocol]int{config.TURNTCP: 3, config.TURNTLS: 3, config.TURNDTLS: 1}
	for name, tc := range map[string]struct {
		protocol config.Protocol
		open     func(*testing.T, *net.UDPAddr) net.Conn
		refused  bool // the server closes the connection
		// balancers are the prefixes from which connections begin with a header of the PROXY protocol.
		balancers []string
	}{
		"an idle connection over TCP": {config.TURNTCP, send(nil), false, nil},
		"a request in part over TCP":  {config.TURNTCP, send(append([]byte{0, 3, 3, 0xE8}, make([]byte, 1000)...)), false, nil},
		"no handshake over TLS":       {config.TURNTLS, send(nil), false, nil},
		"a long ClientHello over TLS": {config.TURNTLS, send(hellos), true, nil},
		"a ClientHello in part over TLS": {
			config.TURNTLS, send(append(short, hello[:tlsHandshakeBytes-len(short)-1]...)), false, nil,
		},
		"a handshake in part over TLS":  {config.TURNTLS, send(recordedHello(t)), false, nil},
		"a record in part over TLS":     {config.TURNTLS, afterHandshake(record), false, nil},
		"an idle connection over TLS":   {config.TURNTLS, afterHandshake(nil), false, nil},
		"a handshake in part over DTLS": {config.TURNDTLS, handshakeInPart(0), false, nil},
		"many fragments over DTLS":      {config.TURNDTLS, handshakeInPart(handshakeBytes), false, nil},
		"a PROXY header in part over TCP": {
			config.TURNTCP, send([]byte(header2(0x21, 0x11, four, proxyLimit))), false, thisHost,
		},
		"an endless PROXY header over TLS": {
			config.TURNTLS, send([]byte("PROXY TCP4 " + strings.Repeat("1", proxyLine-11-2))), false, thisHost,
		},
		"an idle connection after a PROXY header over TCP": {
			config.TURNTCP, send([]byte("PROXY TCP4 203.0.113.7 192.0.2.1 1 443\r\n")), false, thisHost,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Listener{Protocol: tc.protocol, ProxyProtocol: tc.balancers}
			if tc.protocol != config.TURNTCP {
				c.Cert, c.Key = keyPair(t, "turn.example.org")
			}
			limits := NewLimits(0)
			limits.turns = newHandshakeLimiter(1 << 20) // so that all handshakes compute at once
			limits.handshakes = newConnLimiter(2*measured, 2*measured)
			limits.headers = newConnLimiter(2*measured, 2*measured)
			l, addr := openLimited(t, c, limits)
			if tc.protocol != config.TURNDTLS {
				tc.open(t, addr).Close() // so that memory that is allocated only once is not measured
			}
			var costs []int64
			for range rounds[tc.protocol] {
				l.awaitClients(t, 0)
				before := memoryUsed()
				var all []net.Conn
				for range measured {
					all = append(all, tc.open(t, addr))
				}
				if !tc.refused {
					l.awaitClients(t, measured)
				}
				l.awaitRead(t)
				costs = append(costs, (memoryUsed()-before)/measured+socketPrice)
				for _, conn := range all {
					_ = conn.Close()
				}
			}
			slices.Sort(costs)
			cost := costs[len(costs)/2] // other rounds may include memory of a previous round
			price := session.PriceOfTransport(tc.protocol)
			t.Logf("%s: %d bytes, the price is %d", name, cost, price)
			if cost > price*raceFactor {
				t.Errorf("a connection holds %d bytes, but is charged for %d", cost, price)
			}
		})
	}
}

// awaitClients waits until the listener has n clients.
func (l *connections) awaitClients(t *testing.T, n int) {
	t.Helper()
	for late := time.Now().Add(2 * handshakeTimeout); l.count() != n; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatalf("%d clients, want %d", l.count(), n)
		}
	}
}

// awaitRead waits until the server has read all data of its clients.
func (l *connections) awaitRead(t *testing.T) {
	t.Helper()
	read := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.open {
			if a, ok := c.raw.(dtlsClient); ok && len(a.association.inbox) > 0 {
				return false
			}
			s, ok := c.raw.(*stream)
			if !ok {
				continue
			}
			waiting := 0
			if err := s.socket.Control(func(fd uintptr) {
				waiting, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ)
			}); err == nil && waiting > 0 {
				return false
			}
		}
		return true
	}
	for late := time.Now().Add(soon); !read(); runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatal("the server does not read")
		}
	}
}

// recordedHello returns a ClientHello of TLS.
func recordedHello(t *testing.T) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	go func() { _ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() }() // until client is closed
	buf := make([]byte, 4096)
	n, err := server.Read(buf) // the record is written at once
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// afterHandshake makes a handshake over TLS, and then sends bytes without encryption.
func afterHandshake(content []byte) func(*testing.T, *net.UDPAddr) net.Conn {
	return func(t *testing.T, server *net.UDPAddr) net.Conn {
		conn := dialFrom(t, nil, &net.TCPAddr{IP: server.IP, Port: server.Port})
		if err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(content); err != nil {
			t.Fatal(err)
		}
		return conn
	}
}

// handshakeInPart starts a handshake over DTLS, and then sends a number of bytes in fragments of one byte.
func handshakeInPart(fragments int) func(*testing.T, *net.UDPAddr) net.Conn {
	return func(t *testing.T, server *net.UDPAddr) net.Conn {
		conn, err := net.DialUDP("udp4", nil, server)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(soon))
		ask := func(question []byte, message byte) []byte {
			answer := make([]byte, 2048)
			_, _ = conn.Write(question)
			n, err := conn.Read(answer)
			if err != nil || n <= recordHeader || answer[recordHeader] != message {
				t.Fatalf("answer to a ClientHello: %x; %v", answer[:n], err)
			}
			return answer[:n]
		}
		cookie := ask(someHello(t, 1, 0, 0, nil), helloVerifyRequest)[28:]
		ask(someHello(t, 1, 1, 1, cookie), serverHello)
		for sent, i := 0, 0; sent < fragments; i++ {
			part := fragment(uint64(2+i), 2, keyExchangeOfSome, 1+i%(keyExchangeOfSome-1), []byte{0})
			sent += len(part)
			if _, err := conn.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		return conn
	}
}

// the price of a session over a connection exceeds the price of a session over UDP by at least the memory of the
// connection. That memory is half of what both ends use, because the client is in this process too.
func TestPricesCoverConnections(t *testing.T) {
	const n = 50
	for _, protocol := range []config.Protocol{config.TURNTCP, config.TURNTLS, config.TURNDTLS} {
		t.Run(string(protocol), func(t *testing.T) {
			c := config.Listener{Protocol: protocol}
			if protocol != config.TURNTCP {
				c.Cert, c.Key = keyPair(t, "turn.example.org")
			}
			_, addr := openSecure(t, c)
			dial := func() net.Conn {
				if protocol == config.TURNDTLS {
					conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: addr.IP})
					if err != nil {
						t.Fatal(err)
					}
					client, err := dtls.ClientWithOptions(conn, addr, dtls.WithInsecureSkipVerify(true))
					if err != nil {
						t.Fatal(err)
					}
					if err := client.HandshakeContext(t.Context()); err != nil {
						t.Fatal(err)
					}
					return client
				}
				conn, err := net.Dial("tcp", addr.String())
				if err != nil {
					t.Fatal(err)
				}
				if protocol == config.TURNTLS {
					return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				}
				return conn
			}
			request := stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw
			open := func() net.Conn {
				conn := dial()
				answer := make([]byte, 256)
				if _, err := conn.Write(request); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(answer); err != nil {
					t.Fatal(err)
				}
				return conn
			}
			defer open().Close() // so that memory that is allocated only once is not measured
			before := memoryUsed()
			var all []net.Conn
			for range n {
				all = append(all, open())
			}
			cost := (memoryUsed() - before) / n / 2
			for _, conn := range all {
				_ = conn.Close()
			}
			if protocol == config.TURNDTLS && raceFactor == 1 { // the race detector needs memory too
				cost += fullInbox(t)
			}
			price := session.PriceOfTransport(protocol)
			t.Logf("%s: %d bytes, the price has %d", protocol, cost, price)
			if cost > price {
				t.Errorf("%s: a connection holds %d bytes, but its session is charged for %d", protocol, cost, price)
			}
		})
	}
}

// fullInbox returns the memory of waiting datagrams of a client over DTLS, for the sizes that need the most. Half of
// each datagram are records that are not accepted.
func fullInbox(t *testing.T) (most int64) {
	for _, size := range []int{20, 120, 1300, 4200} {
		const n = 200
		record := append([]byte{typeApplicationData, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 9, byte(size >> 8), byte(size)}, make([]byte, size)...)
		refused := slices.Clone(record)
		refused[0] = typeChangeCipherSpec
		datagram := slices.Concat(record, refused)
		all := make([]*association, n)
		socket := &dtlsSocket{connections: &connections{meter: new(meter.Listener), opt: Options{Meter: meter.New()}}}
		for i := range all {
			all[i] = &association{socket: socket, inbox: make(chan received, inbox)}
			all[i].established.Store(true)
		}
		before := memoryUsed()
		for i := range all {
			for waiting := -1; waiting < len(all[i].inbox); {
				waiting = len(all[i].inbox)
				all[i].deliver(datagram, forward.ReturnPath{})
			}
		}
		cost := (memoryUsed() - before) / n
		t.Logf("%d datagrams of %d bytes wait in %d bytes", len(all[0].inbox), len(datagram), cost)
		most = max(most, cost)
		runtime.KeepAlive(all)
	}
	return most
}

// a burst of datagrams over DTLS that waits for decryption is charged to the session as far as the price of the
// connection does not include it. Without a session, or without memory, the other datagrams are dropped.
func TestBurstsOverDTLSAreCharged(t *testing.T) {
	record := append([]byte{typeApplicationData, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 9, 4, 0xB0}, make([]byte, 1200)...)
	for name, memory := range map[string]int64{"with memory": inboxBurst, "without memory": inboxBurst - 1, "without a session": -1} {
		table, s := session.NewTable(), &session.Session{UserID: "ann"}
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
		base := table.Held()[session.Memory]
		table.SetBounds(session.Bounds{Capacity: session.Amounts{session.Memory: base + memory}})
		socket := &dtlsSocket{connections: &connections{meter: new(meter.Listener), opt: Options{Meter: meter.New()}}}
		a := &association{socket: socket, inbox: make(chan received, inbox), closed: make(chan struct{}), number: new(atomic.Uint64)}
		a.established.Store(true)
		a.burst.start(func() session.Claim {
			if memory < 0 {
				return session.Claim{}
			}
			return s.Claim(session.Memory)
		})
		most, charged := int64(inboxBytes), int64(0)
		if memory == inboxBurst {
			most, charged = inboxBytes+inboxBurst, inboxBurst
		}
		for range inbox {
			a.deliver(record, forward.ReturnPath{})
		}
		entry := sizeInInbox(slices.Clone(record))
		if n := a.queued.Load(); n > most || n < most-entry || table.Held()[session.Memory]-base != charged {
			t.Errorf("%s: %d bytes wait, want up to %d; %d are charged", name, n, most, table.Held()[session.Memory]-base)
		}
		for len(a.inbox) > 0 {
			if _, _, err := a.ReadFrom(make([]byte, longestDatagram)); err != nil {
				t.Fatal(err)
			}
		}
		if held := table.Held()[session.Memory] - base; held != 0 || a.queued.Load() != 0 {
			t.Errorf("%s: %d bytes are charged for an empty inbox", name, held)
		}
		for range inbox {
			a.deliver(record, forward.ReturnPath{})
		}
		_ = a.Close()
		if held := table.Held()[session.Memory] - base; held != 0 {
			t.Errorf("%s: %d bytes are charged after the end", name, held)
		}
	}
}
