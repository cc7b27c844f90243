package session

import "github.com/stunner-gateway/stunner/services/api/config"

// The prices of what clients make the process hold, in bytes of memory, including that of the kernel. Tests in package
// gate and package listener measure the memory of the heap and of the stacks, and fail if a price is lower.
const (
	// PricePermission is the price of a permission: about 400 bytes in the allocation engine, its timer included, 48 in
	// the gate, and its entry in the journal.
	PricePermission = 640
	// PriceChannel is the price of a channel binding, with its permission. If the kernel forwards its data, it has two
	// more entries in maps of the kernel.
	PriceChannel = 640
	// PriceFrame is the price of the buffer for a long frame of a client over TCP or TLS, while the frame is incomplete.
	PriceFrame = 66 << 10
	// PriceReserved is the price of a reserved port: its socket and its token.
	PriceReserved = 4 << 10
	// Permissions and channels that the price of a session includes, so that an ordinary call that was admitted can
	// always use them. They suffice for the candidates of a browser.
	includedPermissions = 8
	includedChannels    = 4
	// included is the price of what a session includes.
	included = includedPermissions*PricePermission + includedChannels*PriceChannel
)

// sessionPrices are the prices of a session by the protocol of its listener: the allocation, the relay socket and the
// transport to the client, which is a socket with its buffers, and over connections the goroutine, the frame buffer and
// the state of TLS or DTLS.
var sessionPrices = map[config.Protocol]int64{
	config.TURNUDP:  20<<10 + included,
	config.TURNTCP:  28<<10 + included,
	config.TURNTLS:  60<<10 + included,
	config.TURNDTLS: 60<<10 + included,
}

// price returns the price of a place: of a reserved port, or of the session itself.
func (s *Session) price(reserved bool) int64 {
	if reserved {
		return PriceReserved
	}
	if p, ok := sessionPrices[s.Protocol]; ok {
		return p
	}
	return sessionPrices[config.TURNUDP]
}

// PriceOf returns the price of the permissions and channels of a session, beyond those that the session includes.
func PriceOf(permissions, channels int) int64 {
	return int64(max(0, permissions-includedPermissions))*PricePermission +
		int64(max(0, channels-includedChannels))*PriceChannel
}
