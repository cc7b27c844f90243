package session

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// client is a user ID at an address.
type client struct{ user, addr string }

func (c client) session() *Session {
	return &Session{UserID: c.user, Source: Source(netip.MustParseAddr(c.addr)), Shared: true}
}

// fill takes at most this many relay ports for clients, until one is refused, and returns their number.
func fill(t *testing.T, table *Table, most int, of func(i int) client) (n int) {
	t.Helper()
	for i := range most {
		switch err := table.Reserve(of(i).session()); {
		case errors.Is(err, ErrCapacity):
			return n
		case err != nil:
			t.Fatal(err)
		}
		n++
	}
	return n
}

// T-12: when few relay ports are free, users and addresses that hold many relay ports are refused first.
func TestTheLastFifthIsForUsersWithFewSessions(t *testing.T) {
	const capacity = 1800
	always := func(c client) func(int) client { return func(int) client { return c } }
	greedy := always(client{"greedy", "10.0.0.9"})
	fresh := func(i int) client { return client{fmt.Sprint("user ", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250)} }
	type step struct {
		who        func(i int) client
		most, want int
	}
	for name, steps := range map[string][]step{
		"one holder, then strangers": {{greedy, 2000, 1440}, {fresh, 300, 300}},
		"and 300 at one address with one id": {
			{greedy, 2000, 1440}, {always(client{"app", "10.0.0.1"}), 300, 300}, {fresh, 30, 30},
		},
		"and 300 with the id of the holder": {
			{greedy, 2000, 1440}, {always(client{"greedy", "10.0.0.1"}), 300, 300}, {fresh, 30, 30},
		},
		"and 300 at the address of the holder": {
			{greedy, 2000, 1440}, {always(client{"app", "10.0.0.9"}), 300, 180}, {fresh, 180, 180},
		},
		"300 first": {
			{always(client{"app", "10.0.0.1"}), 300, 300}, {greedy, 2000, 1140}, {fresh, 300, 300},
		},
		"both ask in turn": {
			{func(i int) client { return []client{{"app", "10.0.0.1"}, {"greedy", "10.0.0.9"}}[i%2] }, 600, 600},
			{greedy, 2000, 1140 - 300}, {fresh, 300, 300},
		},
		"ids that one address makes up": {
			{func(i int) client { return client{fmt.Sprint(i), "10.0.0.9"} }, 2000, 1620}, {fresh, 180, 180},
		},
		"ids that three addresses make up": {
			{func(i int) client { return client{fmt.Sprint(i), fmt.Sprint("10.0.0.", i%3)} }, 2000, 1620},
			{fresh, 180, 180},
		},
		"ids in the /64 of a /58": {
			{func(i int) client { return client{fmt.Sprint(i), fmt.Sprintf("2001:db8:1:%x::1", i%64)} }, 2000, 1620},
			{fresh, 180, 180},
		},
		"addresses that one id has": {
			{func(i int) client { return client{"greedy", fmt.Sprintf("10.2.%d.%d", i/250, i%250)} }, 2000, 1764},
			{fresh, 36, 36},
		},
		"as many clients as there is room": {{fresh, 2000, capacity}},
		"ten that hold the same": {
			{func(i int) client { return client{fmt.Sprint(i % 10), fmt.Sprint("10.3.0.", i%10)} }, 2000, 1764},
			{fresh, 36, 36},
		},
		"one hundred that hold the same": {
			{func(i int) client { return client{fmt.Sprint(i % 100), fmt.Sprint("10.3.0.", i%100)} }, 2000, capacity},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable()
			table.SetBounds(Bounds{Capacity: Amounts{RelayPorts: capacity}})
			for i, s := range steps {
				if got := fill(t, table, s.most, s.who); got != s.want {
					t.Errorf("step %d: %d relay ports, want %d", i+1, got, s.want)
				}
			}
		})
	}
}

// T-12: there are no more relay ports than the capacity, and a returned relay port can be taken again.
func TestCapacityHolds(t *testing.T) {
	table := NewTable()
	table.SetBounds(Bounds{Capacity: Amounts{RelayPorts: 100}})
	fresh := func(i int) client { return client{fmt.Sprint(i), fmt.Sprint("10.0.0.", i)} }
	if n := fill(t, table, 200, fresh); n != 100 {
		t.Fatalf("%d relay ports of 100", n)
	}
	last := fresh(100).session()
	if err := table.Reserve(last); !errors.Is(err, ErrCapacity) {
		t.Errorf("one more: %v", err)
	}
	table.SetBounds(Bounds{Capacity: Amounts{RelayPorts: 101}})
	if err := table.Reserve(last); err != nil {
		t.Error(err)
	}
	table.Cancel(last)
	table.Cancel(last)
	if table.total[RelayPorts] != 100 || len(table.users) != 100 || len(table.sources) != 100 {
		t.Errorf("%d relay ports, %d users, %d sources after the same was given back twice", table.total[RelayPorts],
			len(table.users), len(table.sources))
	}
}

// T-12: a reserved port counts as an allocation of its user and its source.
func TestReservedPortsCount(t *testing.T) {
	table, ann := NewTable(), client{"ann", "192.0.2.1"}
	table.SetBounds(Bounds{UserSessions: 3})
	first := ann.session()
	if err := table.Reserve(first); err != nil {
		t.Fatal(err)
	}
	one, err := table.Hold(first)
	if err != nil {
		t.Fatal(err)
	}
	two, err := table.Hold(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Hold(first); !errors.Is(err, ErrUserQuota) {
		t.Errorf("a fourth relay port: %v", err)
	}
	second := ann.session()
	if err := table.Reserve(second); !errors.Is(err, ErrUserQuota) {
		t.Errorf("an allocation beside: %v", err)
	}
	if table.Inherit(second, one) != nil {
		t.Error("the allocation for which the port is reserved has no relay port")
	}
	one.Release()
	if table.total[RelayPorts] != 3 {
		t.Errorf("%d relay ports, want 3", table.total[RelayPorts])
	}
	err = table.Inherit(client{"eve", "192.0.2.1"}.session(), two)
	if !errors.Is(err, ErrReleased) || table.total[RelayPorts] != 2 {
		t.Errorf("another user takes a reserved port; %d relay ports", table.total[RelayPorts])
	}
	table.Cancel(first)
	table.Cancel(second)
	two.Release()
	if table.total[RelayPorts] != 0 || len(table.users) != 0 || len(table.sources) != 0 {
		t.Errorf("%d relay ports, %d users, %d sources are left",
			table.total[RelayPorts], len(table.users), len(table.sources))
	}
}

// T-12: a user without a quota has at most MaxReserved reserved ports.
func TestReservedPortsOfAUserAreFew(t *testing.T) {
	table := NewTable()
	for i := range MaxReserved + 1 {
		_, err := table.Hold(client{"ann", fmt.Sprint("192.0.2.", i)}.session())
		if want := i == MaxReserved; errors.Is(err, ErrReserved) != want {
			t.Errorf("reserved port %d: %v", i+1, err)
		}
	}
	if _, err := table.Hold(client{"bob", "192.0.2.1"}.session()); err != nil {
		t.Errorf("another user: %v", err)
	}
}
