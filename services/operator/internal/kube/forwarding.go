package kube

import (
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// peerRetention is how long a dataplane pod stays in the list of peers of its Gateway after its report was lost. A pod
// needs that long to connect to another replica of the operator. After its start, a replica waits that long for the
// reports of all pods before it publishes a list without some of them.
const peerRetention = 30 * time.Second

// forwarding publishes the lists of dataplane pods that forward datagrams to each other, one list for each Gateway with
// the keys of that Gateway.
//
// Each replica makes the lists from the reports that all replicas have received, from the watched pods, and from the
// CA that all replicas share. So the lists of all replicas have the same keys and, a moment after a change, the same
// pods. Nothing is stored. A nil *forwarding publishes nothing.
type forwarding struct {
	reports *reports.Store
	pods    *podIndex
	server  *discovery.Server
	log     *slog.Logger
	// complete is when this replica publishes a list although pods have not reported.
	complete time.Time

	mu        sync.Mutex
	authority trust.Authority
	// day is the trust.ForwardingDay of the current keys.
	day      int64
	gateways map[types.NamespacedName]*peerGroup
}

// peerGroup is the list of peers of one Gateway.
type peerGroup struct {
	uid types.UID
	// keys is nil if the keys must be derived again.
	keys []discovery.PeerKey
	pods map[string]listedPeer
	// published is the last published list; its Generation is 0 if there is none.
	published discovery.Peers
	// pending means that the list may change after some time without a change of the reports.
	pending bool
}

// listedPeer is a pod in the list. lost is the time when its report was lost, or zero if it has a report.
type listedPeer struct {
	discovery.Peer
	lost time.Time
}

func newForwarding(r *reports.Store, pods *podIndex, server *discovery.Server, log *slog.Logger) *forwarding {
	return &forwarding{
		reports: r, pods: pods, server: server, log: log, complete: time.Now().Add(peerRetention),
		gateways: map[types.NamespacedName]*peerGroup{},
	}
}

// setGateway starts the list of a Gateway, or derives its keys again if the Gateway was replaced by another one of the
// same name.
func (f *forwarding) setGateway(gateway types.NamespacedName, uid types.UID) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.gateways[gateway]
	if g == nil {
		g = &peerGroup{pods: map[string]listedPeer{}}
		f.gateways[gateway] = g
	}
	if g.uid != uid {
		g.uid, g.keys = uid, nil
		f.update(gateway, g, time.Now())
	}
}

// removeGateway removes the list of a Gateway.
func (f *forwarding) removeGateway(gateway types.NamespacedName) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gateways[gateway] != nil {
		delete(f.gateways, gateway)
		_ = f.server.SetPeers(gateway.String(), nil) // cannot fail without a list
	}
}

// setAuthority sets the CAs from which keys are derived.
func (f *forwarding) setAuthority(a trust.Authority) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if reflect.DeepEqual(f.authority.Encode(), a.Encode()) {
		return
	}
	f.authority = a
	f.renew()
	f.updatePending(time.Now())
}

// reported updates the list of a Gateway after a change of its reports.
func (f *forwarding) reported(gateway types.NamespacedName, now time.Time) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := f.gateways[gateway]; g != nil {
		f.update(gateway, g, now)
	}
}

// tick updates the lists that depend on time. It is called every second.
func (f *forwarding) tick(now time.Time) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if day := trust.ForwardingDay(now); day != f.day {
		f.day = day
		f.renew()
	}
	f.updatePending(now)
}

// renew makes the next update derive all keys again.
func (f *forwarding) renew() {
	for _, g := range f.gateways {
		g.keys, g.pending = nil, true
	}
}

func (f *forwarding) updatePending(now time.Time) {
	for gateway, g := range f.gateways {
		if g.pending {
			f.update(gateway, g, now)
		}
	}
}

