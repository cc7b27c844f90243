package listener

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// queueDrops counts the dropped frames of a sendQueue.
type queueDrops struct {
	atomic.Int64
	// stalled counts the connections that were closed because the client does not read.
	stalled atomic.Int64
}

// newSendQueue returns a sendQueue over TCP or TLS, the client's end, and the number of dropped frames.
func newSendQueue(t *testing.T, secure bool) (o *sendQueue, client net.Conn, drops *queueDrops) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newStream(accepted.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	drops = new(queueDrops)
	o = &sendQueue{stream: s, conn: s, run: running.Go, charge: unlimited, drop: func(r meter.Reason) {
		switch r {
		case meter.SlowClient:
			drops.Add(1)
		case meter.StalledClient:
			drops.stalled.Add(1)
		default:
			t.Errorf("dropped because of %v", r)
		}
	}}
	if secure {
		o.conn, client = secured(t, s, client)
	}
	s.unblock()
	t.Cleanup(func() {
		o.close()
		_, _ = client.Close(), s.Close()
		running.Wait()
	})
	return o, client, drops
}

func secured(t *testing.T, server, client net.Conn) (*tls.Conn, *tls.Conn) {
	t.Helper()
	cert, key := keyPair(t, "turn.example.org")
	certs, err := newCertificates(config.Listener{Protocol: config.TURNTLS, Cert: cert, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	s, c := tls.Server(server, certs.settings()), tls.Client(client, &tls.Config{InsecureSkipVerify: true})
	done := make(chan error, 1)
	go func() { done <- s.Handshake() }()
	if err := errors.Join(c.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// numbered returns a ChannelData frame whose payload starts with a number.
func numbered(n int) []byte {
	const size = 1000
	frame := make([]byte, frameHeader+size)
	binary.BigEndian.PutUint16(frame, 0x4000)
	binary.BigEndian.PutUint16(frame[2:], size)
	binary.BigEndian.PutUint32(frame[frameHeader:], uint32(n))
	return frame
}

func eachTransport(t *testing.T, test func(t *testing.T, secure bool)) {
	for name, secure := range map[string]bool{"TCP": false, "TLS": true} {
		t.Run(name, func(t *testing.T) { test(t, secure) })
	}
}

// the queue of a client that does not read is charged. If the session has no memory for the queue, media is
// dropped and answers are kept. Nothing is charged after the client has read everything, or after the end.
func TestQueueIsCharged(t *testing.T) {
	o, client, _ := newSendQueue(t, false)
	table := session.NewTable()
	s := &session.Session{UserID: "ann"}
	if err := table.Reserve(s); err != nil {
		t.Fatal(err)
	}
	base := table.Held()[session.Memory]
	table.SetBounds(session.Bounds{Capacity: session.Amounts{session.Memory: base + 2*chargeStep}})
	o.charge = func() session.Claim { return s.Claim(session.Memory) }
	var drained sync.WaitGroup
	o.run = drained.Go
	charged := func() int64 { return table.Held()[session.Memory] - base }
	answer := stun.MustBuild(stun.TransactionID, stun.BindingSuccess).Raw
	fill := func() (refused bool) {
		for range 20_000 {
			if err := o.Send(numbered(0)); errors.Is(err, datagram.ErrCongested) {
				refused = true
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return refused
	}
	if refused := fill(); !refused || charged() != 2*chargeStep {
		t.Errorf("%d bytes are charged of %d, media refused: %t", charged(), 2*chargeStep, refused)
	}
	if err := o.Send(answer); err != nil {
		t.Errorf("an answer: %v", err)
	}
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(io.Discard, client) })
	drained.Wait()
	if n := charged(); n != 0 {
		t.Errorf("%d bytes are charged for an empty queue", n)
	}
	_ = client.Close()
	read.Wait()
	o.close()
	table.Cancel(s)
	if held := table.Held(); held != (session.Amounts{}) {
		t.Errorf("after the end the ledger has %v", held)
	}
}

// few answers wait for a client without a session that does not read, because no session is charged for them. If
// more answers wait, the connection of the client ends.
func TestFewAnswersWaitForAClientWithoutASession(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		o, client, drops := newSendQueue(t, secure)
		o.charge, o.run = stranger, func(func()) {} // nothing drains
		answer := make([]byte, stunmsg.HeaderSize+1000)
		answer[0], answer[2], answer[3] = 1, 1000>>8, 1000&0xFF
		var err error
		for n := 0; n < 20_000 && err == nil; n++ {
			if err = o.Send(answer); o.queued > freeAnswers {
				t.Fatalf("%d bytes wait", o.queued)
			}
		}
		if n := drops.stalled.Load(); !errors.Is(err, errNoRoom) || n != 1 {
			t.Errorf("%v; the client is counted %d times, want once", err, n)
		}
		if err := client.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, client); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is still open")
		}
	})
}

