package turncat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxWaiting is the number of datagrams of a UDP client that wait for its allocation or for the server.
	maxWaiting  = 256
	firstRetry  = time.Second
	longestWait = 30 * time.Second
)

// datagrams serves a UDP socket. Each source address is a client.
func (r *runner) datagrams(ctx context.Context) error {
	conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp", r.Client.Address)
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	socket := conn.(*net.UDPConn)
	_ = socket.SetReadBuffer(socketBuffer) // a smaller buffer works too
	r.Log.Info("listening", "address", socket.LocalAddr(), "network", "udp")
	var flows sync.Map // of netip.AddrPort to *flow
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	buf := make([]byte, maxMessage)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var temporary net.Error
			if errors.As(err, &temporary) && temporary.Timeout() {
				continue
			}
			return fmt.Errorf("receive from clients: %w", err)
		}
		known, ok := flows.Load(from)
		if !ok {
			select {
			case r.clientSlots <- struct{}{}:
			default:
				if r.Stats.Refused.Add(1) == 1 {
					r.Log.Warn("too many clients: datagrams of new ones are dropped", "max", r.MaxClients)
				}
				continue
			}
			f := &flow{runner: r, socket: socket, client: from, waiting: make(chan []byte, maxWaiting)}
			f.touch()
			flows.Store(from, f)
			known = f
			running.Go(func() {
				f.run(ctx)
				flows.Delete(from)
				<-r.clientSlots
			})
		}
		select {
		case known.(*flow).waiting <- append([]byte(nil), buf[:n]...):
		default:
			r.Stats.Dropped.Add(1)
		}
	}
}

// flow is a UDP client with its allocation.
type flow struct {
	*runner
	socket  *net.UDPConn
	client  netip.AddrPort
	waiting chan []byte
	last    atomic.Int64 // time of the last datagram, Unix nanoseconds
}

func (f *flow) touch() { f.last.Store(time.Now().UnixNano()) }

// idle returns how long the client has been idle.
func (f *flow) idle() time.Duration { return time.Since(time.Unix(0, f.last.Load())) }

// run keeps an allocation for the client until the client is idle. A lost allocation is replaced by a new allocation,
// with another relayed address. After a failure or a refusal there is a pause.
func (f *flow) run(ctx context.Context) {
	f.Stats.Clients.Add(1)
	f.Stats.Active.Add(1)
	defer f.Stats.Active.Add(-1)
	log := f.Log.With("client", f.client)
	for wait := firstRetry; ctx.Err() == nil && f.idle() < f.Idle; {
		err := f.serve(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			continue
		case errors.Is(err, errLost) && !errors.Is(err, ErrForbidden):
			wait = firstRetry
			log.Warn("another allocation is made", "error", err)
			continue
		}
		log.Error("no allocation for the client", "error", err, "retry", wait)
		select {
		case <-ctx.Done():
		case <-time.After(min(wait, f.Idle)):
		}
		wait = min(2*wait, longestWait)
	}
}

// errLost reports that an allocation was made and is lost.
var errLost = errors.New("the allocation is lost")

// serve makes an allocation and uses it until the client is idle, ctx ends, or the allocation is lost.
func (f *flow) serve(ctx context.Context) error {
	a, err := f.open(ctx, f.deliver)
	if err != nil {
		return err
	}
	defer a.close()
	if err := f.relay(ctx, a); err != nil {
		f.Stats.Lost.Add(1)
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// relay sends the datagrams of the client until the client is idle, ctx ends, or the allocation is lost.
func (f *flow) relay(ctx context.Context, a *allocation) error {
	check := time.NewTicker(min(f.Idle, time.Second))
	defer check.Stop()
	for {
		select {
		case p := <-f.waiting:
			f.touch()
			if err := a.send(p); err != nil {
				f.Stats.Dropped.Add(1)
				f.Log.Debug("cannot send", "client", f.client, "error", err)
				continue
			}
			f.Stats.SentDatagrams.Add(1)
			f.Stats.SentBytes.Add(int64(len(p)))
		case <-check.C:
			if f.idle() >= f.Idle {
				return nil
			}
		case <-a.done:
			return a.err
		case <-ctx.Done():
			return nil
		}
	}
}

// deliver sends a datagram of the peer to the client.
func (f *flow) deliver(p []byte) {
	f.touch()
	if _, err := f.socket.WriteToUDPAddrPort(p, f.client); err != nil {
		f.Stats.Dropped.Add(1)
		return
	}
	f.Stats.ReceivedDatagrams.Add(1)
	f.Stats.ReceivedBytes.Add(int64(len(p)))
}
