package gate

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

// Limits on answers to requests without a good credential over UDP, where the source address may be forged and the answer goes to a host
// that has not asked. Each listener has its own limits.
const (
	// A challenge costs one token. A client that comes back with the nonce has shown that its address is real, and gets the token
	// back: many users behind one address are served at any rate, a forged source is not.
	challengeRate  = 10 // a second, of a source; HiddenFactor as many of all private sources together
	challengeBurst = 10
	// tupleRate bounds one address and port, so that one socket behind a load balancer takes 1 % of what all clients behind it share.
	tupleRate  = 10 // a second
	tupleBurst = 10
	// Beyond the limit of the private sources the listener is silent, and remembers what it did not answer. A client sends the same
	// request again, from the same port and with the same transaction id (RFC 8489 §6.2.1): after 200 ms (pion), 250 ms (Chromium), 500 ms
	// or 1 s (coturn), seven or more times. A flood with ports or transaction ids at random does not. Repetitions have a limit of their
	// own, so that new clients are served during such a flood.
	//
	// Silence serves clients better than a short answer. A challenge with REALM and NONCE is longer than the first request, which has 28
	// bytes, and pion, coturn and Chromium end the allocation on a 400 and on a 401 without a nonce.
	repeatRate  = 1000 // a second
	repeatBurst = 1000
	// againRate bounds the repetitions of one address and port, so that one socket that repeats one request for ever gets few answers.
	againRate  = 2 // a second
	againBurst = 3
	// bindings is how many Binding answers cost as much as a challenge. They are hardly longer than their requests.
	bindings = 10
)

// challenges are the token buckets of a listener for answers to clients without a good credential.
type challenges struct {
	tuples, again *limiter // by address and port
	sources       *limiter
	repeated      *limiter // one bucket for all
	silenced      *silenced
}

func newChallenges(s *silenced) *challenges {
	return &challenges{
		tuples:   newLimiter(tupleRate, time.Second, tupleBurst, nil),
		again:    newLimiter(againRate, time.Second, againBurst, nil),
		sources:  newLimiter(challengeRate, time.Second, challengeBurst, MayHide),
		repeated: newLimiter(repeatRate, time.Second, repeatBurst, nil),
		silenced: s,
	}
}

// allow tells whether a request may be answered, and takes the token; parts is how many such answers cost one token.
func (c *challenges) allow(r *request, parts int) bool {
	client := r.client.Addr()
	switch {
	case r.client.Connected():
		return true // the source of a connection cannot be forged
	case r.flow != nil:
		return c.tuples.allowTuple(client, parts) // a session has shown that its address is real, so the limit of the source does not hold
	case c.tuples.allowTuple(client, parts) && c.sources.allow(client.Addr(), parts):
		return true
	}
	return MayHide(client.Addr()) && c.silenced.again(r) && c.again.allowTuple(client, 1) && c.repeated.allowAll()
}

// proven gives back what the challenge cost, because the client has come back with its nonce.
func (c *challenges) proven(r *request) {
	if client := r.client.Addr(); !r.client.Connected() {
		c.tuples.refundTuple(client)
		if r.flow == nil {
			c.sources.refund(client.Addr())
		}
	}
}

// silenced remembers requests that were not answered, by transaction id. A newer one takes the place of an older one that has the same
// slot: of the requests of one moment, 60,000 a second displace a fifth within a second. It takes 1 MiB.
type silenced struct {
	seed  maphash.Seed
	slots [1 << 18]atomic.Uint32
}

func newSilenced() *silenced { return &silenced{seed: maphash.MakeSeed()} }

// again tells whether the same request of the same client was not answered before, and remembers it.
func (s *silenced) again(r *request) bool {
	tag := uint32(hash(s.seed, r.client.Addr())>>32) | 1 // 0 is an empty slot
	slot := &s.slots[maphash.Bytes(s.seed, r.TransactionID[:])%uint64(len(s.slots))]
	return slot.Swap(tag) == tag
}

// hash is a hash of an address and port.
func hash(seed maphash.Seed, client netip.AddrPort) uint64 {
	var b [18]byte
	addr := client.Addr().As16()
	copy(b[:], addr[:])
	binary.BigEndian.PutUint16(b[16:], client.Port())
	return maphash.Bytes(seed, b[:])
}
