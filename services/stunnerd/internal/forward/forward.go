// Package forward passes datagrams of clients between the pods of a Gateway.
//
// A load balancer or kube-proxy may send the datagrams of a client to another pod than before. That pod has no session
// of the client. It passes the datagrams on, so that the call continues. The roles of pods are, for one client:
//
//   - The owner is the pod that has the session.
//   - The front is the pod at which the datagrams of the client arrive.
//   - The homes are two pods that store which pod is the owner. Every pod computes the homes of a client from the list
//     of pods (rendezvous hashing).
//
// A front that does not know the owner sends the datagram to a home in an ask frame. The home answers with an is frame,
// which names the owner, or with an unknown frame; both return the datagram. From then on the front sends datagrams of
// the client to the owner in data frames. The owner sends its answers to the front in reply frames, and the front sends
// them to the client. The owner cannot answer directly: the address translation of the node drops datagrams to the
// client from any pod but the one to which the client sends.
//
// No frame can circulate. A data frame is never passed on: a pod without the session answers unknown, and the front
// forgets the owner. A front drops an is frame that names the front itself.
//
// # Files
//
//	frame.go keys.go window.go  frames, their keys, replay protection
//	peers.go                    the list of pods
//	index.go announce.go        the homes, and their index of clients
//	ask.go                      the search for the owner
//	returnpath.go               the return path to a client
//	handover.go                 sessions of a pod that drains, or whose datagrams arrive at another pod
//	alive.go copies.go          sessions of a pod that is lost, and their copies at the homes
//	quota.go                    quotas of users over all pods
//	receive.go                  what a received frame does
//	status.go                   counters
//	simulation_test.go          a simulation of 1,000,000 sessions; day_test.go simulates a day
package forward

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Client is a client of the listener on Port. Clients with an IPv6 zone are never forwarded.
type Client struct {
	Addr netip.AddrPort
	Port uint16
}

