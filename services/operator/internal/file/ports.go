package file

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/host"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

const (
	// If the wanted port of a listener is not available, the listener gets a port from firstSubstitute to
	// lastSubstitute. This range lies below the ephemeral ports of Linux, so that no relay socket takes the port before
	// the listener binds it.
	firstSubstitute = 20000
	lastSubstitute  = 32000
	// unprivileged is the lowest port that a process can bind without privileges.
	unprivileged = 1024
)

// assignment is the host port that is assigned to a claim. It stays the same as long as the wanted port stays the same.
type assignment struct {
	Wanted int `json:"wanted,omitempty"` // wanted port; 0 means any
	Port   int `json:"port"`
}

// ports assigns host ports to the listeners and processes of all Gateways. A UDP port and a TCP port with the same
// number are independent.
type ports struct {
	chosen map[string]assignment // assignments by claim.key
	free   func(network string, port int) bool
	// published are the sockets in published configs, with their Gateways. No other Gateway gets such a port, even if it
	// is free now: the dataplane of a Gateway that cannot be served as specified binds it at its next start.
	published map[socket]types.NamespacedName
	// adopted are the ports that adopted dataplanes have bound, by Gateway, until the first assignment. The previous
	// operator may have ended before it saved them in chosen, or its disk was full.
	adopted map[string]map[host.Port]bool
	// offset is where the search for a substitute port begins. It differs between operators, so that operators that
	// start at the same time on one host do not choose the same ports.
	offset int
}

// offsetFor derives ports.offset from the path of the output folder, so that the offset is the same after a restart.
func offsetFor(output string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(output)) // never fails
	return int(h.Sum32() % (lastSubstitute - firstSubstitute + 1))
}

// claim is a request for a host port, either for a listener or for an HTTP endpoint of the dataplane process.
type claim struct {
	gateway types.NamespacedName
	user    string // a listener, useMetrics or useHealth
	network string // udp or tcp
	wanted  int    // wanted port; 0 means any
	keeps   bool   // the claim keeps its assigned ports, unless another claim of the Gateway wants them
}

func (c claim) key() string {
	return strings.Join([]string{c.gateway.String(), c.user, c.network}, " ")
}

// matches reports whether an assignment belongs to the Gateway and the user of the claim, on any network. key is the
// claim.key of the assignment.
func (c claim) matches(key string) bool {
	return strings.HasPrefix(key, c.gateway.String()+" "+c.user+" ")
}

const (
	// useMetrics and useHealth are the values of claim.user for the metrics and health check endpoints of a dataplane
	// process. They are not valid names of listeners.
	useMetrics = "(metrics)"
	useHealth  = "(health)"
)

// claims returns the port claims of a Gateway: for its listeners, and for the metrics and health check endpoints of its
// process.
func claims(gateway types.NamespacedName, sockets []translate.Socket) []claim {
	all := []claim{
		{gateway: gateway, user: useHealth, network: "tcp"},
		{gateway: gateway, user: useMetrics, network: "tcp"},
	}
	for _, s := range sockets {
		all = append(all,
			claim{gateway: gateway, user: s.Listener, network: s.Network, wanted: int(s.Port), keeps: s.Held})
	}
	return all
}

// assign assigns a port to each claim: the port that the claim had before, else the wanted port if it is available,
// else a free port.
//
// running reports whether a Gateway holds its ports, for example because its process is running. These ports are
// available only for this Gateway. If the Gateway has no claims at all, they stay assigned. Other assignments without a
// claim are dropped.
func (p *ports) assign(all []claim, running func(gateway string) bool) error {
	slices.SortStableFunc(all, func(a, b claim) int { return cmp.Compare(a.key(), b.key()) })
	d := draft{ports: p, running: running, chosen: map[string]assignment{}, taken: map[socket]bool{},
		own: map[string]map[socket]bool{}, kept: map[socket]string{}}
	d.recordBound(all)
	var open []claim
	for _, c := range all {
		if c.keeps {
			d.keep(c)
		}
	}
	for _, c := range all {
		if c.keeps {
			continue
		}
		if had, ok := p.chosen[c.key()]; ok && had.Wanted == c.wanted && d.usable(c, had.Port) {
			d.place(c, had.Port)
		} else {
			open = append(open, c)
		}
	}
	for _, c := range open {
		port, err := d.choose(c)
		if err != nil {
			return err
		}
		d.place(c, port)
	}
	p.chosen, p.adopted = d.chosen, nil
	return nil
}

// socket is a port of a network.
type socket struct {
	network string
	port    int
}

