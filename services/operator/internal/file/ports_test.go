package file

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/host"
)

func want(gateway, listener, network string, port int) claim {
	return claim{
		gateway: types.NamespacedName{Namespace: "n", Name: gateway}, user: listener, network: network, wanted: port,
	}
}

// bench assigns ports on a fake host.
type bench struct {
	*ports
	busy    map[socket]bool
	running map[string]bool
}

func newBench() *bench {
	b := &bench{busy: map[socket]bool{}, running: map[string]bool{}}
	b.ports = &ports{
		chosen: map[string]assignment{},
		free:   func(network string, port int) bool { return !b.busy[socket{network, port}] },
	}
	return b
}

func (b *bench) assign(t *testing.T, claims ...claim) {
	t.Helper()
	if err := b.ports.assign(claims, func(g string) bool { return b.running[g] }); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) expect(t *testing.T, why string, c claim, port int) {
	t.Helper()
	if got := b.chosen[c.key()].Port; got != port {
		t.Errorf("%s: %s has port %d, want %d", why, c.key(), got, port)
	}
}

func TestWantedPortsAreAssignedIfAvailable(t *testing.T) {
	b := newBench()
	b.busy[socket{"udp", 5000}] = true
	udp, tcp, taken, low := want("g", "udp", "udp", 3478), want("g", "tcp", "tcp", 3478), want(
		"g", "taken", "udp", 5000,
	), want("g", "tls", "tcp", 443)
	second := want("h", "udp", "udp", 3478)
	b.assign(t, udp, tcp, taken, low, second)
	b.expect(t, "free", udp, 3478)
	b.expect(t, "same number on another network", tcp, 3478)
	b.expect(t, "taken on the host", taken, firstSubstitute)
	b.expect(t, "privileged", low, firstSubstitute)
	b.expect(t, "taken by another gateway", second, firstSubstitute+1)
}

func TestPortsStay(t *testing.T) {
	b := newBench()
	a, c := want("g", "a", "udp", 3478), want("g", "c", "udp", 5000)
	b.busy[socket{"udp", 5000}] = true
	b.assign(t, a, c)
	b.busy = map[socket]bool{{"udp", 3478}: true, {"udp", firstSubstitute}: true}
	b.running["n/g"] = true
	before := want("a", "first", "udp", 3478)
	b.assign(t, before, a, c)
	b.expect(t, "held by its own process", a, 3478)
	b.expect(t, "a substitute, though the wanted port is free by now", c, firstSubstitute)
	b.expect(t, "a newcomer that sorts first", before, firstSubstitute+1)

	b.running["n/g"] = false
	b.assign(t, before, a, c)
	if got := b.chosen[a.key()].Port; got == 3478 {
		t.Error("a port that somebody else took while the process was down is kept")
	}
}

// The previous operator gave a listener another port, and ended before it saved the port. The dataplane has bound it.
func TestPortsOfAnAdoptedDataplaneAreItsOwn(t *testing.T) {
	b := newBench()
	door, other := want("g", "a", "udp", 3479), want("h", "a", "udp", 3480)
	b.chosen[door.key()] = assignment{Wanted: 3478, Port: 3478}
	b.busy = map[socket]bool{{"udp", 3479}: true, {"udp", 3480}: true}
	b.running["n/g"], b.running["n/h"] = true, true
	b.adopted = map[string]map[host.Port]bool{"n/g": {{Network: "udp", Number: 3479}: true, {Network: "udp", Number: 3480}: true}}
	b.assign(t, door, other)
	b.expect(t, "bound by its own process", door, 3479)
	b.expect(t, "bound by the process of another Gateway", other, firstSubstitute)
	b.assign(t, door, want("g", "b", "udp", 3480))
	b.expect(t, "left by its own process and taken by a program since", want("g", "b", "udp", 3480), firstSubstitute+1)
}

func TestPortsFollowAListenerThatIsRenamed(t *testing.T) {
	b := newBench()
	b.assign(t, want("g", "old", "udp", 3478))
	b.busy[socket{"udp", 3478}] = true
	b.running["n/g"] = true
	renamed := want("g", "new", "udp", 3478)
	b.assign(t, renamed)
	b.expect(t, "renamed", renamed, 3478)
	if len(b.chosen) != 1 {
		t.Errorf("chosen %v, want the old name forgotten", b.chosen)
	}
}

func TestPortsOfAGatewayThatCannotBeReadAreKept(t *testing.T) {
	b := newBench()
	lost := want("lost", "udp", "udp", 3478)
	b.assign(t, lost)
	b.running["n/lost"] = true
	other := want("other", "udp", "udp", 3478)
	b.assign(t, other)
	b.expect(t, "of a running process", lost, 3478)
	b.expect(t, "wanted by another", other, firstSubstitute)
}

