package listener

import (
	"encoding/binary"
	"sync"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// checks are the latest connectivity checks of a client on each of some paths. ICE agents send a check every few
// seconds (RFC 7675 §5.1). A peer answers a check if its MESSAGE-INTEGRITY is valid, and signs the answer (RFC 8489
// §9.1.3). So an answered check shows which path the client uses. Without checks, a client that sends media would have
// two paths until its next request to this server, which may be minutes later.
type checks struct {
	mu   sync.Mutex
	list []check
}

type check struct {
	front       forward.ReturnPath
	transaction [stun.TransactionIDSize]byte
}

// maxChecks is the number of paths whose latest checks are kept.
const maxChecks = 4

// sent records a ChannelData frame or Send indication of the client if it contains a check.
func (s *checks) sent(front forward.ReturnPath, frame []byte) {
	id, ok := bindingID(content(frame), stun.ClassRequest)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		if s.list[i].front == front {
			s.list[i].transaction = id
			return
		}
	}
	if len(s.list) == maxChecks {
		s.list = append(s.list[:0], s.list[1:]...)
	}
	s.list = append(s.list, check{front, id})
}

// answered returns the path of a check, if the ChannelData frame or Data indication for the client contains the answer
// to that check.
func (s *checks) answered(frame []byte) (front forward.ReturnPath, ok bool) {
	message := content(frame)
	id, ok := bindingID(message, stun.ClassSuccessResponse)
	if !ok || attribute(message, stun.AttrMessageIntegrity) == nil {
		return forward.ReturnPath{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.list {
		if c.transaction == id {
			return c.front, true
		}
	}
	return forward.ReturnPath{}, false
}

// content returns the data of a ChannelData frame, or of a Send or Data indication, or nil.
func content(frame []byte) []byte {
	switch {
	case len(frame) < frameHeader:
		return nil
	case !isChannelData(frame[0]):
		return attribute(frame, stun.AttrData)
	}
	data := frame[frameHeader:]
	return data[:min(len(data), int(binary.BigEndian.Uint16(frame[2:])))]
}

// magicCookie is in bytes 4 to 7 of each STUN message (RFC 8489 §5).
const magicCookie = 0x2112A442

// bindingID returns the transaction ID of a Binding message of the given class.
func bindingID(message []byte, class stun.MessageClass) (id [stun.TransactionIDSize]byte, ok bool) {
	if len(message) < stunmsg.HeaderSize || binary.BigEndian.Uint32(message[4:]) != magicCookie ||
		binary.BigEndian.Uint16(message) != stun.NewType(stun.MethodBinding, class).Value() {
		return id, false
	}
	return [stun.TransactionIDSize]byte(message[8:]), true
}

// attribute returns the value of the first attribute of a kind in a STUN message, or nil.
func attribute(message []byte, kind stun.AttrType) []byte {
	if len(message) < stunmsg.HeaderSize {
		return nil
	}
	for rest := message[stunmsg.HeaderSize:]; len(rest) >= 4; {
		size := int(binary.BigEndian.Uint16(rest[2:]))
		padded := 4 + (size+3)&^3
		if padded > len(rest) {
			return nil
		}
		if stun.AttrType(binary.BigEndian.Uint16(rest)) == kind {
			return rest[4:][:size]
		}
		rest = rest[padded:]
	}
	return nil
}