// socketOf returns the socket of an assignment. key is the claim.key of the assignment.
func socketOf(key string, a assignment) socket {
	return socket{key[strings.LastIndexByte(key, ' ')+1:], a.Port}
}

// draft is the new set of port assignments while the method assign builds it.
type draft struct {
	ports   *ports
	running func(gateway string) bool
	chosen  map[string]assignment
	taken   map[socket]bool
	own     map[string]map[socket]bool // sockets that the running process of a Gateway has bound
	kept    map[socket]string          // claim.key of the claim that keeps its assignment of the socket
}

// recordBound records which sockets running processes have bound.
func (d *draft) recordBound(all []claim) {
	claimed := map[string]bool{}
	for _, c := range all {
		claimed[c.gateway.String()] = true
	}
	for key, a := range d.ports.chosen {
		gateway, _, _ := strings.Cut(key, " ")
		held := socketOf(key, a)
		switch {
		case !d.running(gateway):
		case claimed[gateway]:
			if d.own[gateway] == nil {
				d.own[gateway] = map[socket]bool{}
			}
			d.own[gateway][held] = true
		default:
			d.chosen[key], d.taken[held] = a, true
		}
	}
}

func (d *draft) keep(c claim) {
	for key, had := range d.ports.chosen {
		if c.matches(key) {
			s := socketOf(key, had)
			d.chosen[key], d.taken[s], d.kept[s] = had, true, key
		}
	}
}

// release makes the wanted port of a claim available if another claim of the same Gateway only keeps that port. The
// translation then replaces the held listener, see translate/held.go.
func (d *draft) release(c claim) {
	s := socket{c.network, c.wanted}
	key := d.kept[s]
	if strings.HasPrefix(key, c.gateway.String()+" ") && d.bindable(c, c.wanted) {
		delete(d.chosen, key)
		delete(d.taken, s)
	}
}

func (d *draft) place(c claim, port int) {
	d.chosen[c.key()] = assignment{Wanted: c.wanted, Port: port}
	d.taken[socket{c.network, port}] = true
}

// usable reports whether a port can be assigned to a claim: the port is not assigned to another claim, it is either
// free or bound by the process of the same Gateway, and no other Gateway has published it.
func (d *draft) usable(c claim, port int) bool {
	owner, published := d.ports.published[socket{c.network, port}]
	return !d.taken[socket{c.network, port}] && d.bindable(c, port) && (!published || owner == c.gateway)
}

// bindable reports whether a port is free or bound by the process of the same Gateway.
func (d *draft) bindable(c claim, port int) bool {
	gateway := c.gateway.String()
	return d.own[gateway][socket{c.network, port}] || d.ports.adopted[gateway][host.Port{Network: c.network, Number: port}] ||
		d.ports.free(c.network, port)
}

func (d *draft) choose(c claim) (int, error) {
	if c.wanted >= unprivileged {
		if d.release(c); d.usable(c, c.wanted) {
			return c.wanted, nil
		}
	}
	const substitutes = lastSubstitute - firstSubstitute + 1
	for i := range substitutes {
		if port := firstSubstitute + (d.ports.offset+i)%substitutes; d.usable(c, port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("choose port for %s: no %s port between %d and %d is free: stop what uses them",
		c.key(), c.network, firstSubstitute, lastSubstitute)
}

// host returns the host addresses and the assigned ports in the form in which translations read them.
func (p *ports) host(addresses []string, all []claim) resource.Host {
	h := resource.Host{Addresses: addresses, Ports: map[resource.ListenerKey]int{},
		Admin: map[types.NamespacedName]resource.AdminPorts{}}
	for _, c := range all {
		if c.keeps {
			continue
		}
		port := p.chosen[c.key()].Port
		admin := h.Admin[c.gateway]
		switch c.user {
		case useMetrics:
			admin.Metrics = port
		case useHealth:
			admin.Health = port
		default:
			listener := resource.ListenerKey{Namespace: c.gateway.Namespace, Gateway: c.gateway.Name, Listener: c.user}
			h.Ports[listener] = port
		}
		h.Admin[c.gateway] = admin
	}
	return h
}

// canBind reports whether a port is free on all addresses of this host.
func canBind(network string, port int) bool {
	address := ":" + strconv.Itoa(port)
	var socket io.Closer
	var err error
	if network == "udp" {
		socket, err = net.ListenPacket("udp", address)
	} else {
		socket, err = net.Listen("tcp", address)
	}
	return err == nil && socket.Close() == nil
}
