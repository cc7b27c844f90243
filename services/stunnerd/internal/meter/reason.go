package meter

import "slices"

// Reason is the cause for which stunnerd refuses, drops, closes or ignores external input. Its text is the value of the
// label reason in the metric of its Family.
type Reason uint8

// The reasons of Clients. A refusal is answered with a STUN error. A drop is not answered.
const (
	Malformed Reason = iota
	BadFingerprint
	UnknownAttribute
	UnknownMethod
	NoCredential
	IncompleteCredential
	StaleNonce
	UnknownUser
	WrongPassword
	ExpiredCredential
	RevokedCredential
	CaveatMalformed
	CaveatUnknown
	CaveatGateway
	CaveatNotBefore
	CaveatRoute
	CaveatAllocations
	CaveatRate
	CaveatBytes
	NoAllocation
	AllocationExists
	OtherUser
	BadRequest
	TransportUnsupported
	FamilyUnsupported
	FamilyMismatch
	PeerDenied
	PortDenied
	ChannelConflict
	ChannelUnbound
	ChannelLimit
	PermissionLimit
	NoPermission
	Quota
	SourceQuota
	Capacity
	Draining
	STUNOnly
	TooLarge
	SendFailed
	Congested
	SlowClient
	NoRelay
	Handshake
	RateLimited
	ByteRate
	Crowded
	UnexpectedRecord
	ProxyHeaderInvalid
	ProxyHeaderUnexpected
	Idle
	StalledClient
	HandshakeRunning
	Replaced
	NoDescriptor
	Internal

	// The reasons of Frames.
	BadFrame
	BadKey
	Replay
	Stranger
	OtherListener
	Loop
	Unasked
	Unowned
	Searches
	Unsent
	Unlisted

	// The reasons of Restored.
	PortTaken
	NoListener
	Expired
	Revoked
	Failed

	// The reasons of HTTP.
	HTTPParameter
	HTTPCaller
	HTTPPath
	HTTPMethod
	HTTPOther

	// The reasons of Stored.
	JournalShare

	// The reasons of Configs.
	ConfigInvalid
	ConfigUnreadable

	reasonCount
)

// Family is a group of reasons with one metric.
type Family uint8

const (
	// Clients are the messages, datagrams and connections of clients, and the datagrams of their peers. The metrics
	// are stunner_refused_total and stunner_dropped_total.
	Clients Family = iota
	// Frames are the datagrams of clients that pods of the Gateway forward to each other. The metric is
	// stunner_forward_refused_total.
	Frames
	// Restored are the sessions of a previous process. The metric is stunner_sessions_dropped_total.
	Restored
	// HTTP are the requests to the probes, status and metrics. The metric is stunner_http_refused_total.
	HTTP
	// Stored are the changes of sessions for the journal. The metric is stunner_journal_refused_total.
	Stored
	// Configs are the configs that the source has sent. The metric is stunner_config_rejected_total.
	Configs
)

// Family returns the family of a reason.
func (r Reason) Family() Family {
	switch {
	case r < BadFrame:
		return Clients
	case r < PortTaken:
		return Frames
	case r < HTTPParameter:
		return Restored
	case r < JournalShare:
		return HTTP
	case r < ConfigInvalid:
		return Stored
	}
	return Configs
}

var reasons = [reasonCount]string{
	Malformed:             "malformed",
	BadFingerprint:        "bad_fingerprint",
	UnknownAttribute:      "unknown_attribute",
	UnknownMethod:         "unknown_method",
	NoCredential:          "no_credential",
	IncompleteCredential:  "incomplete_credential",
	StaleNonce:            "stale_nonce",
	UnknownUser:           "unknown_user",
	WrongPassword:         "wrong_password",
	ExpiredCredential:     "expired_credential",
	RevokedCredential:     "revoked_credential",
	CaveatMalformed:       "caveat_malformed",
	CaveatUnknown:         "caveat_unknown",
	CaveatGateway:         "caveat_gateway",
	CaveatNotBefore:       "caveat_not_before",
	CaveatRoute:           "caveat_route",
	CaveatAllocations:     "caveat_allocations",
	CaveatRate:            "caveat_rate",
	CaveatBytes:           "caveat_bytes",
	NoAllocation:          "no_allocation",
	AllocationExists:      "allocation_exists",
	OtherUser:             "other_user",
	BadRequest:            "bad_request",
	TransportUnsupported:  "transport_unsupported",
	FamilyUnsupported:     "family_unsupported",
	FamilyMismatch:        "family_mismatch",
	PeerDenied:            "peer_denied",
	PortDenied:            "port_denied",
	ChannelConflict:       "channel_conflict",
	ChannelUnbound:        "channel_unbound",
	ChannelLimit:          "channel_limit",
	PermissionLimit:       "permission_limit",
	NoPermission:          "no_permission",
	Quota:                 "quota",
	SourceQuota:           "source_quota",
	Capacity:              "capacity",
	Draining:              "draining",
	STUNOnly:              "stun_only",
	TooLarge:              "too_large",
	SendFailed:            "send_failed",
	Congested:             "congested",
	SlowClient:            "slow_client",
	NoRelay:               "no_relay",
	Handshake:             "handshake",
	RateLimited:           "rate_limited",
	ByteRate:              "byte_rate",
	Crowded:               "crowded",
	UnexpectedRecord:      "unexpected_record",
	ProxyHeaderInvalid:    "proxy_header_invalid",
	ProxyHeaderUnexpected: "proxy_header_unexpected",
	Idle:                  "idle",
	StalledClient:         "stalled_client",
	HandshakeRunning:      "handshake_running",
	Replaced:              "replaced",
	NoDescriptor:          "no_descriptor",
	Internal:              "internal_error",
	BadFrame:              "bad_frame",
	BadKey:                "bad_key",
	Replay:                "replay",
	Stranger:              "stranger",
	OtherListener:         "listener",
	Loop:                  "loop",
	Unasked:               "unasked",
	Unowned:               "unknown",
	Searches:              "limited",
	Unsent:                "unsent",
	Unlisted:              "unlisted",
	PortTaken:             "port_taken",
	NoListener:            "no_listener",
	Expired:               "expired",
	Revoked:               "revoked",
	Failed:                "failed",
	HTTPParameter:         "http_parameter",
	HTTPCaller:            "http_caller",
	HTTPPath:              "http_path",
	HTTPMethod:            "http_method",
	HTTPOther:             "http_other",
	JournalShare:          "journal_share",
	ConfigInvalid:         "invalid",
	ConfigUnreadable:      "unreadable",
}

func (r Reason) String() string { return reasons[r] }

// IsReason reports whether a text is the text of a reason of Clients.
func IsReason(text string) bool { return slices.Contains(reasons[:BadFrame], text) }

// All returns all reasons.
func All() []Reason {
	all := make([]Reason, reasonCount)
	for r := range all {
		all[r] = Reason(r)
	}
	return all
}
