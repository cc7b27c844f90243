package listener

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// chunks is a reader that returns its pieces one by one, as a network does.
type chunks [][]byte

func (c *chunks) Read(b []byte) (int, error) {
	if len(*c) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*c)[0])
	if (*c)[0] = (*c)[0][n:]; len((*c)[0]) == 0 {
		*c = (*c)[1:]
	}
	return n, nil
}

func stunMessage(attrs int) []byte {
	m := make([]byte, stunmsg.HeaderSize+attrs)
	m[1], m[2], m[3] = 1, byte(attrs>>8), byte(attrs)
	return m
}

func channelData(payload int) []byte {
	f := make([]byte, frameHeader+(payload+3)&^3)
	f[0], f[2], f[3] = 0x40, byte(payload>>8), byte(payload)
	return f
}

// unlimited is the charge function of a connection with a session in a process whose memory has no limit.
func unlimited() session.Claim {
	s := &session.Session{UserID: "ann"}
	_ = session.NewTable().Reserve(s) // never fails: the table has no bounds
	return s.Claim(session.Memory)
}

// stranger is the charge function of a connection without a session.
func stranger() session.Claim { return session.Claim{} }

func collect(from io.Reader, limit int) (frames [][]byte, err error) {
	f := newFramer(from, unlimited)
	for {
		frame, err := f.next(limit)
		if err != nil {
			return frames, err
		}
		frames = append(frames, bytes.Clone(frame))
	}
}

// C-09: a message is read correctly for any segmentation, also if a segment has several messages.
func TestFramesAreFoundInAnySplit(t *testing.T) {
	want := [][]byte{
		stunMessage(0), channelData(1), channelData(4), stunMessage(100), channelData(0), channelData(5000),
		stunMessage(8),
	}
	stream := bytes.Join(want, nil)
	check := func(t *testing.T, from io.Reader) {
		t.Helper()
		got, err := collect(from, sessionLimit)
		if err != io.EOF || len(got) != len(want) {
			t.Fatalf("%d frames, %v", len(got), err)
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Errorf("frame %d differs", i)
			}
		}
	}
	check(t, bytes.NewReader(stream))
	check(t, iotest.OneByteReader(bytes.NewReader(stream)))
	for at := range stream {
		check(t, &chunks{bytes.Clone(stream[:at]), bytes.Clone(stream[at:])})
	}
}

// C-07: a frame is returned as soon as it is complete, without waiting for further bytes.
func TestShortFrameIsNotHeldBack(t *testing.T) {
	in, out := io.Pipe()
	defer in.Close()
	f := newFramer(in, unlimited)
	for size := 1; size <= 9; size++ {
		go out.Write(channelData(size))
		frame, err := f.next(sessionLimit)
		if err != nil || len(frame) != len(channelData(size)) {
			t.Fatalf("%d bytes: %d, %v", size, len(frame), err)
		}
	}
}

// C-08: a frame that is too long ends the stream. Its content is not read as frames.
func TestTooLongFrameEndsTheStream(t *testing.T) {
	smuggled := append(channelData(2000), stunMessage(0)...)
	frames, err := collect(bytes.NewReader(smuggled), unauthenticatedLimit)
	if !errors.Is(err, errTooLarge) || len(frames) != 0 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	if frames, err := collect(bytes.NewReader(channelData(65535)), sessionLimit); err != io.EOF || len(frames) != 1 {
		t.Errorf("the longest frame there is: %d, %v", len(frames), err)
	}
}

// N-07: on a stream, every first byte that neither STUN nor ChannelData can have is an error (RFC 7983 §7).
func TestDataThatIsNotTURNIsRefused(t *testing.T) {
	for first := range 256 {
		_, err := frameSize([]byte{byte(first), 0, 0, 0})
		if turn := first < 4 || first >= 64 && first < 128; turn == errors.Is(err, errNotTURN) {
			t.Errorf("first byte %d: %v", first, err)
		}
	}
	if _, err := collect(bytes.NewReader(stunMessage(8)[:25]), unauthenticatedLimit); err != io.ErrUnexpectedEOF {
		t.Errorf("cut message: %v", err)
	}
}

// the large buffer for a long frame is charged only while the frame is incomplete or in use. If the session has
// no memory for it, the frame is dropped, and the stream continues. After the end nothing is charged.
func TestLongFramesAreCharged(t *testing.T) {
	table := session.NewTable()
	s := &session.Session{UserID: "ann"}
	if err := table.Reserve(s); err != nil {
		t.Fatal(err)
	}
	base := table.Held()[session.Memory]
	limit := func(memory int64) {
		table.SetBounds(session.Bounds{Capacity: session.Amounts{session.Memory: memory}})
	}
	charge := func() session.Claim { return s.Claim(session.Memory) }
	in, out := io.Pipe()
	f := newFramer(in, charge)
	next := func(what string, want []byte, charged int64) {
		t.Helper()
		got, err := f.next(sessionLimit)
		if want == nil && err != errNoMemory || want != nil && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
		if more := table.Held()[session.Memory] - base; more != charged {
			t.Errorf("%s: %d bytes are charged, want %d", what, more, charged)
		}
	}
	long, short := channelData(60_000), channelData(100)
	go func() {
		for _, b := range [][]byte{short, long[:10], long[10:40_000], long[40_000:], short, long, long, short, long, short} {
			_, _ = out.Write(b)
		}
		_, _ = out.Write(long[:30_000]) // half a frame, and the end
		_ = out.Close()
	}()
	next("a short frame", short, 0)
	next("a long frame in pieces", long, session.PriceFrame)
	next("a short frame after it", short, 0)
	next("another long frame", long, session.PriceFrame)
	next("and another", long, session.PriceFrame)
	next("a short frame after them", short, 0)
	if len(f.buf) != smallBuffer {
		t.Errorf("the buffer has %d bytes after long frames, want %d", len(f.buf), smallBuffer)
	}
	limit(base + session.PriceFrame - 1)
	next("a long frame without memory", nil, 0)
	next("a short frame after it", short, 0)
	limit(0)
	if _, err := f.next(sessionLimit); err != io.ErrUnexpectedEOF {
		t.Errorf("half a frame: %v", err)
	}
	if more := table.Held()[session.Memory] - base; more != session.PriceFrame {
		t.Errorf("half a frame: %d bytes are charged", more)
	}
	table.Cancel(s) // the buffer outlives the session
	if held := table.Held()[session.Memory]; held != session.PriceFrame {
		t.Errorf("after the session %d bytes are charged for the buffer", held)
	}
	f.close()
	if held := table.Held(); held != (session.Amounts{}) {
		t.Errorf("after the end the ledger has %v", held)
	}
}

