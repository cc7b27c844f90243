package meter

import (
	"log/slog"
	"slices"
	"strings"
)

// words are the texts of the reasons, with the placeholders {peer}, {listener} and {routes}. They do not contain users
// and clients, because not every reader of a refusal may see those.
var words = [reasonCount]string{
	Malformed:             "not a complete STUN message or ChannelData message of a client",
	BadFingerprint:        "FINGERPRINT does not match the message",
	UnknownAttribute:      "a comprehension-required attribute is unknown (RFC 8489 section 14)",
	UnknownMethod:         "the STUN or TURN method is not supported",
	NoCredential:          "no credential: the client was sent a challenge",
	IncompleteCredential:  "USERNAME, REALM or NONCE is missing although MESSAGE-INTEGRITY is present",
	StaleNonce:            "the nonce has expired or is of another process: the client was sent a new one",
	UnknownUser:           "the user name is unknown in this realm",
	WrongPassword:         "the password is wrong, or was derived from another shared secret",
	ExpiredCredential:     "the credential has expired",
	RevokedCredential:     "the credential is revoked: it was issued before a Revocation of its user, or is revoked itself",
	CaveatMalformed:       "the caveats in the user name are malformed: the service that issues credentials writes them wrongly",
	CaveatUnknown:         "a caveat in the user name, or its version, is unknown: the service that issues credentials is newer than stunnerd",
	CaveatGateway:         "a caveat of the credential names another Gateway",
	CaveatNotBefore:       "a caveat of the credential says that it is not valid yet",
	CaveatRoute:           "{peer} denied: a route of listener {listener} allows it, but not one that the credential names ({routes})",
	CaveatAllocations:     "the user has as many allocations as the credential allows, in all pods of the Gateway",
	CaveatRate:            "the byte rate exceeds that of the credential",
	CaveatBytes:           "the bytes that the credential allows are used: the allocation ends, and no other can begin with it",
	NoAllocation:          "no allocation for this client address: it has ended, or another process has it",
	AllocationExists:      "this client address already has an allocation",
	OtherUser:             "the allocation belongs to another user",
	BadRequest:            "an attribute is missing or invalid",
	TransportUnsupported:  "the client requested a relay transport other than UDP",
	FamilyUnsupported:     "listener {listener} has no relay address of the requested address family",
	FamilyMismatch:        "the address family of the peer is not that of the relay address",
	PeerDenied:            "{peer} denied: no route of listener {listener} allows it ({routes})",
	PortDenied:            "{peer} denied: a route of listener {listener} allows the address, but not this port ({routes})",
	ChannelConflict:       "the channel number is bound to another peer, or the peer to another number",
	ChannelUnbound:        "data for a channel that is not bound, or whose binding has expired",
	ChannelLimit:          "the allocation has the maximum number of channels",
	PermissionLimit:       "the allocation has the maximum number of permissions",
	NoPermission:          "the client has no permission for {peer}",
	Quota:                 "the user has as many allocations as user_quota allows, in all pods of the Gateway",
	SourceQuota:           "the client's address has as many allocations as source_quota allows",
	Capacity:              "the process has, or almost has, its maximum number of allocations or memory for them, and the user or the client address holds much of it",
	Draining:              "the process or listener {listener} is draining and accepts no new allocations",
	STUNOnly:              "listener {listener} serves STUN only: its authentication type is none",
	TooLarge:              "data of {peer} is too long for a Data indication, and the client has bound no channel to it",
	SendFailed:            "sending failed",
	Congested:             "dropped: the send buffer is full, because the link is slow or the next hop does not respond",
	SlowClient:            "dropped: the client reads its connection more slowly than data arrives",
	NoRelay:               "no relay port, no reserved port with the token, or no file descriptor is available",
	Handshake:             "the TLS or DTLS handshake failed",
	ByteRate:              "the byte rate exceeds session_byte_rate or user_byte_rate",
	RateLimited:           "too many requests without a valid credential from this address",
	Crowded:               "connection closed: too many clients without an allocation, and this one was connected for the longest time",
	UnexpectedRecord:      "a DTLS record that the state of the association does not allow: forged, repeated by the client, or its alert in the handshake",
	ProxyHeaderInvalid:    "connection closed: its address is in proxy_protocol of listener {listener}, and it does not begin with a valid header of the PROXY protocol",
	ProxyHeaderUnexpected: "connection closed: it begins with a header of the PROXY protocol, and its address is not in proxy_protocol of listener {listener}, or the header is a second one",
	Idle:                  "connection closed: the client has no allocation, and sent no message for 10 s after it connected, or for 30 s after a message",
	StalledClient:         "connection closed: the client has not read for 5 s, or does not read the answers to its requests",
	HandshakeRunning:      "a DTLS ClientHello of a client address and port whose handshake is in progress",
	Replaced:              "DTLS association closed: its client has completed a new handshake from the same address and port",
	NoDescriptor:          "no file descriptor is left for a new connection, which waits until one is free",
	Internal:              "stunnerd has failed to execute or to answer the request: please report it",
	BadFrame:              "{peer} sent a frame that is malformed, of another version, or not encrypted with its key",
	BadKey:                "{peer} sent a frame with a key that this pod does not have",
	Replay:                "{peer} sent a frame that was received before, or that is too old",
	Stranger:              "{peer} sent a frame, and is not in the list of the pods of the Gateway, or not with this address",
	OtherListener:         "{peer} sent a frame for a port on which this pod has no UDP or DTLS listener",
	Loop:                  "{peer} and this pod take each other for the owner of a session",
	Unasked:               "{peer} sent an answer about a client for which this pod did not ask",
	Unowned:               "no pod of the Gateway has a session of the client",
	Searches:              "too many clients without a known owner at a time, or from one address",
	Unsent:                "sending a frame to another pod of the Gateway failed",
	Unlisted:              "the list of clients with a session in other pods, or of those to announce, is full",
	PortTaken:             "the relay port of the session is in use, or outside of --relay-ports",
	NoListener:            "the config has no UDP listener with the name of the session, or the port of the session is in use",
	Expired:               "the lifetime of the session was over before its listener was open",
	Revoked:               "the credential of the session is revoked",
	Failed:                "the allocation of the session could not be started",
	HTTPParameter:         "a parameter of the request is unknown, missing or invalid",
	HTTPCaller:            "the request was not made directly on this host, and --sessions-from is loopback",
	HTTPPath:              "the path, the session or the listener does not exist",
	HTTPMethod:            "the method is not supported: endpoints support GET and HEAD",
	HTTPOther:             "the request could not be answered",
	JournalShare:          "a change of a session is not stored: its user and its address store more than their share of the journal",
	ConfigInvalid:         "a field of the config is invalid",
	ConfigUnreadable:      "the config cannot be parsed, is too large, or belongs to another gateway",
}

