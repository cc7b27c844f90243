package limit

import (
	"hash/maphash"
	"sync/atomic"
)

// Limits on answers to requests with wrong credentials, over every transport. They never delay a request with a valid
// credential. Requests with valid credentials can be refused only by the limits of guesses.go.
const (
	// failureRate bounds the answers to wrong credentials of one source. All private sources together may get
	// PrivateFactor times as many.
	failureRate = 10 // a minute
	// FailureBurst is the number of answers to wrong credentials that one source may get at once.
	FailureBurst = 10
	// nameRate bounds the answers to wrong credentials of one user name, for all public sources together. It limits
	// answers and not authentication, so an attacker cannot lock a user out at another source.
	nameRate = 100 // a minute
	// NameBurst is the number of answers to wrong credentials that may be sent at once for one user name.
	NameBurst = 100
)

// Limits on answers to unauthenticated requests over UDP. If the source address is forged, the answer goes to a host
// that has sent no request. Each listener has its own limits.
const (
	// challengeRate is the number of tokens of one source for answers to unauthenticated requests. All private sources
	// together have PrivateFactor times as many. A challenge (401) takes one token. A client that uses the nonce of the
	// challenge has proved that its address is real, so the token is returned. Therefore the limit does not affect real
	// clients, even if many of them share an address, but it limits challenges to forged sources.
	challengeRate = 10 // a second
	// ChallengeBurst is the number of challenges that one source may get at once.
	ChallengeBurst = 10
	// tupleRate bounds the answers to unauthenticated requests of one address and port. A single socket behind a load
	// balancer then uses at most one percent of the tokens that all clients behind the load balancer share.
	tupleRate = 10 // tokens a second
	// TupleBurst is the number of answers that one address and port may get at once.
	TupleBurst = 10
	// repeatRate limits the answers to repeated requests from private addresses. If the limit of challengeRate is
	// reached for them, the listener does not answer, and stores a hash of the request. A client repeats an unanswered
	// request from the same port with the same transaction ID (RFC 8489 §6.2.1), seven or more times: first after 200
	// ms (pion), 250 ms (Chromium), 500 ms or 1 s (coturn). A flood with random ports or transaction IDs does not
	// repeat requests. Repeated requests have a limit of their own, so that new clients are served during such a flood.
	//
	// A missing answer is better for clients than a short answer. A challenge with REALM and NONCE is longer than the
	// first request, which has 28 bytes, and pion, coturn and Chromium give up on a 400, and on a 401 without a nonce.
	repeatRate = 1000 // a second
	// RepeatBurst is the number of repeated requests that a listener may answer at once.
	RepeatBurst = 1000
	// tupleRepeatRate bounds the answers to repeated requests of one address and port, so that a socket that repeats
	// one request endlessly gets few answers.
	tupleRepeatRate = 2 // a second
	// TupleRepeatBurst is the number of repeated requests of one address and port that may be answered at once.
	TupleRepeatBurst = 3
)

// Costs of answers to unauthenticated requests, as divisors of a token. A challenge costs 1/Challenge of a token, which
// is one whole token. A Binding answer costs 1/Binding of a token, because it is hardly longer than the request.
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

// NewListener returns the limits of a new listener.
func (p *Process) NewListener() *Listener {
	return &Listener{
		tuples:       newLimiter(tupleRate, perSecond, TupleBurst, nil),
		tupleRepeats: newLimiter(tupleRepeatRate, perSecond, TupleRepeatBurst, nil),
		sources:      newLimiter(challengeRate, perSecond, ChallengeBurst, Private),
		repeats:      newLimiter(repeatRate, perSecond, RepeatBurst, nil),
		silenced:     p.silenced,
	}
}

// Allow reports whether an unauthenticated request may be answered, and if so takes the cost of the answer from the
// token buckets. The cost is 1/fraction of a token, where fraction is Challenge or Binding.
func (l *Listener) Allow(r Request, fraction int) bool {
	switch {
	case r.Connected:
		return true // the source address of a connection cannot be forged
	case r.Session: // the address of the client is real, so the limit of the source does not apply
		return l.tuples.allowTuple(r.Client, fraction)
	case l.tuples.allowTuple(r.Client, fraction) && l.sources.allow(r.Client.Addr(), fraction):
		return true
	}
	return Private(r.Client.Addr()) && l.silenced.repeated(r) &&
		l.tupleRepeats.allowTuple(r.Client, 1) && l.repeats.allowAny()
}

// Verified returns the token of a challenge to the token buckets after the client has used the nonce of the challenge.
func (l *Listener) Verified(r Request) {
	if r.Connected {
		return
	}
	l.tuples.refundTuple(r.Client)
	if !r.Session {
		l.sources.refund(r.Client.Addr())
	}
}

// silenced stores which requests were not answered: a hash of the client address in a slot that the transaction ID
// selects. A request replaces an earlier one in the same slot. At 60,000 requests a second a fifth of the requests is
// replaced within a second, before the client repeats it. The table takes 1 MiB.
type silenced struct {
	seed  maphash.Seed
	slots [1 << 18]atomic.Uint32
}

func newSilenced() *silenced { return &silenced{seed: maphash.MakeSeed()} }

// repeated reports whether the client has sent the same request before, and stores the request.
func (s *silenced) repeated(r Request) bool {
	tag := uint32(hash(s.seed, r.Client)>>32) | 1 // 0 is an empty slot
	slot := &s.slots[maphash.Bytes(s.seed, r.Transaction[:])%uint64(len(s.slots))]
	return slot.Swap(tag) == tag
}