// few records that TLS sends by itself wait for a client that does not read.
func TestFewRecordsOfTLSWait(t *testing.T) {
	o, _, _ := newSendQueue(t, false)
	record := make([]byte, 27) // the answer to a KeyUpdate
	var err error
	for n := 0; n < 1_000_000 && err == nil; n++ {
		_, err = o.stream.Write(record)
	}
	if n := o.stream.waiting(); !errors.Is(err, errBacklog) || n > 2*ownRecords {
		t.Errorf("%d bytes wait: %v", n, err)
	}
}

// the rest of a long frame to a client that does not read is charged. If there is no memory for a rest that is
// longer than the rest of usual frames, the connection ends, because a frame cannot be sent in part.
func TestRestOfAFrameIsCharged(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		for _, memory := range []int64{0, 1 << 20} {
			o, client, _ := newSendQueue(t, secure)
			table := session.NewTable()
			s := &session.Session{UserID: "ann"}
			if err := table.Reserve(s); err != nil {
				t.Fatal(err)
			}
			base := table.Held()[session.Memory]
			table.SetBounds(session.Bounds{Capacity: session.Amounts{session.Memory: base + memory}})
			o.charge, o.run = func() session.Claim { return s.Claim(session.Memory) }, func(func()) {} // nothing drains
			var err error
			for i := 0; i < 1000 && !o.draining && err == nil; i++ {
				err = o.Send(append([]byte{0x40, 0, 60_000 >> 8, 60_000 & 0xFF}, make([]byte, 60_000)...))
			}
			rest, charged := o.stream.waiting(), table.Held()[session.Memory]-base
			switch {
			case memory == 0 && rest <= usualBacklog && (err != nil || charged != usualBacklog),
				memory == 0 && rest > usualBacklog && (!errors.Is(err, errNoRoom) || charged != 0):
				t.Errorf("without memory: %v, a rest of %d bytes, %d are charged", err, rest, charged)
			case memory > 0 && (err != nil || rest <= freeBacklog || charged < int64(rest)):
				t.Errorf("with memory: %v, a rest of %d bytes, %d are charged", err, rest, charged)
			}
			o.close()
			_ = client.Close()
			table.Cancel(s)
			if held := table.Held(); held != (session.Amounts{}) {
				t.Errorf("after the end the ledger has %v", held)
			}
		}
	})
}

// A client that does not read blocks no sender. When it reads again, it gets whole frames in order, with all answers.
// Media that is sent then arrives too.
func TestSlowClientLosesOldMediaOnly(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		o, client, drops := newSendQueue(t, secure)
		const most, every, full = 20_000, 1000, 1000 // 20 MB are more than the kernel buffers of both ends
		answer := stun.MustBuild(stun.TransactionID, stun.BindingSuccess).Raw
		media, sent := 0, 0
		for ; media < most && drops.Load() < full; media++ { // the connection ends after writeTimeout
			if err := o.Send(numbered(media)); err != nil {
				t.Fatalf("send frame %d: %v", media, err)
			}
			if media%every == 0 {
				if err := o.Send(answer); err != nil {
					t.Fatalf("send answer %d: %v", media, err)
				}
				sent++
			}
		}
		if drops.Load() < full {
			t.Errorf("%d of %d frames were dropped, want %d", drops.Load(), media, full)
		}
		answers := readThenSend(t, o, client, sent, media)
		if answers != sent {
			t.Errorf("%d answers of %d arrived", answers, sent)
		}
	})
}

// readThenSend reads frames until a number of answers has arrived. Then it sends a media frame with a number and reads
// it: waiting media may be dropped because of its age before the client reads it. It returns the number of answers.
func readThenSend(t *testing.T, o *sendQueue, client net.Conn, want, number int) (answers int) {
	t.Helper()
	in, last := newFramer(client, unlimited), -1
	for answers < want {
		last, answers = readMore(t, in, client, last, answers)
	}
	if err := o.Send(numbered(number)); err != nil {
		t.Fatal(err)
	}
	for last < number {
		last, answers = readMore(t, in, client, last, answers)
	}
	return answers
}

