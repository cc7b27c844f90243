package limit

import (
	"hash/maphash"
	"sync/atomic"
)

// Limits on answers to wrong credentials, over every transport. They do not delay a request with a valid credential;
// the limits of guesses.go do.
const (
	failureRate = 10 // a minute, of a source; PrivateFactor times as many of all private sources together
	// FailureBurst is the number of such answers that one source may get at once.
	FailureBurst = 10
	// nameRate bounds the answers to wrong credentials of one user name, of all public sources together. Only answers
	// are limited, so nobody can lock a user out at another source.
	nameRate = 100 // a minute
	// NameBurst is the number of such answers for one user name that may be sent at once.
	NameBurst = 100
)

// Limits on answers to unauthenticated requests over UDP. The source address may be forged, and then the answer is sent
// to a host that has not asked for it. Each listener has its own limits.
const (
	// A challenge costs one token. A client that uses the nonce of the challenge has shown that its address is real,
	// and gets the token back. So many users behind one address are served at any rate, and a forged source is not.
	challengeRate = 10 // a second, of a source; PrivateFactor times as many of all private sources together
	// ChallengeBurst is the number of challenges that one source may get at once.
	ChallengeBurst = 10
	// tupleRate bounds one address and port, so that one socket behind a load balancer gets 1 % of the tokens that all
	// clients behind it share.
	tupleRate = 10 // a second
	// TupleBurst is the number of answers that one address and port may get at once.
	TupleBurst = 10
	// Beyond the limit of the private sources the listener is silent, and remembers the requests that it has not
	// answered. A client repeats its request from the same port with the same transaction ID (RFC 8489 §6.2.1), seven
	// or more times: first after 200 ms (pion), 250 ms (Chromium), 500 ms or 1 s (coturn). A flood with random ports or
	// transaction IDs does not repeat. Repeated requests have a limit of their own, so that new clients are served
	// during such a flood.
	//
	// Silence serves clients better than a short answer. A challenge with REALM and NONCE is longer than the first
	// request, which has 28 bytes, and pion, coturn and Chromium give up on a 400, and on a 401 without a nonce.
	repeatRate = 1000 // a second
	// RepeatBurst is the number of repeated requests that a listener may answer at once.
	RepeatBurst = 1000
	// tupleRepeatRate bounds the answers to repeated requests of one address and port, so that one socket that repeats
	// one request for ever gets few answers.
	tupleRepeatRate = 2 // a second
	// TupleRepeatBurst is the number of such answers that one address and port may get at once.
	TupleRepeatBurst = 3
)

// Costs of answers, as fractions of a token: Challenge is 1/1, Binding is 1/10, because a Binding answer is hardly
// longer than the request.
const (
	Challenge = 1
	Binding   = 10
)

// Listener holds the limits of one listener on answers to unauthenticated clients.
type Listener struct {
	tuples, tupleRepeats *limiter // by address and port
	sources              *limiter
	repeats              *limiter // one bucket for all
	silenced             *silenced
}

// NewListener returns the unused limits of one listener.
func (p *Process) NewListener() *Listener {
	return &Listener{
		tuples:       newLimiter(tupleRate, perSecond, TupleBurst, nil),
		tupleRepeats: newLimiter(tupleRepeatRate, perSecond, TupleRepeatBurst, nil),
		sources:      newLimiter(challengeRate, perSecond, ChallengeBurst, Private),
		repeats:      newLimiter(repeatRate, perSecond, RepeatBurst, nil),
		silenced:     p.silenced,
	}
}

// Allow reports whether an unauthenticated request may be answered, and takes the tokens. The fraction is Challenge or
// Binding.
func (l *Listener) Allow(r Request, fraction int) bool {
	switch {
	case r.Connected:
		return true // the source address of a connection cannot be forged
	case r.Session:
		return l.tuples.allowTuple(r.Client, fraction) // the address is real, so the limit of the source does not apply
	case l.tuples.allowTuple(r.Client, fraction) && l.sources.allow(r.Client.Addr(), fraction):
		return true
	}
	return Private(r.Client.Addr()) && l.silenced.repeated(r) &&
		l.tupleRepeats.allowTuple(r.Client, 1) && l.repeats.allowAny()
}

// Verified puts back the tokens of a challenge whose nonce the client has used.
func (l *Listener) Verified(r Request) {
	if r.Connected {
		return
	}
	l.tuples.refundTuple(r.Client)
	if !r.Session {
		l.sources.refund(r.Client.Addr())
	}
}

// silenced remembers requests that were not answered, by transaction ID. A request replaces an earlier one that has the
// same slot. At 60,000 requests a second a fifth of them is replaced within a second. The table takes 1 MiB.
type silenced struct {
	seed  maphash.Seed
	slots [1 << 18]atomic.Uint32
}

func newSilenced() *silenced { return &silenced{seed: maphash.MakeSeed()} }

// repeated reports whether the same request of the same client was remembered before, and remembers it.
func (s *silenced) repeated(r Request) bool {
	tag := uint32(hash(s.seed, r.Client)>>32) | 1 // 0 is an empty slot
	slot := &s.slots[maphash.Bytes(s.seed, r.Transaction[:])%uint64(len(s.slots))]
	return slot.Swap(tag) == tag
}
