package forward

import (
	"net"
	"net/netip"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// Way is the way back to a client by a front. Ways are comparable with ==: two Ways by one front to one client are
// equal, also after a restart of the process of the front. The zero Way leads nowhere. The methods may be called from
// several goroutines at a time.
type Way struct {
	forwarder *Forwarder
	pod       *pod
	client    Client
}

// Send sends one datagram to the client. The error is as of datagram.Sender, or net.ErrClosed if the front is gone.
func (w *Way) Send(payload []byte) error {
	packets := [1]datagram.Packet{{Payload: payload}}
	w.SendAll(packets[:])
	return packets[0].Err
}

// SendAll sends datagrams to the client, and sets Err of each as of Send. It ignores the addresses.
func (w *Way) SendAll(packets []datagram.Packet) { w.sendAll(reply, packets) }

// send sends a frame of another kind to the pod of the way.
func (w *Way) send(k kind, payload []byte) error {
	packets := [1]datagram.Packet{{Payload: payload}}
	w.sendAll(k, packets[:])
	return packets[0].Err
}

func (w *Way) sendAll(k kind, packets []datagram.Packet) {
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

// report sends the frames, which are those of the packets without an error, and sets the errors of the packets.
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

// Front returns the address of the front, or the zero AddrPort if the front is gone.
func (w *Way) Front() netip.AddrPort {
	if l := w.link(); l != nil {
		return l.peer.Address
	}
	return netip.AddrPort{}
}

// Pod returns the name of the pod of the front, or "" if the front is gone.
func (w *Way) Pod() string {
	if l := w.link(); l != nil {
		return l.peer.Pod
	}
	return ""
}

func (w *Way) link() *link {
	if w.pod == nil {
		return nil
	}
	return w.pod.link.Load()
}