// readMore reads one frame. It returns the number of the last media frame and the number of answers after it, and
// checks the order of media.
func readMore(t *testing.T, in *framer, client net.Conn, last, answers int) (int, int) {
	t.Helper()
	if err := client.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	frame, err := in.next(sessionLimit)
	if err != nil {
		t.Fatalf("after frame %d and %d answers: %v", last, answers, err)
	}
	if !isChannelData(frame[0]) {
		return last, answers + 1
	}
	n := int(binary.BigEndian.Uint32(frame[frameHeader:]))
	if n <= last {
		t.Fatalf("frame %d after frame %d", n, last)
	}
	return n, answers
}

// D-06: the age of media for a client over TCP or TLS is bounded, even if the client reads slowly.
func TestQueuedMediaIsDroppedByAge(t *testing.T) {
	var dropped int
	o := &sendQueue{
		charge: unlimited, drop: func(meter.Reason) { dropped++ }, draining: true, adapted: time.Now().Add(time.Hour),
	}
	if err := o.Send(numbered(1)); err != nil {
		t.Fatal(err)
	}
	o.queue[0].since = time.Now().Add(-maxAge - time.Millisecond)
	if err := o.Send(numbered(2)); err != nil {
		t.Fatal(err)
	}
	if len(o.queue) != 1 || dropped != 1 {
		t.Errorf("%d frames are queued and %d were dropped, want 1 and 1", len(o.queue), dropped)
	}
	for n := range 2 * maxQueued {
		if err := o.Send(numbered(n)); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.queue) > maxQueued || o.queued != len(o.queue)*len(numbered(0)) || o.queued > maxQueuedBytes {
		t.Errorf("%d frames of %d bytes are queued", len(o.queue), o.queued)
	}
}

// The connection of a client that makes requests and reads no answers is closed.
func TestClientThatReadsNoAnswersIsDisconnected(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		o, client, drops := newSendQueue(t, secure)
		answer := make([]byte, stunmsg.HeaderSize+1000)
		answer[0], answer[2], answer[3] = 1, 1000>>8, 1000&0xFF
		for n := 0; ; n++ {
			if err := o.Send(answer); err != nil {
				if !errors.Is(err, errBacklog) && n < 64 {
					t.Errorf("after %d answers: %v", n, err)
				}
				break
			}
		}
		if drops.stalled.Load() == 0 {
			t.Error("the client is not counted")
		}
		if err := client.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, client); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is still open")
		}
	})
}

// The connection of a client that reads no byte for too long is closed.
func TestClientThatReadsNothingIsDisconnected(t *testing.T) {
	o, client, drops := newSendQueue(t, false)
	for n := range 20_000 {
		if err := o.Send(numbered(n)); err != nil {
			t.Fatal(err)
		}
	}
	end := time.Now().Add(3 * writeTimeout)
	for o.Send(numbered(0)) == nil {
		if time.Now().After(end) {
			t.Fatal("the connection is still open")
		}
		time.Sleep(writeTimeout / 10)
	}
	if n := drops.stalled.Load(); n != 1 {
		t.Errorf("the client is counted %d times, want once", n)
	}
	_ = client.Close()
}

