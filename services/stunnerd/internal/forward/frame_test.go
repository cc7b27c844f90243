package forward

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

var (
	four = Client{Addr: netip.MustParseAddrPort("192.0.2.1:5000"), Port: 3478}
	six  = Client{Addr: netip.MustParseAddrPort("[2001:db8::1]:5000"), Port: 3478}
)

func TestFrame(t *testing.T) {
	from, to := [8]byte{1}, [8]byte{2}
	s := sealer{keyID: 7, aead: derive([32]byte{3}, from, to)}
	for _, c := range []Client{four, six} {
		for k := kind(1); k < kinds; k++ {
			for _, payload := range [][]byte{nil, []byte("x"), make([]byte, 1200), make([]byte, maxFrame-Overhead6)} {
				frame := s.seal(nil, from, maxCounter-1, k, c, payload)
				overhead := Overhead4
				if c == six {
					overhead = Overhead6
				}
				if len(frame) != overhead+len(payload) || overhead > 60 {
					t.Errorf("%d bytes became a frame of %d, want %d more, at most 60", len(payload), len(frame), overhead)
				}
				h, ok := parseHeader(frame)
				if !ok || h != (header{keyID: 7, sender: from, counter: maxCounter - 1}) {
					t.Errorf("header %v", h)
				}
				if _, ok := open(derive([32]byte{3}, from, [8]byte{3}), bytes.Clone(frame)); ok {
					t.Error("another receiver opens the frame")
				}
				m, ok := open(s.aead, frame)
				if !ok || m.kind != k || m.client != c || !bytes.Equal(m.payload, payload) {
					t.Errorf("kind %d of %v opens as %v: %t", k, c, m, ok)
				}
			}
		}
	}
}

func TestAChangedFrameDoesNotOpen(t *testing.T) {
	from, to := [8]byte{1}, [8]byte{2}
	s := sealer{keyID: 7, aead: derive([32]byte{3}, from, to)}
	frame := s.seal(nil, from, 1, data, six, []byte("payload"))
	opens := func(frame []byte) bool {
		if _, ok := parseHeader(frame); !ok {
			return false
		}
		_, ok := open(s.aead, bytes.Clone(frame))
		return ok
	}
	if !opens(frame) {
		t.Fatal("the frame does not open")
	}
	for i := range frame {
		changed := bytes.Clone(frame)
		changed[i] ^= 1
		if opens(changed) {
			t.Errorf("the frame opens with byte %d changed", i)
		}
		if opens(frame[:i]) {
			t.Errorf("the frame opens after %d bytes", i)
		}
	}
	if opens(append(bytes.Clone(frame), 0)) {
		t.Error("the frame opens with one more byte")
	}
}

// plainAEAD does not encrypt, so that a fuzzer can change the sealed part of frames.
type plainAEAD struct{}

func (plainAEAD) NonceSize() int { return 12 }
func (plainAEAD) Overhead() int  { return tagSize }
func (plainAEAD) Seal(b, _, plain, _ []byte) []byte {
	return append(append(b, plain...), make([]byte, tagSize)...)
}
func (plainAEAD) Open(_, _, sealed, _ []byte) ([]byte, error) {
	return sealed[:len(sealed)-tagSize], nil
}

// F-15: FuzzFrame opens arbitrary frames. A frame that opens has exactly one encoding.
func FuzzFrame(f *testing.F) {
	s := sealer{keyID: 7, aead: plainAEAD{}}
	for k := kind(1); k < kinds; k++ {
		f.Add(s.seal(nil, [8]byte{1}, 1, k, four, []byte("payload")))
		f.Add(s.seal(nil, [8]byte{1}, 2, k, six, nil))
	}
	f.Add(make([]byte, 65_535))
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, ok := parseHeader(frame)
		if !ok {
			return
		}
		m, ok := open(s.aead, bytes.Clone(frame))
		if !ok {
			return
		}
		again := (&sealer{keyID: h.keyID, aead: plainAEAD{}}).seal(nil, h.sender, h.counter, m.kind, m.client, m.payload)
		if sealed := len(frame) - tagSize; !bytes.Equal(again[:sealed], frame[:sealed]) {
			t.Errorf("%x has another form: %x", frame, again)
		}
	})
}

