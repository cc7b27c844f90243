package forward

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Peer is a pod.
type Peer struct {
	// Pod is the name of the pod. It is unique in the list.
	Pod     string
	Address netip.AddrPort
	// Other is the address of the pod in the other family, or the zero Addr. No frame is sent to it.
	Other netip.Addr
	// Sender is random and made at each start of the process, so that no nonce is used again after a restart.
	Sender [8]byte
	// Draining reports whether the pod is about to end. Such a pod is a home only if all pods are draining.
	Draining bool
}

// Key is a key of the Gateway for one day.
type Key struct {
	ID     byte
	Secret [32]byte
}

// Peers is the list of the pods of a Gateway, including this one.
type Peers struct {
	Generation uint64
	// Keys are the keys of today and of yesterday, the newest first. They open frames. Without keys nothing is
	// forwarded.
	Keys []Key
	Pods []Peer
}

// clientKey identifies a client. It has no pointers, so that the garbage collector does not visit large maps of it.
type clientKey struct {
	high, low      uint64 // the address as 16 bytes
	port, listener uint16
}

// keyOf returns the key of a client. It reports false for a client that cannot be forwarded: an IPv6 zone has a meaning
// on one host only.
func keyOf(c Client) (clientKey, bool) {
	addr := c.Addr.Addr()
	b := addr.As16()
	return clientKey{
		high: binary.BigEndian.Uint64(b[:]), low: binary.BigEndian.Uint64(b[8:]),
		port: c.Addr.Port(), listener: c.Port,
	}, addr.IsValid() && (addr.Is4() || addr.Zone() == "")
}

// hash returns the part of the rendezvous hash that does not depend on the pod.
func (k clientKey) hash() uint64 {
	return mix(mix(mix(k.high)^k.low) ^ uint64(k.port)<<16 ^ uint64(k.listener))
}

// mix is the finalizer of splitmix64: every bit of the result depends on every bit of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// podID returns the id of a pod in frames and in the rendezvous hash. It does not change when the process restarts.
func podID(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return mix(h.Sum64())
}

// pod is a pod that was in a list. All lists share one pod for each name.
type pod struct {
	id uint64
	life
	// link is nil if the pod is not in the list, and for this pod.
	link atomic.Pointer[link]
}

// link contains what is needed to send frames to a pod and to decrypt its frames. It is never changed.
type link struct {
	pod    *pod
	peer   Peer
	sealer sealer
	// sender sends the frames to the pod. The kernel keeps datagrams to a pod that has vanished in the send buffer of
	// the socket, so each pod has a separate sender, unless shared is set.
	sender sender
	shared bool
	// openers are in the order of the keys.
	openers []keyedOpener
}

// close closes the sender, unless other pods use it too.
func (l *link) close() error {
	if l.shared {
		return nil
	}
	return l.sender.Close()
}

type keyedOpener struct {
	keyID byte
	*opener
}

// home is a pod that stores the owners of clients. sender distinguishes the processes of the pod, because a new process
// has an empty index.
type home struct {
	pod    *pod
	sender [8]byte
}

// view is the state that a list of pods determines. It is never changed.
type view struct {
	peers   Peers
	keys    []datedKey
	senders map[[8]byte]*link
	// links are the links to the other pods by id. pods also contains this pod.
	links map[uint64]*link
	pods  map[uint64]*pod
	// self is this pod, or nil if it is not in the list.
	self *pod
	// homes are the pods that do not drain, or all pods if all drain.
	homes []home
	// settles is when a new key begins to encrypt, and a new view must be built. It is the maximum duration if there is
	// no such key.
	settles time.Duration
	problem string
}

// forwards reports whether frames can be exchanged: the list must contain this pod, so that others accept its frames,
// and at least one other pod.
func (v *view) forwards() bool { return v.self != nil && len(v.links) > 0 }

// rank returns the two homes of a client: the pods with the highest hashes of client and pod, the highest first
// (rendezvous hashing). If there is only one home, the second is the zero home.
func rank(homes []home, k clientKey) (found [2]home) {
	client := k.hash()
	var first, second uint64
	for _, h := range homes {
		switch score := mix(client ^ h.pod.id); {
		case score > first || found[0].pod == nil:
			first, second = score, first
			found[0], found[1] = h, found[0]
		case score > second || found[1].pod == nil:
			second, found[1] = score, h
		}
	}
	return found
}

