package gate

import (
	"encoding/binary"
	"sync"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// request is a parsed message of a client. It is reused when Gate.Receive returns.
type request struct {
	stunmsg.Message
	client session.Client
	// flow is nil if the client has no allocation.
	flow *flow
	// The fields below are set when the credential is verified. From then on every answer is signed with key
	// (RFC 8489 §9.2.4).
	key      []byte
	realm    string
	username string
	userID   string
	caveats  credential.Caveats
	// begun is the flow that an Allocate request has created, while its session waits for admission.
	begun     *flow
	admission session.Admission
}

var requests = sync.Pool{New: func() any { return new(request) }}

// maxReused is the size in bytes of the largest message whose memory is kept for later requests.
const maxReused = 4 << 10

func (r *request) release() {
	if r.Size() <= maxReused {
		*r = request{Message: r.Message}
		requests.Put(r)
	}
}

func (r *request) answer(class stun.MessageClass, attrs ...stun.Setter) ([]byte, error) {
	return r.Answer(class, r.key, attrs...)
}

// limited returns the properties of the request that rate limits need.
func (r *request) limited() limit.Request {
	name, _ := r.Value(stun.AttrUsername)
	l := limit.Request{
		Client: r.client.Addr(), Connected: r.client.Connected(),
		Transaction: r.TransactionID, Username: name, Session: r.flow != nil,
	}
	if r.flow != nil && r.flow.Username == string(name) {
		l.Guesses = &r.flow.guesses
	}
	return l
}

// begins reports whether the request needs a credential with which a session may begin. If the client has a session,
// only an Allocate with another transaction ID than the Allocate of this session needs such a credential.
func (r *request) begins() bool {
	return r.flow == nil || r.Type.Method == stun.MethodAllocate && r.TransactionID != r.flow.allocated
}

// family returns the requested family of the relay, 0 for any. The rule relayFamily has checked the length of the
// attribute.
func (r *request) family() byte {
	if v, ok := r.Value(stun.AttrRequestedAddressFamily); ok {
		return v[0]
	}
	return 0
}

// Lifetimes of an allocation, in seconds (RFC 8656 §7.2).
const (
	defaultLifetime = 600
	maxLifetime     = 3600
)

// lifetime returns the requested lifetime within the bounds of RFC 8656 §7.2. The rule lifetimeReadable has checked the
// length of the attribute.
func (r *request) lifetime() uint32 {
	v, ok := r.Value(stun.AttrLifetime)
	if !ok {
		return defaultLifetime
	}
	return min(max(binary.BigEndian.Uint32(v), defaultLifetime), maxLifetime)
}
