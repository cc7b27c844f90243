package turncat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// chunk is the maximum number of bytes of a stream that are sent as one datagram. With the headers of ChannelData,
	// DTLS, UDP and IPv6, 89 bytes, it fits into an MTU of 1,300.
	chunk = 1200
	// maxUnread is the number of datagrams of the peer that wait for a slow client.
	maxUnread = 8192
	// echoTimeout is the time without a returned byte after which PaceEcho counts the missing bytes as lost.
	echoTimeout = 5 * time.Second
)

// stdin sends the standard input to the peer, and writes the datagrams of the peer to the standard output.
func (r *runner) stdin(ctx context.Context) error {
	r.Stats.Clients.Add(1)
	return r.stream(ctx, r.In, r.Out)
}

// connections serves the connections of a TCP or Unix listener.
func (r *runner) connections(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, r.Client.Network, r.Client.Address)
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	r.Log.Info("listening", "address", listener.Addr(), "network", r.Client.Network)
	var running sync.WaitGroup
	defer running.Wait()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept clients: %w", err)
		}
		select {
		case r.clientSlots <- struct{}{}:
		default:
			r.Stats.Refused.Add(1)
			r.Log.Warn("too many clients: the connection is closed", "max", r.MaxClients)
			conn.Close()
			continue
		}
		r.Stats.Clients.Add(1)
		running.Go(func() {
			defer func() { <-r.clientSlots }()
			defer conn.Close()
			if err := r.stream(ctx, conn, conn); err != nil {
				r.Log.Error("the connection is closed", "client", conn.RemoteAddr(), "error", err)
			}
		})
	}
}

// stream serves a client without message boundaries. A lost allocation ends it with an error, because bytes in flight
// may be lost with the allocation. So does a dropped datagram.
func (r *runner) stream(ctx context.Context, in io.Reader, out io.Writer) error {
	r.Stats.Active.Add(1)
	defer r.Stats.Active.Add(-1)
	s := &stream{runner: r, unread: make(chan []byte, maxUnread), credit: make(chan struct{}, 1)}
	a, err := r.open(ctx, s.receive)
	if err != nil {
		return err
	}
	defer a.close()
	sent, written := make(chan error, 1), make(chan error, 1)
	ended := make(chan struct{})
	defer close(ended)
	go func() { sent <- s.send(a, in, ended) }()
	go func() { written <- s.write(out, ended) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.done:
			r.Stats.Lost.Add(1)
			return fmt.Errorf("%w: %w", errLost, a.err)
		case err := <-written:
			return err
		case err := <-sent:
			if err == nil {
				err = s.finish(ctx, a, written)
			}
			return errors.Join(err, s.losses())
		}
	}
}

// stream is a client without message boundaries.
type stream struct {
	*runner
	unread  chan []byte   // datagrams of the peer
	credit  chan struct{} // signals that a datagram was written to the client
	dropped atomic.Int64
	last    atomic.Int64 // time of the last datagram of the peer, Unix nanoseconds

	sent, returned, unreturned atomic.Int64 // bytes; awaitEcho no longer waits for the unreturned ones
	unconfirmed                int          // bytes since the last probe
	first                      bool         // a datagram was sent
}

// receive queues a datagram of the peer. It does not block, because the same goroutine reads STUN responses.
func (s *stream) receive(p []byte) {
	s.last.Store(time.Now().UnixNano())
	select {
	case s.unread <- append([]byte(nil), p...):
	default:
		s.dropped.Add(1)
		s.Stats.Dropped.Add(1)
	}
}

// write writes the datagrams of the peer to the client.
func (s *stream) write(out io.Writer, ended <-chan struct{}) error {
	for {
		select {
		case <-ended:
			return nil
		case p := <-s.unread:
			if _, err := out.Write(p); err != nil {
				return fmt.Errorf("write to the client: %w", err)
			}
			s.returned.Add(int64(len(p)))
			s.Stats.ReceivedDatagrams.Add(1)
			s.Stats.ReceivedBytes.Add(int64(len(p)))
			select {
			case s.credit <- struct{}{}:
			default:
			}
		}
	}
}

// send sends the bytes of the client. It returns nil at their end.
func (s *stream) send(a *allocation, in io.Reader, ended <-chan struct{}) error {
	buf := make([]byte, chunk)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if err := s.sendChunk(a, buf[:n], ended); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read from the client: %w", err)
		}
	}
}

func (s *stream) sendChunk(a *allocation, p []byte, ended <-chan struct{}) error {
	if err := s.pace(a, len(p), ended); err != nil {
		return err
	}
	if err := a.send(p); err != nil {
		return err
	}
	s.sent.Add(int64(len(p)))
	s.unconfirmed += len(p)
	s.Stats.SentDatagrams.Add(1)
	s.Stats.SentBytes.Add(int64(len(p)))
	if s.first {
		return nil
	}
	// Datagrams that take different paths through the server may overtake each other.
	s.first = true
	a.bind()
	s.unconfirmed = 0
	_, err := a.probe()
	return err
}

// pace waits until n more bytes may be sent.
func (s *stream) pace(a *allocation, n int, ended <-chan struct{}) error {
	switch s.Pace {
	case PaceServer:
		if s.unconfirmed+n > s.Window {
			s.unconfirmed = 0
			_, err := a.probe()
			return err
		}
	case PaceEcho:
		s.awaitEcho(int64(s.Window-n), echoTimeout, ended)
	}
	return nil
}

// outstanding returns the bytes that the peer has not returned.
func (s *stream) outstanding() int64 { return s.sent.Load() - s.returned.Load() - s.unreturned.Load() }

// awaitEcho waits until at most n bytes are not returned. After the timeout without progress it counts them as lost.
func (s *stream) awaitEcho(n int64, timeout time.Duration, ended <-chan struct{}) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for s.outstanding() > n {
		select {
		case <-s.credit:
			timer.Reset(timeout)
		case <-timer.C:
			lost := s.outstanding()
			s.unreturned.Add(lost)
			s.Stats.Unreturned.Add(lost)
			return
		case <-ended:
			return
		}
	}
}

// finish returns when the peer has been silent for the linger time after the last byte was sent. With PaceEcho it
// returns as soon as the peer has returned every byte.
func (s *stream) finish(ctx context.Context, a *allocation, written <-chan error) error {
	if s.Pace == PaceEcho {
		s.awaitEcho(0, echoTimeout, ctx.Done())
		return nil
	}
	s.last.Store(max(s.last.Load(), time.Now().UnixNano()))
	for {
		silent := time.Since(time.Unix(0, s.last.Load()))
		if silent >= s.Linger && len(s.unread) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.done:
			return fmt.Errorf("%w: %w", errLost, a.err)
		case err := <-written:
			return err
		case <-time.After(max(s.Linger-silent, 10*time.Millisecond)):
		}
	}
}

// losses returns an error if the client did not receive all data.
func (s *stream) losses() error {
	var errs []error
	if n := s.dropped.Load(); n > 0 {
		errs = append(errs, fmt.Errorf("%d datagrams of the peer were dropped, because the client reads too slowly", n))
	}
	if n := s.unreturned.Load(); n > 0 {
		errs = append(errs, fmt.Errorf("the peer did not return %d bytes", n))
	}
	return errors.Join(errs...)
}