// Sessions are the sessions of this process and its listeners. All methods except Has, All, Version, Copy, Sweep, Take,
// TakeOver and Users are called by one goroutine only, the reader of the Forwarder.
type Sessions interface {
	// Serves reports whether a UDP listener is open on a port.
	Serves(port uint16) bool
	// Has reports whether a client has a session here. It may be called from any goroutine.
	Has(c Client) bool
	// All calls yield for each client with a session here until yield returns false. It may be called from any
	// goroutine, and must not hold a lock that Has, Deliver or Forwarder.Added needs while it calls yield.
	All(yield func(Client) bool)
	// Deliver handles a datagram of a client that arrived at another pod. front is the return path to the client
	// through that pod, or the zero ReturnPath if another pod has returned a datagram that arrived here. Deliver
	// reports false, and does nothing, if the client has no session here. It may use the frame until Flush.
	Deliver(c Client, frame []byte, front ReturnPath, now time.Time) bool
	// Begin handles an Allocate request of a client that another pod has authenticated. front is the return path to the
	// client. Begin does not retain the message, and reports false if no UDP listener is open on the port.
	Begin(c Client, request []byte, front ReturnPath) bool
	// Answer sends a datagram of the owner to a client that sends to this pod. asked is the source address of the
	// datagram: the address to which the client sends. It is never changed. Answer may use the frame until Flush, and
	// reports false if no UDP listener is open on the port.
	Answer(c Client, frame []byte, asked *datagram.Source) bool
	// Unowned handles a STUN message of a client that sends to this pod and has no session in any pod. asked has the
	// same meaning as for Answer. Unowned does not retain the message.
	Unowned(c Client, message []byte, asked *datagram.Source)
	// Flush ends a batch of calls of Deliver and Answer.
	Flush(now time.Time)
	// Sweep frees what Answer has opened for clients that receive no more answers. It is called every sweepEvery, from
	// another goroutine.
	Sweep(now time.Time)
	// Take continues the session of a client that the pod of from hands over. The arguments are a record of the session
	// and the clock of that pod. If the datagrams of the client arrive here, here is the address to which the client
	// sends; otherwise it is nil. Take must not send anything before FromPeer. It reports false if this pod cannot
	// continue the session. It is called from another goroutine, one call at a time.
	Take(c Client, record []byte, clock time.Time, from ReturnPath, here *datagram.Source) bool
	// FromPeer handles a datagram that a peer has sent to the relayed address of the session at the pod of from. An
	// invalid peer means that there is no datagram. Each call shows that the pod of from has ended the session there.
	// FromPeer reports false if the session does not need that address. It does not retain the datagram.
	FromPeer(c Client, from ReturnPath, peer netip.AddrPort, datagram []byte, now time.Time) bool
	// ToPeer sends a datagram to a peer from the relayed address of a session that the pod of to has taken over. It
	// does not retain the datagram.
	ToPeer(c Client, to ReturnPath, peer netip.AddrPort, datagram []byte)
	// Version returns the version of the session of a client here. It may be called from any goroutine.
	Version(c Client) (Version, bool)
	// Copy returns the record of the session of a client here, of at most MaxCopy bytes, from which another pod can
	// continue the session. It reports false if no pod can continue the session. It is called from another goroutine.
	Copy(c Client) (record []byte, ok bool)
	// TakeOver continues the session of a client whose pod is lost, with the version v, from the record of the session.
	// shift is added to the times of the record. Nothing may be sent to the client before one of its datagrams has
	// arrived. TakeOver reports false if this pod cannot continue the session. It is called from another goroutine, one
	// call of TakeOver or Take at a time.
	TakeOver(c Client, v Version, record []byte, shift time.Duration) bool
	// GiveUp ends a session of this version here, because another pod has it. It sends nothing to the client.
	GiveUp(c Client, v Version)
	// Part closes the relayed address of a session that the pod of to has taken over.
	Part(c Client, to ReturnPath)
	// Users calls yield with the number of sessions here of each user to which a limit applies, until yield returns
	// false. It is called from another goroutine, and must not hold a lock that Forwarder.Count needs while it calls
	// yield.
	Users(yield func(u User, sessions int64) bool)
}

// Options are the arguments of Open.
type Options struct {
	// Local is the address of the pod.
	Local    netip.Addr
	Sessions Sessions
	Meter    *meter.Meter
	// Descriptors is the highest allowed file descriptor number of a socket that sends to one pod. Pods without such a
	// socket share the socket that receives.
	Descriptors int
	// Clients is the largest number of clients in each table of clients of other pods. 0 means the limits of the
	// tables: maxKnown, maxSearches, maxHeld, maxPending and maxCounts.
	Clients int
	// Copies is the largest memory of copies of sessions of other pods, in bytes; 0 means maxCopies.
	Copies int
	// Ambiguous reports whether a client at another pod may have the same address and port: a node that translates
	// addresses may use one of its ports for another client at each pod. No owner is searched for such a client. Nil
	// means that no address is ambiguous.
	Ambiguous func(client netip.Addr) bool
}

// PriceOfClient is the memory of a client in all tables of clients of other pods, in bytes.
const PriceOfClient = 9 << 7

// most returns the largest number of entries of a table.
func most(clients, limit int) int {
	if clients > 0 {
		return min(clients, limit)
	}
	return limit
}

