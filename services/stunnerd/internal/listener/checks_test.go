package listener

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// Forms in which a message of a client or a peer is relayed.
var relayed = map[string]func(method stun.Method, message []byte) []byte{
	"ChannelData": func(_ stun.Method, message []byte) []byte {
		frame := binary.BigEndian.AppendUint16([]byte{0x40, 0}, uint16(len(message)))
		return append(append(frame, message...), 0, 0, 0) // padding
	},
	"indication": func(method stun.Method, message []byte) []byte {
		return stun.MustBuild(stun.TransactionID, stun.NewType(method, stun.ClassIndication),
			stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: netip.MustParseAddrPort("192.0.2.1:9")},
			stun.RawAttribute{Type: stun.AttrData, Value: message}).Raw
	},
}

func id(n byte) stun.Setter { return stun.NewTransactionIDSetter([stun.TransactionIDSize]byte{n}) }

// Connectivity checks of ICE, and their answers.
var (
	iceKey    = stun.NewShortTermIntegrity("an ICE password")
	iceCheck  = func(n byte) []byte { return stun.MustBuild(id(n), stun.BindingRequest, iceKey).Raw }
	iceAnswer = func(n byte) []byte { return stun.MustBuild(id(n), stun.BindingSuccess, iceKey).Raw }
)

// A check that the peer answers moves the client. Other messages and unanswered checks do not.
func TestAnsweredChecksMoveAClient(t *testing.T) {
	returnPaths := fronts(t, 2)
	b, c, now := returnPaths[0], returnPaths[1], time.Now()
	type sent struct {
		front   forward.ReturnPath
		message []byte
	}
	type row struct {
		sent   []sent
		answer []byte
		// want is the path that is used, or "?" if there are two.
		want string
	}
	unsigned := stun.MustBuild(id(1), stun.BindingSuccess).Raw
	refresh := stun.MustBuild(id(1), stun.NewType(stun.MethodRefresh, stun.ClassRequest)).Raw
	media := []byte{0x80, 0x60, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	for name, r := range map[string]row{
		"at the second path":         {[]sent{{b, iceCheck(1)}}, iceAnswer(1), "b"},
		"at the path in use":         {[]sent{{b, iceCheck(1)}, {forward.ReturnPath{}, iceCheck(2)}}, iceAnswer(2), ""},
		"the latest of a path":       {[]sent{{b, iceCheck(1)}, {b, iceCheck(2)}}, iceAnswer(2), "b"},
		"at a path that was second":  {[]sent{{b, iceCheck(1)}, {c, iceCheck(2)}}, iceAnswer(1), "b"},
		"not the latest of a path":   {[]sent{{b, iceCheck(1)}, {b, iceCheck(2)}}, iceAnswer(1), "?"},
		"no answer":                  {[]sent{{b, iceCheck(1)}}, media, "?"},
		"no check":                   {[]sent{{b, media}}, iceAnswer(1), "?"},
		"no binding":                 {[]sent{{b, refresh}}, iceAnswer(1), "?"},
		"another check":              {[]sent{{b, iceCheck(1)}}, iceAnswer(2), "?"},
		"an answer without a key":    {[]sent{{b, iceCheck(1)}}, unsigned, "?"},
		"an error":                   {[]sent{{b, iceCheck(1)}}, stun.MustBuild(id(1), stun.BindingError, iceKey).Raw, "?"},
		"a check of the peer":        {[]sent{{b, iceCheck(1)}}, iceCheck(1), "?"},
		"an answer that is cut":      {[]sent{{b, iceCheck(1)}}, iceAnswer(1)[:30], "?"},
		"an answer without a header": {[]sent{{b, iceCheck(1)}}, iceAnswer(1)[:19], "?"},
		"an empty datagram":          {[]sent{{b, nil}}, nil, "?"},
	} {
		for form, relay := range relayed {
			client := &udpClient{}
			for _, s := range r.sent {
				client.arrived(s.front, relay(stun.MethodSend, s.message), now)
			}
			front, ok := client.paths.checks.answered(relay(stun.MethodData, r.answer))
			got := "?"
			if ok {
				client.paths.follow(front, now)
				got = client.paths.used()[0]
			}
			if got != r.want || ok == client.paths.undecided() {
				t.Errorf("%s as %s: %q, want %q; paths %q", name, form, got, r.want, client.paths.used())
			}
		}
	}
}

// Forged checks at several pods do not displace all checks of the client, and the number of stored checks is bounded.
func TestChecksAreBounded(t *testing.T) {
	var s checks
	frame := relayed["ChannelData"]
	returnPaths := append(fronts(t, maxChecks), forward.ReturnPath{})
	for i, front := range returnPaths {
		for n := range byte(100) {
			s.sent(front, frame(stun.MethodSend, iceCheck(n)))
		}
		if len(s.list) != min(i+1, maxChecks) || s.list[len(s.list)-1].front != front {
			t.Errorf("%d checks after %d paths", len(s.list), i+1)
		}
	}
}

// The search for answers in data for a client with two paths does not allocate.
func TestSearchForAnswersAllocatesNothing(t *testing.T) {
	var s checks
	frame := relayed["ChannelData"]
	check, media := frame(stun.MethodSend, iceCheck(1)), frame(stun.MethodData, make([]byte, 1000))
	s.sent(forward.ReturnPath{}, check)
	if n := testing.AllocsPerRun(100, func() {
		s.sent(forward.ReturnPath{}, check)
		s.sent(forward.ReturnPath{}, media)
		s.answered(media)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// FuzzChecks passes arbitrary frames from and to a client.
func FuzzChecks(f *testing.F) {
	for _, relay := range relayed {
		f.Add(relay(stun.MethodSend, iceCheck(1)), relay(stun.MethodData, iceAnswer(1)))
	}
	f.Add([]byte{0x40}, []byte{0, 0x17, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, sent, answer []byte) {
		var s checks
		s.sent(forward.ReturnPath{}, sent)
		if _, ok := s.answered(answer); ok && len(s.list) == 0 {
			t.Error("an answer without a check")
		}
	})
}