// build returns the view of a list. It reuses keys, ciphers and replay windows of the previous view.
func (f *Forwarder) build(p Peers, now time.Duration) *view {
	v := &view{
		peers: p, senders: map[[8]byte]*link{}, links: map[uint64]*link{}, pods: map[uint64]*pod{},
		settles: math.MaxInt64,
	}
	var former []datedKey
	if old := f.view.Load(); old != nil {
		former = old.keys
	}
	for _, k := range p.Keys {
		if slices.ContainsFunc(v.keys, func(other datedKey) bool { return other.ID == k.ID }) {
			continue
		}
		since := now
		for _, old := range former {
			if old.Key == k {
				since = old.since
			}
		}
		v.keys = append(v.keys, datedKey{Key: k, since: since})
		if settled := since + settleAfter; settled > now {
			v.settles = min(v.settles, settled)
		}
	}
	switch {
	case len(p.Pods) == 0:
		v.problem = "there is no list of the pods of the Gateway"
		return v
	case len(v.keys) == 0:
		v.problem = "the list of pods has no keys"
		return v
	}
	var draining []home
	for _, peer := range p.Pods {
		id := podID(peer.Pod)
		self := peer.Sender == f.self.Sender
		if v.pods[id] != nil || v.senders[peer.Sender] != nil || !self && !validAddress(peer.Address) {
			continue
		}
		if !self && peer.Address.Addr().Unmap().Is4() != f.self.Address.Addr().Is4() { // a socket has one family
			v.problem = "the first addresses of the pods of the Gateway have different families, and only pods with the " +
				"same one forward to each other"
			continue
		}
		at := f.pods[id]
		if at == nil {
			at = &pod{id: id}
			f.pods[id] = at
		}
		v.pods[id] = at
		if self {
			v.self = at
		} else {
			l := f.connect(at, peer, v.keys, now)
			v.senders[peer.Sender], v.links[id] = l, l
		}
		if h := (home{pod: at, sender: peer.Sender}); peer.Draining {
			draining = append(draining, h)
		} else {
			v.homes = append(v.homes, h)
		}
	}
	if len(v.homes) == 0 {
		v.homes = draining
	}
	if v.self == nil {
		v.problem = "this pod is not in the list of the pods of the Gateway"
	}
	return v
}

func validAddress(a netip.AddrPort) bool {
	return a.IsValid() && a.Port() != 0 && !a.Addr().IsUnspecified() && !a.Addr().IsMulticast() && a.Addr().Zone() == ""
}

// connect returns the link to a pod. If the address of the pod is unchanged, it reuses the sender of the previous link.
// The caller must hold f.lists.
func (f *Forwarder) connect(at *pod, peer Peer, keys []datedKey, now time.Duration) *link {
	peer.Address = netip.AddrPortFrom(peer.Address.Addr().Unmap(), peer.Address.Port())
	l := &link{pod: at, peer: peer}
	if old := at.link.Load(); old != nil && !old.shared && old.peer.Address == peer.Address {
		l.sender = old.sender
	} else {
		l.sender, l.shared = f.wire.connect()
	}
	seals := sealing(keys, now)
	l.sealer = sealer{keyID: seals.ID, aead: derive(seals.Secret, f.self.Sender, peer.Sender)}
	for _, k := range keys {
		p := pair{key: k.Key, peer: peer.Sender}
		if f.openers[p] == nil {
			o := &opener{aead: derive(k.Secret, peer.Sender, f.self.Sender)}
			if highest, ok := f.retired[p]; ok {
				o.window.skip(highest)
				delete(f.retired, p)
			}
			f.openers[p] = o
		}
		l.openers = append(l.openers, keyedOpener{keyID: k.ID, opener: f.openers[p]})
	}
	return l
}

// SetPeers replaces the list of pods. The zero Peers ends forwarding. It ignores pods whose address is invalid or of
// another family than the address of this pod. Of several pods with the same name or sender, it ignores all but the
// first.
func (f *Forwarder) SetPeers(p Peers) {
	if f == nil {
		return
	}
	p.Keys, p.Pods = slices.Clone(p.Keys), slices.Clone(p.Pods)
	f.replace(func(*view) *Peers { return &p })
}

// settle builds a new view when a new key begins to encrypt (see settleAfter).
func (f *Forwarder) settle() {
	f.replace(func(v *view) *Peers {
		if f.now() < v.settles {
			return nil
		}
		return &v.peers
	})
}

// replace builds and publishes the view of a list, unless next returns nil.
func (f *Forwarder) replace(next func(*view) *Peers) {
	f.lists.Lock()
	defer f.lists.Unlock()
	old := f.view.Load()
	p := next(old)
	if p == nil {
		return
	}
	v := f.build(*p, f.now())
	f.view.Store(v)
	for id, at := range f.pods {
		at.link.Store(v.links[id])
		if v.pods[id] == nil {
			delete(f.pods, id)
		}
	}
	for id, l := range old.links {
		if now := v.links[id]; now == nil || now.sender != l.sender {
			_ = l.close()
		}
	}
	// A window is kept when its sender leaves the list, because the sender may be listed again while the key is valid.
	expired := func(p pair) bool {
		return len(v.keys) > 0 && !slices.ContainsFunc(v.keys, func(k datedKey) bool { return k.Key == p.key })
	}
	maps.DeleteFunc(f.openers, func(p pair, o *opener) bool {
		switch {
		case v.senders[p.peer] != nil:
			o.unlisted = 0
		case o.unlisted == 0:
			o.unlisted = max(f.now(), 1)
		}
		return expired(p)
	})
	maps.DeleteFunc(f.retired, func(p pair, _ uint64) bool { return expired(p) })
	f.signal()
}