func TestPortsOfAListenerThatWaitsAreKept(t *testing.T) {
	b := newBench()
	tcp := want("g", "tcp", "tcp", 3478)
	b.assign(t, tcp)
	b.running["n/g"], b.busy[socket{"tcp", 3478}] = true, true
	held := claim{gateway: tcp.gateway, user: "tcp", keeps: true}
	b.assign(t, held, want("g", "udp", "udp", 3478), want("h", "tcp", "tcp", 3478))
	b.expect(t, "misspelt", tcp, 3478)
	b.expect(t, "same number on another network", want("g", "udp", "udp", 3478), 3478)
	b.expect(t, "wanted by a listener of another gateway", want("h", "tcp", "tcp", 3478), firstSubstitute)
	b.assign(t, tcp)
	b.expect(t, "mended", tcp, 3478)
	if h := b.host([]string{"127.0.0.1"}, []claim{held}); len(h.Ports) != 0 {
		t.Errorf("ports %v, want none for a listener of which nothing is known", h.Ports)
	}

	newcomer := want("g", "a-newcomer", "tcp", 3478)
	b.assign(t, held, newcomer)
	b.expect(t, "wanted by a valid listener", newcomer, 3478)
	if had, ok := b.chosen[tcp.key()]; ok {
		t.Errorf("the listener that waits keeps %+v beside the valid one", had)
	}
}

func TestPortsThatAreTakenCannotBeBound(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	for network, addr := range map[string]net.Addr{"udp": udp.LocalAddr(), "tcp": tcp.Addr()} {
		_, text, err := net.SplitHostPort(addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if port, _ := strconv.Atoi(text); canBind(network, port) {
			t.Errorf("%s port %d is in use and was called free", network, port)
		}
	}
}

func TestOperatorsWithFoldersOfTheirOwnDoNotMeet(t *testing.T) {
	a, b := offsetFor("/srv/one"), offsetFor("/srv/two")
	if a == b || a != offsetFor("/srv/one") {
		t.Errorf("offsets %d and %d", a, b)
	}
	last := ports{
		chosen: map[string]assignment{}, free: func(string, int) bool { return true },
		offset: lastSubstitute - firstSubstitute,
	}
	gateway := types.NamespacedName{Namespace: "meet", Name: "door"}
	if err := last.assign(
		[]claim{{gateway: gateway, user: "a", network: "tcp"}, {gateway: gateway, user: "b", network: "tcp"}},
		func(string) bool { return false },
	); err != nil {
		t.Fatal(err)
	}
	if x, y := last.chosen["meet/door a tcp"].Port, last.chosen["meet/door b tcp"].Port; x != lastSubstitute ||
		y != firstSubstitute {
		t.Errorf("ports %d and %d: the search does not begin at the offset or does not go round", x, y)
	}
}

// A Gateway that cannot be served as specified keeps its published port, although its spec has another one and no
// process has bound it: no other Gateway gets the port, also after a restart.
func TestPublishedPortsAreKept(t *testing.T) {
	for name, restart := range map[string]bool{"running": false, "restarted": true} {
		s := newSite(t)
		if err := s.provider.prepare(); err != nil {
			t.Fatal(err)
		}
		start := func() *loop {
			l, err := newLoop(s.provider, discovery.NewServer(discovery.ServerOptions{Log: s.provider.Log}), "")
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		l := start()
		round := func() {
			t.Helper()
			if err := l.round(); err != nil {
				t.Fatal(err)
			}
		}
		round()
		if got := l.current(doorKey); got == nil || got.Listeners[0].Port != 17478 {
			t.Fatalf("TEST NOT VALID: config %+v", got)
		}
		s.write("config.yml", strings.Replace(configYAML, "authRef: {name: turn-auth}", "authRef: {name: gone}", 1))
		s.write("gateway.yaml", strings.Replace(gatewayYAML, "17478", "17500", 1))
		round()
		if restart {
			l = start()
		}
		s.write("side.yaml", strings.NewReplacer("17600", "17478", "gatewayClassName: turn", "gatewayClassName: side").Replace(sideYAML))
		s.write("config.yml", strings.Replace(configYAML, "authRef: {name: turn-auth}", "authRef: {name: gone}", 1)+"---\n"+sideClassYAML)
		round()
		if got := l.current(doorKey); got == nil || got.Listeners[0].Port != 17478 {
			t.Errorf("%s: the Gateway with the mistake has %+v", name, got)
		}
		if got := l.current(sideKey); got == nil || got.Listeners[0].Port == 17478 {
			t.Errorf("%s: the other Gateway has %+v, want another port than 17478", name, got)
		}
		s.write("config.yml", configYAML+"---\n"+sideClassYAML)
		round()
		if got := l.current(doorKey); got == nil || got.Listeners[0].Port != 17500 {
			t.Errorf("%s: after the correction %+v, want port 17500", name, got)
		}
	}
}

const sideClassYAML = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: side}
spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: side, namespace: calls}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: side, namespace: calls}
spec: {authType: static, userName: ann, password: correct-horse-battery}
`