// G-11: a frame that is sent at once does not allocate.
func TestSendQueueAllocatesNothing(t *testing.T) {
	o, client, _ := newSendQueue(t, false)
	frame, buf := numbered(1), make([]byte, 4096)
	if n := testing.AllocsPerRun(1000, func() {
		if err := o.Send(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(client, buf[:len(frame)]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%.1f allocations a frame", n)
	}
}

// countWrites returns the lengths of the following system calls in which a stream sends.
func countWrites(s *stream) *[]int {
	writes, send := new([]int), s.attempt
	s.attempt = func(fd uintptr) bool {
		*writes = append(*writes, len(s.bytes))
		return send(fd)
	}
	return writes
}

// framesFrom returns n frames with consecutive numbers.
func framesFrom(first, n int) (packets []datagram.Packet) {
	for i := range n {
		packets = append(packets, datagram.Packet{Payload: numbered(first + i)})
	}
	return packets
}

// Frames that are sent together are one write of at most maxWrite bytes. No frame is split.
func TestFramesThatAreSentTogetherAreOneWrite(t *testing.T) {
	const size = frameHeader + 1000
	for _, c := range []struct {
		payloads []int
		want     []int
	}{
		{nil, nil},
		{[]int{1000}, []int{size}},
		{[]int{1000, 1000, 1000}, []int{3 * size}},
		{slices.Repeat([]int{1000}, 17), []int{16 * size, size}},
		{[]int{1000, maxWrite, 1000}, []int{size, frameHeader + maxWrite, size}},
		{[]int{maxWrite - frameHeader, 1000}, []int{maxWrite, size}},
		{[]int{0, 0}, []int{2 * frameHeader}},
	} {
		o, client, _ := newSendQueue(t, false)
		writes := countWrites(o.stream)
		var packets []datagram.Packet
		var all []byte
		for i, n := range c.payloads {
			frame := make([]byte, frameHeader+n)
			frame[0], frame[1] = 0x40, byte(i)
			binary.BigEndian.PutUint16(frame[2:], uint16(n))
			packets, all = append(packets, datagram.Packet{Payload: frame, Err: os.ErrInvalid}), append(all, frame...)
		}
		o.SendAll(packets)
		got := make([]byte, len(all))
		if err := client.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, all) {
			t.Errorf("payloads %v: the frames arrive changed, %v", c.payloads, err)
		}
		if !slices.Equal(*writes, c.want) {
			t.Errorf("payloads %v: writes %v, want %v", c.payloads, *writes, c.want)
		}
		for i := range packets {
			if packets[i].Err != nil {
				t.Errorf("payloads %v: frame %d: %v", c.payloads, i, packets[i].Err)
			}
		}
	}
}

// Over TLS, frames that are sent together are one write, in which each frame is a record, also in a new connection.
func TestEveryFrameIsARecord(t *testing.T) {
	o, client, _ := newSendQueue(t, true)
	if err := o.Send(numbered(0)); err != nil { // the client reads it with the session tickets
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, len(numbered(0)))); err != nil {
		t.Fatal(err)
	}
	writes := countWrites(o.stream)
	packets := framesFrom(1, 8)
	packets = append(packets, datagram.Packet{Payload: append([]byte{0x40, 0, 0x20, 0}, make([]byte, 0x2000)...)})
	o.SendAll(packets)
	if len(*writes) != 1 {
		t.Errorf("writes %v, want one", *writes)
	}
	raw := client.(*tls.Conn).NetConn()
	if err := raw.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for i := range packets {
		var header [5]byte // type, version, length (RFC 8446 §5.1)
		if _, err := io.ReadFull(raw, header[:]); err != nil {
			t.Fatal(err)
		}
		const overhead = 1 + 16 // the type of the content and the tag of the cipher
		size := int(binary.BigEndian.Uint16(header[3:]))
		if want := len(packets[i].Payload) + overhead; size != want {
			t.Fatalf("record %d has %d bytes, want %d", i, size, want)
		}
		if _, err := io.CopyN(io.Discard, raw, int64(size)); err != nil {
			t.Fatal(err)
		}
	}
}

// A client that reads slowly gets the frames of several SendAll calls in order.
func TestSendAllKeepsTheOrderWhileDraining(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		o, client, drops := newSendQueue(t, secure)
		const rounds, size = 1000, 8 // in less than the 5 s after which a client that does not read is disconnected
		for n := range rounds {
			packets := framesFrom(n*size, size)
			o.SendAll(packets)
			for i := range packets {
				if packets[i].Err != nil {
					t.Fatalf("round %d, frame %d: %v", n, i, packets[i].Err)
				}
			}
		}
		if drops.Load() < rounds*size/2 {
			t.Errorf("%d of %d frames were dropped", drops.Load(), rounds*size)
		}
		if err := o.Send(stun.MustBuild(stun.TransactionID, stun.BindingSuccess).Raw); err != nil {
			t.Fatal(err)
		}
		readThenSend(t, o, client, 1, rounds*size)
	})
}

// After close, every frame fails with an error.
func TestClosedSendQueueSendsNothing(t *testing.T) {
	o, _, _ := newSendQueue(t, false)
	o.close()
	packets := framesFrom(0, 3)
	o.SendAll(packets)
	for i := range packets {
		if packets[i].Err != net.ErrClosed {
			t.Errorf("frame %d: %v", i, packets[i].Err)
		}
	}
}

// G-11: frames that are sent together do not allocate.
func TestFramesThatAreSentTogetherAllocateNothing(t *testing.T) {
	o, client, _ := newSendQueue(t, false)
	packets := framesFrom(0, 8)
	buf := make([]byte, 8*len(packets[0].Payload))
	if n := testing.AllocsPerRun(1000, func() {
		o.SendAll(packets)
		if _, err := io.ReadFull(client, buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%.1f allocations a round", n)
	}
}
