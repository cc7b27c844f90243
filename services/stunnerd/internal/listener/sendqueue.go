package listener

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// maxQueued and maxQueuedBytes bound the frames that wait for a client that reads slowly.
	maxQueued      = 64
	maxQueuedBytes = 128 << 10
	// maxAge is how long media may wait in the queue of a client. Older media is useless for a call and delays later
	// frames.
	maxAge = 50 * time.Millisecond
	// adaptPause is the minimum time between two calls of adapt.
	adaptPause = 50 * time.Millisecond
	// writeTimeout is how long a client may take to read the backlog of its stream. After that the connection of the
	// client is closed.
	writeTimeout = 5 * time.Second
)

// sendQueue sends frames to a client over TCP or TLS and never waits. Frames that the kernel does not accept are
// queued. If the queue is full, or its oldest media is older than maxAge, the oldest media is dropped. Answers are
// never dropped, because a client does not repeat its request over a reliable transport (RFC 8489 §6.2.2). If the queue
// is full of answers, the connection is closed.
type sendQueue struct {
	stream *stream
	// conn is the stream, or TLS on the stream.
	conn net.Conn
	// drop counts a dropped frame.
	drop func(meter.Reason)
	// run runs a function in a goroutine of the listener.
	run func(func())

	mu sync.Mutex
	// draining reports whether a goroutine sends the queue.
	draining bool
	closed   bool
	queue    []queuedFrame
	queued   int // bytes in queue
	// backlog is how many bytes the stream had not sent when the queue came into use. The session is charged for them.
	backlog int
	// charge returns a claim of the session for the memory of the queue. memory is the claim while the queue is in use,
	// and charged its size.
	charge  func() session.Claim
	memory  session.Claim
	charged int
	// adapted is when adapt was called last.
	adapted time.Time
}

type queuedFrame struct {
	bytes []byte
	since time.Time
}

// Send sends a frame, or queues a copy of it.
func (o *sendQueue) Send(frame []byte) error {
	packets := [1]datagram.Packet{{Payload: frame}}
	o.SendAll(packets[:])
	return packets[0].Err
}

// SendAll sends frames, or queues copies of them, and sets Err of each. Frames that are sent together take one system
// call. Over TLS each frame is a separate record, because some clients, for example coturn's, treat a record as a
// message.
func (o *sendQueue) SendAll(packets []datagram.Packet) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(packets) > 0 {
		n := 1
		switch {
		case o.closed:
			packets[0].Err = net.ErrClosed
		case o.draining:
			packets[0].Err = o.enqueue(packets[0].Payload)
		default:
			n = together(packets)
			err := o.write(packets[:n])
			for i := range packets[:n] {
				packets[i].Err = err
			}
		}
		packets = packets[n:]
	}
}

// maxWrite bounds the length of a write of several frames, without what TLS adds. It is small enough for the backlog of
// a stream.
const maxWrite = 16 << 10

// together returns how many of the frames can be sent by one write.
func together(packets []datagram.Packet) (n int) {
	for size := 0; n < len(packets); n++ {
		if size += len(packets[n].Payload); size > maxWrite && n > 0 {
			break
		}
	}
	return n
}

// recordOverhead bounds what TLS adds to a frame: 29 bytes with AES-GCM in TLS 1.2, fewer in TLS 1.3.
const recordOverhead = 32

// writeBuffers hold the bytes of one write. A longer write allocates.
var writeBuffers datagram.Pool[[maxWrite + datagram.BatchSize*recordOverhead]byte]

// write writes frames to the connection. If the kernel does not accept all of them, later frames are queued.
func (o *sendQueue) write(packets []datagram.Packet) (err error) {
	o.stream.queued.Store(true)
	if len(packets) == 1 {
		_, err = o.conn.Write(packets[0].Payload)
	} else {
		err = o.writeAtOnce(packets)
	}
	o.stream.queued.Store(false)
	if err != nil {
		return o.stalled(err)
	}
	if o.stream.behind() {
		if !o.payBacklog() {
			o.drop(meter.Capacity)
			o.closed = true
			o.empty()
			return errors.Join(errNoRoom, o.stream.Close())
		}
		o.draining = true
		o.run(o.drain)
	}
	return nil
}

// freeBacklog is the size of the backlog that is included in the memory of a connection. A backlog of up to
// usualBacklog, the rest of one write of datagrams of usual sizes, is kept even if the process has no memory for it: a
// call must not end because memory is scarce.
const (
	freeBacklog  = 4 << 10
	usualBacklog = maxWrite + datagram.BatchSize*recordOverhead
)

// errNoRoom means that the process has no memory for the rest of a frame.
var errNoRoom = errors.New("no memory for the rest of a frame")

// payBacklog charges the session for the backlog of the stream: the rest of a frame that the kernel has not accepted,
// such as a datagram of 64 KB to a client that does not read. It reports false if there is no memory for it. The
// connection must then be closed, because the rest of a frame cannot be discarded.
func (o *sendQueue) payBacklog() bool {
	if o.backlog = o.stream.waiting(); o.backlog <= freeBacklog {
		o.backlog = 0
	}
	if o.pay(0) {
		return true
	}
	if o.backlog > usualBacklog {
		return false
	}
	o.charged = usualBacklog
	o.memory.Force(usualBacklog)
	return true
}

