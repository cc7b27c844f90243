package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// faultsOfPackets are faults between clients, a dataplane and media servers on a host without a cluster.
func faultsOfPackets(t *testing.T, p *installation) []fault {
	e, g := p.Env, p.Gateways[0]
	host := e.Net.Nodes[0]
	v4, v6 := host.External[0], host.External[1]
	gateway := "Gateway " + g.ID()
	name, err := os.Hostname() // the dataplane has the name of the host
	if err != nil {
		t.Fatal(err)
	}
	dataplane := "dataplane " + g.Namespace + "/" + name
	input := func(name, text string) fault {
		f := fault{name: name, object: gateway}
		f.make, f.undo = rules(host.Space, "chain input { type filter hook input priority filter;\n"+text+"\n}")
		return f
	}
	var faults []fault
	for _, l := range g.Listeners {
		network := l.Config().Network()
		f := input("a firewall drops the packets of listener "+l.Name, fmt.Sprintf(
			"ip daddr %s %s dport %d drop\nip6 daddr %s %[2]s dport %[3]d drop", v4, network, l.Port(), v6))
		f.severity, f.field = "error", "spec.listeners["+l.Name+"]"
		f.problem = "the dataplane answers directly, so the way from here to its address is interrupted"
		faults = append(faults, f)
	}
	udp, tcp, tls := g.Listeners[0], g.Listeners[1], g.Listeners[2]
	for _, l := range g.Listeners {
		for i, at := range l.Addresses() {
			network := l.Config().Network()
			f := input(fmt.Sprintf("a firewall drops the packets of listener %s over IPv%d", l.Name, 4+2*i),
				fmt.Sprintf("%s daddr %s %s dport %d drop", family(at), at.Addr(), network, l.Port()))
			f.severity, f.field = "warning", "spec.listeners["+l.Name+"]"
			f.problem = fmt.Sprintf("no answer over IPv%d from %s/%s", 4+2*i, at, network)
			faults = append(faults, f)
		}
	}

	var ports []string
	for _, l := range g.Listeners {
		ports = append(ports, fmt.Sprint(l.Port()))
	}
	long := fmt.Sprintf("meta length > 1200 th %%s { %s } drop", strings.Join(ports, ", "))
	f := input("the way to the gateway loses long packets", fmt.Sprintf(long, "dport"))
	f.severity, f.field = "error", "spec.listeners"
	f.problem = "long packets are lost between here and the Gateway, and short ones are not"
	faults = append(faults, f)

	f = input("the way to the gateway loses long packets over IPv4", "meta nfproto ipv4 "+fmt.Sprintf(long, "dport"))
	f.severity, f.field = "warning", "spec.listeners"
	f.problem = fmt.Sprintf("8 of 8 requests of 1232 bytes to %s:%d/udp", v4, udp.Port())
	faults = append(faults, f)

	f = input("the way to the gateway loses packets", fmt.Sprintf("udp dport %d numgen random mod 100 < 30 drop", udp.Port()))
	f.severity, f.field = "warning", "spec.listeners[udp]"
	f.problem = "packets are lost between here and the Gateway, so that calls stutter"
	faults = append(faults, f)

	f = input("a firewall rejects connections", fmt.Sprintf("ip daddr %s tcp dport %d reject with tcp reset", v4, tcp.Port()))
	f.severity, f.field, f.problem = "warning", "spec.listeners[tcp]", "refuses the connection over IPv4"
	faults = append(faults, f)

	f = fault{name: "answers are lost on the way back", object: gateway, severity: "warning", field: "spec.listeners[udp]",
		problem: "no answer over IPv4"}
	f.make, f.undo = rules(host.Space, fmt.Sprintf(
		"chain output { type filter hook output priority filter;\nip saddr %s udp sport %d drop\n}", v4, udp.Port()))
	faults = append(faults, f)

	f = input("the dataplane receives nothing", fmt.Sprintf("udp dport %d drop", udp.Port()))
	f.severity, f.object, f.field, f.problem = "error", dataplane, "listener udp", "does not answer directly"
	faults = append(faults, f)

	for i, name := range []string{"IPv4", "IPv6"} {
		peer := udp.Peers()[i]
		f = fault{name: "the media server is dead over " + name, object: "UDPRoute " + g.ID() + "-first", severity: "info",
			field: "spec.rules[].backendRefs", problem: peer.String() + " (3 sent, 0 returned)"}
		family := []string{"ip", "ip6"}[i]
		f.make, f.undo = rules(e.Net.Peers, fmt.Sprintf(
			"chain input { type filter hook input priority filter;\n%s daddr %s udp dport %d drop\n}", family, peer.Addr(), peer.Port()))
		faults = append(faults, f)
	}

	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("not the secret of the gateway"), 0o600); err != nil {
		t.Fatal(err)
	}
	faults = append(faults, mediaFaults(t, e, udp)...)
	for _, l := range []*env.Listener{tls, g.Listeners[3]} {
		faults = append(faults, certificates(t, e, l, "spec.listeners["+l.Name+"].tls.certificateRefs")...)
	}
	for i := range faults {
		faults[i].onlyPackets = true
	}
	// This fault is the last one, because the pod reports the refusals for some minutes.
	return append(faults, fault{
		name: "another shared secret", lasts: true, args: []string{"--secret-file", secret}, object: gateway, severity: "error",
		field: "spec.authRef", problem: "error 401",
	})
}
