package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// deltaParameter is the query parameter with which a reader of one config requests frames {"delta":{…}}.
const deltaParameter = "delta"

// deltaPrefix is the start of every frame with a config.Delta. No config starts with it.
var deltaPrefix = []byte(`{"delta":`)

func isDelta(frame []byte) bool { return bytes.HasPrefix(frame, deltaPrefix) }

// wholeRequest is a request of a client for its whole config, because it cannot apply a delta.
type wholeRequest struct {
	// Only is set if the client can apply no delta to this config. It then receives whole configs until the end of the
	// stream.
	Only bool `json:"only,omitempty"`
}

// wholeCost is how many frames a wholeRequest counts for in the rate limit, because its answer may be long.
const wholeCost = 10

// deltaWriter is the state of a watcher that determines whether it sends a config as a delta or as a whole.
type deltaWriter struct {
	// enabled is set if the reader reads deltas.
	enabled atomic.Bool
	// reset is set if the reader must receive the whole config next.
	reset atomic.Bool
	// base is the config that was sent last, or nil. Only the goroutine that sends uses it.
	base *published
}

// readsDeltas reports whether the reader of a stream receives deltas. A reader that receives another form of the config
// than dataplanes receives no deltas.
func readsDeltas(query url.Values, want selector, to readerScope) bool {
	return query.Has(deltaParameter) && want.one() && !to.forAuth && !to.redacted
}

// frame returns the next frame for the reader. p is in the form for this reader.
func (d *deltaWriter) frame(p published) []byte {
	if d.reset.Swap(false) || !d.enabled.Load() {
		d.base = nil
	}
	switch base := d.base; {
	case !d.enabled.Load():
		return p.frame.Text
	case p.parts == nil:
		if p.deletes {
			d.base = nil
		}
		return p.frame.Text
	case base == nil:
		d.base = &p
		return p.frame.Text
	default:
		d.base = &p
		return p.since(base)
	}
}

// lastDelta is the delta to a published config that was made last. Most readers need the same delta.
type lastDelta struct {
	mu    sync.Mutex
	base  string
	frame []byte
}

// since returns the frame for a reader that has the config base: a delta, or the whole config if that is not much
// longer.
func (p published) since(base *published) []byte {
	p.delta.mu.Lock()
	defer p.delta.mu.Unlock()
	if p.delta.frame == nil || p.delta.base != base.revision {
		d := p.parts.Since(base.parts, base.revision, p.revision)
		p.delta.base, p.delta.frame = base.revision, append(append(bytes.Clone(deltaPrefix), d.Encode()...), '}')
	}
	if len(p.delta.frame) > len(p.frame.Text)/2 {
		p.delta.frame = p.frame.Text
	}
	return p.delta.frame
}

// sendWhole queues the current config for a watcher, and makes the watcher send it as a whole.
func (r *registry) sendWhole(want selector, w *watcher, request wholeRequest) {
	if request.Only {
		w.deltas.enabled.Store(false)
	}
	w.deltas.reset.Store(true)
	for _, p := range r.matching(want) {
		w.put(p)
	}
}

// held is the config to which a client applies deltas.
type held struct {
	loaded Loaded
	// parts is nil until the first delta.
	parts *config.Parts
}

// deltaReader applies the deltas of one connection. Only one goroutine at a time uses it.
type deltaReader struct {
	// held is nil if there is no valid config.
	held *held
	// ignore is the number of deltas to ignore after a request for the whole config, because the server had already
	// sent them.
	ignore int
	// request sends a wholeRequest.
	request func(wholeRequest)
}

// deltasUnderWay is the number of deltas that are ignored after a request for the whole config. Then the config is
// requested again.
const deltasUnderWay = 8

// hold stores a whole config that has arrived. The next delta is applied to this config. c is nil if the config is
// invalid, or was deleted.
func (d *deltaReader) hold(c *Loaded) {
	d.held, d.ignore = nil, 0
	if c != nil {
		d.held = &held{loaded: *c}
	}
}

// need requests the whole config.
func (d *deltaReader) need(request wholeRequest) {
	d.held, d.ignore = nil, deltasUnderWay
	if d.request != nil {
		d.request(request)
	}
}

// receiveDelta applies a delta and delivers the config. If that is not possible, it requests the whole config. A delta
// with invalid fields is rejected, as a config with invalid fields is.
func (w *watch) receiveDelta(frame []byte) {
	r := &w.deltas
	if r.ignore > 0 {
		r.ignore--
		return
	}
	var f struct {
		Delta json.RawMessage `json:"delta"`
	}
	err := json.Unmarshal(frame, &f)
	var d config.Delta
	if err == nil {
		d, err = config.ParseDelta(f.Delta)
	}
	switch {
	case err == nil && r.held == nil, err == nil && d.Base != r.held.loaded.Revision:
		r.need(wholeRequest{})
		return
	case err == nil && len(r.held.loaded.Unknown) > 0: // the hash of the sender includes fields that are unknown here
		r.need(wholeRequest{Only: true})
		return
	}
	var next *config.Parts
	var unknown []string
	if err == nil {
		if r.held.parts == nil {
			r.held.parts = config.PartsOf(r.held.loaded.Config, nil)
		}
		next, unknown, err = r.held.parts.Apply(d)
	}
	switch {
	case len(unknown) > 0:
		r.need(wholeRequest{Only: true})
	case errors.Is(err, config.ErrMismatch):
		r.need(wholeRequest{})
	case err != nil:
		w.reject(string(w.want), err)
		r.need(wholeRequest{})
	default:
		r.held = &held{loaded: Loaded{Config: next.Config(), Revision: d.Revision}, parts: next}
		w.deliver(next.Config(), nil, d.Revision, nil)
	}
}
