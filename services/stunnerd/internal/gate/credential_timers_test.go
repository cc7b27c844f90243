package gate

import (
	"fmt"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// a nonce is valid for an hour. After that, the client gets a new nonce.
func TestNonceLastsAnHour(t *testing.T) {
	virtually(t, func(v *virtual) {
		nonce := v.nonce(newClient("192.0.2.1:1"))
		ask := func(port int, nonce stun.Nonce) *stun.Message {
			return v.send(newClient(fmt.Sprint("192.0.2.1:", port)), v.build(request4(stun.MethodAllocate), udp,
				stun.NewUsername(username), stun.NewRealm(realm), nonce, stun.NewLongTermIntegrity(
					username, realm, password,
				)))
		}
		v.at(time.Hour - time.Second)
		if code := codeOf(ask(2, nonce)); code != 0 {
			t.Errorf("after 59:59: %d", code)
		}
		v.at(time.Hour + time.Second)
		stale := ask(3, nonce)
		fresh, err := stale.Get(stun.AttrNonce)
		if codeOf(stale) != 438 || err != nil || !stale.Contains(stun.AttrRealm) {
			t.Fatalf("after 60:01: %v, %v", stale, err)
		}
		if code := codeOf(ask(3, fresh)); code != 0 {
			t.Errorf("with the new nonce: %d", code)
		}
	})
}

// T-13: a credential creates allocations until it expires, plus leeway. It refreshes them until the end of the grace.
func TestCredentialEndsToTheSecond(t *testing.T) {
	const ttl = 600 * time.Second
	requests := map[stun.Method][]stun.Setter{
		stun.MethodRefresh: {lifetime(3600)}, stun.MethodCreatePermission: {peerAt("127.0.0.1:4000")},
		stun.MethodChannelBind: {channel(0x4000), peerAt("127.0.0.1:4000")},
	}
	for _, grace := range []time.Duration{0, 300 * time.Second} {
		t.Run(fmt.Sprint("grace ", grace), func(t *testing.T) {
			virtually(t, func(v *virtual) {
				p := policy()
				p.Authority.SharedSecret, p.SessionGrace = "shared", grace
				v.Update(p, routes("127.0.0.1:<4000-4999>"))
				cred, err := p.Authority.Mint("ann", ttl, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				c := newClient("192.0.2.1:1000")
				try := func(want stun.ErrorCode, c *client, method stun.Method, attrs ...stun.Setter) {
					t.Helper()
					if got := codeOf(
						v.send(c, v.signed(c, cred.Username, string(cred.Password), method, attrs...)),
					); got != want {
						t.Errorf("%s after %s: %d, want %d", method, time.Since(v.began), got, want)
					}
				}
				all := func(want stun.ErrorCode) {
					t.Helper()
					for method, attrs := range requests {
						try(want, c, method, attrs...)
					}
				}
				try(0, c, stun.MethodAllocate, udp, lifetime(3600))
				v.at(ttl + 5*time.Second)
				try(0, newClient("192.0.2.1:1001"), stun.MethodAllocate, udp)
				all(0)
				v.at(ttl + 6*time.Second)
				try(401, newClient("192.0.2.1:1002"), stun.MethodAllocate, udp)
				if grace > 0 {
					v.at(ttl + grace - time.Second)
					all(0)
					v.at(ttl + grace + time.Second)
				}
				all(401)
			})
		})
	}
}

// after a change of the password, the previous password creates no allocation, but refreshes a session until the
// end of the session. The new password refreshes the session too.
func TestFormerPasswordRefreshesSessions(t *testing.T) {
	const overlap = 10 * time.Minute
	virtually(t, func(v *virtual) {
		c, _ := v.guest(3600)
		next := policy()
		next.Authority.Password = "second"
		next.Former = []Former{{Authority: policy().Authority, Until: time.Now().Add(overlap)}}
		v.Update(next, routes("127.0.0.1:<4000-4999>"))
		v.expect(401, newClient("192.0.2.1:1001"), stun.MethodAllocate, udp)
		v.expect(0, c, stun.MethodRefresh, lifetime(3600))
		v.at(overlap - time.Second)
		v.expect(0, c, stun.MethodRefresh, lifetime(3600))
		v.expect(0, c, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
		v.at(overlap + time.Second)
		v.expect(401, c, stun.MethodRefresh, lifetime(3600))
		if code := codeOf(v.send(c, v.signed(c, username, "second", stun.MethodRefresh))); code != 0 {
			t.Errorf("the new password: %d", code)
		}
	})
}

// R-14, T-A4: an Allocate that is retransmitted after its credential has expired, or after a change of the password or
// the realm, gets the success answer that was lost (RFC 8656 §7.2). Another Allocate with the same credential gets 401.
func TestRepeatedAllocateWithFormerCredentialGetsTheSameAnswer(t *testing.T) {
	const soon = 10 * time.Second
	for name, tc := range map[string]struct {
		ephemeral bool
		after     time.Duration
		change    func(next *Policy)
	}{
		"expired":  {true, soon + leeway + time.Second, func(next *Policy) { next.SessionGrace = time.Minute }},
		"secret":   {true, 0, func(next *Policy) { next.Authority.SharedSecret = "sixteen bytes as" }},
		"password": {false, 0, func(next *Policy) { next.Authority.Password = "second" }},
		"realm":    {false, 0, func(next *Policy) { next.Authority.Realm = "other.example" }},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(v *virtual) {
				p := policy()
				p.Authority.SharedSecret = "sixteen bytes are"
				v.Update(p, routes())
				c, user, pass := newClient("192.0.2.1:1000"), username, password
				if tc.ephemeral {
					cred, err := p.Authority.Mint("ann", soon, time.Now())
					if err != nil {
						t.Fatal(err)
					}
					user, pass = cred.Username, string(cred.Password)
				}
				raw := v.signed(c, user, pass, stun.MethodAllocate, udp)
				another := v.signed(c, user, pass, stun.MethodAllocate, udp)
				first := v.send(c, raw)
				next := *p
				next.Former = []Former{{Authority: p.Authority, Until: time.Now().Add(time.Minute)}}
				tc.change(&next)
				v.Update(&next, routes())
				v.at(tc.after)
				second := v.send(c, raw)
				a, _ := first.Get(stun.AttrXORRelayedAddress)
				z, _ := second.Get(stun.AttrXORRelayedAddress)
				if codeOf(first) != 0 || codeOf(second) != 0 || string(a) != string(z) || v.table.Len() != 1 {
					t.Errorf("%d, then %d, %d sessions", codeOf(first), codeOf(second), v.table.Len())
				}
				if code := codeOf(v.send(c, another)); code != 401 {
					t.Errorf("another Allocate: %d", code)
				}
			})
		})
	}
}

