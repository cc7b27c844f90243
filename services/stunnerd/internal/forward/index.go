package forward

import (
	"sync"
	"time"
)

const (
	// holdTime is how long a home stores the owner of a client.
	holdTime = 150 * time.Second
	// renewEvery is the interval at which an owner announces its sessions to the homes again. Two consecutive
	// announcements may be lost.
	renewEvery = 60 * time.Second
	// maxHeld is the largest number of clients of an index, about 20 MB. The homes of 5,000,000 sessions in 100 pods
	// store 100,000 each.
	maxHeld = 1 << 18
)

// index is the data of a home: the owners of clients, and copies of their sessions.
type index struct {
	mu   sync.Mutex
	held map[clientKey]holding
	// copies are the latest records of the sessions that these clients have at their owners. bytes is their memory, and
	// room is the limit of bytes.
	copies      map[clientKey]*saved
	bytes, room int
	// clients is Options.Clients.
	clients int
}

// holding is the id of the owner of a client, and the time until which the entry is valid.
type holding struct {
	owner uint64
	until time.Duration
}

func newIndex(clients, room int) index {
	return index{
		held: map[clientKey]holding{}, copies: map[clientKey]*saved{}, clients: clients, room: most(room, maxCopies),
	}
}

// hold stores the owner of a client. If replace is not set, it does not replace another owner that is still valid. It
// reports false if the index is full.
func (x *index) hold(k clientKey, owner uint64, now time.Duration, replace bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, ok := x.held[k]
	switch {
	case !ok && len(x.held) >= most(x.clients, maxHeld):
		return false
	case ok && !replace && old.owner != owner && old.until > now:
		return true
	}
	x.held[k] = holding{owner: owner, until: now + holdTime}
	return true
}

// release removes a client if its owner is the given one.
func (x *index) release(k clientKey, owner uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.held[k].owner == owner {
		delete(x.held, k)
		x.drop(k)
	}
}

// find returns the id of the owner of a client.
func (x *index) find(k clientKey, now time.Duration) (owner uint64, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	h, ok := x.held[k]
	return h.owner, ok && h.until > now
}

// sweep removes the clients whose time has passed.
func (x *index) sweep(now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k, h := range x.held {
		if h.until <= now {
			delete(x.held, k)
			x.drop(k)
		}
	}
}

func (x *index) len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.held)
}
