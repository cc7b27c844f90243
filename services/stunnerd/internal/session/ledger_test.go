package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// empty fails if a table without sessions still counts something.
func empty(t *testing.T, table *Table) {
	t.Helper()
	if table.total != (Amounts{}) || len(table.users)+len(table.sources)+len(table.networks) != 0 {
		t.Errorf("%v is held by %d users, %d sources, %d networks, want nothing", table.total, len(table.users),
			len(table.sources), len(table.networks))
	}
}

// T-12: after any sequence of claims and releases, the ledger is the sum of all held amounts, never negative, and zero
// at the end.
func TestLedgerIsTheSumOfWhatIsHeld(t *testing.T) {
	type live struct {
		*Session
		claims []*Claim
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		table := NewTable()
		table.SetBounds(Bounds{
			UserSessions: r.IntN(3) * 10,
			Capacity: Amounts{
				RelayPorts: int64(r.IntN(40)), Memory: int64(r.IntN(40)) << 16, Slots: int64(r.IntN(100)),
			},
		})
		var sessions, ended []*live
		var reserved []*RelayPort
		pick := func(n int) int { return r.IntN(max(n, 1)) }
		for range 300 {
			switch s := (&Session{
				UserID: fmt.Sprint(r.IntN(4)),
				Source: Source(netip.MustParseAddr(fmt.Sprintf("2001:db8:%x:%x::1", r.IntN(2), r.IntN(3)))), Shared: true,
			}); r.IntN(8) {
			case 0, 1:
				if table.Reserve(s) == nil {
					table.Add(s)
					memory, slots := s.Claim(Memory), s.Claim(Slots)
					sessions = append(sessions, &live{s, []*Claim{&memory, &slots}})
				}
			case 2:
				if len(sessions) > 0 {
					if p, err := table.Hold(sessions[pick(len(sessions))].Session); err == nil {
						reserved = append(reserved, p)
					}
				}
			case 3:
				if len(reserved) > 0 {
					if i := pick(len(reserved)); r.IntN(2) == 0 {
						reserved[i].Release()
					} else if table.Inherit(s, reserved[i]) == nil {
						table.Add(s)
						sessions = append(sessions, &live{Session: s})
					}
				}
			case 4:
				if i := pick(len(sessions)); len(sessions) > 0 {
					table.Remove(sessions[i].Session)
					ended = append(ended, sessions[i])
					sessions = append(sessions[:i], sessions[i+1:]...)
				}
			default:
				all := append(sessions[:len(sessions):len(sessions)], ended...)
				if len(all) == 0 {
					continue
				}
				l := all[pick(len(all))]
				if len(l.claims) == 0 {
					continue
				}
				c, n := l.claims[r.IntN(2)], int64(r.IntN(1<<10))
				was := c.held
				switch r.IntN(4) {
				case 0:
					c.Release()
				case 1:
					c.Force(n)
				default:
					if err := c.Set(n); err != nil && c.held != was {
						t.Fatal("a refused claim has changed")
					}
				}
				if !l.account.open && c.held > was {
					t.Fatal("a claim of an ended session has grown")
				}
			}
			consistent(t, table)
		}
		for _, l := range append(sessions, ended...) {
			table.Remove(l.Session)
			for _, c := range l.claims {
				c.Release()
				c.Release()
			}
		}
		for _, p := range reserved {
			p.Release()
		}
		empty(t, table)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// consistent fails unless the sums over users, over sources and over networks equal the amount of the process.
func consistent(t *testing.T, table *Table) {
	t.Helper()
	var users, sources, networks Amounts
	sum := func(to *Amounts, h *holder) {
		for k, n := range h.held {
			if to[k] += n; n < 0 {
				t.Fatalf("%d of %s are held", n, Kind(k))
			}
		}
	}
	for _, h := range table.users {
		sum(&users, h)
	}
	for _, h := range table.sources {
		sum(&sources, h)
	}
	for _, h := range table.networks {
		sum(&networks, h)
	}
	if users != table.total || sources != table.total || networks != table.total {
		t.Fatalf("the process holds %v, users %v, sources %v, networks %v", table.total, users, sources, networks)
	}
}

// T-12: if one session may hold a large amount of a kind, one user still leaves a share for other users, for users at
// other addresses, and for sessions with ordinary use.
func TestOneUserLeavesOthersTheirShareOfEachKind(t *testing.T) {
	const ports = 1000
	for k, row := range kinds {
		if !row.perSession {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			table := NewTable()
			capacity := int64(ports << 20)
			bounds := Bounds{Capacity: Amounts{RelayPorts: ports}}
			bounds.Capacity[k] = capacity
			table.SetBounds(bounds)
			reserve := func(c client) *Session {
				s := c.session()
				if err := table.Reserve(s); err != nil {
					t.Fatal(err)
				}
				return s
			}
			const step = 1 << 16
			taken := int64(0)
			for range 600 { // each session takes as much as it can
				s := client{"greedy", "10.0.0.9"}.session()
				if table.Reserve(s) != nil {
					break
				}
				claim := s.Claim(Kind(k))
				for claim.Set(claim.held+step) == nil {
					taken += step
				}
			}
			if taken < capacity*3/4 || taken > capacity*9/10+step {
				t.Fatalf("one user takes %d of %d", taken, capacity)
			}
			for _, c := range []client{{"ann", "192.0.2.1"}, {"greedy", "192.0.2.2"}, {"bob", "192.0.2.3"}} {
				claim := reserve(c).Claim(Kind(k))
				if err := claim.Set(4 << 20); err != nil {
					t.Errorf("%v: %v", c, err)
				}
			}
		})
	}
}

// T-12: while one user holds four fifths with few sessions, its other sessions get an equal share, and other users at
// its address get more.
func TestSessionOfALargeUserGetsAnEqualShare(t *testing.T) {
	const capacity = 1000 << 20
	table := NewTable()
	table.SetBounds(Bounds{Capacity: Amounts{RelayPorts: 1000, Memory: capacity}})
	claim := func(c client) *Claim {
		s := c.session()
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
		return new(s.Claim(Memory))
	}
	greedy := claim(client{"greedy", "10.0.0.9"})
	for greedy.Set(greedy.held+1<<16) == nil {
	}
	ordinary, other := claim(client{"greedy", "10.0.0.9"}), claim(client{"ann", "10.0.0.9"})
	if err := ordinary.Set(1 << 19); err != nil {
		t.Errorf("an ordinary session: %v", err)
	}
	if err := ordinary.Set(4 << 20); !errors.Is(err, ErrCapacity) {
		t.Errorf("another session that holds much: %v", err)
	}
	if err := other.Set(4 << 20); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// T-12: the memory of sessions is bounded for each transport, and an ended session returns it.
func TestMemoryOfSessionsIsBounded(t *testing.T) {
	for protocol, more := range transportPrices {
		price := priceSession + more
		table := NewTable()
		table.SetBounds(Bounds{Capacity: Amounts{RelayPorts: 1000, Memory: 10 * price}})
		var all []*Session
		for i := range 11 {
			s := client{fmt.Sprint(i), fmt.Sprint("192.0.2.", i)}.session()
			s.Protocol = protocol
			if err := table.Reserve(s); errors.Is(err, ErrCapacity) != (i == 10) {
				t.Errorf("%s: session %d: %v", protocol, i+1, err)
			}
			table.Add(s)
			all = append(all, s)
		}
		for _, s := range all {
			table.Remove(s)
		}
		empty(t, table)
	}
}

// Capacity is the number of sessions that the table admits, for each transport and for any additional memory of
// sessions. Its error is at most 2 % when a tenth of the capacity is in use.
func TestCapacityEqualsAdmittedSessions(t *testing.T) {
	const ports, memory = 2000, 60 << 20
	for protocol := range transportPrices {
		for _, permissions := range []int{0, 256} {
			table := NewTable()
			table.SetBounds(Bounds{Capacity: Amounts{RelayPorts: ports, Memory: memory}})
			told, half := table.Capacity(protocol), int64(0)
			n := int64(0)
			for ; ; n++ {
				s := client{fmt.Sprint(n), fmt.Sprintf("10.%d.%d.1", n/250, n%250)}.session()
				s.Protocol = protocol
				if table.Reserve(s) != nil {
					break
				}
				claim := s.Claim(Memory)
				if claim.Set(PriceOfMore(permissions, 0)) != nil {
					break
				}
				if n == told/10 {
					half = table.Capacity(config.TURNUDP)
				}
			}
			if permissions == 0 && told != n {
				t.Errorf("%s: the capacity is %d, but %d sessions are admitted", protocol, told, n)
			}
			if half < n*98/100 || half > n*102/100 {
				t.Errorf("%s with %d permissions: the capacity was %d, but %d sessions are admitted", protocol, permissions,
					half, n)
			}
			if full := table.Capacity(protocol); full < n || full > n+1 {
				t.Errorf("%s with %d permissions: the capacity of a full table is %d, but %d sessions are admitted",
					protocol, permissions, full, n)
			}
		}
	}
	table := NewTable()
	if got := table.Capacity(config.TURNUDP); got != 0 {
		t.Errorf("without bounds the capacity is %d", got)
	}
	table.SetBounds(Bounds{Capacity: Amounts{RelayPorts: ports}})
	if got := table.Capacity(config.TURNDTLS); got != ports {
		t.Errorf("without a bound of the memory the capacity is %d, want %d", got, ports)
	}
}
