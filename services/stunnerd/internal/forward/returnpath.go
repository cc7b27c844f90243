package forward

import (
	"net"
	"net/netip"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// ReturnPath is the return path to a client through a front. ReturnPaths are comparable with ==: two ReturnPaths
// through one front to one client are equal, even if the process of the front has restarted. The zero ReturnPath sends
// nothing. All methods may be called concurrently.
type ReturnPath struct {
	forwarder *Forwarder
	pod       *pod
	client    Client
}

// Send sends one datagram to the client. The error is an error of datagram.Sender, or net.ErrClosed if the front no
// longer exists.
func (w *ReturnPath) Send(payload []byte) error {
	packets := [1]datagram.Packet{{Payload: payload}}
	w.SendAll(packets[:])
	return packets[0].Err
}

// SendAll sends datagrams to the client, and sets Err of each like Send. It ignores the addresses.
func (w *ReturnPath) SendAll(packets []datagram.Packet) { w.sendAll(reply, packets) }

// send sends a frame of any kind to the pod of the ReturnPath.
func (w *ReturnPath) send(k kind, payload []byte) error {
	packets := [1]datagram.Packet{{Payload: payload}}
	w.sendAll(k, packets[:])
	return packets[0].Err
}

func (w *ReturnPath) sendAll(k kind, packets []datagram.Packet) {
	l := w.link()
	if l == nil {
		for i := range packets {
			packets[i].Err = net.ErrClosed
		}
		return
	}
	f := w.forwarder
	o := f.outboxes.Get()
	defer f.outboxes.Put(o)
	o.forwarder = f
	first := 0
	for i := range packets {
		if !o.room(packets[i].Payload) {
			o.report(k, packets[first:i])
			first = i
		}
		packets[i].Err = o.put(l, k, w.client, packets[i].Payload)
	}
	o.report(k, packets[first:])
}

// report sends the frames of all packets whose Err is nil, and sets Err of the packets that could not be sent.
func (o *Outbox) report(k kind, packets []datagram.Packet) {
	o.send()
	var sent, failed uint64
	next := 0
	for i := range packets {
		if packets[i].Err == nil {
			packets[i].Err = o.packets[next].Err
			next++
		}
		if packets[i].Err == nil {
			sent++
		} else {
			failed++
		}
	}
	if k == reply {
		o.forwarder.counters.replied.Add(sent)
	}
	o.forwarder.unsent(failed)
	o.empty()
}

// Front returns the address of the front. It is the zero AddrPort if the front no longer exists.
func (w *ReturnPath) Front() netip.AddrPort {
	if l := w.link(); l != nil {
		return l.peer.Address
	}
	return netip.AddrPort{}
}

// Pod returns the name of the front. It is "" if the front no longer exists.
func (w *ReturnPath) Pod() string {
	if l := w.link(); l != nil {
		return l.peer.Pod
	}
	return ""
}

func (w *ReturnPath) link() *link {
	if w.pod == nil {
		return nil
	}
	return w.pod.link.Load()
}
