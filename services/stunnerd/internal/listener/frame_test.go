package listener

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// chunks reads its pieces one at a time, as a network does.
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
	m := make([]byte, stunHeader+attrs)
	m[1], m[2], m[3] = 1, byte(attrs>>8), byte(attrs)
	return m
}

func channelData(payload int) []byte {
	f := make([]byte, frameHeader+(payload+3)&^3)
	f[0], f[2], f[3] = 0x40, byte(payload>>8), byte(payload)
	return f
}

func collect(from io.Reader, limit int) (frames [][]byte, err error) {
	f := newFramer(from)
	for {
		frame, err := f.next(limit)
		if err != nil {
			return frames, err
		}
		frames = append(frames, bytes.Clone(frame))
	}
}

// C-09: a message is recognised whatever the segments it comes in, several in one segment included.
func TestFramesAreFoundInAnySplit(t *testing.T) {
	want := [][]byte{stunMessage(0), channelData(1), channelData(4), stunMessage(100), channelData(0), channelData(5000), stunMessage(8)}
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

// C-07: a frame is handed out as soon as it is whole, however short; nothing behind it is waited for.
func TestShortFrameIsNotHeldBack(t *testing.T) {
	in, out := io.Pipe()
	defer in.Close()
	f := newFramer(in)
	for size := 1; size <= 9; size++ {
		go out.Write(channelData(size))
		frame, err := f.next(sessionLimit)
		if err != nil || len(frame) != len(channelData(size)) {
			t.Fatalf("%d bytes: %d, %v", size, len(frame), err)
		}
	}
}

// C-08: a frame that is too long ends the stream; what is inside is never taken for frames.
func TestTooLongFrameEndsTheStream(t *testing.T) {
	smuggled := append(channelData(2000), stunMessage(0)...)
	frames, err := collect(bytes.NewReader(smuggled), unknownLimit)
	if !errors.Is(err, errTooLarge) || len(frames) != 0 {
		t.Errorf("%d frames, %v", len(frames), err)
	}
	if frames, err := collect(bytes.NewReader(channelData(65535)), sessionLimit); err != io.EOF || len(frames) != 1 {
		t.Errorf("the longest frame there is: %d, %v", len(frames), err)
	}
}

func TestWhatIsNoTURNIsRefused(t *testing.T) {
	for first := range 256 {
		_, err := frameSize([]byte{byte(first), 0, 0, 0})
		if turn := first < 4 || first >= 64 && first < 128; turn == errors.Is(err, errNotTURN) {
			t.Errorf("first byte %d: %v", first, err)
		}
	}
	if _, err := collect(bytes.NewReader(stunMessage(8)[:25]), unknownLimit); err != io.ErrUnexpectedEOF {
		t.Errorf("cut message: %v", err)
	}
}

// FuzzFramer: the same bytes give the same frames however they are split, and the buffer stays within the limit (F-02).
func FuzzFramer(f *testing.F) {
	f.Add(bytes.Join([][]byte{stunMessage(4), channelData(3)}, nil), uint16(7))
	f.Add([]byte{0x40, 0, 0xFF, 0xFF, 1, 2, 3}, uint16(2))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(1))
	f.Fuzz(func(t *testing.T, stream []byte, at uint16) {
		whole, wholeErr := collect(bytes.NewReader(stream), unknownLimit)
		cut := int(at) % (len(stream) + 1)
		framer := newFramer(&chunks{bytes.Clone(stream[:cut]), bytes.Clone(stream[cut:])})
		var split int
		for {
			frame, err := framer.next(unknownLimit)
			if err != nil {
				if err != wholeErr {
					t.Fatalf("%v in one piece, %v in two", wholeErr, err)
				}
				break
			}
			if !bytes.Equal(frame, whole[split]) {
				t.Fatalf("frame %d differs", split)
			}
			split++
		}
		if split != len(whole) {
			t.Fatalf("%d frames in one piece, %d in two", len(whole), split)
		}
		if len(framer.buf) > smallBuffer {
			t.Fatalf("buffer grew to %d", len(framer.buf))
		}
	})
}