// Forwarder passes datagrams between this pod and the others. A nil *Forwarder is valid: it forwards nothing. All
// methods may be called from several goroutines at a time.
type Forwarder struct {
	self     Peer
	sessions Sessions
	meter    *meter.Meter
	wire     wire
	// epoch is the start of the clock of the Forwarder. All times are stored as a time.Duration since epoch.
	epoch time.Time
	// counter is the counter of the latest frame.
	counter atomic.Uint64
	view    atomic.Pointer[view]

	// lists is a mutex. It guards pods, openers, retired, and writes to view.
	lists   sync.Mutex
	pods    map[uint64]*pod
	openers map[pair]*opener
	// retired contains the highest counters of the openers that retire has removed.
	retired map[pair]uint64

	index index
	front front
	// outboxes are used by the methods of ReturnPath.
	outboxes datagram.Pool[Outbox]
	// replies is the Outbox of the reader goroutine.
	replies *Outbox

	changes sync.Mutex
	pending map[clientKey]change

	handovers handovers
	copying   copying
	quotas    quotas
	// clients is Options.Clients.
	clients   int
	ambiguous func(client netip.Addr) bool
	wake      chan struct{}

	closed  chan struct{}
	closing sync.Once
	running sync.WaitGroup
	task    watch.Task

	counters counters
}

// wire is a *socket, or a network in the memory of a test.
type wire interface {
	// connect returns the sender of the frames to one pod. A shared sender also sends to other pods, and only Close
	// closes it.
	connect() (s sender, shared bool)
	Close() error
}

// sender sends frames. It is a *datagram.Sender, or a network in the memory of a test.
type sender interface {
	SendAll([]datagram.Packet)
	Close() error
}

// Open opens a UDP socket on a port that the kernel selects. Nothing is forwarded before SetPeers.
func Open(o Options) (*Forwarder, error) {
	s, err := listen(o.Local, o.Descriptors)
	if err != nil {
		return nil, fmt.Errorf("open socket for forwarding between pods: %w", err)
	}
	f := newForwarder(o, s, netip.AddrPortFrom(o.Local.Unmap(), s.port))
	f.running.Go(func() { s.read(f) })
	return f, nil
}

// newForwarder returns a Forwarder without a reader.
func newForwarder(o Options, w wire, address netip.AddrPort) *Forwarder {
	f := &Forwarder{
		self: Peer{Address: address}, sessions: o.Sessions, meter: o.Meter, wire: w, epoch: time.Now(),
		pods: map[uint64]*pod{}, openers: map[pair]*opener{}, retired: map[pair]uint64{},
		index: newIndex(o.Clients, o.Copies), front: newFront(), clients: o.Clients, ambiguous: o.Ambiguous,
		copying: copying{jobs: map[clientKey]*copyJob{}}, quotas: newQuotas(),
		pending: map[clientKey]change{}, wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	f.front.clients = o.Clients
	_, _ = rand.Read(f.self.Sender[:]) // never fails
	f.view.Store(f.build(Peers{}, 0))
	f.replies = f.Outbox()
	f.handovers.waiting, f.handovers.queue = map[clientKey]offer{}, make(chan taking, maxTaking)
	f.running.Go(f.run)
	f.running.Go(f.takeAll)
	return f
}

// now returns the time since epoch, and since returns a time on this clock.
func (f *Forwarder) now() time.Duration                { return time.Since(f.epoch) }
func (f *Forwarder) since(now time.Time) time.Duration { return now.Sub(f.epoch) }

// Self returns the address and the sender id that this process reports to config discovery. It is the zero Peer if f is
// nil.
func (f *Forwarder) Self() Peer {
	if f == nil {
		return Peer{}
	}
	return f.self
}

// Tasks returns the task of the reader, for the liveness probe.
func (f *Forwarder) Tasks() []*watch.Task {
	if f == nil {
		return nil
	}
	return []*watch.Task{&f.task}
}

// Close closes the sockets and waits for the goroutines of f. It ends no session.
func (f *Forwarder) Close() (err error) {
	if f == nil {
		return nil
	}
	f.closing.Do(func() {
		close(f.closed)
		err = f.wire.Close() // from now on, connect opens no socket
		f.lists.Lock()
		defer f.lists.Unlock()
		for _, l := range f.view.Load().links {
			err = errors.Join(err, l.close())
		}
	})
	f.running.Wait()
	return err
}
