package listener

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// newOutlet returns an outlet over TCP or TLS, the client's end, and the number of dropped frames.
func newOutlet(t *testing.T, secure bool) (o *outlet, client net.Conn, drops *atomic.Int64) {
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
	drops = new(atomic.Int64)
	o = &outlet{stream: s, conn: s, run: running.Go, drop: func(r meter.Reason) {
		if r != meter.SlowClient {
			t.Errorf("dropped because of %v", r)
		}
		drops.Add(1)
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

// A client that does not read blocks no sender. Later it reads whole frames in order, with all answers and the newest
// media.
func TestSlowClientLosesOldMediaOnly(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		o, client, drops := newOutlet(t, secure)
		const media, every = 20_000, 1000 // 20 MB, more than the kernel buffers of both ends
		answer := stun.MustBuild(stun.TransactionID, stun.BindingSuccess).Raw
		sent := time.Now()
		for n := range media {
			if err := o.Send(numbered(n)); err != nil {
				t.Fatalf("send frame %d: %v", n, err)
			}
			if n%every == 0 {
				if err := o.Send(answer); err != nil {
					t.Fatalf("send answer %d: %v", n, err)
				}
			}
		}
		if took := time.Since(sent); took >= writeTimeout {
			t.Errorf("sending took %v: it waited for the client", took)
		}
		if drops.Load() < media/2 {
			t.Errorf("%d of %d frames were dropped", drops.Load(), media)
		}
		answers, last := readAll(t, client, media-1)
		if answers != media/every {
			t.Errorf("%d answers of %d arrived", answers, media/every)
		}
		if last != media-1 {
			t.Errorf("the last frame is %d, want %d", last, media-1)
		}
	})
}

// readAll reads frames until the one with a number, checks their order, and counts the answers.
func readAll(t *testing.T, client net.Conn, until int) (answers, last int) {
	t.Helper()
	last = -1
	if err := client.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for in := newFramer(client); last < until; {
		frame, err := in.next(sessionLimit)
		if err != nil {
			t.Fatalf("after frame %d: %v", last, err)
		}
		if !isChannelData(frame[0]) {
			answers++
			continue
		}
		n := int(binary.BigEndian.Uint32(frame[frameHeader:]))
		if n <= last {
			t.Fatalf("frame %d after frame %d", n, last)
		}
		last = n
	}
	return answers, last
}

// D-06: the age of media for a client over TCP or TLS is bounded, however slowly the client reads.
func TestQueuedMediaIsDroppedByAge(t *testing.T) {
	var dropped int
	o := &outlet{drop: func(meter.Reason) { dropped++ }, draining: true, adapted: time.Now().Add(time.Hour)}
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
func TestClientThatReadsNoAnswersIsCutOff(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		o, client, _ := newOutlet(t, secure)
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
		if err := client.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, client); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is still open")
		}
	})
}

// The connection of a client that reads no byte for too long is closed.
func TestClientThatReadsNothingIsCutOff(t *testing.T) {
	o, client, _ := newOutlet(t, false)
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
	_ = client.Close()
}

// G-11: a frame that is sent at once does not allocate.
func TestOutletAllocatesNothing(t *testing.T) {
	o, client, _ := newOutlet(t, false)
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
