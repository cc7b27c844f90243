package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// mediaFaults are faults of the first media server of a listener, and of the path between it and the gateway.
func mediaFaults(t *testing.T, e *env.Env, l *env.Listener) (faults []fault) {
	route := "UDPRoute " + l.Gateway.ID() + "-first"
	peers := l.Peers()
	peer := peers[0]
	to := fmt.Sprintf("%s daddr %s udp dport %d", family(peer), peer.Addr(), peer.Port())
	from := fmt.Sprintf("%s saddr %s udp sport %d", family(peer), peer.Addr(), peer.Port())
	add := func(name, severity, problem, text string) {
		f := fault{name: name, object: route, severity: severity, field: "spec.rules[].backendRefs", problem: problem}
		f.make, f.undo = rules(e.Net.Peers, text)
		faults = append(faults, f)
	}
	chain := func(hook, rule string) string {
		return fmt.Sprintf("chain faulty { type filter hook %s priority raw;\n%s\n}", hook, rule)
	}
	redirect := func(port int) string {
		return fmt.Sprintf("chain faulty { type nat hook prerouting priority dstnat;\n%s redirect to :%d\n}", to, port)
	}
	add("the media server listens on another port", "info",
		fmt.Sprintf("backend %s: nothing listens on the port, or a firewall or a router rejects the packets", peer), redirect(9))
	add("a firewall rejects what the gateway sends", "info",
		fmt.Sprintf("backend %s: nothing listens on the port, or a firewall or a router rejects the packets", peer),
		"chain faulty { type filter hook input priority filter;\n"+to+" reject with icmpx admin-prohibited\n}")
	add("the media server answers from another address", "warning",
		fmt.Sprintf("%s (3 sent, 0 returned), and packets from %s instead", peer, netip.AddrPortFrom(e.Net.Peer(7)[0], peer.Port())),
		chain("output", from+" notrack ip saddr set "+e.Net.Peer(7)[0].String()))
	add("the media server answers from another port", "warning",
		fmt.Sprintf("no answer from %s (3 sent, 0 returned), and packets from %s instead", peer, netip.AddrPortFrom(peer.Addr(), peer.Port()+1)),
		chain("output", fmt.Sprintf("%s notrack udp sport set %d", from, peer.Port()+1)))
	add("the media server refuses ICE", "info", fmt.Sprintf("%s (error 401) refuses a connectivity check", peer), redirect(refusing(t, e.Net.Peers)))
	add("a firewall drops what the gateway sends", "info", peer.String()+" (3 sent, 0 returned)", chain("input", to+" drop"))
	add("the way to the media server loses long packets", "warning",
		fmt.Sprintf("backend %s: 3 of 3 short datagrams returned through the gateway, and none of 3", peer),
		chain("input", "meta length > 1200 "+to+" drop"))
	add("the way to the media server loses packets", "warning",
		fmt.Sprintf("backend %s: ", peer), chain("input", to+" numgen random mod 100 < 30 drop"))
	add("the way from the media server loses long packets", "warning",
		fmt.Sprintf("backend %s: 3 of 3 short datagrams returned through the gateway, and none of 3", peer),
		chain("output", "meta length > 1200 "+from+" drop"))
	return faults
}

// family returns the name of the family of an address in nftables.
func family(a netip.AddrPort) string {
	if a.Addr().Is6() {
		return "ip6"
	}
	return "ip"
}

// refusing starts a media server that answers connectivity checks with error 401, and returns its port.
func refusing(t *testing.T, in *netns.Space) (port int) {
	t.Helper()
	var conn *net.UDPConn
	var err error
	in.Do(func() { conn, err = net.ListenUDP("udp", nil) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			request := &stun.Message{}
			if stun.Decode(buf[:n], request) != nil {
				continue
			}
			answer, err := stun.Build(request, stun.NewType(stun.MethodBinding, stun.ClassErrorResponse), stun.CodeUnauthorized)
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(answer.Raw, from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).Port
}
