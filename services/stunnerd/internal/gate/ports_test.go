package gate

import (
	"fmt"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// newRangedFixture returns a fixture whose relays have ports of a range.
func newRangedFixture(t *testing.T, n int) (fixture, config.PortRange) {
	t.Helper()
	b, first := newFixture(t), uint16(testport.Range(t, n))
	ports := config.PortRange{First: first, Last: first + uint16(n) - 1}
	network := relaytest.NewKernel(t)
	network.Ports = relay.NewPorts(ports)
	b.network = network
	return b, ports
}

// try makes an Allocate request and returns the code.
func (b fixture) try(c *client, attrs ...stun.Setter) stun.ErrorCode {
	b.t.Helper()
	return codeOf(
		b.send(c, b.signed(c, username, password, stun.MethodAllocate, append([]stun.Setter{udp}, attrs...)...)),
	)
}

// T-A16: with a range of 8 ports, the ninth client gets 508 at once. One second after another client has ended its
// allocation, the ninth client gets a port.
func TestNinthClientOfEightPortsGets508(t *testing.T) {
	b, ports := newRangedFixture(t, 8)
	var clients []*client
	for i := range 8 {
		c := newClient(fmt.Sprintf("10.0.0.1:%d", 1000+i))
		b.allocate(c)
		if port := b.flow(c.addr).Session.Relay.Port(); !ports.Contains(port) {
			t.Errorf("relay port %d is not of %s", port, ports)
		}
		clients = append(clients, c)
	}
	ninth := newClient("10.0.0.1:2000")
	if code := b.try(ninth); code != stun.CodeInsufficientCapacity {
		t.Fatalf("the ninth client gets %d, want 508", code)
	}
	freed := b.flow(clients[3].addr).Session.Relay.Port()
	ended := time.Now()
	if code := codeOf(
		b.send(clients[3], b.signed(clients[3], username, password, stun.MethodRefresh, number(stun.AttrLifetime, 0))),
	); code != 0 {
		t.Fatalf("refresh 0: %d", code)
	}
	for {
		code, passed := b.try(ninth), time.Since(ended)
		switch {
		case code == 0 && passed < time.Second:
			t.Errorf("the port is used again after %v", passed)
		case code != 0 && (code != stun.CodeInsufficientCapacity || passed > 3*time.Second):
			t.Fatalf("the ninth client gets %d, %v after a port was given up", code, passed)
		}
		if code == 0 {
			break
		}
	}
	if port := b.flow(ninth.addr).Session.Relay.Port(); port != freed {
		t.Errorf("relay port %d, want %d", port, freed)
	}
}

// of 200 clients on 100 ports, 100 get a port each, and the others get 508. No port is assigned twice.
func TestTwoHundredClientsOnAHundredPorts(t *testing.T) {
	b, ports := newRangedFixture(t, 100)
	codes, held := map[stun.ErrorCode]int{}, map[uint16]bool{}
	for i := range 200 {
		c := newClient(fmt.Sprintf("10.0.%d.1:1000", i))
		code := b.try(c)
		codes[code]++
		if code == 0 {
			port := b.flow(c.addr).Session.Relay.Port()
			if held[port] || !ports.Contains(port) {
				t.Errorf("port %d is given out twice, or not of %s", port, ports)
			}
			held[port] = true
		}
	}
	if codes[0] != 100 || codes[stun.CodeInsufficientCapacity] != 100 {
		t.Errorf("codes %v, want 100 times 0 and 508", codes)
	}
}

// T-A7: a pair of ports is in the range, and the token gives the second one. Without a free pair the answer is 508.
func TestReservedPortIsOfTheRange(t *testing.T) {
	b, ports := newRangedFixture(t, 3)
	pair := stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{0x80}}
	first, second, third := newClient("10.0.0.1:1000"), newClient("10.0.0.1:1001"), newClient("10.0.0.1:1002")
	answer := b.send(first, b.signed(first, username, password, stun.MethodAllocate, udp, pair))
	if code := codeOf(answer); code != 0 {
		t.Fatalf("a pair: %d", code)
	}
	token, err := answer.Get(stun.AttrReservationToken)
	if err != nil {
		t.Fatal(err)
	}
	if code := b.try(third, pair); code != stun.CodeInsufficientCapacity {
		t.Errorf("a second pair of 3 ports: %d, want 508", code)
	}
	if code := b.try(second, stun.RawAttribute{Type: stun.AttrReservationToken, Length: 8, Value: token}); code != 0 {
		t.Fatalf("the reserved port: %d", code)
	}
	if a, b := b.flow(first.addr).Session.Relay.Port(), b.flow(second.addr).Session.Relay.Port(); a != ports.First ||
		b != a+1 {
		t.Errorf("ports %d and %d of %s", a, b, ports)
	}
	if code := b.try(third); code != 0 || b.flow(third.addr).Session.Relay.Port() != ports.Last {
		t.Errorf("the third port: %d", code)
	}
}
