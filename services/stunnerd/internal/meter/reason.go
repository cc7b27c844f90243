package meter

import "slices"

// Reason is why a message was refused or a datagram was dropped. Its text is a value of a metric label.
type Reason uint8

// The reasons. A refusal is answered with a STUN error. A drop is not answered.
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
	reasonCount
)

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
}

func (r Reason) String() string { return reasons[r] }

// IsReason reports whether a text is the text of a reason.
func IsReason(text string) bool { return slices.Contains(reasons[:], text) }
