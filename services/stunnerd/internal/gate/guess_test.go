package gate

import (
	"fmt"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
)

// guess sends wrong passwords. It returns how many of them were answered, and how many were compared.
func (v *virtual) guess(c *client, user string, times int) (answers, compared int) {
	v.t.Helper()
	for range times {
		raw := v.signed(c, user, "guess", stun.MethodAllocate, udp)
		r := &request{client: c, flow: v.flowOf(c)}
		if err := r.Parse(raw); err != nil {
			v.t.Fatal(err)
		}
		if v.limits.MayCompare(r.limited()) {
			compared++
		}
		if v.send(c, raw) != nil {
			answers++
		}
	}
	return answers, compared
}

// signsIn reports whether the right password is accepted.
func (v *virtual) signsIn(addr string) bool {
	v.t.Helper()
	c := newClient(addr)
	return codeOf(v.send(c, v.signed(c, username, password, stun.MethodAllocate, udp))) == 0
}

// T-07: a source that guesses gets ten answers. After that, no password of the source is compared for a minute, not
// even the right one. Other sources are not affected.
func TestGuessingIsLockedForAMinute(t *testing.T) {
	virtually(t, func(v *virtual) {
		guesser := newClient("203.0.113.7:1")
		for i, step := range []struct {
			at     time.Duration
			want   int
			opened bool
		}{{0, 10, false}, {59 * time.Second, 0, false}, {61 * time.Second, 10, false}, {10 * time.Minute, 3, true}} {
			v.at(step.at)
			times := 15
			if step.opened {
				times = step.want
			}
			if answers, compared := v.guess(guesser, username, times); answers != step.want || compared != step.want {
				t.Errorf(
					"after %s: %d of %d guesses answered, %d compared, want %d", step.at, answers, times, compared,
					step.want,
				)
			}
			if got := v.signsIn(fmt.Sprint("203.0.113.7:", 100+i)); got != step.opened {
				t.Errorf("after %s: right password at the address of the guesser: %v", step.at, got)
			}
			if !v.signsIn(fmt.Sprint("198.51.100.", 1+i, ":1")) {
				t.Errorf("after %s: right password elsewhere is refused", step.at)
			}
		}
	})
}

// T-07, T-08: known and unknown user names are locked after the same number of guesses.
func TestGuessingLocksUnknownNamesToo(t *testing.T) {
	for _, user := range []string{username, "nobody"} {
		virtually(t, func(v *virtual) {
			guesser := newClient("203.0.113.7:1")
			if answers, _ := v.guess(guesser, user, 50); answers != 10 {
				t.Errorf("%s: %d answers", user, answers)
			}
			for _, name := range []string{username, "nobody"} {
				if got := v.send(guesser, v.signed(guesser, name, password, stun.MethodAllocate, udp)); got != nil {
					t.Errorf("%s is answered after 50 guesses at %s: %s", name, user, got)
				}
			}
		})
	}
}

// T-07: a session of a locked source can be refreshed with its own user name.
func TestGuessingLocksNoSession(t *testing.T) {
	virtually(t, func(v *virtual) {
		live := newClient("203.0.113.7:9")
		v.allocate(live)
		v.guess(newClient("203.0.113.7:1"), username, 2*limit.UserGuesses)
		v.guess(newClient("203.0.113.7:1"), "nobody", 50)
		if v.signsIn("203.0.113.7:10") {
			t.Error("the address is not locked: this shows nothing")
		}
		if code := codeOf(v.send(live, v.signed(live, username, password, stun.MethodRefresh))); code != 0 {
			t.Errorf("refresh of a session: %d", code)
		}
		if code := codeOf(v.send(live, v.signed(live, "nobody", password, stun.MethodRefresh))); code != -1 {
			t.Errorf("another name on the 5-tuple of a session: %d", code)
		}
		right := 0
		for range 30 {
			v.send(live, v.signed(live, username, "guess", stun.MethodRefresh))
			if codeOf(v.send(live, v.signed(live, username, password, stun.MethodRefresh))) == 0 {
				right++
			}
		}
		if right != limit.SessionGuesses-1 {
			t.Errorf("a session that guesses went on %d times, want %d", right, limit.SessionGuesses-1)
		}
	})
}

// T-07: a user that has authenticated at a source has a limit of its own there, so other guesses at that source do not
// lock it out. That limit bounds guesses too.
func TestSignedInUsersAreKnown(t *testing.T) {
	virtually(t, func(v *virtual) {
		if !v.signsIn("203.0.113.7:1000") {
			t.Fatal("no session")
		}
		v.guess(newClient("203.0.113.7:1"), username, 50)
		if !v.signsIn("203.0.113.7:1001") {
			t.Error("a colleague waits")
		}
		if _, compared := v.guess(newClient("203.0.113.7:2"), username, 200); compared != limit.UserGuesses-50 {
			t.Errorf("%d guesses compared where the user is known", compared)
		}
		if v.signsIn("203.0.113.7:1002") {
			t.Error("the right password is found among 250")
		}
	})
}

