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

// watch turns documents into events: it knows what was delivered, and keeps what was not.
type watch struct {
	// source names the source in errors.
	source string
	want   selector
	// lookup is that of Options, for a source that uses it.
	lookup func(name string) string
	// delivered are the configs that were delivered; it outlives connections.
	delivered map[string]delivery
	events    *mailbox[Event]
	// refused holds the ids of which a document was kept out, "" for one that could not be read or that nobody has asked for: the next good
	// one is delivered even if it says what is known, for whoever holds the refusal against the source.
	refused map[string]bool
}

// delivery identifies a document: as its source does, or else by what this release makes of it and by what is unknown in it.
type delivery struct{ known, unknown, revision string }

func newWatch(source string, want selector) *watch {
	return &watch{source: source, want: want, delivered: map[string]delivery{}, refused: map[string]bool{}, events: newMailbox[Event]()}
}

// Keys of events that concern no config. No id looks like them.
const (
	connectionKey = "\x00connection"
	errorKey      = "\x00error"
)

// connected says that the source is there.
func (w *watch) connected(ahead *time.Duration) {
	w.events.put(connectionKey, Event{Connected: true, Ahead: ahead})
}

// lost says that it is not.
func (w *watch) lost(err error) {
	w.events.put(connectionKey, Event{Err: fmt.Errorf("watch %s: %w", w.source, err)})
}

// refuse reports a document that changes nothing. It has a key of its own, so that it pushes no good config out of the mailbox.
func (w *watch) refuse(id string, err error) {
	w.refused[id] = true
	w.events.put(errorKey+id, Event{ID: id, Err: fmt.Errorf("%w: from %s: %w", ErrRejected, w.source, err)})
}

// receiveNewest delivers the newest good one of the frames of one config, and refuses those that are newer.
func (w *watch) receiveNewest(frames [][]byte) {
	for i, frame := range slices.Backward(frames) {
		c, unknown, err := read(frame, w.lookup)
		if err != nil && i > 0 {
			defer w.deliver(c, unknown, "", err)
			continue
		}
		w.deliver(c, unknown, config.RevisionOf(frame), err)
		return
	}
}

// receive delivers a document, unless it says what is known already. Its source calls it by a revision; "" for one that calls it by none.
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
			id = "" // no good document of that id will ever follow
		}
		w.refuse(id, err)
		return
	}
	w.events.remove(errorKey + id)
	this := delivery{revision: revision}
	if revision == "" {
		known := c.Revision()
		this = delivery{known, strings.Join(unknown, "\n"), known}
	}
	if w.delivered[id] == this && !w.refused[id] && !w.refused[""] {
		return
	}
	w.delivered[id] = this
	delete(w.refused, id)
	delete(w.refused, "")
	e := Event{ID: id, Config: c, Revision: this.revision, Unknown: unknown}
	if c.IsZero() {
		e = Event{ID: id, Deleted: true}
	}
	w.events.put(id, e)
}

// run hands events over until ctx ends, and closes out.
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

// read parses and validates a config. With an error it returns as much of the config as it could read, for its name.
func read(data []byte, lookup func(name string) string) (config.Config, []string, error) {
	c, unknown, err := config.ParseWith(data, lookup)
	if err != nil {
		return config.Config{}, nil, err
	}
	if err := c.Validate(); err != nil {
		return c, nil, fmt.Errorf("validate config %.200s: %w", c.Admin.Name, err)
	}
	return c, unknown, nil
}

// split returns the documents of a list {"version":"v1","items":[…]} that want means; everything else is one document.
func split(data []byte, want selector) [][]byte {
	var envelope struct {
		Items []json.RawMessage `json:"items"`
	}
	if config.Explodes(data, listLimit) || yaml.Unmarshal(data, &envelope) != nil || envelope.Items == nil {
		return [][]byte{data} // config.Parse tells what is wrong with it
	}
	var documents [][]byte
	for _, item := range envelope.Items {
		var head struct {
			Admin struct {
				Name string `json:"name"`
			} `json:"admin"`
		}
		if err := json.Unmarshal(item, &head); err != nil || want.matches(head.Admin.Name) {
			documents = append(documents, item)
		}
	}
	return documents
}

// readAll reads one config or a list of them. What is wrong with some does not keep the others back.
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

// blank tells whether data holds nothing: a file between truncation and writing.
func blank(data []byte) bool { return strings.TrimSpace(string(data)) == "" }
