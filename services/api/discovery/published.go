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
	// config is set if readers receive different forms of it.
	config *config.Config
	// hasNodeAddress is set if a listener has the address of the node that the reader runs on.
	hasNodeAddress bool
	// deleted marks the frame of a deletion, which is the same for all readers.
	deleted bool
}

// publish returns the forms of a config. A redactable config may be sent without its secrets.
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

// deletion returns the frame that deletes a config: its zero config.
func deletion(id string) published {
	frame := config.Zero(id).Canonical()
	return published{id: id, frame: frame, forAuth: frame, deleted: true}
}

// readerScope determines the form of a config that a reader receives.
type readerScope struct {
	// node is the node of the reader, "" if unknown.
	node string
	// redacted leaves out the secrets.
	redacted bool
	// forAuth leaves out what Config.ForAuth leaves out.
	forAuth bool
}

// differs reports whether a reader receives another frame of p than of the config before it.
func (p published) differs(to readerScope, before published) bool {
	return !to.forAuth || !bytes.Equal(p.forAuth, before.forAuth)
}

// frameFor returns the frame for a reader, with the address of its node instead of the placeholder. Without an address,
// the reader fills in its own.
func (p published) frameFor(to readerScope, address string) []byte {
	switch {
	case to.forAuth:
		return p.forAuth
	case p.deleted || !p.hasNodeAddress && !to.redacted:
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