// T-07: behind a load balancer, a socket that guesses locks only its own port. All ports together have a limit.
func TestGuessingBehindALoadBalancer(t *testing.T) {
	virtually(t, func(v *virtual) {
		v.guess(newClient("10.0.0.1:1"), username, 2000)
		if !v.signsIn("10.0.0.1:1000") {
			t.Error("one socket locks out everybody behind its address")
		}
		all := 0
		for i := range 5000 {
			_, compared := v.guess(newClient(fmt.Sprint("10.0.0.1:", 2000+i)), username, 1)
			all += compared
		}
		if want := limit.PrivateGuesses - limit.SourceGuesses; all != want { // the first socket has used a part
			t.Errorf("%d of 5,000 guesses from as many ports compared", all)
		}
		if !v.signsIn("10.0.0.2:1000") {
			t.Error("another private address is locked")
		}
		v.at(3 * time.Second)
		if !v.signsIn("10.0.0.1:1001") {
			t.Error("the address is locked when the guesser has stopped")
		}
	})
}

// T-07: behind a load balancer, a password that is not compared gets the answer to a wrong password, even if it is
// right. So the client gives up at once, and the answer reveals nothing.
func TestLockedPortGetsTheAnswerToAWrongPassword(t *testing.T) {
	virtually(t, func(v *virtual) {
		guesser := newClient("10.0.0.1:1")
		v.guess(guesser, username, limit.SourceGuesses)
		for _, pass := range []string{"guess", password} {
			got := v.send(guesser, v.signed(guesser, username, pass, stun.MethodAllocate, udp))
			if got == nil || codeOf(got) != stun.CodeUnauthorized {
				t.Errorf("password %q on a locked port: %v, want 401", pass, got)
			}
		}
	})
}

// T-07: all sources of one IPv6 site have a limit together, which locks no other site.
func TestGuessingFromASite(t *testing.T) {
	virtually(t, func(v *virtual) {
		all := 0
		for i := range 3000 {
			_, compared := v.guess(newClient(fmt.Sprintf("[2001:db8:7:%x::1]:1", i)), username, 1)
			all += compared
		}
		if all != limit.PrivateGuesses {
			t.Errorf("%d of 3,000 guesses from as many networks compared, want %d", all, limit.PrivateGuesses)
		}
		if v.signsIn("[2001:db8:7:ffff::1]:1") {
			t.Error("the password is found")
		}
		if !v.signsIn("[2001:db8:8::1]:1") {
			t.Error("another site is locked")
		}
	})
}

// T-07: ephemeral credentials under a long secret cannot be guessed and are not locked. Under a short secret they are.
func TestEphemeralNamesAreNeverLocked(t *testing.T) {
	for secret, want := range map[credential.Secret]stun.ErrorCode{"sixteen bytes are": 0, "too short": -1} {
		virtually(t, func(v *virtual) {
			p := policy()
			p.Authority.SharedSecret = secret
			v.Update(p, routes("127.0.0.1"))
			guesser := newClient("203.0.113.7:1")
			good, err := p.Authority.Mint("ann", time.Hour, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			v.guess(guesser, good.Username, 50)
			v.guess(guesser, "nobody", 50)
			if code := codeOf(
				v.send(guesser, v.signed(guesser, good.Username, string(good.Password), stun.MethodAllocate, udp)),
			); code != want {
				t.Errorf("secret of %d bytes: %d, want %d", len(secret), code, want)
			}
		})
	}
}

// T-07: a password that was valid before a config change is not counted as a guess.
func TestFormerPasswordIsNotCountedAsAGuess(t *testing.T) {
	virtually(t, func(v *virtual) {
		p := policy()
		p.Former = []Former{{Authority: p.Authority, Until: time.Now().Add(time.Hour)}}
		p.Authority.Password = "second"
		v.Update(p, routes("127.0.0.1"))
		stale, fresh := newClient("203.0.113.7:1"), newClient("203.0.113.7:2")
		for range 50 {
			v.send(stale, v.signed(stale, username, password, stun.MethodAllocate, udp))
		}
		if code := codeOf(v.send(fresh, v.signed(fresh, username, "second", stun.MethodAllocate, udp))); code != 0 {
			t.Errorf("the new password beside a client with the old one: %d", code)
		}
	})
}
