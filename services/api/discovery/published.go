package discovery

import (
	"bytes"
	"cmp"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// published is a config in the forms that a server sends.
type published struct {
	id       string
	revision string
	frame    []byte
	// forAuth is the frame of Config.ForAuth.
	forAuth []byte
	// config is set if some readers receive another form of the config than others. The config is then encoded for each
	// reader.
	config *config.Config
	// hasNodeAddress is set if the address of a listener is the placeholder for the address of the reader's node.
	hasNodeAddress bool
	// uniform marks a frame that is the same for all readers: a deletion, or a list of peers.
	uniform bool
}

// publish returns a config in the form in which the registry stores it. redactable is set if some readers receive the
// config without secrets.
func publish(c config.Config, redactable bool) published {
	c = c.Clone()
	c.Default()
	frame := c.Canonical()
	p := published{id: c.Admin.Name, revision: config.RevisionOf(frame), frame: frame, forAuth: c.ForAuth().Canonical()}
	for _, l := range c.Listeners {
		p.hasNodeAddress = p.hasNodeAddress || l.Address == config.NodeAddressPlaceholder
	}
	if p.hasNodeAddress || redactable {
		p.config = &c
	}
	return p
}

// deletion returns the zero config with an id, which deletes the config with that id.
func deletion(id string) published {
	frame := config.Zero(id).Canonical()
	return published{id: id, frame: frame, forAuth: frame, uniform: true}
}

// peersOf returns a list of peers in the form in which it is queued for a reader.
func peersOf(frame []byte) published {
	return published{id: peersKey, frame: frame, forAuth: frame, uniform: true}
}

// readerScope contains the properties of a reader on which the form of its configs depends.
type readerScope struct {
	// node is the node on which the reader runs, or "" if it is unknown.
	node string
	// redacted is set if the reader receives configs without secrets.
	redacted bool
	// forAuth is set if the reader is an auth service, which receives config.Config.ForAuth.
	forAuth bool
}

// differs reports whether p must be sent to a reader that has the previous config. An auth service gets p only if
// config.Config.ForAuth has changed, because most changes, such as new endpoints, do not concern it.
func (p published) differs(to readerScope, before published) bool {
	return !to.forAuth || !bytes.Equal(p.forAuth, before.forAuth)
}

// frameFor returns the frame for a reader. It contains the external address of the reader's node instead of the
// placeholder. If address is empty, the reader uses its own address.
func (p published) frameFor(to readerScope, address string) []byte {
	switch {
	case to.forAuth:
		return p.forAuth
	case p.uniform || !p.hasNodeAddress && !to.redacted:
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
