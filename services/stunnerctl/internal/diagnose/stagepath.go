package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// pathRules check how the network between clients and the Gateway handles long packets, if short ones are answered.
var pathRules = []Rule{
	{"long packets pass", func(s *Snapshot, g *Gateway) (found []Finding) {
		p := s.probe(g)
		narrow := slices.DeleteFunc(slices.Clone(p.URLs), func(u ProbedURL) bool { return !u.narrow() })
		if len(narrow) == 0 {
			return nil
		}
		f := Finding{
			Severity: Warning, Object: ref("Gateway", g), Field: listenersOf(narrow),
			Remedy: widen,
		}
		var lost []string
		for _, u := range narrow {
			lost = append(lost, fmt.Sprintf("%d of %d requests of %d bytes to %s", u.Long.Sent-u.Long.Answered, u.Long.Sent, u.Long.Bytes, u.at()))
			if !slices.ContainsFunc(p.URLs, func(o ProbedURL) bool { return o.Listener == u.Listener && o.Long.Passes() }) {
				f.Severity = Error
			}
		}
		f.Problem = "long packets are lost between here and the Gateway, and short ones are not, so calls connect and have no video: " +
			few(lost) + " got no answer"
		return []Finding{f}
	}},
	{"few packets are lost", func(s *Snapshot, g *Gateway) (found []Finding) {
		var lossy, slow []ProbedURL
		var lost, delays []string
		for _, u := range s.probe(g).URLs {
			if u.Train.lossy() {
				lossy, lost = append(lossy, u), append(lost, u.Train.lost()+" to "+u.at())
			}
			if u.Train.slow() {
				slow, delays = append(slow, u), append(delays, fmt.Sprintf("%.0f ms to %s", u.Train.Milliseconds, u.at()))
			}
		}
		if len(lossy) > 0 {
			found = append(found, Finding{
				Severity: Warning, Object: ref("Gateway", g), Field: listenersOf(lossy),
				Problem: "packets are lost between here and the Gateway, so that calls stutter: " + few(lost),
				Remedy:  lessLoss + "; a run from another network tells this machine's network from that of the Gateway",
			})
		}
		if len(slow) > 0 {
			found = append(found, Finding{
				Severity: Warning, Object: ref("Gateway", g), Field: listenersOf(slow),
				Problem: "packets to the Gateway and back take " + few(delays) + ", which is too long for a conversation",
				Remedy: "look for a full link with long queues on the way, such as an upload of this network, and for a Gateway nearer to " +
					"the clients",
			})
		}
		return found
	}},
	{"NATs keep mappings", func(s *Snapshot, g *Gateway) (found []Finding) {
		lost := slices.DeleteFunc(slices.Clone(s.probe(g).URLs), func(u ProbedURL) bool { return u.Mapping == nil })
		if len(lost) == 0 {
			return nil
		}
		var at []string
		for _, u := range lost {
			at = append(at, u.at())
		}
		m := lost[0].Mapping
		after := fmt.Sprintf("its address was %s before, and %s after", m.Before, m.After)
		if !m.After.IsValid() {
			after = fmt.Sprintf("its address was %s before, and it got no answer after", m.Before)
		}
		return []Finding{{
			Severity: Warning, Object: ref("Gateway", g), Field: listenersOf(lost),
			Problem: fmt.Sprintf("a NAT on the way to %s forgets a client that sends nothing for %.0f s (%s): calls end when their media pauses",
				few(at), m.Seconds, after),
			Remedy: "raise the timeout for UDP of the NAT, the firewall or the load balancer to 2 min or more (RFC 4787 section 4.3); on " +
				"Linux nf_conntrack_udp_timeout",
		}}
	}},
}

// lessLoss is the remedy for a path that loses packets.
const lessLoss = "look for a full, throttled or wireless link on the way, and for drops in the counters of its interfaces " +
	"(ip -s link), policers (tc -s qdisc) and connection tracking (dmesg)"

