package discovery

import (
	"bytes"
	"cmp"
	"sync"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// published is a config as a server holds it.
type published struct {
	id       string
	revision string
	frame    []byte
	// forAuth is the frame of readers who get Config.ForAuth. It is the same for all of them.
	forAuth []byte
	// config is there where readers see different forms of it.
	config *config.Config
	// placed tells that a listener has the address of whatever node the reader runs on.
	placed bool
	// gone tells that this is the message of a deletion, which looks the same to everybody.
	gone bool
}

// publish makes the form in which a server holds a config. It may be shown without its secrets when redactable.
func publish(c config.Config, redactable bool) published {
	c = c.Clone()
	c.Default()
	frame := c.Canonical()
	p := published{id: c.Admin.Name, revision: config.RevisionOf(frame), frame: frame, forAuth: c.ForAuth().Canonical()}
	for _, l := range c.Listeners {
		p.placed = p.placed || l.Address == config.NodeAddressPlaceholder
	}
	if p.placed || redactable {
		p.config = &c
	}
	return p
}

// buried is a config that was deleted.
func buried(id string) published {
	frame := config.Zero(id).Canonical()
	return published{id: id, frame: frame, forAuth: frame, gone: true}
}

// sight is what a reader gets to see of any config.
type sight struct {
	// node is the one that the reader runs on, "" when it has said none.
	node string
	// redacted leaves secrets out.
	redacted bool
	// forAuth leaves out what Config.ForAuth leaves out.
	forAuth bool
}

// watcher is somebody who watches.
type watcher struct {
	sight
	box *mailbox[published]
	// pod is the name of the watcher, "" when it is not known to be a pod, and review what is to become of its stream.
	pod    string
	review *review
	// filled sends what is in box. It runs while there is something.
	filled     func()
	delivering sync.WaitGroup
	mu         sync.Mutex
	busy       bool
}

// put puts a config into the mailbox, and has it sent.
func (w *watcher) put(p published) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.box.put(p.id, p)
	if !w.busy {
		w.busy = true
		w.delivering.Go(w.filled)
	}
}

// next takes what is to be sent next.
func (w *watcher) next() (p published, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok = w.box.pop()
	w.busy = ok
	return p, ok
}

// tells tells whether a reader has to hear of a config that was published in the place of another: it gets to see a difference.
func (p published) tells(to sight, before published) bool {
	return !to.forAuth || !bytes.Equal(p.forAuth, before.forAuth)
}

// shown is the frame that a reader gets, with the address of its node in the place of the placeholder; who is on a node without an external
// address, or on none that is known, has to find its address itself.
func (p published) shown(to sight, address string) []byte {
	switch {
	case to.forAuth:
		return p.forAuth
	case p.gone || !p.placed && !to.redacted:
		return p.frame
	}
	c := p.config.Clone()
	if to.redacted {
		c = c.Withheld()
	}
	for i, l := range c.Listeners {
		if l.Address == config.NodeAddressPlaceholder {
			c.Listeners[i].Address = cmp.Or(address, config.AddressPlaceholder)
		}
	}
	return c.Canonical()
}