// with Former.New the credentials of a former authority create and refresh allocations until its end.
func TestFormerAuthorityWithNewCreatesSessions(t *testing.T) {
	const grace = time.Hour
	virtually(t, func(v *virtual) {
		next := policy()
		next.Authority.Password = "second"
		next.Former = []Former{{Authority: policy().Authority, Until: time.Now().Add(grace), New: true}}
		v.Update(next, routes("127.0.0.1:<4000-4999>"))
		c := newClient("192.0.2.1:1001")
		v.expect(0, c, stun.MethodAllocate, udp)
		v.at(grace - time.Second)
		v.expect(0, newClient("192.0.2.1:1002"), stun.MethodAllocate, udp)
		v.at(grace + time.Second)
		v.expect(401, newClient("192.0.2.1:1003"), stun.MethodAllocate, udp)
		if code := codeOf(v.send(c, v.signed(c, username, "second", stun.MethodAllocate, udp))); code != 0 {
			t.Errorf("the new password: %d", code)
		}
	})
}

// speaker is a client that keeps its nonce and realm until a challenge contains others.
type speaker struct {
	*client
	realm, password string
	nonce           stun.Nonce
	// keeps reports whether the client uses the nonce of a 438 but not its realm, as some clients do.
	keeps bool
}

// says makes a request, and repeats it after a 438. It returns the code of the last answer and the realm of the 438.
func (v *virtual) says(s *speaker, method stun.Method, attrs ...stun.Setter) (code stun.ErrorCode, told string) {
	v.t.Helper()
	for range 2 {
		setters := append([]stun.Setter{request4(method)}, attrs...)
		setters = append(
			setters, stun.NewUsername(username), stun.NewRealm(s.realm), s.nonce,
			stun.NewLongTermIntegrity(username, s.realm, s.password),
		)
		m := v.send(s.client, v.build(setters...))
		if code = codeOf(m); code != stun.CodeStaleNonce {
			break
		}
		s.nonce, _ = m.Get(stun.AttrNonce)
		is, _ := m.Get(stun.AttrRealm)
		if told = string(is); !s.keeps {
			s.realm = told
		}
	}
	return code, told
}

