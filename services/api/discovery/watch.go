package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// watch converts the documents of a source to events. It queues an event for each document that differs from the last
// one with the same id.
type watch struct {
	// source names the source in errors.
	source string
	want   selector
	// lookup is Options.Lookup for a file, else nil.
	lookup func(name string) string
	// delivered contains the last delivered document of each id, over all connections.
	delivered map[string]delivery
	events    *latestQueue[Event]
	// rejected contains the ids of rejected documents. The id is "" for a document that was unreadable, or not selected
	// by want. The next valid document is delivered even if it is unchanged, so that the reader knows that the source
	// is valid again.
	rejected map[string]bool
	// deltas applies the deltas of the current connection, if the client requests any.
	deltas deltaReader
}

// delivery identifies a document: by the revision at its source, or else by its known and unknown fields.
type delivery struct{ known, unknown, revision string }

func newWatch(source string, want selector) *watch {
	return &watch{source: source, want: want, delivered: map[string]delivery{}, rejected: map[string]bool{},
		events: newLatestQueue[Event]()}
}

// Queue keys of events that do not belong to a config. No id contains their first byte.
const (
	connectionKey = "\x00connection"
	errorKey      = "\x00error"
)

// connected queues the event of a new connection. A List of the previous connection is dropped.
func (w *watch) connected(ahead *time.Duration, list *List) {
	w.events.remove(listKey)
	w.events.put(connectionKey, Event{Connected: true, Ahead: ahead, List: list})
}

// lost queues the event of a lost connection.
func (w *watch) lost(err error) {
	w.events.put(connectionKey, Event{Err: fmt.Errorf("watch %s: %w", w.source, err)})
}

// reject queues the error of an invalid document. The error has a queue key of its own, so that it does not replace a
// valid config in the queue.
func (w *watch) reject(id string, err error) {
	w.rejected[id] = true
	w.events.put(errorKey+id, Event{ID: id, Err: fmt.Errorf("%w: from %s: %w", ErrRejected, w.source, err)})
}

// receiveNewest delivers the config of the newest valid frame of one config, with the deltas after it, and rejects the
// invalid frames after it.
func (w *watch) receiveNewest(frames [][]byte) {
	whole := lastWhole(frames)
	if whole >= 0 {
		c, unknown, err := read(frames[whole], w.lookup)
		if err != nil {
			w.receiveNewest(frames[:whole])
			w.deltas.hold(nil)
			w.deliver(c, unknown, "", err)
		} else {
			w.receiveWhole(c, unknown, config.RevisionOf(frames[whole]))
		}
	}
	for _, delta := range frames[whole+1:] {
		w.receiveDelta(delta)
	}
}

// lastWhole returns the index of the last frame that is not a delta, or -1.
func lastWhole(frames [][]byte) int {
	for i, frame := range slices.Backward(frames) {
		if !isDelta(frame) {
			return i
		}
	}
	return -1
}

// receiveWhole delivers a valid config, to which the next delta is applied.
func (w *watch) receiveWhole(c config.Config, unknown []string, revision string) {
	w.deltas.hold(nil)
	if w.want.matches(c.Admin.Name) && !c.IsZero() {
		w.deltas.hold(&Loaded{c, revision, unknown})
	}
	w.deliver(c, unknown, revision, nil)
}

// receive delivers a document unless it is unchanged. revision is the revision at the source, or "" if the source has
// none.
func (w *watch) receive(data []byte, revision string) {
	c, unknown, err := read(data, w.lookup)
	w.deliver(c, unknown, revision, err)
}

func (w *watch) deliver(c config.Config, unknown []string, revision string, err error) {
	id := c.Admin.Name
	if err == nil && !w.want.matches(id) {
		err = fmt.Errorf("read config: this is %q, but %q was asked for", id, w.want)
	}
	if err != nil {
		if !w.want.matches(id) {
			id = "" // the reader has not selected this id
		}
		w.reject(id, err)
		return
	}
	w.events.remove(errorKey + id)
	this := delivery{revision: revision}
	if revision == "" {
		known := c.Revision()
		this = delivery{known, strings.Join(unknown, "\n"), known}
	}
	if w.delivered[id] == this && !w.rejected[id] && !w.rejected[""] {
		return
	}
	w.delivered[id] = this
	delete(w.rejected, id)
	delete(w.rejected, "")
	e := Event{ID: id, Config: c, Revision: this.revision, Unknown: unknown}
	if c.IsZero() {
		e = Event{ID: id, Deleted: true}
	}
	w.events.put(id, e)
}

// run sends the queued events to out until ctx ends, then closes out.
func (w *watch) run(ctx context.Context, out chan<- Event) {
	defer close(out)
	for {
		e, err := w.events.take(ctx)
		if err != nil {
			return
		}
		select {
		case out <- e:
		case <-ctx.Done():
			return
		}
	}
}

// read parses and validates a config. A config that can be parsed but is invalid is returned with the error, because
// the caller needs its name. Of a JSON document that cannot be parsed, such as one of a later version, only the name is
// returned.
func read(data []byte, lookup func(name string) string) (config.Config, []string, error) {
	c, unknown, err := config.ParseWith(data, lookup)
	if err != nil {
		name, _ := nameOf(data) // the error says what is wrong with the document
		return config.Config{Admin: config.Admin{Name: name}}, nil, err
	}
	if err := c.Validate(); err != nil {
		return c, nil, fmt.Errorf("validate config %.200s: %w", c.Admin.Name, err)
	}
	return c, unknown, nil
}

// split returns the documents in a list {"version":"v1","items":[…]} that want selects. Any other data is returned as
// one document.
func split(data []byte, want selector) [][]byte {
	var envelope struct {
		Items []json.RawMessage `json:"items"`
	}
	if config.Explodes(data, listLimit) || yaml.Unmarshal(data, &envelope) != nil || envelope.Items == nil {
		return [][]byte{data} // config.Parse reports the error
	}
	var documents [][]byte
	for _, item := range envelope.Items {
		if name, err := nameOf(item); err != nil || want.matches(name) {
			documents = append(documents, item)
		}
	}
	return documents
}

// nameOf returns the name of the config in a JSON document.
func nameOf(document []byte) (string, error) {
	var head struct {
		Admin struct {
			Name string `json:"name"`
		} `json:"admin"`
	}
	err := json.Unmarshal(document, &head)
	return head.Admin.Name, err
}

// readAll parses one config or a list of configs. It returns the valid configs, and the errors of the others.
func readAll(data []byte, want selector, lookup func(name string) string) (configs []Loaded, err error) {
	var problems []error
	for _, document := range split(data, want) {
		c, unknown, err := read(document, lookup)
		switch {
		case err != nil:
			problems = append(problems, err)
		case !c.IsZero():
			configs = append(configs, Loaded{c, c.Revision(), unknown})
		}
	}
	return configs, errors.Join(problems...)
}

// isBlank reports whether data is empty. A file is empty between its truncation and the write.
func isBlank(data []byte) bool { return strings.TrimSpace(string(data)) == "" }
