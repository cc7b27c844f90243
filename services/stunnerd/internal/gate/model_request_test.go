package gate

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/pion/stun/v2"
)

// flaw is an error in a request that the gate finds before it checks the content.
type flaw string

const (
	sound      flaw = ""
	bare       flaw = "without attributes"
	unsigned   flaw = "without MESSAGE-INTEGRITY"
	incomplete flaw = "without NONCE"
	forged     flaw = "with a nonce of its own"
	strange    flaw = "with an unknown attribute"
)

// freshLogin returns a new credential of one of the three users.
func (m *trial) freshLogin() login {
	if user := pick(m, "ann", "bob", "eve"); user != "ann" {
		return m.mint(user, time.Duration(1+m.rng.IntN(3000))*time.Second)
	}
	return login{username: "ann", password: m.password, user: "ann"}
}

func (m *trial) mint(user string, ttl time.Duration) login {
	c, err := m.authority("").Mint(user, time.Hour, time.Now().Add(ttl-time.Hour))
	if err != nil {
		m.t.Fatal(err)
	}
	return login{username: c.Username, password: string(c.Password), user: user, expires: c.Expires, genuine: true}
}

// loginOf returns the credential for a request of a client: usually its own credential, sometimes another one.
func (m *trial) loginOf(a *actor) login {
	switch m.rng.IntN(24) {
	case 0:
		l := a.login
		l.password, l.genuine = "wrong", false
		return l
	case 1:
		return login{username: "mallory", password: "guess"}
	case 2:
		return m.freshLogin()
	case 3:
		return m.mint("bob", -time.Duration(m.rng.IntN(100))*time.Second)
	case 4:
		a.login = m.freshLogin()
	}
	if a.alloc != nil && m.often(80) {
		return a.alloc.login
	}
	return a.login
}

// vouched reports whether a credential is valid. In a request of a session it may be a former or an expired one for
// some time.
func (m *trial) vouched(l login, method stun.Method, live bool) bool {
	now, goesOn := time.Now(), live && method != stun.MethodAllocate
	if l.username == "ann" {
		return l.password == m.password ||
			goesOn && slices.ContainsFunc(
				m.former, func(f former) bool { return f.password == l.password && now.Before(f.until) },
			)
	}
	return l.genuine && (!now.After(l.expires.Add(5*time.Second)) || goesOn && now.Before(l.expires.Add(m.grace)))
}

// request makes a request. judge returns the expected code for an authenticated request, and a check of a successful
// answer.
func (m *trial) request(
	a *actor, method stun.Method, what fmt.Stringer, attrs []stun.Setter,
	judge func(l login) (stun.ErrorCode, func(*stun.Message) error),
) outcome {
	f := sound
	switch {
	case a.nonce == nil, a.nonceAtItsEnd():
		f = unsigned
	case m.often(8):
		f = pick(m, bare, unsigned, incomplete, forged, strange)
	}
	l := m.loginOf(a)
	if m.siege.times >= 0 {
		l = login{username: "ann", password: "guess"}
		if a.nonce != nil {
			f = m.siege.flaw
		}
	}
	req := m.compose(a, l, method, f, attrs)
	code, key := m.meet(a, l, method, f)
	var success func(*stun.Message) error
	if code == 0 {
		code, success = judge(l)
	}
	if code == 401 && f == sound && l == a.login && m.often(70) {
		a.login = m.freshLogin()
	}
	m.last = req
	m.Receive(req.Raw, a)
	return m.said(
		m.answered(a, method, req, code, key, success), "%s as %s: %s %s %s", a.name, l.username, method, what, f,
	)
}

// nonceAtItsEnd reports whether the nonce expires in this second. The nonce contains seconds only, so the expected
// result is not certain in this second.
func (a *actor) nonceAtItsEnd() bool {
	age := time.Since(a.born)
	return age > time.Hour-time.Second && age < time.Hour+time.Second
}

