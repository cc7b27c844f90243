package discovery

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// registry contains the published configs, and the watchers to which changes are sent.
type registry struct {
	mu         sync.Mutex
	configs    map[string]published
	tombstones tombstones
	// nodes maps a node to its external address.
	nodes map[string]string
	// watchers contains the watchers by selector.
	watchers map[selector]map[*watcher]bool
	listing  listing
}

func newRegistry() *registry {
	return &registry{
		configs:    map[string]published{},
		tombstones: newTombstones(),
		nodes:      map[string]string{},
		watchers:   map[selector]map[*watcher]bool{},
	}
}

// Publish makes c the current config of its name. It returns the revision of c, and whether it differs from the
// revision of the previous config. It never waits for a reader. If c shares its unchanged lists with the previous
// config, the cost depends on the size of the difference. The caller must not modify the lists of endpoints, exceptions
// and routes of c afterwards.
func (r *registry) Publish(c config.Config) (revision string, changed bool) {
	p := publish(c, r.latest(c.Admin.Name))
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.configs[p.id]
	if before.revision == p.revision {
		return p.revision, false
	}
	r.configs[p.id] = p
	r.tombstones.remove(p.id)
	r.notify(p, before)
	return p.revision, true
}

// latest returns the published config with an id, or the zero published.
func (r *registry) latest(id string) published {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.configs[id]
}

// Delete removes a config. It sends the deletion to the current watchers of the config, and to watchers that connect
// within tombstoneTime.
func (r *registry) Delete(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, ok := r.configs[id]
	if !ok {
		return
	}
	delete(r.configs, id)
	r.tombstones.add(id, time.Now())
	r.notify(deletion(id), before)
}

// notify queues a config for the watchers that select it and that receive another frame than before. The caller holds
// mu.
func (r *registry) notify(p, before published) {
	for _, want := range selectors(p.id) {
		for w := range r.watchers[want] {
			if p.differs(w.readerScope, before) {
				w.put(p)
			}
		}
	}
}

// SetNode sets the external address of a node, or removes it if address is "". It sends the configs that contain the
// address again to the watchers on that node.
func (r *registry) SetNode(name, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[name] == address {
		return
	}
	if r.nodes[name] = address; address == "" {
		delete(r.nodes, name)
	}
	for want, watchers := range r.watchers {
		for w := range watchers {
			if w.node != name {
				continue
			}
			for _, p := range r.matchingLocked(want) {
				if p.hasNodeAddress && !w.forAuth {
					w.put(p)
				}
			}
		}
	}
}

// show returns the frame of a config for a reader.
func (r *registry) show(p published, to readerScope) []byte {
	return p.frameFor(to, r.addressOf(to.node))
}

// addressOf returns the external address of a node, or "".
func (r *registry) addressOf(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[node]
}

// publishedRevision returns the revision under which the config of a report was published. It differs from the revision
// in the report if the reader has received the config with the address of its node.
func (r *registry) publishedRevision(report Report, to readerScope) string {
	r.mu.Lock()
	p, address := r.configs[report.ID], r.nodes[to.node]
	r.mu.Unlock()
	if p.hasNodeAddress && report.Revision == config.RevisionOf(p.frameFor(to, address)) {
		return p.revision
	}
	return report.Revision
}

// Published returns the published config with an id and its revision. ok is false if there is none.
func (r *registry) Published(id string) (c config.Config, revision string, ok bool) {
	want := selector(id)
	found := r.matching(want)
	if !want.one() || len(found) == 0 {
		return config.Config{}, "", false
	}
	return found[0].parts.Config().Clone(), found[0].revision, true
}

// matching returns the configs that want selects, sorted by id.
func (r *registry) matching(want selector) []published {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.matchingLocked(want)
}

func (r *registry) matchingLocked(want selector) (all []published) {
	if want.one() {
		if p, ok := r.configs[string(want)]; ok {
			all = append(all, p)
		}
		return all
	}
	for _, id := range slices.Sorted(maps.Keys(r.configs)) {
		if want.matches(id) {
			all = append(all, r.configs[id])
		}
	}
	return all
}

// subscribe registers a watcher, and queues the current configs and the recent deletions for it. It queues nothing for
// an id that is neither published nor deleted, because this process may not have received that config yet. If the
// watcher has requested a List, the List follows the configs and deletions.
func (r *registry) subscribe(want selector, w *watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range r.tombstones.matching(want, time.Now()) {
		w.put(deletion(id))
	}
	for _, p := range r.matchingLocked(want) {
		w.put(p)
	}
	r.notifyList(want, w)
	if r.watchers[want] == nil {
		r.watchers[want] = map[*watcher]bool{}
	}
	r.watchers[want][w] = true
}

func (r *registry) unsubscribe(want selector, w *watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.watchers[want], w)
	if len(r.watchers[want]) == 0 {
		delete(r.watchers, want)
	}
}

// Reconsider immediately repeats the authorization of the streams of a pod that reads the config id. It is called when
// the pod has changed.
func (r *registry) Reconsider(id, pod string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers[selector(id)] {
		if w.pod == pod && w.review.run != nil {
			go w.review.run()
		}
	}
}

// readers returns the pods that read only the config id. It omits streams that are not authenticated as streams of
// their pod.
func (r *registry) readers(id string) (pods []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers[selector(id)] {
		if w.pod != "" {
			pods = append(pods, w.pod)
		}
	}
	return pods
}

// watcher is a reader of configs, at the other end of a stream.
type watcher struct {
	readerScope
	queue  *latestQueue[published]
	deltas deltaWriter
	// pod is the name of the reader's pod, or "" if the reader is not known to be a pod.
	pod    string
	review *review
	// wantsList is set if the reader has requested Lists, and list is the last List. The lock of the registry guards
	// list.
	wantsList bool
	list      *List
	// deliver sends the queued configs. It runs in a goroutine only while there are queued configs, because thousands
	// of streams are idle.
	deliver    func()
	delivering sync.WaitGroup
	mu         sync.Mutex
	busy       bool
}

// put queues a config, and starts deliver unless it runs.
func (w *watcher) put(p published) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.put(p.id, p)
	if !w.busy {
		w.busy = true
		w.delivering.Go(w.deliver)
	}
}

// next removes the next config from the queue.
func (w *watcher) next() (p published, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok = w.queue.pop()
	w.busy = ok
	return p, ok
}
