package discovery

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// List tells a reader of several configs whether the server has sent all of them. So a reader without a config can
// distinguish a cluster without Gateways from a cluster whose configs are missing.
type List struct {
	// Complete is false while the server is starting, and has not published all configs yet.
	Complete bool `json:"complete"`
	// Unpublished is the number of the selected Gateways without a config, although they need one.
	Unpublished int `json:"unpublished"`
	// Idle are the selected Gateways without a dataplane that could take a session, by id. It is empty if there are
	// more than maxIdle: then the server has probably just started, and the dataplanes have not reported yet.
	Idle []string `json:"idle,omitempty"`
}

// maxIdle bounds List.Idle, which is sent with each change.
const maxIdle = 100

func (l List) equal(o List) bool {
	return l.Complete == o.Complete && l.Unpublished == o.Unpublished && slices.Equal(l.Idle, o.Idle)
}

// listParameter is the query parameter with which a reader of several configs requests frames {"list":{…}}. A server
// that sends them has listHeader in its response.
const (
	listParameter = "list"
	listHeader    = "Stunner-List"
)

// listKey is the queue key of a List.
const listKey = "\x00list"

// listPrefix is the start of every frame with a List. No config starts with it.
var listPrefix = []byte(`{"list":`)

type listFrame struct {
	List List `json:"list"`
}

func isList(frame []byte) bool { return bytes.HasPrefix(frame, listPrefix) }

// listing is the source of the Lists of a server.
type listing struct {
	// incomplete is set until the configs of all Gateways are published that exist when the server starts.
	incomplete bool
	// unpublished are the Gateways without a config, by id.
	unpublished map[string]bool
	// idle are the Gateways without a dataplane that could take a session, by id.
	idle map[string]bool
}

func (l listing) of(want selector) List {
	unpublished := 0
	for id := range l.unpublished {
		if want.matches(id) {
			unpublished++
		}
	}
	var idle []string
	for id := range l.idle {
		if !want.matches(id) {
			continue
		}
		if idle = append(idle, id); len(idle) > maxIdle {
			idle = nil
			break
		}
	}
	slices.Sort(idle)
	return List{Complete: !l.incomplete, Unpublished: unpublished, Idle: idle}
}

// SetIdle notifies the readers of several configs whether a Gateway has no dataplane that could take a session.
func (r *registry) SetIdle(id string, idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.listing.idle[id] == idle:
		return
	case !idle:
		delete(r.listing.idle, id)
	case r.listing.idle == nil:
		r.listing.idle = map[string]bool{id: true}
	default:
		r.listing.idle[id] = true
	}
	r.notifyLists()
}

// SetComplete notifies the readers of several configs whether all configs are published: the configs of the Gateways
// that existed at the start, except the configs of SetUnpublished. A new server is complete.
func (r *registry) SetComplete(complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listing.incomplete = !complete
	r.notifyLists()
}

// SetUnpublished replaces the Gateways that need a config and have none, by their ids.
func (r *registry) SetUnpublished(ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	unpublished := map[string]bool{}
	for _, id := range ids {
		unpublished[id] = true
	}
	if maps.Equal(r.listing.unpublished, unpublished) {
		return
	}
	r.listing.unpublished = unpublished
	r.notifyLists()
}

// notifyLists queues changed Lists. The caller holds mu.
func (r *registry) notifyLists() {
	for want, watchers := range r.watchers {
		for w := range watchers {
			r.notifyList(want, w)
		}
	}
}

// notifyList queues the List of a watcher if it has requested Lists and the List has changed. The List is queued after
// the configs that are queued already. The caller holds mu.
func (r *registry) notifyList(want selector, w *watcher) {
	if !w.wantsList {
		return
	}
	now := r.listing.of(want)
	if w.list != nil && w.list.equal(now) {
		return
	}
	w.list = &now
	frame, err := json.Marshal(listFrame{now})
	if err != nil {
		return // impossible for these types
	}
	w.queue.remove(listKey)
	w.put(published{id: listKey, frame: config.Frame{Text: frame}, forAuth: frame, uniform: true})
}

// wantsList reports whether the reader of a stream requests Lists.
func wantsList(query url.Values, want selector) bool { return query.Has(listParameter) && !want.one() }

// listOfAnswer returns the List at the start of a connection: nil if the server sends no Lists, and otherwise an
// incomplete List.
func listOfAnswer(header http.Header) *List {
	if header.Get(listHeader) == "" {
		return nil
	}
	return &List{}
}

// receiveList queues the List in a frame. It is delivered after the configs that were received before.
func (w *watch) receiveList(frame []byte) {
	var f listFrame
	if err := json.Unmarshal(frame, &f); err != nil {
		return // a later release may send another form
	}
	w.events.remove(listKey)
	w.events.put(listKey, Event{List: &f.List})
}
