package journal

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// attacker is one user with many sessions that nominate many peers.
type attacker struct {
	j      *Journal
	now    time.Time
	ids    []ID
	rounds byte
}

// of returns a session of a user at an address.
func of(now time.Time, user, address string, port int) *session.Record {
	r := sample(now)
	r.Username, r.UserID = user, user
	r.Client = netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port))
	return r
}

// nominate sends a new check to each of 64 peers from each session.
func (a *attacker) nominate() {
	a.rounds++
	for _, id := range a.ids {
		for port := range uint16(session.MaxChecks) {
			a.j.Check(id, session.Check{
				Peer:    netip.AddrPortFrom(netip.MustParseAddr("10.0.0.66"), port),
				Message: bytes.Repeat([]byte{a.rounds}, session.MaxCheck),
			})
		}
		flush(a.j)
	}
}

// A user with 480 sessions sends new nominating checks to 64 peers in each of them. The volume has room for a small
// part of these checks. No entries of others are removed: after a kill, their sessions are restored with their
// permissions, channels and newest nomination.
func TestAUserDoesNotDisplaceEntriesOfOthers(t *testing.T) {
	const others = 20
	now := time.UnixMilli(1795470000123)
	for name, identity := range map[string]func(i int) (user, address string){
		"at another address":   func(i int) (string, string) { return fmt.Sprint("user ", i), fmt.Sprint("198.51.100.", i) },
		"at the same address":  func(i int) (string, string) { return fmt.Sprint("user ", i), "203.0.113.66" },
		"with the same userid": func(i int) (string, string) { return "mallory", fmt.Sprint("198.51.100.", i) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := volume(t, 1<<20)
			options := Options{Dir: dir, Now: func() time.Time { return now }}
			j, _ := openWithLongTimeout(options)
			a := attacker{j: j, now: now}
			for i := range 480 {
				if id := j.Add(of(now, "mallory", "203.0.113.66", 1000+i)); id != 0 {
					a.ids = append(a.ids, id)
				}
			}
			peer := netip.MustParseAddrPort("10.0.0.9:4000")
			check := func(i int) session.Check {
				return session.Check{Peer: peer, Message: bytes.Repeat([]byte{byte(i)}, 108)}
			}
			var ids []ID
			for i := range others {
				if i == others/2 {
					a.nominate()
				}
				user, address := identity(i)
				id := j.Add(of(now, user, address, 2000+i))
				ids = append(ids, id)
				j.Permit(id, []netip.Addr{peer.Addr()}, now.Add(5*time.Minute))
				j.Bind(id, session.ChannelRecord{Number: 0x4000, Peer: peer, Until: now.Add(10 * time.Minute), Installed: now})
				j.Check(id, check(100))
				a.nominate()
				j.Check(id, check(i))
			}
			a.nominate()
			flush(j)
			if s := j.Status(); s.Problem != "" {
				t.Errorf("%+v", s)
			}
			data, err := os.ReadFile(filepath.Join(dir, fileName)) // the file as a kill would leave it
			if err != nil {
				t.Fatal(err)
			}
			end(t, j)
			restored, _, _ := restore(t, data, now)
			for i, id := range ids {
				at := slices.IndexFunc(restored.Sessions, func(e Entry) bool { return e.ID == id })
				if at < 0 {
					t.Fatalf("session %d of %d others, %d, is not restored", i, others, id)
				}
				e := restored.Sessions[at]
				if len(e.Permissions) != 1 || len(e.Channels) != 1 {
					t.Errorf("session %d of others: %+v", i, e)
				}
				if len(e.Checks) != 1 || !bytes.Equal(e.Checks[0].Message, check(i).Message) {
					t.Errorf("session %d of others: checks %v", i, e.Checks)
				}
			}
			for _, id := range a.ids {
				if !slices.ContainsFunc(restored.Sessions, func(e Entry) bool { return e.ID == id }) {
					t.Fatalf("session %d of the attacker is not restored", id)
				}
			}
		})
	}
}