// warnings are the reasons whose cause is the installation, and not the client. Their log lines have level WARN.
var warnings = []Reason{
	Capacity, NoRelay, NoDescriptor, Internal, ProxyHeaderInvalid, STUNOnly,
	BadFrame, BadKey, Stranger, OtherListener, Loop, Unsent, Unlisted, PortTaken, NoListener, Failed, JournalShare,
	ConfigInvalid, ConfigUnreadable,
}

// level returns the level of the log lines with a reason.
func (r Reason) level() slog.Level {
	if slices.Contains(warnings, r) {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// allRoutes stands for the routes of a listener in texts.
const allRoutes = "GET /reach shows its routes"

// Text returns the text that explains any refusal or drop with the reason.
func (r Reason) Text() string { return Entry{Reason: r}.Text(allRoutes) }

// Text returns the text that explains a refusal or a drop to a user. The argument routes lists the routes of the
// listener.
func (e Entry) Text(routes string) string {
	peer := "peer"
	if e.Reason.Family() == Frames {
		peer = "another pod"
	}
	if e.Peer.IsValid() {
		peer += " " + e.Peer.String()
	}
	listener := "the listener"
	if e.Listener != "" {
		listener = "listener " + e.Listener
	}
	return strings.NewReplacer("{peer}", peer, "listener {listener}", listener, "{routes}", routes).Replace(words[e.Reason])
}

// Routes describes the routes of a listener for Entry.Text.
func Routes(names []string) string {
	if len(names) == 0 {
		return "it has no routes"
	}
	return "routes: " + strings.Join(names, ", ")
}
