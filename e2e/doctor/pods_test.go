package doctor

import (
	"fmt"
	"testing"
)

// faultsOfPods are faults of load balancers and pods.
func faultsOfPods(t *testing.T, p *installation) []fault {
	e, g := p.Env, p.Gateways[0]
	udp := g.Listeners[0]
	at := udp.Addresses()[0]
	dataplanes, err := g.Dataplanes()
	if err != nil || len(dataplanes) != 3 {
		t.Fatal(len(dataplanes), err)
	}
	one := fault{
		name: "one pod of three is dead", onlyPackets: true, severity: "error", object: "Pod " + g.Namespace + "/" + dataplanes[0].Name,
		field: "listener udp", problem: "does not answer directly", also: "Gateway " + g.ID(),
	}
	one.make, one.undo = rules(dataplanes[0].Net.Space, fmt.Sprintf(
		"chain input { type filter hook input priority filter;\nudp dport %d drop\n}", udp.Port()))
	balancer := fault{
		name: "the load balancer drops UDP", onlyPackets: true, severity: "error", object: "Gateway " + g.ID(),
		field: "spec.listeners[udp]", problem: "3 of 3 pods answer directly, so the way from here to them is interrupted",
	}
	drop := fmt.Sprintf("chain before { type filter hook prerouting priority -350;\nip daddr %s udp dport %d drop\n}", at.Addr(), at.Port())
	var undo []func(*testing.T)
	var set []func(*testing.T)
	for _, n := range e.Net.Nodes {
		make, end := rules(n.Space, drop)
		set, undo = append(set, make), append(undo, end)
	}
	balancer.make, balancer.undo = each(set), each(undo)
	faults := []fault{one, balancer}
	for _, l := range g.Listeners {
		f := fault{
			name: "the load balancer sends to a port on which nothing listens: " + l.Name, onlyPackets: true, severity: "error",
			object: "Gateway " + g.ID(), field: "spec.listeners[" + l.Name + "]",
			problem: "refuses the connection over IPv4: nothing listens there, or a load balancer has no pod for the port",
		}
		var set, undo []func(*testing.T)
		for _, n := range e.Net.Nodes {
			make, end := rules(n.Space, fmt.Sprintf("chain first { type nat hook prerouting priority dstnat - 5;\n"+
				"ip daddr %s %s dport %d dnat ip to %s:9\n}", at.Addr(), l.Config().Network(), at.Port(), dataplanes[0].Net.Addrs[0]))
			set, undo = append(set, make), append(undo, end)
		}
		f.make, f.undo = each(set), each(undo)
		faults = append(faults, f)
	}
	return faults
}

// faultsOfNAT are faults of a NAT between clients and pods.
func faultsOfNAT(_ *testing.T, p *installation) []fault {
	e, g := p.Env, p.Gateways[0]
	f := fault{
		name: "the NAT loses the answers", onlyPackets: true, severity: "error", object: "Gateway " + g.ID(),
		field: "spec.listeners[udp]", problem: "1 of 1 pods answer directly, so the way from here to them is interrupted",
	}
	var set, undo []func(*testing.T)
	for _, n := range e.Net.Nodes {
		// The rule drops only answers of connections to the address of the load balancer.
		make, end := rules(n.Space, fmt.Sprintf(
			"chain forward { type filter hook forward priority filter;\nct direction reply ct status dnat udp sport %d drop\n}",
			g.Listeners[0].Port()))
		set, undo = append(set, make), append(undo, end)
	}
	f.make, f.undo = each(set), each(undo)

	short := fault{
		name: "the NAT forgets a client that pauses", onlyPackets: true, severity: "warning", object: "Gateway " + g.ID(),
		field: "spec.listeners[udp]", problem: "forgets a client that sends nothing for 6 s",
	}
	make, undoRules := rules(e.Net.Router(), "chain faulty { type nat hook postrouting priority srcnat - 5;\n"+
		"ct status dnat meta l4proto udp masquerade fully-random\n}") // the next mapping has another port
	timeout := func(seconds int) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			if _, err := e.Net.Router().Exec(fmt.Sprintf("sysctl -q -w net.netfilter.nf_conntrack_udp_timeout=%d "+
				"net.netfilter.nf_conntrack_udp_timeout_stream=%[1]d", seconds)); err != nil {
				t.Error(err)
			}
		}
	}
	short.make, short.undo = each([]func(*testing.T){make, timeout(2)}), each([]func(*testing.T){undoRules, timeout(120)})

	down := fault{
		name: "the way from the gateway loses long packets", onlyPackets: true, severity: "error", object: "Gateway " + g.ID(),
		field: "spec.listeners", problem: "long packets are lost between here and the Gateway, and short ones are not",
	}
	down.make, down.undo = rules(e.Net.Router(), fmt.Sprintf("chain faulty { type filter hook forward priority filter;\n"+
		"meta length > 1200 th sport %d drop\n}", g.Listeners[0].Port()))
	return []fault{f, short, down}
}

// each calls functions one after another.
func each(all []func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		for _, f := range all {
			f(t)
		}
	}
}
