package gate

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// inUse returns the memory of the heap and the stacks, including memory that the allocator cannot use for other sizes.
func inUse() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// socketPrice is the memory of a UDP socket in the kernel: the structures of the socket, of its file, inode and
// directory entry, and of the epoll instance (Linux 6.1, /proc/slabinfo).
const socketPrice = 3 << 10

// crowd is a number of clients of one gate, each with its own ephemeral credential.
type crowd struct {
	fixture
	clients []*client
	users   []string
	secrets []string
}

const crowdSecret = "a shared secret of some length"

func newCrowd(t testing.TB, n int, addr func(i int) string) *crowd {
	c := &crowd{fixture: newFixture(t)}
	p := policy()
	p.Authority.SharedSecret = crowdSecret
	c.Update(p, routes("127.0.0.0/8"))
	for i := range n {
		c.clients = append(c.clients, newClient(addr(i)))
		minted, err := p.Authority.Mint(fmt.Sprint("user-", i), time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.users, c.secrets = append(c.users, minted.Username), append(c.secrets, string(minted.Password))
	}
	return c
}

// do makes a request of a client, and returns the error code of the answer.
func (c *crowd) do(i int, method stun.Method, attrs ...stun.Setter) stun.ErrorCode {
	c.t.Helper()
	by := c.clients[i]
	return codeOf(c.send(by, c.signed(by, c.users[i], c.secrets[i], method, attrs...)))
}

// permit requests permissions for peers by their numbers, 16 in a request. It returns the first error code, or 0.
func (c *crowd) permit(i, from, to int) stun.ErrorCode {
	for at := from; at < to; at += 16 {
		var attrs []stun.Setter
		for n := at; n < min(at+16, to); n++ {
			attrs = append(attrs, numbered(n))
		}
		if code := c.do(i, stun.MethodCreatePermission, attrs...); code != 0 {
			return code
		}
	}
	return 0
}

// bindTo binds channels to peers by their numbers. It returns the first error code, or 0.
func (c *crowd) bindTo(i, from, to int) stun.ErrorCode {
	for n := from; n < to; n++ {
		if code := c.do(i, stun.MethodChannelBind, channel(uint32(0x4000+n)), numbered(n)); code != 0 {
			return code
		}
	}
	return 0
}

// numbered returns the peer with a number.
func numbered(n int) stun.Setter {
	return peerAt(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}), 4000).String())
}

// the ledger charges at least the memory of a session, its permissions and its channels. Half of the permissions
// are for peers with a channel.
func TestPricesCoverMeasuredMemory(t *testing.T) {
	const n = 200 // so that memory of other tests in the heap is small compared with the sessions
	c := newCrowd(t, n, func(i int) string { return fmt.Sprintf("192.%d.2.%d:1000", i>>8, i&255) })
	used, charged := inUse(), c.table.Held()[session.Memory]
	step := func(what string, sockets int64, do func(i int) stun.ErrorCode) {
		t.Helper()
		for i := range n {
			if code := do(i); code != 0 {
				t.Fatalf("%s: %d", what, code)
			}
		}
		nowUsed, nowCharged := inUse(), c.table.Held()[session.Memory]
		cost, price := (nowUsed-used)/n+sockets*socketPrice, (nowCharged-charged)/n
		t.Logf("%s: %d bytes, charged %d", what, cost, price)
		if cost > price {
			t.Errorf("%s: %d bytes of memory, but %d are charged", what, cost, price)
		}
		used, charged = nowUsed, nowCharged
	}
	step("a session with an ordinary use", 2, func(i int) stun.ErrorCode {
		return max(c.do(i, stun.MethodAllocate, udp), c.permit(i, 0, 8), c.bindTo(i, 0, 4))
	})
	step("as many permissions as possible", 0, func(i int) stun.ErrorCode { return c.permit(i, 8, MaxPermissions) })
	step("as many channels as possible", 0, func(i int) stun.ErrorCode { return c.bindTo(i, 4, 64) })
	for i := range n {
		if code := c.do(i, stun.MethodRefresh, number(stun.AttrLifetime, 0)); code != 0 {
			t.Fatal(code)
		}
	}
	if held := c.table.Held(); held != (session.Amounts{}) {
		t.Errorf("after the end of all sessions the ledger has %v", held)
	}
}

// T-12: a user with many permissions and channels gets 508 for more, while other users get theirs. The user keeps and
// refreshes its existing permissions and channels. The refusals are counted.
func TestOneUserDoesNotTakeTheMemory(t *testing.T) {
	c := newCrowd(t, 21, func(i int) string { return fmt.Sprintf("10.0.%d.1:%d", i/16, 1000+i) })
	const memory = 2 << 20
	c.table.SetBounds(session.Bounds{Capacity: session.Amounts{session.RelayPorts: 64, session.Memory: memory}})
	greedy := 0
	for i := range 16 { // one address, but many user IDs
		if c.do(i, stun.MethodAllocate, udp) != 0 {
			break
		}
		if code := max(c.permit(i, 0, MaxPermissions), c.bindTo(i, 0, 64)); code != 0 {
			if code != stun.CodeInsufficientCapacity {
				t.Errorf("error %d, want 508", code)
			}
			greedy++
		}
	}
	if greedy == 0 {
		t.Error("clients of one address get all permissions that they ask for")
	}
	if held := c.table.Held()[session.Memory]; held > memory {
		t.Errorf("%d bytes are held of %d", held, memory)
	}
	if code := max(c.permit(0, 0, 64), c.do(0, stun.MethodRefresh)); code != 0 {
		t.Errorf("refresh of what a refused client has: %d", code)
	}
	if n := c.meter.Refusals()["capacity"]; n == 0 {
		t.Error("no refusal is counted")
	}
	for i := 16; i < 20; i++ {
		if code := max(c.do(i, stun.MethodAllocate, udp), c.permit(i, 0, 8), c.bindTo(i, 0, 4)); code != 0 {
			t.Errorf("another client: %d", code)
		}
	}
}