// widen is the remedy for a path that loses long packets.
const widen = "let ICMP \"fragmentation needed\" and ICMPv6 \"packet too big\" pass on the way, or set the MTU of its smallest link " +
	"on the interfaces of the sender: VPNs, tunnels and overlays have a smaller one than 1500"

// listenersOf returns the field of a listener if all URLs belong to it, or else the field of all listeners.
func listenersOf(all []ProbedURL) string {
	for _, u := range all {
		if u.Listener != all[0].Listener {
			return "spec.listeners"
		}
	}
	return fmt.Sprintf("spec.listeners[%s]", all[0].Listener)
}

// narrow reports whether long packets are lost, including long packets of a handshake.
func (p *Probe) narrow() bool { return slices.ContainsFunc(p.URLs, ProbedURL.narrow) }

// narrow reports whether more long packets than short packets to a URL are lost.
func (u ProbedURL) narrow() bool {
	return u.Long.Answered < u.Long.Sent && !(u.Train.lossy() && u.Long.Answered > 0)
}

// secure reports whether a listener has TLS or DTLS.
func (p *Probe) secure(listener string) bool {
	return slices.ContainsFunc(p.URLs, func(u ProbedURL) bool { return u.Listener == listener && u.Secure })
}

// unreached returns the problem of a backend that has returned no datagram, according to the ICMP message about it, and
// the remedy. ok is false if there was no ICMP message.
func (b ProbedBackend) unreached() (problem, remedy string, ok bool) {
	switch b.Result {
	case ProbeRefused:
		problem = "its host reports that nothing listens on the port"
		remedy = "start the media server, or correct the port: it does not run, or listens on another UDP port"
	case ProbeRejected:
		problem = "a firewall between the pods and the backend, or at its host, rejects the packets"
		remedy = "let UDP from the pods to this address and port pass: see NetworkPolicies and the firewalls of the media server"
	case ProbeUnreachable:
		problem = "a router reports that the host is not reached"
		remedy = "see whether the host of the media server runs and has this address, and the routes of the nodes to it"
	case ProbeUndelivered:
		return fmt.Sprintf("backend %s: nothing listens on the port, or a firewall or a router rejects the packets: ICMP messages report "+
				"to the gateway that they are not delivered", b.Peer),
			"start the media server, or correct its port; if it runs, let UDP from the pods to this address and port pass, and see the routes", true
	default:
		return "", "", false
	}
	return fmt.Sprintf("backend %s: %s (%s)", b.Peer, problem, b.Detail), remedy, true
}

// backendsOf groups the selected backends by route, and returns one finding for each route. words describes a backend.
func backendsOf(all []ProbedBackend, words func(ProbedBackend) string, finding func(route, backends string) Finding) (found []Finding) {
	of := map[string][]string{}
	for _, b := range all {
		if text := words(b); text != "" {
			of[b.Route] = append(of[b.Route], text)
		}
	}
	for _, route := range slices.Sorted(keys(of)) {
		found = append(found, finding(route, few(of[route])))
	}
	return found
}

// answersFromElsewhere returns findings about backends whose answers arrive from another address.
func answersFromElsewhere(g *Gateway, all []ProbedBackend) []Finding {
	from := map[string][]string{} // by route
	return backendsOf(all, func(b ProbedBackend) string {
		if b.Result != ProbeNoAnswer || b.Elsewhere == "" {
			return ""
		}
		if !slices.Contains(from[b.Route], b.Elsewhere) {
			from[b.Route] = append(from[b.Route], b.Elsewhere)
		}
		return fmt.Sprintf("%s (%d sent, 0 returned)", b.Peer, b.Sent)
	}, func(route, backends string) Finding {
		return ProbedBackend{Route: route}.finding(g, Warning,
			fmt.Sprintf("no answer from %s, and packets from %s instead, which calls do not receive because they send nothing there: the "+
				"media server answers from another address or port", backends, strings.Join(from[route], ", ")),
			"make the media server send from the address to which clients send: bind its socket to it, correct its source routes or "+
				"its NAT, or name the other address in the candidates of the app and in the route")
	})
}