// speaker returns a client with an allocation whose lifetime is an hour.
func (v *virtual) speaker(addr string, keeps bool) *speaker {
	v.t.Helper()
	a := v.policy.Load().Authority
	s := &speaker{client: newClient(addr), realm: a.Realm, password: string(a.Password), keeps: keeps}
	s.nonce = v.nonce(s.client)
	if code, _ := v.says(s, stun.MethodAllocate, udp, lifetime(3600)); code != 0 {
		v.t.Fatalf("allocate: %d", code)
	}
	return s
}

// authority sets the current authority, and former authorities for ten minutes.
func (v *virtual) authority(now credential.Authority, before ...credential.Authority) {
	p := policy()
	p.Authority = now
	for _, a := range before {
		p.Former = append(p.Former, Former{Authority: a, Until: time.Now().Add(10 * time.Minute)})
	}
	v.Update(p, routes("127.0.0.1:<4000-4999>"))
}

// after a change of the realm, a session can be refreshed without limit in the previous realm, and in the new
// one, which the next challenge has. No allocation can be created in the previous realm.
func TestSessionsOutliveTheirRealm(t *testing.T) {
	for name, keeps := range map[string]bool{
		"a client that keeps its realm": true, "a client that takes the new one": false,
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(v *virtual) {
				s := v.speaker("192.0.2.1:1000", keeps)
				first := policy().Authority
				for hour, realm := range []string{"second.example", "third.example", "fourth.example"} {
					v.at(time.Duration(hour)*90*time.Minute + time.Minute)
					v.authority(first.In(realm))
					for range 3 {
						time.Sleep(28 * time.Minute)
						code, told := v.says(s, stun.MethodRefresh, lifetime(3600))
						if code != 0 || told != "" && told != realm {
							t.Errorf("refresh after %s: %d, realm %q", time.Since(v.began), code, told)
						}
						if code, _ := v.says(s, stun.MethodCreatePermission, peerAt("127.0.0.1:4000")); code != 0 {
							t.Errorf("permission after %s: %d", time.Since(v.began), code)
						}
					}
					if s.keeps != (s.realm == first.Realm) {
						t.Errorf("after %s the client speaks in %q", time.Since(v.began), s.realm)
					}
				}
				late := &speaker{
					client: newClient("192.0.2.2:1000"), realm: first.Realm, password: password,
					nonce: v.nonce(newClient("192.0.2.2:1")),
				}
				if code, _ := v.says(late, stun.MethodAllocate, udp); code != 401 {
					t.Errorf("allocate in a realm of before: %d", code)
				}
			})
		})
	}
}

// after a change of realm and password, a session can be refreshed with the previous realm and password
// until Former.Until. A 438 with the new realm would end it, because the previous password is not valid in the new
// realm.
func TestRealmAndPasswordChange(t *testing.T) {
	first := policy().Authority
	other := first
	other.Password = "second"
	for name, change := range map[string]func(v *virtual){
		"at once": func(v *virtual) { v.authority(other.In("second.example"), first) },
		"the realm first": func(v *virtual) {
			v.authority(first.In("second.example"))
			v.authority(other.In("second.example"), first.In("second.example"))
		},
		"the password first": func(v *virtual) {
			v.authority(other, first)
			v.authority(
				other.In("second.example"), first,
			)
		},
	} {
		for _, keeps := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", keeps its realm ", keeps), func(t *testing.T) {
				virtually(t, func(v *virtual) {
					s := v.speaker("192.0.2.1:1000", keeps)
					v.at(55 * time.Minute)
					if code, _ := v.says(s, stun.MethodRefresh, lifetime(3600)); code != 0 {
						t.Fatalf("before: %d", code)
					}
					change(v)
					v.at(56 * time.Minute)
					if code, told := v.says(s, stun.MethodRefresh, lifetime(3600)); code != 0 || told != "" {
						t.Errorf("with a nonce that is good: %d, %q", code, told)
					}
					v.at(62 * time.Minute)
					if code, told := v.says(s, stun.MethodRefresh, lifetime(3600)); code != 0 || told != first.Realm {
						t.Errorf("with a nonce that is too old: %d, realm %q", code, told)
					}
					v.at(66 * time.Minute)
					if code, _ := v.says(s, stun.MethodRefresh); code != 401 {
						t.Errorf("after the overlap: %d", code)
					}
					after := v.speaker("192.0.2.2:1000", keeps)
					if after.realm != "second.example" {
						t.Errorf("a new client speaks in %q", after.realm)
					}
				})
			})
		}
	}
}
