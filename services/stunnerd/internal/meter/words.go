package meter

import "strings"

// words are the texts of the reasons, with the placeholders {peer}, {listener} and {routes}. They do not contain users
// and clients, because not every reader of a refusal may see them.
var words = [reasonCount]string{
	Malformed:            "not one whole STUN message or ChannelData frame that a client may send",
	BadFingerprint:       "FINGERPRINT does not fit the message",
	UnknownAttribute:     "an attribute that has to be understood is not",
	UnknownMethod:        "not a method of STUN or TURN that is served here",
	NoCredential:         "no credential: the client was asked for one",
	IncompleteCredential: "USERNAME, REALM or NONCE missing beside MESSAGE-INTEGRITY",
	StaleNonce:           "nonce too old, or made by another process: the client was given a new one",
	UnknownUser:          "user name unknown in this realm",
	WrongPassword:        "password wrong, or made with another shared secret",
	ExpiredCredential:    "credential expired",
	NoAllocation:         "no allocation from this address: it has ended, or is at another process",
	AllocationExists:     "this address has an allocation already",
	OtherUser:            "the allocation belongs to another user",
	BadRequest:           "an attribute is missing, or makes no sense",
	TransportUnsupported: "a relay for another transport than UDP was asked for",
	FamilyUnsupported:    "listener {listener} has no relay address of the family that was asked for",
	FamilyMismatch:       "the peer's address is not of the family of the relay address",
	PeerDenied:           "{peer} denied: no route of listener {listener} allows it ({routes})",
	PortDenied:           "{peer} denied: a route of listener {listener} allows the address, but not this port ({routes})",
	ChannelConflict:      "the channel number is bound to another peer, or the peer to another number",
	ChannelUnbound:       "data for a channel that is not bound, or no longer",
	ChannelLimit:         "the allocation has as many channels as it may have",
	PermissionLimit:      "the allocation has as many permissions as it may have",
	NoPermission:         "the client has no permission for {peer}",
	Quota:                "the user has as many allocations as user_quota allows",
	SourceQuota:          "the client's address has as many allocations as source_quota allows",
	Capacity:             "the process has as many allocations as it can bear, or nearly, and the user and the address have many of them",
	Draining:             "the process or listener {listener} is on its way out and takes no new calls",
	STUNOnly:             "listener {listener} serves STUN only: its authentication type is none",
	TooLarge:             "data of {peer} is too long for an indication: the client has bound no channel to it",
	SendFailed:           "could not be sent on",
	Congested:            "dropped: the send buffer is full, because the link is slow or the next hop does not answer",
	SlowClient:           "dropped: the client reads its connection more slowly than data arrives for it",
	NoRelay:              "no relay port to be had",
	Handshake:            "TLS or DTLS handshake failed",
	ByteRate:             "more bytes a second than session_byte_rate or user_byte_rate allows",
	RateLimited:          "too much from this source without a good credential",
	Crowded:              "connection closed: of too many clients without a session it was the one that had been there for longest",
}

// Text returns the text that explains a refusal or a drop to a person. The argument routes lists the routes of the
// listener.
func (e Entry) Text(routes string) string {
	peer := "peer"
	if e.Peer.IsValid() {
		peer += " " + e.Peer.String()
	}
	return strings.NewReplacer("{peer}", peer, "{listener}", e.Listener, "{routes}", routes).Replace(words[e.Reason])
}

// Routes describes the routes of a listener for Entry.Text.
func Routes(names []string) string {
	if len(names) == 0 {
		return "it has no routes"
	}
	return "routes: " + strings.Join(names, ", ")
}