// stalled closes the connection after a failed write. If the write failed because the client does not read, it counts
// the client as slow.
func (o *sendQueue) stalled(err error) error {
	if errors.Is(err, errBacklog) || errors.Is(err, errNoRoom) || errors.Is(err, os.ErrDeadlineExceeded) {
		o.drop(meter.StalledClient)
	}
	return errors.Join(err, o.stream.Close())
}

// writeAtOnce writes frames by one system call.
func (o *sendQueue) writeAtOnce(packets []datagram.Packet) (err error) {
	buffer := writeBuffers.Get()
	defer writeBuffers.Put(buffer)
	o.stream.hold(buffer[:0])
	defer func() { err = errors.Join(err, o.stream.release()) }()
	for i := 0; i < len(packets) && err == nil; i++ {
		_, err = o.conn.Write(packets[i].Payload)
	}
	return err
}

func (o *sendQueue) enqueue(frame []byte) error {
	now := time.Now()
	if now.Sub(o.adapted) >= adaptPause {
		o.adapted = now
		o.stream.adapt()
	}
	for len(o.queue) >= maxQueued || o.queued+len(frame) > maxQueuedBytes || o.outdated(now) {
		oldest := slices.IndexFunc(o.queue, queuedFrame.isMedia)
		if oldest < 0 {
			if len(o.queue) < maxQueued && o.queued+len(frame) <= maxQueuedBytes {
				break
			}
			return o.stalled(errBacklog)
		}
		o.remove(oldest)
		o.drop(meter.SlowClient)
	}
	if !o.pay(len(frame)) {
		switch most := o.queued + o.backlog + len(frame); {
		case (queuedFrame{bytes: frame}).isMedia():
			return datagram.ErrCongested
		case most > o.charged+freeAnswers:
			return o.stalled(errNoRoom)
		}
	}
	o.queue = append(o.queue, queuedFrame{slices.Clone(frame), now})
	o.queued += len(frame)
	return nil
}

const (
	// chargeStep is the step in which the session is charged for its queue, so that few frames change the charge.
	chargeStep = 16 << 10
	// freeAnswers is the maximum size of the waiting answers that no session is charged for, because the client has no
	// session or the process has no memory. It is included in the memory of a connection.
	freeAnswers = 4 << 10
)

// pay charges the session for n more bytes in the queue. It reports false if there is no memory for them or no session.
func (o *sendQueue) pay(n int) bool {
	most := o.queued + o.backlog + n
	if most <= o.charged {
		return true
	}
	if o.charged == 0 {
		o.memory = o.charge()
	}
	steps := (most + chargeStep - 1) / chargeStep * chargeStep
	if o.memory.Set(int64(steps)) != nil || o.memory.Held() == 0 {
		return false
	}
	o.charged = steps
	return true
}

// empty frees the queue.
func (o *sendQueue) empty() {
	o.queue, o.queued, o.backlog, o.charged = nil, 0, 0, 0
	o.memory.Release()
}

// outdated reports whether the oldest media in the queue has waited too long.
func (o *sendQueue) outdated(now time.Time) bool {
	oldest := slices.IndexFunc(o.queue, queuedFrame.isMedia)
	return oldest >= 0 && now.Sub(o.queue[oldest].since) > maxAge
}

// isMedia reports whether a frame is ChannelData or a Data indication, and not an answer.
func (q queuedFrame) isMedia() bool {
	const indication, response = 0x10, 0x01 // the two bits of the class (RFC 8489 §5)
	return isChannelData(q.bytes[0]) || q.bytes[0]&response == 0 && q.bytes[1]&indication != 0
}

func (o *sendQueue) remove(at int) {
	o.queued -= len(o.queue[at].bytes)
	o.queue = slices.Delete(o.queue, at, at+1)
}

// drain sends the queue as fast as the client reads, and returns when the queue is empty.
func (o *sendQueue) drain() {
	for {
		err := o.stream.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err == nil {
			err = o.stream.flush()
		}
		if err != nil {
			_ = o.stalled(err) // a part of a frame may have been sent
			o.close()
			return
		}
		if o.refill() {
			return
		}
	}
}

// refill writes frames from the queue to the stream until the stream has a backlog. It reports whether drain is done:
// the queue and the backlog are empty, or the connection has failed.
func (o *sendQueue) refill() (done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 && !o.stream.behind() {
		for o.outdated(time.Now()) {
			o.remove(slices.IndexFunc(o.queue, queuedFrame.isMedia))
			o.drop(meter.SlowClient)
		}
		if len(o.queue) == 0 {
			break
		}
		frame := o.queue[0].bytes
		o.remove(0)
		o.stream.queued.Store(true)
		_, err := o.conn.Write(frame)
		o.stream.queued.Store(false)
		o.backlog = o.stream.waiting() // until now these bytes were charged as a part of the queue
		if err != nil {
			o.closed = true
			o.empty()
			_ = o.stalled(err)
			return true
		}
	}
	if o.stream.behind() {
		return false
	}
	o.draining = false
	o.empty()
	_ = o.stream.SetWriteDeadline(time.Time{}) // fails only on a closed connection
	return true
}

// close makes Send fail. No goroutine is started afterwards.
func (o *sendQueue) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.empty()
}
