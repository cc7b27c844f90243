package discovery

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// published is a config in the forms that a server sends.
type published struct {
	id       string
	revision string
	// parts is nil for a uniform frame.
	parts *config.Parts
	frame config.Frame
	// forAuth is the frame of Config.ForAuth.
	forAuth []byte
	// delta is nil if parts is.
	delta *lastDelta
	// hasNodeAddress is set if the address of a listener is the placeholder for the address of the reader's node.
	hasNodeAddress bool
	// uniform marks a frame that is the same for all readers: a deletion, or a list of peers.
	uniform bool
	// deletes marks a deletion.
	deletes bool
}

// publish returns a config in the form in which the registry stores it. It takes the parts that have not changed from
// before, the previous config of the same id, or the zero published.
func publish(c config.Config, before published) published {
	parts := config.PartsOf(c, before.parts)
	if before.parts != nil && parts.Digest() == before.parts.Digest() {
		return before
	}
	p := encoded(parts, before)
	if before.parts != nil && parts.SameRest(before.parts) {
		p.forAuth, p.hasNodeAddress = before.forAuth, before.hasNodeAddress
		return p
	}
	c = parts.Config()
	p.forAuth = c.ForAuth().Canonical()
	for _, l := range c.Listeners {
		p.hasNodeAddress = p.hasNodeAddress || l.Address == config.NodeAddressPlaceholder
	}
	return p
}

// encoded returns a config with its frame. It copies the text of the parts that it shares with before.
func encoded(parts *config.Parts, before published) published {
	frame := parts.Encode(before.parts, before.frame)
	return published{
		id: parts.Config().Admin.Name, revision: config.RevisionOf(frame.Text), parts: parts, frame: frame,
		delta: &lastDelta{},
	}
}

// deletion returns the zero config with an id, which deletes the config with that id.
func deletion(id string) published {
	frame := config.Zero(id).Canonical()
	return published{id: id, frame: config.Frame{Text: frame}, forAuth: frame, uniform: true, deletes: true}
}

// peersOf returns a list of peers in the form in which it is queued for a reader.
func peersOf(frame []byte) published {
	return published{id: peersKey, frame: config.Frame{Text: frame}, forAuth: frame, uniform: true}
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
// config.Config.ForAuth has changed, because most changes, such as new endpoints, do not affect that part.
func (p published) differs(to readerScope, before published) bool {
	return !to.forAuth || !bytes.Equal(p.forAuth, before.forAuth)
}

// frameFor returns the whole frame for a reader.
func (p published) frameFor(to readerScope, address string) []byte {
	if to.forAuth {
		return p.forAuth
	}
	return p.formFor(to, address).frame.Text
}

// formFor returns p in the form for a reader. It contains the external address of the reader's node instead of the
// placeholder. If address is empty, the reader uses its own address.
func (p published) formFor(to readerScope, address string) published {
	if p.uniform || !p.hasNodeAddress && !to.redacted {
		return p
	}
	c := p.parts.Config()
	if to.redacted {
		c = c.Withheld()
	}
	c.Listeners = slices.Clone(c.Listeners)
	for i, l := range c.Listeners {
		if l.Address == config.NodeAddressPlaceholder {
			c.Listeners[i].Address = cmp.Or(address, config.AddressPlaceholder)
		}
	}
	return encoded(config.PartsOf(c, p.parts), p)
}
