package wire

import "fmt"

// Class is the class of a message.
type Class uint16

// The classes (RFC 8489 §5).
const (
	Request Class = iota
	Indication
	Success
	Error
)

// String names the class.
func (c Class) String() string {
	return [...]string{"request", "indication", "success", "error"}[c&3]
}

// Method is the method of a message.
type Method uint16

// The methods (RFC 8489 §18.2, RFC 3489 §11.1, RFC 8656 §17, RFC 6062 §6.1).
const (
	Binding          Method = 0x001
	SharedSecret     Method = 0x002
	Allocate         Method = 0x003
	Refresh          Method = 0x004
	Send             Method = 0x006
	Data             Method = 0x007
	CreatePermission Method = 0x008
	ChannelBind      Method = 0x009
	Connect          Method = 0x00A
)

var methods = map[Method]string{
	Binding: "Binding", SharedSecret: "Shared Secret", Allocate: "Allocate", Refresh: "Refresh", Send: "Send", Data: "Data",
	CreatePermission: "CreatePermission", ChannelBind: "ChannelBind", Connect: "Connect",
}

// String names the method.
func (m Method) String() string {
	if name, ok := methods[m]; ok {
		return name
	}
	return fmt.Sprintf("method 0x%03x", uint16(m))
}

// messageType interleaves class and method (RFC 8489 §5, figure 3).
func messageType(c Class, m Method) uint16 {
	method, class := uint16(m), uint16(c)
	return method&0xF | method&0x70<<1 | method&0xF80<<2 | class&1<<4 | class&2<<7
}

func split(t uint16) (Class, Method) {
	return Class(t>>4&1 | t>>7&2), Method(t&0xF | t>>1&0x70 | t>>2&0xF80)
}

// AttrType is the type of an attribute.
type AttrType uint16

// The attributes that the prober uses (RFC 8489 §18.3, RFC 8656 §18, RFC 5780 §7, RFC 7635 §6, RFC 8016 §5,
// RFC 3489 §11.2).
const (
	MappedAddress           AttrType = 0x0001
	ResponseAddress         AttrType = 0x0002
	ChangeRequest           AttrType = 0x0003
	Username                AttrType = 0x0006
	MessageIntegrity        AttrType = 0x0008
	ErrorCode               AttrType = 0x0009
	UnknownAttributes       AttrType = 0x000A
	ChannelNumber           AttrType = 0x000C
	Lifetime                AttrType = 0x000D
	XORPeerAddress          AttrType = 0x0012
	DataAttr                AttrType = 0x0013
	Realm                   AttrType = 0x0014
	Nonce                   AttrType = 0x0015
	XORRelayedAddress       AttrType = 0x0016
	RequestedAddressFamily  AttrType = 0x0017
	EvenPort                AttrType = 0x0018
	RequestedTransport      AttrType = 0x0019
	DontFragment            AttrType = 0x001A
	AccessToken             AttrType = 0x001B
	XORMappedAddress        AttrType = 0x0020
	ReservationToken        AttrType = 0x0022
	AdditionalAddressFamily AttrType = 0x8000
	AddressErrorCode        AttrType = 0x8001
	PasswordAlgorithms      AttrType = 0x8002
	ICMP                    AttrType = 0x8004
	Software                AttrType = 0x8022
	FingerprintAttr         AttrType = 0x8028
	ResponseOrigin          AttrType = 0x802B
	OtherAddress            AttrType = 0x802C
	ThirdPartyAuthorization AttrType = 0x802E
	MobilityTicket          AttrType = 0x8030
)

// String returns the number of the type in hex, as packet captures show it.
func (t AttrType) String() string { return fmt.Sprintf("attribute 0x%04x", uint16(t)) }

// MethodOf returns the method of a message type.
func MethodOf(messageType uint16) Method {
	_, method := split(messageType)
	return method
}