// there is no large buffer for the frame of a client whose session has ended while the client was silent. The
// frame is dropped, and the stream continues.
func TestLongFrameWithoutASession(t *testing.T) {
	long, short := channelData(60_000), channelData(100)
	f := newFramer(bytes.NewReader(slices.Concat(long, short)), stranger)
	if _, err := f.next(sessionLimit); err != errNoMemory {
		t.Errorf("a long frame: %v", err)
	}
	if got, err := f.next(sessionLimit); err != nil || !bytes.Equal(got, short) {
		t.Errorf("a short frame after it: %d bytes, %v", len(got), err)
	}
}

// F-02: the same bytes give the same frames and the same error for any split into reads, as RFC 8656 §12.5 and RFC 8489
// §6.2.2 require. The buffer stays within its limit, and the work is linear.
func FuzzFramer(f *testing.F) {
	f.Add(bytes.Join([][]byte{stunMessage(4), channelData(3)}, nil), []byte{7}, false)
	f.Add([]byte{0x40, 0, 0xFF, 0xFF, 1, 2, 3}, []byte{2, 1, 0, 5}, true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte{1}, false)
	f.Add(bytes.Repeat(channelData(1000), 20), []byte{255}, false)
	f.Add(
		bytes.Join([][]byte{channelData(1020), stunMessage(1004), channelData(1021), stunMessage(0)}, nil),
		[]byte{255, 255, 255, 255, 1}, false,
	)
	f.Add(bytes.Join(
		[][]byte{channelData(3000), channelData(3000), channelData(9), channelData(60_000), stunMessage(65532)}, nil,
	), []byte{200, 1, 3}, true)
	f.Add(channelData(65535), []byte{}, true)
	f.Add(stunMessage(6), []byte{3}, true)
	f.Add(stunMessage(8)[:21], []byte{20}, true)
	f.Add([]byte{0x7F, 1, 0, 0, 0x80, 0, 0, 0}, []byte{4}, true)
	f.Fuzz(func(t *testing.T, stream, sizes []byte, inSession bool) {
		limit := unauthenticatedLimit
		if inSession {
			limit = sessionLimit
		}
		want, wantErr := frames8656(stream, limit)
		pieces := chunks{}
		for rest, i := bytes.Clone(stream), 0; len(rest) > 0; i++ {
			n := len(rest)
			if len(sizes) > 0 {
				n = min(n, 1+int(sizes[i%len(sizes)])) // in rotation
			}
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		from := &counted{chunks: pieces}
		framer := newFramer(from, unlimited)
		for i := 0; ; i++ {
			frame, err := framer.next(limit)
			if err != nil {
				if !errors.Is(err, wantErr) || i != len(want) {
					t.Fatalf("%d frames, then %v; want %d, then %v", i, err, len(want), wantErr)
				}
				break
			}
			if i >= len(want) || !bytes.Equal(frame, want[i]) {
				t.Fatalf("frame %d is % x", i, frame)
			}
		}
		if !inSession && len(framer.buf) > smallBuffer || len(framer.buf) > largeBuffer {
			t.Fatalf("buffer grew to %d", len(framer.buf))
		}
		// A piece is split at the end of the buffer at most twice for each frame: in the header and in the rest of the
		// frame.
		if most := len(pieces) + 2*(len(want)+1) + 1; from.reads > most {
			t.Fatalf("%d reads for %d pieces and %d frames", from.reads, len(pieces), len(want))
		}
	})
}

// counted is a reader that counts its reads.
type counted struct {
	chunks
	reads int
}

func (c *counted) Read(b []byte) (int, error) {
	c.reads++
	return c.chunks.Read(b)
}

// frames8656 splits a whole stream into frames and returns its end.
func frames8656(stream []byte, limit int) (frames [][]byte, err error) {
	for len(stream) > 0 {
		if len(stream) < 4 {
			return frames, io.ErrUnexpectedEOF
		}
		length := int(stream[2])<<8 | int(stream[3])
		size := 0
		switch kind := stream[0] >> 6; {
		case kind == 1:
			size = (4 + length + 3) / 4 * 4
		case stream[0] <= 3 && length%4 == 0:
			size = 20 + length
		default:
			return frames, errNotTURN
		}
		if size > limit {
			return frames, errTooLarge
		}
		if size > len(stream) {
			return frames, io.ErrUnexpectedEOF
		}
		frames, stream = append(frames, stream[:size]), stream[size:]
	}
	return frames, io.EOF
}
