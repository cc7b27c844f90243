package inspection

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// SessionList is the answer of GET /sessions.
type SessionList struct {
	// Sessions are the oldest matching sessions, the oldest first, up to the limit of the request.
	Sessions []Session `json:"sessions"`
	// Total is the number of all matching sessions.
	Total int `json:"total"`
}

// Session is a live session.
type Session struct {
	ID       string          `json:"id"`
	Listener string          `json:"listener"`
	Protocol config.Protocol `json:"protocol"`
	// User is the user id, without the expiry and the caveats of the credential.
	User string `json:"user"`
	// Caveats are the limits of the credential, or nil if it has none.
	Caveats  *credential.Caveats `json:"caveats,omitempty"`
	Client   string              `json:"client"`
	Relay    string              `json:"relay"`
	Started  time.Time           `json:"started"`
	Age      string              `json:"age"`
	Channels int                 `json:"channels"`
	// Front is the address IP:PORT of the pod at which the datagrams of the client arrive, if it is another pod.
	Front string `json:"front,omitempty"`
	// Stats counts the traffic of the relay: rx from peers, tx to peers.
	Stats Stats `json:"stats"`
	// Peers are the last active peers, at most MaxPeers, the last active peer first.
	Peers []PeerTraffic `json:"peers,omitempty"`
}

// Kicked is the answer of DELETE /sessions and DELETE /sessions/ID.
type Kicked struct {
	// Ended are the oldest of the ended sessions, the oldest first, at most DefaultLimit.
	Ended []Session `json:"ended"`
	// Total is the number of all ended sessions.
	Total int `json:"total"`
}

// RefusalList is the answer of GET /refusals.
type RefusalList struct {
	// Refusals are the last matching refusals, newest first.
	Refusals []Refusal `json:"refusals"`
	// Suppressed counts the refusals and drops since the start that were too frequent to be recorded. The metrics count
	// all of them.
	Suppressed uint64 `json:"suppressed"`
}

// Refusal is a request that was answered with an error, or a dropped datagram.
type Refusal struct {
	Last     time.Time `json:"last"`
	First    time.Time `json:"first"`
	Times    int       `json:"times"`
	Answered bool      `json:"answered"`
	Reason   string    `json:"reason"`
	Text     string    `json:"text"`
	Listener string    `json:"listener,omitempty"`
	User     string    `json:"user,omitempty"`
	Client   string    `json:"client,omitempty"`
	Peer     string    `json:"peer,omitempty"`
}

// Reach is the answer of GET /reach: whether clients of listeners may reach a peer.
type Reach struct {
	// Peer is IP:PORT.
	Peer      string          `json:"peer"`
	Listeners []ListenerReach `json:"listeners"`
}

// ListenerReach is whether the clients of one listener may reach a peer.
type ListenerReach struct {
	Listener string `json:"listener"`
	Allowed  bool   `json:"allowed"`
	// Cluster is the name of the cluster that allows the peer.
	Cluster string `json:"cluster,omitempty"`
	// Endpoint is the endpoint of the cluster that contains the peer, IP[/LENGTH][:<FIRST-LAST>].
	Endpoint string `json:"endpoint,omitempty"`
	// Reason is the reason under which a datagram to the peer is dropped or its request is refused; see Refusal.
	Reason string `json:"reason,omitempty"`
	// Text explains the reason.
	Text string `json:"text,omitempty"`
}

// GrantList is the answer of GET /grants of an auth service.
type GrantList struct {
	// Grants are the last matching grants, newest first.
	Grants []Grant `json:"grants"`
	// Suppressed counts the grants since the start that were removed from the list early, because their user or their
	// caller had too many of its entries.
	Suppressed uint64 `json:"suppressed"`
}

// Grant is a credential that was given to a caller.
type Grant struct {
	Time time.Time `json:"time"`
	// User is the user ID of the request.
	User string `json:"user"`
	// Username is the TURN user name of the credential. It is empty for a credential that does not expire, whose user
	// name may be from a Secret.
	Username string `json:"username,omitempty"`
	// Gateways are the Gateways for which the credential is valid, NAMESPACE/NAME.
	Gateways []string `json:"gateways"`
	// Expires is when the credential expires; zero if it does not.
	Expires time.Time `json:"expires,omitzero"`
	// Source is the address of the caller.
	Source string `json:"source"`
	// Caller is the subject of the caller's token; empty for a request without a token.
	Caller string `json:"caller,omitempty"`
}