// update publishes the list of a Gateway if it has changed. The caller holds f.mu.
func (f *forwarding) update(gateway types.NamespacedName, g *peerGroup, now time.Time) {
	latest := f.reports.Of(gateway.String())
	g.pending = f.observe(gateway, g, latest, now)
	if g.keys == nil {
		g.keys = f.keysOf(g.uid, now)
	}
	switch {
	case len(g.keys) == 0, now.Before(f.complete) && !f.allReported(gateway, latest):
		g.pending = true
		return
	case len(g.pods) == 0 && g.published.Generation == 0: // no pod has forwarded yet
		return
	}
	next := discovery.Peers{Keys: g.keys, Pods: g.list()}
	if slices.Equal(next.Keys, g.published.Keys) && slices.Equal(next.Pods, g.published.Pods) {
		return
	}
	next.Generation = max(uint64(now.UnixMilli()), g.published.Generation+1)
	g.published = next
	if err := f.server.SetPeers(gateway.String(), &next); err != nil {
		f.log.Error("cannot publish the forwarding pods of a Gateway", "gateway", gateway, "error", err)
	}
}

// observe updates the pods of a list from the latest reports. It reports whether they may change after some time
// without a new report.
func (f *forwarding) observe(
	gateway types.NamespacedName, g *peerGroup, latest []discovery.Report, now time.Time,
) (pending bool) {
	reported, used := map[string]bool{}, map[netip.AddrPort]bool{}
	for _, r := range latest {
		reported[r.Pod] = true
		p, err := r.AsPeer()
		before, listed := g.pods[r.Pod]
		switch {
		case err != nil: // the pod does not forward
			delete(g.pods, r.Pod)
			continue
		case listed && before.Address == p.Address && before.Sender == p.Sender:
			p.Other = before.Other
		default:
			of, _ := f.pods.addresses(gateway.String(), r.Pod)
			if !slices.Contains(of, p.Address.Addr()) {
				pending = true
				continue
			}
			p.Other = other(of, p.Address.Addr())
		}
		g.pods[r.Pod] = listedPeer{Peer: p}
		used[p.Address] = true
	}
	for name, p := range g.pods {
		if reported[name] {
			continue
		}
		if p.lost.IsZero() {
			p.lost = now
			g.pods[name] = p
		}
		if used[p.Address] || now.Sub(p.lost) >= peerRetention {
			delete(g.pods, name)
			continue
		}
		pending = true
	}
	return pending
}

// other returns the first address of the family that a does not have, or the zero Addr.
func other(addresses []netip.Addr, a netip.Addr) netip.Addr {
	for _, o := range addresses {
		if o.Is4() != a.Is4() {
			return o
		}
	}
	return netip.Addr{}
}

// allReported reports whether all running pods of a Gateway have reported.
func (f *forwarding) allReported(gateway types.NamespacedName, latest []discovery.Report) bool {
	running, known := f.pods.running(gateway)
	for _, r := range latest {
		delete(running, r.Pod)
	}
	return known && len(running) == 0
}

// list returns the pods of the list, sorted by name. Of several pods with one sender, it returns the first, because a
// receiver needs distinct senders.
func (g *peerGroup) list() []discovery.Peer {
	all, senders := make([]discovery.Peer, 0, len(g.pods)), map[discovery.Sender]bool{}
	for _, name := range slices.Sorted(maps.Keys(g.pods)) {
		if p := g.pods[name].Peer; !senders[p.Sender] {
			senders[p.Sender] = true
			all = append(all, p)
		}
	}
	return all
}

// keysOf returns the keys of a Gateway; none if they cannot be derived yet.
func (f *forwarding) keysOf(uid types.UID, now time.Time) (keys []discovery.PeerKey) {
	derived, err := f.authority.ForwardingKeys(string(uid), now)
	if err != nil {
		f.log.Error("cannot derive the keys of forwarding pods", "error", err)
	}
	for _, k := range derived {
		keys = append(keys, discovery.PeerKey{ID: k.ID, Secret: k.Secret})
	}
	return keys
}
