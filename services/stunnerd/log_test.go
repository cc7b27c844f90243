package main

import (
	"encoding/json"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"
)

// build makes a STUN message with a transaction id of its own.
func build(t *testing.T, setters ...stun.Setter) []byte {
	t.Helper()
	m, err := stun.Build(append([]stun.Setter{stun.TransactionID}, setters...)...)
	if err != nil {
		t.Fatal(err)
	}
	return m.Raw
}

// wrong are invalid datagrams, by the error that they cause.
func wrong(t *testing.T) map[string][]byte {
	t.Helper()
	request := func(m stun.Method) stun.MessageType { return stun.NewType(m, stun.ClassRequest) }
	truncated := build(t, request(stun.MethodBinding), stun.NewSoftware("client"))
	fingerprint := build(t, request(stun.MethodBinding), stun.Fingerprint)
	fingerprint[len(fingerprint)-1] ^= 1
	return map[string][]byte{
		"no message":        []byte("GET / HTTP/1.1\r\nlevel=ERROR msg=forged\r\n\r\n"),
		"one byte":          {0},
		"cut short":         truncated[:len(truncated)-3],
		"wrong fingerprint": fingerprint,
		"unknown method":    build(t, request(stun.Method(0xEEE))),
		"unknown attribute": build(
			t, request(stun.MethodBinding), stun.RawAttribute{Type: 0x7777, Value: []byte("\nforged")},
		),
		"a response":    build(t, stun.BindingSuccess),
		"no credential": build(t, request(stun.MethodAllocate)),
		"bad credential": build(t, request(stun.MethodAllocate), stun.NewUsername("eve\nforged"), stun.NewRealm(
			"\nforged",
		), stun.NewNonce("\nforged"),
			stun.NewShortTermIntegrity("guess")),
		"no allocation": build(
			t, stun.NewType(stun.MethodSend, stun.ClassIndication),
			stun.RawAttribute{Type: stun.AttrData, Value: []byte("x")},
		),
		"half a handshake":  {22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0},
		"unbound channel":   {0x40, 0, 0, 4, 'd', 'a', 't', 'a'},
		"shorter than said": {0x40, 0, 0xFF, 0xFF, 'd'},
	}
}

// T-19: the log stays short for any number of invalid datagrams.
func TestBadDatagramsDoNotFillTheLog(t *testing.T) {
	const datagrams, limit = 100_000, 100 << 10
	p := start(t, "--log", "all:INFO")
	kinds := wrong(t)
	arrived := func() uint64 { return p.received("media/edge/udp") } // a full socket buffer may drop some
	for deadline := time.Now().Add(time.Minute); arrived() < datagrams; {
		if time.Now().After(deadline) {
			t.Fatalf("only %d datagrams arrived", arrived())
		}
		for range 50 {
			p.babble("udp4", p.turn["udp"], 10, kinds)
		}
	}
	for range 100 {
		p.babble("udp4", p.turn["dtls"], 1, kinds)
		p.babble("tcp4", p.turn["tcp"], 1, kinds)
		p.babble("tcp4", p.turn["tls"], 1, kinds)
	}
	if size := len(p.said()); size == 0 || size > limit {
		t.Errorf("%d datagrams made %d bytes of log, want less than %d and more than none", datagrams, size, limit)
	}
	p.mustDial("ann") // clients with a credential still get answers
}

// babble sends each kind of datagram n times from one source.
func (p *process) babble(network, address string, times int, kinds map[string][]byte) {
	p.t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	for range times {
		for what, datagram := range kinds {
			// The server may close a connection after the first invalid data.
			if _, err := conn.Write(datagram); err != nil && network == "udp4" {
				p.t.Fatalf("send %s: %v", what, err)
			}
		}
	}
}

// hostile are user ids that could corrupt a log or a terminal.
var hostile = []string{
	"eve\ntime=2026-01-01 level=ERROR msg=forged",
	"eve\r\n[\"level\",\"ERROR\",\"msg\",\"forged\"]",
	"eve\x1b[2J\x1b]0;forged\x07",
	"eve\x00\x08\x7f\u0085\u2028\u2029\u202eforged",
	"eve\" level=ERROR msg=\"forged",
	strings.Repeat("\n", 400),
}

// A-09, T-19: no user name forges a log line, neither the user name of an accepted request nor of a refused request.
// This holds at the most verbose level and in both formats.
func TestUserNamesForgeNoLogLine(t *testing.T) {
	text := regexp.MustCompile(`^time=\S+ level=(TRACE|DEBUG|INFO|WARN|ERROR) msg=`)
	whole := map[string]func(line string) bool{
		"text": text.MatchString,
		"json": func(line string) bool {
			var m struct{ Time, Level, Msg string }
			return json.Unmarshal([]byte(line), &m) == nil && m.Time != "" && m.Level != "" && m.Msg != "" &&
				m.Msg != "forged"
		},
	}
	for format, isWhole := range whole {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			p := start(t, "--log", "all:TRACE", "--log-format", format)
			for _, user := range hostile {
				p.mustDial(user)
				p.refused(user)
			}
			sessions := 0
			for line := range strings.Lines(string(p.said())) {
				line = strings.TrimSuffix(line, "\n")
				if !isWhole(line) || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
					t.Errorf("a line that stunnerd did not write: %q", line)
				}
				if strings.Contains(line, "session started") {
					sessions++
				}
			}
			if sessions != len(hostile) {
				t.Errorf("%d sessions in the log, want %d", sessions, len(hostile))
			}
		})
	}
}

// refused requests an allocation with an invalid password, and expects 401.
func (p *process) refused(user string) {
	p.t.Helper()
	conn, err := net.Dial("udp4", p.turn["udp"])
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	var nonce stun.Nonce
	allocate := stun.NewType(stun.MethodAllocate, stun.ClassRequest)
	challenge := p.exchange(
		conn, build(p.t, allocate, stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}}),
	)
	if err := nonce.GetFrom(challenge); err != nil {
		p.t.Fatal(err)
	}
	answer := p.exchange(conn, build(p.t, allocate, stun.NewUsername(user), stun.NewRealm(authority.Realm), nonce,
		stun.NewLongTermIntegrity(user, authority.Realm, "guess")))
	var code stun.ErrorCodeAttribute
	if err := code.GetFrom(answer); err != nil || code.Code != stun.CodeUnauthorized {
		p.t.Errorf("%q without a password: %v, %v", user, code, err)
	}
}

// exchange sends a request and returns the answer to it.
func (p *process) exchange(conn net.Conn, request []byte) *stun.Message {
	p.t.Helper()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		p.t.Fatal(err)
	}
	if _, err := conn.Write(request); err != nil {
		p.t.Fatal(err)
	}
	answer := &stun.Message{Raw: make([]byte, 0, 1500)}
	if _, err := answer.ReadFrom(conn); err != nil {
		p.t.Fatal(err)
	}
	return answer
}
