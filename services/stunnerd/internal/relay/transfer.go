package relay

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// transfer is a batch of datagrams that a relay sends together, in one direction.
type transfer struct {
	packets []datagram.Packet
	items   []item // one for each packet
	// clusters is used if the transfer does not belong to an Outbox. The transfers of an Outbox share one Tally.
	clusters meter.Tally
}

// item is the accounting of one packet.
type item struct {
	traffic *meter.Traffic // of the peer's cluster
	usage   *meter.Traffic // of the route, for usage records; nil if there are none
	count   *peerCount     // of the peer; nil if its packets are not counted
	// channel is armed with generation after the packet was sent (see Relay.arm). It is nil without a channel.
	channel    *channel
	generation offload.Generation
	peer       netip.AddrPort
	size       int // of the payload, without the ChannelData header
}

var transfers datagram.Pool[transfer]

func (t *transfer) add(p datagram.Packet, i item) {
	t.packets = append(t.packets, p)
	t.items = append(t.items, i)
}

// reset empties the transfer and keeps its memory, without references to packets and channels.
func (t *transfer) reset() {
	clear(t.packets)
	clear(t.items)
	t.packets, t.items = t.packets[:0], t.items[:0]
}

// count counts the sent packets of a transfer, and drops the others. The processors share the counters, so each counter
// is changed once and not for each packet. Counters of clusters are collected in a Tally.
func (r *Relay) count(t *transfer, d session.Direction, clusters *meter.Tally, now time.Time) {
	var all meter.Sum
	r.countPeers(t, d, r.since(now))
	countUsage(t, d)
	for i := range t.items {
		if err := t.packets[i].Err; err != nil {
			r.drop(Undelivered(err), t.items[i].peer)
			continue
		}
		all.Add(t.items[i].size)
		clusters.Add(flow(t.items[i].traffic, d), t.items[i].size)
		if c := t.items[i].channel; c != nil {
			r.arm(c, t.items[i].generation, now)
		}
	}
	flow(&r.session.Traffic, d).AddSum(all)
}

// countPeers counts the packets of a transfer by peer: sent packets to peers, and all packets from peers. The counters
// of a peer are changed once for consecutive packets.
func (r *Relay) countPeers(t *transfer, d session.Direction, now time.Duration) {
	for i := 0; i < len(t.items); {
		of, n := t.items[i].count, uint64(0)
		for ; i < len(t.items) && t.items[i].count == of; i++ {
			if d == session.ToClient || t.packets[i].Err == nil {
				n++
			}
		}
		switch {
		case of == nil || n == 0:
		case d == session.ToPeer:
			of.addSent(n, now)
		default:
			of.addReceived(n, now)
		}
	}
}

// countUsage counts the sent packets of a transfer for usage records. The counters of a route are changed once for
// consecutive packets.
func countUsage(t *transfer, d session.Direction) {
	for i := 0; i < len(t.items); {
		of, sum := t.items[i].usage, meter.Sum{}
		for ; i < len(t.items) && t.items[i].usage == of; i++ {
			if t.packets[i].Err == nil {
				sum.Add(t.items[i].size)
			}
		}
		if of != nil {
			flow(of, d).AddSum(sum)
		}
	}
}

// flow returns the counter of a direction, as seen from the relay.
func flow(t *meter.Traffic, d session.Direction) *meter.Flow {
	if d == session.ToPeer {
		return &t.Tx
	}
	return &t.Rx
}
