package session

import "github.com/stunner-gateway/stunner/services/api/config"

// The prices of the resources of clients: the memory of each in bytes, including memory of the kernel. Tests in package
// gate and package listener measure the heap and the stacks, and fail if a price is too low. holdings.txt lists the
// price of each resource, and the resources without a price.
const (
	// PricePermission is the price of a permission: about 400 bytes in the allocation engine, its timer included, 48 in
	// the gate, and its entry in the journal.
	PricePermission = 640
	// PriceChannel is the price of a channel binding, with its permission and the counters of its peer. If the kernel
	// forwards its data, it has two more entries in maps of the kernel.
	PriceChannel = 960
	// PriceFrame is the price of the buffer for a long frame of a client over TCP or TLS, while the frame is
	// incomplete.
	PriceFrame = 66 << 10
	// PriceReserved is the price of a reserved port: its socket and its token.
	PriceReserved = 4 << 10
	// PriceCheck is the price of a connectivity check of the longest size, in the relay and in the journal.
	PriceCheck = 1536
	// Permissions and channels that the price of a session includes, so that an ordinary call that was admitted can
	// always use them. They suffice for the candidates of a browser.
	includedPermissions = 8
	includedChannels    = 4
	// included is the price of the permissions, channels and checks that a session includes.
	included = includedPermissions*PricePermission + includedChannels*PriceChannel
)

// priceSession is the price of the parts of a session that do not depend on the transport: the allocation, the relay
// socket, over UDP a socket for the data to the client, and counters of peers without a channel and of denied peers.
const priceSession = 91<<8 + included

// priceRoutes is the price of the routes that a credential names: at most 100 short names in a user name of 508 bytes,
// and a view of the routes of the listener.
const priceRoutes = 5 << 10

// transportPrices are the prices of a client's connection and its handshake, by the protocol of the listener. They do
// not depend on whether there is a session. They include goroutines, buffers, the socket, and over TLS and DTLS the
// keys and the buffers for records of up to 16 KiB and for handshake messages.
var transportPrices = map[config.Protocol]int64{
	config.TURNUDP:  0,
	config.TURNTCP:  12 << 10,
	config.TURNTLS:  48 << 10,
	config.TURNDTLS: 84 << 10,
}

// PriceOfTransport returns the price of the connection of a client to a listener with a protocol.
func PriceOfTransport(p config.Protocol) int64 { return transportPrices[p] }

// PriceOf returns the price of a session with permissions and channels.
func PriceOf(p config.Protocol, permissions, channels int) int64 {
	return priceSession + transportPrices[p] + PriceOfMore(permissions, channels)
}

// PriceOfMore returns the price of permissions and channels beyond those that each session includes.
func PriceOfMore(permissions, channels int) int64 {
	return int64(max(0, permissions-includedPermissions))*PricePermission +
		int64(max(0, channels-includedChannels))*PriceChannel
}

// includedChecks is the number of checks that the price of a session includes.
const includedChecks = 1

// PriceOfChecks returns the price of the connectivity checks of a session, at most MaxChecks, without the checks that
// each session includes.
func PriceOfChecks(checks int) int64 {
	return int64(max(0, min(checks, MaxChecks)-includedChecks)) * PriceCheck
}

// price returns the price of a relay port: of a reserved port, or of the session itself.
func (s *Session) price(reserved bool) int64 {
	if reserved {
		return PriceReserved
	}
	if len(s.Caveats.Routes) > 0 {
		return PriceOf(s.Protocol, 0, 0) + priceRoutes
	}
	return PriceOf(s.Protocol, 0, 0)
}
