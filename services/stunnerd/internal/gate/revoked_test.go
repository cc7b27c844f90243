package gate

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// revoking returns the policy of ofGateway with the given revocations.
func revoking(list ...credential.Revocation) *Policy {
	p := ofGateway()
	p.Revoked = credential.NewRevocations(list)
	return p
}

// revocationOf returns a revocation of the credentials that a user got before now. It is in force for an hour.
func revocationOf(user string) credential.Revocation { return revocationAt(time.Now().Unix(), user) }

// revocationAt is revocationOf at a time in seconds since 1970.
func revocationAt(now int64, user string) credential.Revocation {
	return credential.Revocation{User: user, IssuedBefore: now, Until: now + 3600}
}

// A revocation refuses all credentials of its user that were issued before it, in any form, and no others.
func TestRevokedUser(t *testing.T) {
	now := time.Now().Unix()
	expiry := fmt.Sprint(now + 7200)
	issued := func(at int64) string { return fmt.Sprint(expiry, ":ann:~1~I", at) }
	for name, revoked := range map[string]bool{
		expiry + ":ann":                         true,
		"ann:" + expiry:                         true,
		fmt.Sprint(now+400*24*3600, ":ann"):     true, // a service with longer lifetimes may have issued it
		expiry + ":ann:~1~A2":                   true,
		expiry + ":ann:~1~X1":                   true, // an unknown caveat contains no time of issue
		issued(now - 1):                         true,
		issued(1):                               true,
		fmt.Sprint(expiry, ":ann:~1~N", now):    true, // issued earlier for a later time
		issued(now):                             false,
		issued(now + 3):                         false,
		fmt.Sprint(expiry, ":ann:~1~A2~I", now): false,
		expiry + ":Ann":                         false,
		expiry + ":ann ":                        false,
		expiry + ":%61nn":                       false,
		expiry + ":ann%3A":                      false,
		expiry + ":ann:":                        false, // another user id, which contains the colon
		expiry + ":bob":                         false,
		expiry + ":bob:~1~I1":                   false,
		expiry:                                  false,
		expiry + ":" + expiry + ":ann":          false,
		fmt.Sprint(expiry, ":ann:~1~I", now, "~I", now): true, // malformed caveats contain no time of issue
	} {
		b, c := newMediaFixture(t), newClient("192.0.2.1:1000")
		b.Update(revoking(revocationAt(now, "ann")), routes())
		code := codeOf(b.with(c, signedName(name), stun.MethodAllocate, udp))
		if refused := b.refused(meter.RevokedCredential) == 1; refused != revoked || (code == 401) != revoked {
			t.Errorf("%s: %d, refusals %v; revoked: %t", name, code, b.meter.Refusals(), revoked)
		}
	}
}

// A single credential is refused by its whole user name, whenever it was issued.
func TestRevokedCredential(t *testing.T) {
	one, other := named(""), named(":~1~A2")
	b := newMediaFixture(t)
	b.Update(revoking(credential.Revocation{Credential: one.Username, Until: time.Now().Unix() + 60}), routes())
	if got := codeOf(b.with(newClient("192.0.2.1:1000"), one, stun.MethodAllocate, udp)); got != 401 {
		t.Errorf("revoked: %d, want 401", got)
	}
	b.allocates(newClient("192.0.2.1:1001"), other)
}

// The answer to a wrong password does not reveal that the user is revoked. A revocation ends at its Until, even if no
// other config arrives.
func TestRevocationsThatDoNotApply(t *testing.T) {
	b, c := newMediaFixture(t), newClient("192.0.2.1:1000")
	b.Update(revoking(revocationOf("ann")), routes())
	forged := named("")
	forged.Password = "guess"
	b.with(c, forged, stun.MethodAllocate, udp)
	if b.refused(meter.RevokedCredential) != 0 || b.refused(meter.WrongPassword) != 1 {
		t.Errorf("wrong password: %v", b.meter.Refusals())
	}
	over := revocationOf("ann")
	over.Until = time.Now().Unix()
	b.Update(revoking(over), routes())
	b.allocates(c, named(""))

	b.Update(revoking(revocationOf(username), credential.Revocation{Credential: username, Until: 1 << 40}), routes())
	if got := codeOf(b.with(newClient("192.0.2.1:1002"), credential.Credential{Username: username, Password: password},
		stun.MethodAllocate, udp)); got != 0 {
		t.Errorf("static credential: %d, want none", got)
	}
}