// FuzzReceive sends arbitrary frames of a listed sender to a pod, without encryption.
func FuzzReceive(f *testing.F) {
	s := sealer{keyID: 1, aead: plainAEAD{}}
	for k := kind(1); k < kinds; k++ {
		payload := putRecord(putRecord(nil, four), four)
		f.Add(s.seal(nil, [8]byte{1}, 1, k, four, payload))
		f.Add(s.seal(nil, [8]byte{1}, 1, k, six, payload))
	}
	from := netip.MustParseAddrPort("192.0.2.9:9")
	w := &counted{}
	d := newForwarder(Options{Sessions: &testSessions{}, Meter: meter.New()}, w, netip.MustParseAddrPort("192.0.2.8:9"))
	f.Cleanup(func() { _ = d.Close() })
	d.self.Sender = [8]byte{2}
	d.SetPeers(Peers{Keys: []Key{{ID: 1}}, Pods: []Peer{
		{Pod: "self", Sender: d.self.Sender}, {Pod: "other", Sender: [8]byte{1}, Address: from},
	}})
	f.Fuzz(func(_ *testing.T, frame []byte) {
		for _, o := range d.view.Load().senders[[8]byte{1}].openers {
			o.aead, o.window = plainAEAD{}, window{}
		}
		now := time.Now()
		d.receive(from, bytes.Clone(frame), now)
		d.flush(now)
	})
}

// counted is a wire that records the counters of frames.
type counted struct {
	mu       sync.Mutex
	counters map[[headerSize]byte]int
}

func (w *counted) connect() (sender, bool) { return w, true }

func (w *counted) SendAll(packets []datagram.Packet) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range packets {
		packets[i].Err = nil
		if w.counters != nil {
			w.counters[[headerSize]byte(packets[i].Payload)]++
		}
	}
}

func (w *counted) Close() error { return nil }

// Readers, owners and the announcer seal frames concurrently, and no nonce is used twice.
func TestNoNonceIsUsedTwice(t *testing.T) {
	w := &counted{counters: map[[headerSize]byte]int{}}
	sessions := &testSessions{has: map[Client]bool{}}
	f := newForwarder(Options{Sessions: sessions, Meter: meter.New()}, w, netip.MustParseAddrPort("192.0.2.8:9"))
	defer f.Close()
	peers := Peers{Keys: []Key{today}, Pods: []Peer{
		{Pod: "self", Sender: f.self.Sender}, {Pod: "other", Sender: [8]byte{1}, Address: netip.MustParseAddrPort("192.0.2.9:9")},
	}}
	f.SetPeers(peers)
	other := f.view.Load().senders[[8]byte{1}].pod
	var working sync.WaitGroup
	const each = 2000
	for i := range 4 {
		working.Go(func() {
			o := f.Outbox()
			c := client(i)
			k, _ := keyOf(c)
			source := datagram.Source{}
			f.front.mu.Lock()
			f.front.learn(k, other, &source, 0)
			f.front.mu.Unlock()
			for range each {
				o.Pass(c, []byte("x"), source, time.Now())
			}
			o.Flush()
		})
		working.Go(func() {
			path := ReturnPath{forwarder: f, pod: other, client: client(i)}
			packets := make([]datagram.Packet, 100)
			for range each / 100 {
				path.SendAll(packets)
			}
		})
		working.Go(func() {
			for k := range each {
				f.Added(client(10 + i*each + k))
			}
		})
	}
	working.Go(func() {
		for i := range 20 { // new keys, and the previous ones again
			p := peers
			p.Keys = [][]Key{{today}, {yesterday}}[i%2]
			f.SetPeers(p)
		}
	})
	working.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.counters) < each {
		t.Errorf("%d frames were sent, want at least %d", len(w.counters), each)
	}
	for header, n := range w.counters {
		if n > 1 {
			t.Fatalf("%d frames have the nonce %x", n, header)
		}
	}
}