// The shares of a full journal, with a capacity of 100,000 bytes. Each step stores entries of one class, in sessions of
// a size.
func TestShares(t *testing.T) {
	const capacity = 100_000
	type step struct {
		class      class
		user       func(i int) (user, source string)
		size, want int
	}
	always := func(user, source string) func(int) (string, string) {
		return func(int) (string, string) { return user, source }
	}
	greedy := always("greedy", "192.0.2.1")
	fresh := func(i int) (string, string) { return fmt.Sprint("user ", i), fmt.Sprintf("198.51.%d.%d", i/200, i%200) }
	for name, steps := range map[string][]step{
		"one with large sessions, then strangers":   {{checks, greedy, 1000, 80_000}, {checks, fresh, 1000, 20_000}},
		"one with small sessions, then strangers":   {{essential, greedy, 500, 90_000}, {essential, fresh, 500, 10_000}},
		"one with large sessions, then small ones":  {{essential, greedy, 1000, 80_000}, {essential, greedy, 500, 10_000}},
		"ids that one address makes up":             {{checks, func(i int) (string, string) { return fmt.Sprint(i), "192.0.2.1" }, 500, 98_000}, {checks, fresh, 500, 2000}},
		"addresses that one id has":                 {{checks, func(i int) (string, string) { _, a := fresh(i); return "greedy", a }, 500, 98_000}, {checks, fresh, 500, 2000}},
		"strangers":                                 {{essential, fresh, 500, capacity}},
		"checks leave the room of everything else":  {{checks, greedy, 1000, 80_000}, {essential, fresh, 500, capacity}},
		"everything else takes the room for checks": {{essential, fresh, 500, capacity}, {checks, fresh, 500, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShares()
			s.capacity = capacity
			for n, step := range steps {
				got := 0
				for i := range 2 * capacity / step.size {
					user, source := step.user(i)
					of := s.join(user, session.Source(netip.MustParseAddr(source)))
					if s.admits(&of, step.class, int64(step.size)) {
						bytes := count{}
						bytes[step.class] = int64(step.size)
						s.set(&of, bytes)
						got += step.size
					}
				}
				if got != step.want {
					t.Errorf("step %d: %d bytes, want %d", n+1, got, step.want)
				}
			}
		})
	}
}

// When the volume becomes smaller than the state, checks are removed first, and then the sessions of users and sources
// that both store much. The remaining state is stored.
func TestLargestAreLeftOutFirst(t *testing.T) {
	room := int64(4 << 20)
	h := hooks{open: osFile, room: func(string) (int64, error) { return room, nil }, minimum: 1 << 10, manual: true}
	now := time.UnixMilli(1795470000123)
	options := Options{Dir: memory(t), Now: func() time.Time { return now }}
	j, _ := open(options, h)
	message := make([]byte, session.MaxCheck)
	add := func(user, address string, n, permissions int) (ids []ID) {
		for i := range n {
			id := j.Add(of(now, user, address, i))
			for p := range permissions {
				peer := netip.AddrFrom4([4]byte{10, 0, 0, byte(p)})
				j.Permit(id, []netip.Addr{peer}, now.Add(5*time.Minute))
			}
			j.Check(id, session.Check{Peer: netip.MustParseAddrPort("10.0.0.9:1"), Message: message})
			ids = append(ids, id)
		}
		return ids
	}
	greedy := add("greedy", "192.0.2.1", 800, 20)
	small := add("small", "192.0.2.2", 10, 1)
	sameUser := add("greedy", "192.0.2.3", 10, 1)
	largest := add("greedy", "192.0.2.1", 1, 200)
	j.work()
	left := func(ids []ID) (sessions, checks int) {
		for _, id := range ids {
			if s := j.sessions[id]; s != nil {
				sessions++
				checks += len(s.Checks)
			}
		}
		return sessions, checks
	}
	expect := func(when string, ids []ID, wantSessions, wantChecks int) {
		t.Helper()
		if sessions, checks := left(ids); sessions != wantSessions || checks != wantChecks {
			t.Errorf("%s: %d sessions with %d checks, want %d with %d", when, sessions, checks, wantSessions, wantChecks)
		}
	}
	shrink := func(capacity int64) {
		room = capacity*16/5 + 4 - j.size
		j.fit()
		j.work()
	}
	expect("room for all", greedy, 800, 800)
	shrink((j.shares.total[essential] + j.shares.total[checks]*2/3) * 16 / 15)
	if _, checks := left(greedy); checks == 0 || checks == 800 {
		t.Errorf("no room for all checks: %d of 800 are left", checks)
	}
	expect("no room for all checks", largest, 1, 0) // its check is the newest, and not larger than others
	expect("no room for all checks", small, 10, 10)
	expect("no room for all checks", sameUser, 10, 10)
	shrink(j.shares.total[essential] / 4)
	expect("no room for all sessions", largest, 0, 0)
	expect("no room for all sessions", small, 10, 0)
	expect("no room for all sessions", sameUser, 10, 0)
	if n, _ := left(greedy); n == 0 || n == 800 {
		t.Errorf("no room for all sessions: %d of 800 of the largest user", n)
	}
	want := len(j.sessions)
	end(t, j)
	j, r := open(options, h)
	if len(r.Sessions) != want {
		t.Errorf("%d sessions restored, want %d", len(r.Sessions), want)
	}
	end(t, j)
}
