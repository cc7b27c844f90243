package server

import (
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// adopters returns two pods that see the addresses of clients. The datagrams of clients arrive at the UDP listener of
// the second one.
func adopters(t *testing.T) [2]*fixture {
	t.Helper()
	both := pods(t)
	arriveAtSecond(both)
	return both
}

// arriveAtSecond makes the pods see the addresses of clients, whose datagrams arrive at the second pod. A config change
// reverts it.
func arriveAtSecond(both [2]*fixture) {
	for _, b := range both {
		b.clientAddresses.Store(true)
		listener := (*b.forwardPorts.Load())[uint16(b.port("udp"))]
		b.forwardPorts.Store(&forwardPorts{uint16(both[1].port("udp")): listener})
	}
}

// arriveAt makes the pods use the port of the pod at which clients arrive as the listener port in frames.
func arriveAt(at *fixture, both [2]*fixture) {
	for _, b := range both {
		for _, listener := range *b.forwardPorts.Load() {
			b.forwardPorts.Store(&forwardPorts{uint16(at.port("udp")): listener})
		}
	}
}

// arrive makes the datagrams of a client arrive at another pod, and confirms the path by an authentic request.
func (c *mobile) arrive(at *fixture) {
	c.t.Helper()
	c.conn.move(at)
	var err error
	for range 3 { // the nonce of another pod may be stale
		if err = c.client.CreatePermission(net.UDPAddrFromAddrPort(c.peer)); err == nil {
			return
		}
	}
	c.t.Fatal(err)
}

// elsewhere returns the number of clients of a pod that are known to use another pod.
func (b *fixture) elsewhere() (n int) {
	for port := range *b.forwardPorts.Load() {
		l := b.movable(port)
		for addr := range l.Gate().Clients() {
			if _, _, ok := l.Elsewhere(addr, 0); ok {
				n++
			}
		}
	}
	return n
}

// the session of a client that has used another pod for 30 s is handed over to that pod, at most 50 sessions a
// second. The new pod then answers the client directly. A session stays if only unauthenticated data of its client
// arrives at the other pod.
func TestPodsAdoptSessions(t *testing.T) {
	both := adopters(t)
	owner, front := both[0], both[1]
	const number = adoptionsPerSecond + 7
	var clients []*mobile
	for range number + 1 {
		clients = append(clients, dialMobile(t, owner, "udp"))
	}
	forged := clients[number]
	for range 3 { // until it has a channel
		if err := forged.next(); err != nil {
			t.Fatal(err)
		}
	}
	forged.conn.move(front)
	if err := forged.next(); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	for _, c := range clients[:number] {
		c.arrive(front)
	}
	after := time.Now()
	if n := owner.elsewhere(); n != number {
		t.Fatalf("%d clients use the other pod, want %d", n, number)
	}
	for _, step := range []struct {
		now     time.Time
		adopted int
	}{
		{before.Add(30*time.Second - 1), 0},
		{after.Add(30 * time.Second), adoptionsPerSecond},
		{after.Add(31 * time.Second), number},
		{after.Add(time.Hour), number},
	} {
		owner.adoptDue(step.now)
		if n := int(owner.meter.SessionsAdopted.Load()); n != step.adopted || owner.table.Len() != number+1-n {
			t.Fatalf("%s: %d sessions adopted, %d left, want %d", step.now.Sub(before), n, owner.table.Len(), step.adopted)
		}
	}
	within(t, "the other pod confirms", func() bool { return int(front.meter.SessionsTaken.Load()) == number })
	if n := front.table.Len(); n != number {
		t.Errorf("the other pod has %d sessions", n)
	}
	passed := front.Forwarding().Passed
	for _, c := range clients[:number] {
		if err := c.next(); err != nil {
			t.Fatal(err)
		}
	}
	if n := front.Forwarding().Passed; n != passed {
		t.Errorf("%d datagrams use the path through the former owner", n-passed)
	}
	if n := owner.meter.SessionsNotAdopted.Load(); n > 0 {
		t.Errorf("%d attempts failed", n)
	}
	if s := owner.Forwarding(); s.Adopted != number || owner.HandedSockets() > number {
		t.Errorf("status: %d adopted; %d sockets", s.Adopted, owner.HandedSockets())
	}
}

// a client with a valid credential that changes between pods on purpose moves its session more and more rarely.
// Forged datagrams with its address at another pod move nothing.
func TestClientThatChangesBetweenPods(t *testing.T) {
	both := adopters(t)
	c := dialMobile(t, both[0], "udp")
	for leg, wait := range []time.Duration{30, 60, 120} {
		at, to := both[leg%2], both[(leg+1)%2]
		client := c.conn.LocalAddr().(*net.UDPAddr).AddrPort()
		within(t, "the latest move is over", func() bool {
			for port := range *at.forwardPorts.Load() {
				return at.movable(port).Gate().Relay(client).Former() == nil
			}
			return false
		})
		arriveAt(to, both)
		c.arrive(to)
		now := time.Now()
		for _, early := range []time.Duration{0, wait*time.Second - time.Second} {
			if at.adoptDue(now.Add(early)); at.table.Len() != 1 {
				t.Fatalf("move %d: after %s, want %d s", leg, early, wait)
			}
		}
		taken := to.meter.SessionsTaken.Load()
		at.adoptDue(now.Add(wait * time.Second))
		within(t, "the session has moved", func() bool { return to.meter.SessionsTaken.Load() == taken+1 })
		if at.table.Len() != 0 {
			t.Fatalf("move %d: two pods have the session", leg)
		}
	}
	if err := c.next(); err != nil {
		t.Error(err)
	}
	for _, b := range both {
		if n := b.HandedSockets(); n > 1 {
			t.Errorf("%d sockets are left", n)
		}
	}
}

// a refused session stays. The time to the next attempt increases with each refusal.
func TestRefusedAdoptionIsTriedLater(t *testing.T) {
	both := adopters(t)
	owner, front := both[0], both[1]
	c := dialMobile(t, owner, "udp")
	c.arrive(front)
	front.table.Drain()
	for i, wait := range []time.Duration{30, 60, 120, 240, 480, 960, 960} {
		now := time.Now()
		owner.adoptDue(now.Add(wait*time.Second - time.Second))
		if n := owner.meter.SessionsNotAdopted.Load(); n != uint64(i) {
			t.Fatalf("%d attempts, want %d: the next one is too early", n, i)
		}
		owner.adoptDue(now.Add(wait * time.Second).Add(time.Second))
		if n := owner.meter.SessionsNotAdopted.Load(); n != uint64(i+1) {
			t.Fatalf("%d attempts, want %d: the next one is too late", n, i+1)
		}
	}
	if owner.table.Len() != 1 || front.table.Len() != 0 {
		t.Error("the session has not stayed")
	}
	if err := c.next(); err != nil {
		t.Error(err)
	}
}

// permit requests a permission, again with a new nonce after a 438.
func (c *mobile) permit() (err error) {
	for range 3 {
		if err = c.client.CreatePermission(net.UDPAddrFromAddrPort(c.peer)); err == nil || !strings.Contains(err.Error(), "438") {
			break
		}
	}
	return err
}

// adopted makes the client use another pod, which adopts its session.
func (c *mobile) adopted(from, to *fixture) {
	c.t.Helper()
	c.arrive(to)
	from.adoptDue(time.Now().Add(time.Minute))
	within(c.t, "the other pod confirms", func() bool { return to.meter.SessionsTaken.Load() == 1 })
}

// takenOver makes the client use another pod, which takes its session over from a copy.
func (c *mobile) takenOver(from, to *fixture) {
	c.t.Helper()
	check := stun.MustBuild(stun.TransactionID, stun.BindingRequest, stun.NewUsername("a:b"))
	if _, err := c.relay.WriteTo(check.Raw, net.UDPAddrFromAddrPort(c.peer)); err != nil {
		c.t.Fatal(err)
	}
	at := forward.Client{Addr: from.Sessions().List()[0].Client.Addr(), Port: uint16(to.port("udp"))}
	var record []byte
	within(c.t, "the session has a copy", func() (ok bool) {
		record, ok = forwarding{from.Server}.Copy(at)
		return ok
	})
	version, _ := forwarding{from.Server}.Version(at)
	version.Generation = 1 << 8
	if !(forwarding{to.Server}).TakeOver(at, version, record, 0) {
		c.t.Fatal("the session is not taken over")
	}
	c.conn.move(to)
}

// a session that is older than a change of the credentials may use its credential for the overlap,
// also at a pod that has started after the change, and at the next such pod. The pod admits no new session with it.
func TestFormerCredentialAtAFreshPod(t *testing.T) {
	for name, c := range map[string]struct {
		overlap int32 // of the config of the fresh pod
		goes    func(c *mobile, from, to *fixture)
		want    string // error of a request
	}{
		"moved":                     {600, (*mobile).adopted, ""},
		"lost":                      {600, (*mobile).takenOver, ""},
		"moved, without an overlap": {0, (*mobile).adopted, "401"},
	} {
		t.Run(name, func(t *testing.T) {
			both := adopters(t)
			owner, fresh := both[0], both[1]
			client := dialMobile(t, owner, "udp")
			changed := func(b *fixture, overlap int32) {
				b.apply(b.changed(func(next *config.Config) {
					next.Auth.Credentials[config.KeyPassword], next.Auth.CredentialOverlap = "second", new(overlap)
				}))
			}
			changed(owner, 600)
			changed(fresh, 0) // as if its process had started with this config
			changed(fresh, c.overlap)
			arriveAtSecond(both)
			if len(fresh.former) > 0 {
				t.Fatal("the fresh pod knows the former credential")
			}
			c.goes(client, owner, fresh)
			err := client.permit()
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("request at the fresh pod: %v, want %s", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatalf("request at the fresh pod: %v", err)
			}
			if d, err := fresh.dial("udp", "ann", "first"); err == nil {
				d.client.Close()
				t.Error("the fresh pod admits a new session with the former credential")
			}
			if !reflect.DeepEqual(fresh.former[0].Authority, owner.former[0].Authority) ||
				fresh.former[0].Until.Sub(owner.former[0].Until).Abs() > 100*time.Millisecond {
				t.Errorf("at the fresh pod until %s, want %s", fresh.former[0].Until, owner.former[0].Until)
			}
		})
	}
}

// a session that the operator ends while it is offered to another pod ends there too.
func TestSessionThatEndsDuringItsMove(t *testing.T) {
	both := adopters(t)
	owner, other := both[0], both[1]
	dialMobile(t, owner, "udp")
	at := forward.Client{Addr: owner.Sessions().List()[0].Client.Addr(), Port: uint16(other.port("udp"))}
	offer := func(c forward.Client, record []byte, asked datagram.Source) (forward.ReturnPath, error) {
		to, err := owner.forwarder.HandOver(c, record, asked)
		if n := other.table.Len(); err != nil || n != 1 {
			t.Errorf("the other pod has %d sessions: %v", n, err)
		}
		owner.EndSessions(func(*session.Session) bool { return true })
		return to, err
	}
	offered, err := owner.move(at, owner.movable(at.Port), nil, false, offer)
	if offered || err == nil {
		t.Errorf("moved: %t, %v", offered, err)
	}
	within(t, "no pod has the session", func() bool { return owner.table.Len()+other.table.Len() == 0 })
	if n := other.meter.SessionsTaken.Load(); n != 0 || owner.HandedSockets() != 0 {
		t.Errorf("%d sessions taken, %d sockets", n, owner.HandedSockets())
	}
}