// When Update returns, the sessions of a revoked user have ended, and requests for them are refused. Sessions of other
// users stay, and so do sessions with a credential that was issued later.
func TestUpdateEndsRevokedSessions(t *testing.T) {
	b := newMediaFixture(t)
	again := named(fmt.Sprint(":~1~I", time.Now().Unix()+60))
	old, fresh, other := newClient("192.0.2.1:1000"), newClient("192.0.2.1:1001"), newClient("192.0.2.1:1002")
	bob := signedName(strings.Replace(named("").Username, ":ann", ":bob", 1))
	b.allocates(old, named(""))
	b.allocates(fresh, again)
	b.allocates(other, bob)
	if got := codeOf(b.with(old, named(""), stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))); got != 0 {
		t.Fatalf("channel: %d", got)
	}
	r := b.flow(old.addr).relay
	p := revoking(revocationOf("ann"))
	p.SessionGrace = time.Hour // does not apply to a revoked credential
	b.Update(p, routes())
	if !r.Closed() || b.Sessions() != 2 || b.table.Len() != 2 || b.flow(old.addr) != nil {
		t.Fatalf("closed: %t, sessions: %d", r.Closed(), b.Sessions())
	}
	if got := b.dropped(meter.RevokedCredential); got != 1 {
		t.Errorf("%d ended sessions counted, want 1", got)
	}
	for _, m := range []stun.Method{
		stun.MethodAllocate, stun.MethodRefresh, stun.MethodCreatePermission, stun.MethodChannelBind,
	} {
		if got := codeOf(b.with(old, named(""), m, udp, channel(0x4000), peerAt("127.0.0.1:4000"))); got != 401 {
			t.Errorf("%s: %d, want 401", m, got)
		}
	}
	for c, cred := range map[*client]credential.Credential{fresh: again, other: bob} {
		if got := codeOf(b.with(c, cred, stun.MethodRefresh)); got != 0 {
			t.Errorf("refresh of %s: %d", cred.Username, got)
		}
	}
	b.Update(ofGateway(), routes()) // the revocation is lifted
	b.allocates(old, named(""))
}

// An allocation that is created while the revocation arrives ends.
func TestRevocationDuringAllocations(t *testing.T) {
	b, cred := newMediaFixture(t), named("")
	const clients = 64
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			c := newClient(fmt.Sprintf("192.0.2.%d:1000", i+1))
			for range 3 {
				b.with(c, cred, stun.MethodAllocate, udp)
			}
		})
		if i == clients/2 {
			group.Go(func() { b.Update(revoking(revocationOf("ann")), routes()) })
		}
	}
	group.Wait()
	if n := b.Sessions(); n != 0 {
		t.Errorf("%d sessions of the revoked user are left", n)
	}
}

// The session of a revoked user is not restored from the journal. A session that was restored before the config with
// the revocation arrives ends when that config arrives.
func TestRevokedSessionIsNotRestored(t *testing.T) {
	withJournal(t, func(s *stored) {
		s.Update(ofGateway(), routes())
		c := newClient("192.0.2.1:1000")
		s.allocates(c, named(""))
		s = s.killed(c)
		if s.flow(c.addr) == nil {
			t.Fatal("the session was not restored")
		}
		s.Update(revoking(revocationOf("ann")), routes())
		if s.flow(c.addr) != nil {
			t.Error("the restored session did not end")
		}
		if s = s.killed(c); s.flow(c.addr) != nil {
			t.Error("the ended session was restored")
		}
	})
	b, c := newMediaFixture(t), newClient("192.0.2.1:1000")
	b.Update(revoking(revocationOf("ann")), routes())
	b.restore(revokedEntry(b), c)
	if b.Sessions() != 0 || b.meter.Declined(meter.Restored)["revoked"] != 1 {
		t.Errorf("%d sessions, %v", b.Sessions(), b.meter.Declined(meter.Restored))
	}
}

// revokedEntry returns a journal entry of a session of the user ann.
func revokedEntry(b fixture) *Saved {
	now := time.Now()
	return &Saved{Socket: opened(b), Entry: journal.Entry{Record: session.Record{
		Username: named("").Username, UserID: "ann", Started: now, Until: now.Add(time.Minute), Lifetime: 600,
	}}}
}

// The check of a request does not allocate, for any number of revocations.
func TestRevokedDoesNotAllocate(t *testing.T) {
	var list []credential.Revocation
	for i := range 1000 {
		list = append(list, revocationOf(fmt.Sprint("user-", i)))
	}
	p, name, now := revoking(list...), named("").Username, time.Now()
	if n := testing.AllocsPerRun(100, func() { p.refuses(name, "ann", credential.Caveats{}, now) }); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
}