// compose builds a request.
func (m *trial) compose(a *actor, l login, method stun.Method, f flaw, attrs []stun.Setter) *stun.Message {
	setters := []stun.Setter{stun.TransactionID, request4(method)}
	if f != bare {
		setters = append(setters, attrs...)
	}
	if f != bare && len(attrs) == 0 {
		setters = append(setters, number(0xC057, 0)) // comprehension-optional
	}
	if f == strange {
		setters = append(setters, number(0x7777, 0))
	}
	if f != bare && f != unsigned {
		setters = append(setters, stun.NewUsername(l.username), stun.NewRealm(realm))
		switch f {
		case incomplete:
		case forged:
			setters = append(setters, stun.NewNonce("abcdefghijklmnopqrstuvwx"))
		default:
			setters = append(setters, a.nonce)
		}
		setters = append(setters, stun.NewLongTermIntegrity(l.username, realm, l.password))
		if m.often(50) {
			setters = append(setters, stun.Fingerprint)
		}
	}
	req, err := stun.Build(setters...)
	if err != nil {
		m.t.Fatal(err)
	}
	return req
}

const silence stun.ErrorCode = -1

// meet returns the code that a request gets before its content is checked (RFC 8489 §9.2.4), and the key of the answer
// to an authenticated client.
func (m *trial) meet(a *actor, l login, method stun.Method, f flaw) (stun.ErrorCode, stun.MessageIntegrity) {
	source := m.sources[a.addr.Addr()]
	code := stun.ErrorCode(0)
	switch {
	case f == incomplete:
		code = 400
	case f == bare, f == unsigned:
		code = 401
	case f == forged, time.Since(a.born) > time.Hour:
		code = 438
	}
	if code != 0 {
		if !m.answers(a, time.Second/10) {
			code = silence
		}
		return code, nil
	}
	if !a.connected {
		m.proven(a)
	}
	guessable := l.username == "ann" || l.username == "mallory"
	if guessable && !m.mayGuess(a, l) {
		return silence, nil
	}
	good := m.vouched(l, method, a.alloc != nil)
	switch {
	case good && guessable:
		source.signedIn = time.Now()
	case guessable:
		m.guessed(a, l)
	}
	switch {
	case good:
	case !take(&source.failures, time.Minute/10, time.Minute):
		return silence, nil
	default:
		return 401, nil
	}
	if f == strange {
		code = 420
	}
	return code, stun.NewLongTermIntegrity(l.username, realm, l.password)
}

// answered returns the outcome of a request.
func (m *trial) answered(a *actor, method stun.Method, req *stun.Message, code stun.ErrorCode, key stun.MessageIntegrity,
	success func(*stun.Message) error,
) outcome {
	name := method.String()
	switch code {
	case silence:
		return outcome{name: name + " silence"}
	case 0:
		name += " success"
	default:
		name = fmt.Sprint(name, " ", int(code))
	}
	check := func(frame []byte) error {
		answer := &stun.Message{Raw: frame}
		if err := answer.Decode(); err != nil {
			return err
		}
		_, prints := req.Attributes.Get(stun.AttrFingerprint)
		switch {
		case codeOf(answer) != code:
			return fmt.Errorf("answered %d, want %d", codeOf(answer), code)
		case answer.TransactionID != req.TransactionID, answer.Type.Method != method:
			return fmt.Errorf("answered another request: %s", answer)
		case key == nil && answer.Contains(stun.AttrMessageIntegrity), key != nil && key.Check(answer) != nil:
			return fmt.Errorf("wrong MESSAGE-INTEGRITY, or one for somebody who is not known: %s", answer)
		case prints != (stun.Fingerprint.Check(answer) == nil):
			return fmt.Errorf("FINGERPRINT where there was none, or none where there was one: %s", answer)
		case code == 420:
			want := "\x77\x77"
			if !req.Contains(0x7777) {
				want = "\x00\x1a" // DONT-FRAGMENT
			}
			if v, err := answer.Get(stun.AttrUnknownAttributes); err != nil || string(v) != want {
				return fmt.Errorf("unknown attributes: % x, %w", v, err)
			}
		case code == 401, code == 438:
			nonce, err := answer.Get(stun.AttrNonce)
			if err != nil || !answer.Contains(stun.AttrRealm) {
				return fmt.Errorf("a challenge without NONCE and REALM: %s", answer)
			}
			a.nonce, a.born = bytes.Clone(nonce), time.Now()
		case code == 0 && success != nil:
			return success(answer)
		}
		return nil
	}
	return outcome{name: name, to: a, check: check}
}
