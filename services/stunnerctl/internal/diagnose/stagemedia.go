package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// mediaRules compare the packets that calls send to peers with the packets that they receive.
var mediaRules = []Rule{
	{"peers answer", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, r := range g.media().Routes {
			if r.Silent > 0 {
				found = append(found, g.silentRoute(r))
			}
		}
		return found
	}},
	{"routes allow the peers of calls", func(s *Snapshot, g *Gateway) []Finding {
		var denied []inspection.DeniedPeer
		failed := 0
		for _, d := range g.media().Denied {
			if d.Failed > 0 {
				denied = append(denied, d)
				if s.reference().Sub(d.Last) <= ongoing {
					failed = max(failed, d.Failed)
				}
			}
		}
		if len(denied) == 0 {
			return nil
		}
		f := Finding{
			Severity: Info, Object: g.routeFor(ref("Gateway", g)), Field: causeOf(denied[0].Reason).field,
			Problem: s.deniedProblem(denied), Remedy: causeOf(denied[0].Reason).remedy,
			Command: fmt.Sprintf("stunnerctl can-reach %s/%s %s", g.Namespace, g.Name, denied[0].Peer),
		}
		if failed >= manyClients {
			f.Severity = Warning
		}
		return []Finding{f}
	}},
	{"calls send media", func(_ *Snapshot, g *Gateway) []Finding {
		m := g.media()
		if m.Calls < manyClients || m.Unused < m.Calls {
			return nil
		}
		return []Finding{{
			Severity: Info, Object: ref("Gateway", g), Field: "media",
			Problem: fmt.Sprintf("none of the %s has sent a packet to a peer", count(m.Calls, "call")),
			Remedy: "if the calls have no media, see whether the app passes the candidates of the media server to its clients, " +
				"and whether they are of the address family of the relay",
			Command: fmt.Sprintf("stunnerctl sessions %s/%s", g.Namespace, g.Name),
		}}
	}},
}

// media returns the packet counts of the calls in all dataplanes.
func (g *Gateway) media() inspection.Media {
	var all []*inspection.Media
	for _, s := range g.Statuses {
		all = append(all, s.Media)
	}
	return inspection.MergeMedia(all...)
}

// ongoing is the maximum age of a denial that counts as still happening. Since an older denial, the route may have been
// corrected, or a call with a peer of a former route may have ended.
const ongoing = 30 * time.Second

// fewSilent is a divisor of the number of calls of a route. If less than this part of the calls is silent, the finding
// is an info: a client that leaves a call may still send to a media server that has already ended the call.
const fewSilent = 10

// silentRoute returns the finding of a route whose peers send nothing back to some calls. A peer may only receive, so
// that it is an error only if no call gets packets, and ICMP messages report why.
func (g *Gateway) silentRoute(r inspection.RouteMedia) Finding {
	f := Finding{
		Severity: Warning, Object: g.routeNamed(r.Cluster), Field: "spec.rules[].backendRefs",
		Problem: fmt.Sprintf(
			"%d of %s and get nothing back from %s (peer %s: %s sent, %d received before)", r.Silent, sending(r.Sending),
			r.Cluster, r.Peer, count(int(r.Sent), "packet"), r.Received,
		),
		Remedy: "let UDP pass between the dataplane and the media server in both directions, and start the media server: " +
			"see firewalls, NetworkPolicies and its log; if it only receives media, this is no fault",
		Command: fmt.Sprintf("stunnerctl sessions %s/%s -o wide", g.Namespace, g.Name),
	}
	switch {
	case r.Unreachable > 0:
		f.Problem += fmt.Sprintf("; ICMP errors report to %s that packets are not delivered", count(r.Unreachable, "call"))
		f.Remedy = "start the media server, or correct its port in the app: its host or a router rejects the packets"
		if r.Unreachable == r.Sending {
			f.Severity = Error
		}
	case r.Stopped == r.Silent:
		f.Remedy = "see whether the media server and its node still run, and whether a firewall has changed since"
	}
	if r.Silent*fewSilent < r.Sending {
		f.Severity = Info
	}
	return f
}

// sending returns "1 call send" or "N calls send", for a number of them.
func sending(n int) string { return count(n, "call") + " send" }

// routeNamed returns the route of a cluster as an object. If there is none, it returns the Gateway.
func (g *Gateway) routeNamed(cluster string) string {
	namespace, name, ok := strings.Cut(cluster, "/")
	if ok && !strings.Contains(name, "/") {
		return objectName("UDPRoute", namespace, name)
	}
	return ref("Gateway", g)
}

// mostDenied is the number of denied peers that a finding names.
const mostDenied = 3

// deniedProblem describes denied peers.
func (s *Snapshot) deniedProblem(denied []inspection.DeniedPeer) string {
	var parts []string
	for _, d := range denied[:min(len(denied), mostDenied)] {
		why := "no route allows it"
		if d.Reason == "port_denied" {
			why = "a route allows the address, but not this port"
		}
		parts = append(parts, fmt.Sprintf("%s was denied to %s, of which %d got no media: %s (last %s ago)",
			d.Peer, count(d.Calls, "call"), d.Failed, why, span(max(s.reference().Sub(d.Last), 0))))
	}
	if more := len(denied) - mostDenied; more > 0 {
		parts = append(parts, fmt.Sprintf("and %s", count(more, "further peer")))
	}
	return strings.Join(parts, "; ")
}

func mediaFact(_ *Snapshot, g *Gateway) string {
	known := slices.ContainsFunc(g.Statuses, func(s *inspection.Status) bool { return s.Media != nil })
	switch {
	case len(g.Statuses) == 0:
		return notChecked + ": no pod has answered"
	case !known:
		return notChecked + ": the pods do not report it"
	}
	m, sends, silent := g.media(), 0, 0
	for _, r := range m.Routes {
		sends, silent = sends+r.Sending, silent+r.Silent
	}
	fact := fmt.Sprintf("%d of %s to peers, %d without an answer", sends, sending(m.Calls), silent)
	if n := len(m.Denied); n > 0 {
		fact += fmt.Sprintf("; %s denied", count(n, "peer"))
	}
	return fact
}
