package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The last stages of a Gateway judge the packets that package probe has sent. They run after the rules on declarations
// and states, because these rules name the cause of a problem, and packets show only the effect.

// probed reports whether the user has requested packets.
func probed(s *Snapshot) bool { return s.Probes != nil }

// probe returns the result of the packets to the Gateway. It is empty if none were sent.
func (s *Snapshot) probe(g *Gateway) *Probe {
	if p := s.Probes[g.Namespace+"/"+g.Name]; p != nil {
		return p
	}
	return &Probe{Error: "no packets were sent"}
}

// reachRules check the answers to STUN Binding requests, which were sent to the public URLs and directly to the pods.
var reachRules = []Rule{
	{"pods answer directly", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, p := range s.probe(g).Pods {
			if !p.dead() || s.probe(g).secure(p.Listener) && s.probe(g).narrow() {
				continue
			}
			field := "health endpoint"
			if p.Listener != "" {
				field = "listener " + p.Listener
			}
			found = append(found, Finding{
				Severity: Error, Object: objectName("Pod", g.Namespace, p.Pod), Field: field,
				Problem: "does not answer directly, past load balancers and public addresses, so it is dead, and not only the way to it: " +
					cmp.Or(p.Detail, string(p.Result)),
				Remedy:  "see its log; if it does not recover, delete the pod",
				Command: fmt.Sprintf("kubectl logs -n %s %s --tail=20", g.Namespace, p.Pod),
			})
		}
		return found
	}},
	{"public URLs answer", func(s *Snapshot, g *Gateway) (found []Finding) {
		p := s.probe(g)
		for _, u := range p.URLs {
			if u.Result == ProbeUnroutable || u.Result == ProbeAnswered && (u.Answered == u.Sent || u.Train.lossy()) {
				continue
			}
			if alive, dead := p.direct(u.Listener); u.Result != ProbeAnswered && alive == 0 && dead > 0 {
				continue // a consequence of the pods that do not answer
			}
			if u.Secure && (u.Result == ProbeHandshake || u.Result == ProbeNoAnswer) && p.narrow() {
				continue // a handshake has long packets, too
			}
			f := Finding{
				Severity: s.severityOf(p, u), Object: ref("Gateway", g), Field: fmt.Sprintf("spec.listeners[%s]", u.Listener),
			}
			f.Problem, f.Remedy = u.problem()
			if e := s.evidence(g, p, u); e != "" {
				f.Problem += "; " + e
			}
			if others := g.balancers(); u.isNamed() && len(others) > 0 && !slices.Contains(others, u.Address.Addr().String()) {
				f.Problem += fmt.Sprintf("; the name %s leads to %s, and the load balancer has %s", u.Host, u.Address.Addr(), few(others))
				f.Remedy = fmt.Sprintf("correct the DNS record of %s, or set spec.addresses, unless a NAT or another load balancer leads from %s "+
					"to the Gateway; then %s",
					u.Host, u.Address.Addr(), f.Remedy)
			}
			found = append(found, f)
		}
		return found
	}},
	{"served certificates are valid", func(s *Snapshot, g *Gateway) (found []Finding) {
		seen := map[string]bool{}
		for _, u := range s.probe(g).URLs {
			if u.Certificate == nil {
				continue
			}
			for _, f := range s.served(g, u) {
				if key := f.Field + f.Problem; !seen[key] { // the other addresses serve the same certificate
					seen[key] = true
					f.Problem = u.at() + " serves " + f.Problem
					found = append(found, f)
				}
			}
		}
		return found
	}},
}

// isNamed reports whether the URL contains a host name, which resolves to the address.
func (u ProbedURL) isNamed() bool {
	_, err := netip.ParseAddr(u.Host)
	return err != nil && u.Address.IsValid()
}

// balancers returns the IP addresses of the load balancers of the Gateway.
func (g *Gateway) balancers() (all []string) {
	for _, svc := range g.Services {
		for _, i := range svc.Status.LoadBalancer.Ingress {
			if i.IP != "" && !slices.Contains(all, i.IP) {
				all = append(all, i.IP)
			}
		}
	}
	return all
}

// dead reports whether a pod was tested directly and has not answered.
func (p ProbedPod) dead() bool {
	return slices.Contains([]ProbeResult{ProbeNoAnswer, ProbeRefused, ProbeHandshake, ProbeNotSTUN}, p.Result)
}

// severityOf returns how serious it is that a URL does not answer. Clients try all addresses of a listener. From the
// host of the dataplanes, an address of another host need not be reachable, because many NATs do not send the packets
// back.
func (s *Snapshot) severityOf(p *Probe, u ProbedURL) Severity {
	elsewhere := slices.ContainsFunc(p.URLs, func(o ProbedURL) bool {
		return o.Listener == u.Listener && o.Result == ProbeAnswered
	})
	if elsewhere || s.behindNAT(u) {
		return Warning
	}
	return Error
}

func (s *Snapshot) behindNAT(u ProbedURL) bool {
	return s.Folder && len(s.HostAddresses) > 0 && u.Address.IsValid() &&
		!slices.Contains(s.HostAddresses, u.Address.Addr())
}

// direct returns how many direct tests of a listener were answered, and how many were not.
func (p *Probe) direct(listener string) (alive, dead int) {
	for _, t := range p.Pods {
		switch {
		case t.Listener != listener:
		case t.Result == ProbeAnswered:
			alive++
		case t.dead():
			dead++
		}
	}
	return alive, dead
}

// at returns the address of a URL with its transport, as in 192.0.2.1:3478/udp.
func (u ProbedURL) at() string { return u.Address.String() + "/" + u.Transport }

// tls returns the name of the security protocol of a URL.
func (u ProbedURL) tls() string {
	if u.Transport == "udp" {
		return "DTLS"
	}
	return "TLS"
}

// problem returns the problem of a URL, and the remedy.
func (u ProbedURL) problem() (problem, remedy string) {
	port := fmt.Sprintf("%s port %d", strings.ToUpper(u.Transport), u.Address.Port())
	of, addr := family(u.Address.Addr()), u.Address.Addr()
	way := fmt.Sprintf("let %s of %s pass, in both directions: firewall and security group of the nodes, the load balancer, "+
		"a NAT, and the network of this machine; a run from another network tells them apart", port, addr)
	switch u.Result {
	case ProbeAnswered:
		return fmt.Sprintf("%d of %d new connections over %s to %s got an answer", u.Answered, u.Sent, of, u.at()),
			"find the pod or the node to which the load balancer sends the others: take it out, or see its log and its firewall"
	case ProbeNoName:
		return fmt.Sprintf("the host name %s in the URL of clients is not resolved: %s", u.Host, cmp.Or(u.Detail, "no address")),
			fmt.Sprintf("create a DNS record for %s, or set spec.addresses of the Gateway", u.Host)
	case ProbeRefused:
		return fmt.Sprintf("%s refuses the connection over %s: nothing listens there, or a load balancer has no pod for the port",
				u.at(), of),
			fmt.Sprintf("compare %s with the ports of the Service and its endpoints; a firewall that rejects has the same effect", port)
	case ProbeHandshake:
		remedy = "let the load balancer pass connections of the port unchanged, or see tls.certificateRefs of the listener"
		if u.TLSAtBalancer {
			remedy = "see the certificate and the protocol of the port at the load balancer, which ends TLS; the listener serves TURN-TCP"
		}
		return fmt.Sprintf("the %s handshake with %s fails: %s", u.tls(), u.at(), strings.TrimPrefix(u.Detail, string(ProbeHandshake)+": ")),
			remedy
	case ProbeNotSTUN:
		return fmt.Sprintf("%s answers, and not with STUN: another program or a proxy of HTTP has the port", u.at()),
			fmt.Sprintf("let %s of %s lead to the pods of the Gateway", port, addr)
	}
	requests := "STUN Binding requests from " + count(u.Sent, "port")
	if u.Transport == "tcp" {
		requests = count(u.Sent, "connection attempt")
	} else if u.Secure {
		requests = "DTLS handshakes from " + count(u.Sent, "port")
	}
	problem = fmt.Sprintf("no answer over %s from %s to %s in %.0f s", of, u.at(), requests, u.Seconds)
	if u.Detail != "" && u.Detail != string(ProbeNoAnswer) {
		problem += " (" + strings.TrimPrefix(u.Detail, string(ProbeNoAnswer)+": ") + ")"
	}
	return problem, way
}

// evidence returns the state of the pods behind a URL that does not answer: they do not run, or the path to them is
// interrupted.
func (s *Snapshot) evidence(g *Gateway, p *Probe, u ProbedURL) string {
	if u.Result != ProbeNoAnswer && u.Result != ProbeRefused {
		return ""
	}
	pods := "the pods"
	if s.Folder {
		pods = "the dataplane"
	}
	alive, dead := p.direct(u.Listener)
	answered := slices.ContainsFunc(p.URLs, func(o ProbedURL) bool { return o.Listener == u.Listener && o.Result == ProbeAnswered })
	switch {
	case s.behindNAT(u) && alive > 0:
		return "the dataplane answers directly: the NAT is at fault, or does not let a host of its own network reach the address"
	case s.Folder && alive > 0:
		return "the dataplane answers directly, so the way from here to its address is interrupted"
	case alive > 0 && dead > 0:
		return fmt.Sprintf("%d of %d pods answer directly: the load balancer sends this machine to another one, or the way is interrupted",
			alive, alive+dead)
	case alive > 0:
		return fmt.Sprintf("%d of %d pods answer directly, so the way from here to them is interrupted", alive, alive+dead)
	case answered:
		return "the listener answers at another address, so " + pods + " serve it, and the way to this address is interrupted"
	}
	health := 0
	for _, t := range p.Pods {
		if t.Listener == "" && t.Result == ProbeAnswered {
			health++
		}
	}
	switch {
	case health > 0:
		return fmt.Sprintf("the health endpoint of %s answers directly, so the process lives, and likely the way to it is interrupted",
			count(health, "pod"))
	case len(g.Statuses) > 0:
		return pods + " answered the operator, so likely the way from here is interrupted"
	}
	return "whether " + pods + " live is unknown"
}

// served returns the findings about the certificate that was served at a URL, whose problems continue "ADDRESS serves".
func (s *Snapshot) served(g *Gateway, u ProbedURL) (found []Finding) {
	c := u.Certificate
	field := fmt.Sprintf("spec.listeners[%s].tls.certificateRefs", u.Listener)
	file, elsewhere := "tls.crt of the Secret", "; if that of the Secret is right, a proxy or a load balancer serves another"
	if u.TLSAtBalancer {
		field = fmt.Sprintf("spec.listeners[%s]", u.Listener)
		file, elsewhere = "the chain at the load balancer, which ends TLS", " at the load balancer, which ends TLS"
	}
	add := func(severity Severity, problem, remedy string) {
		found = append(found, Finding{Severity: severity, Object: ref("Gateway", g), Field: field, Problem: problem, Remedy: remedy})
	}
	now, date := s.reference(), "2006-01-02 15:04 MST"
	known := s.declared(g, u.Listener)
	switch {
	case now.After(c.NotAfter) && !known.expired:
		add(Error, "a certificate that expired on "+c.NotAfter.UTC().Format(date),
			"renew the certificate"+elsewhere)
	case now.Before(c.NotBefore) && !known.expired:
		add(Error, "a certificate that is not valid before "+c.NotBefore.UTC().Format(date), "correct the clock of its issuer, or wait")
	}
	if !c.NameMatches && !known.otherName {
		add(Error, fmt.Sprintf("a certificate for %s, and clients are told %s", cmp.Or(few(c.Names), "no name"), u.Host),
			fmt.Sprintf("use a certificate for %s%s", u.Host, elsewhere))
	}
	switch {
	case c.Trusted:
	case c.SelfSigned:
		if !known.selfSigned {
			add(Warning, "a self-signed certificate: browsers do not connect", "use a certificate of a CA that clients trust"+elsewhere)
		}
	case c.ExpiredIssuer != "":
		add(Error, "a chain with an expired certificate of "+c.ExpiredIssuer, "replace the certificate of this CA in "+file)
	case c.Sent == 1 && c.IssuerURL != "":
		add(Error, fmt.Sprintf("its certificate without the one of its issuer %s: clients that do not have it do not connect", c.Issuer),
			fmt.Sprintf("append the intermediate certificate to %s; it is published at %s", file, c.IssuerURL))
	default:
		add(Info, fmt.Sprintf("a certificate of %s, a CA that this machine does not know (%s sent)", c.Issuer, count(c.Sent, "certificate")),
			"if clients do not trust this CA, use another one; if it is an intermediate CA, append its certificate to "+file)
	}
	return found
}

// declaredCertificate contains the problems of a listener's certificate that earlier rules have reported from the
// answers of the pods.
type declaredCertificate struct{ expired, otherName, selfSigned bool }

func (s *Snapshot) declared(g *Gateway, listener string) (d declaredCertificate) {
	now := s.reference()
	for _, status := range g.Statuses {
		for _, l := range status.Listeners {
			if l.Certificate == nil || lastPart(l.Name) != listener {
				continue
			}
			for _, c := range l.AllCertificates() {
				d.expired = d.expired || now.After(c.NotAfter) || now.Before(c.NotBefore)
				d.selfSigned = d.selfSigned || c.SelfSigned
			}
			d.otherName = d.otherName || uncovered(l) != ""
		}
	}
	return d
}

func reachFact(s *Snapshot, g *Gateway) string {
	p := s.probe(g)
	answered, tested, unroutable := 0, 0, 0
	for _, u := range p.URLs {
		switch u.Result {
		case ProbeUnroutable:
			unroutable++
		case ProbeAnswered:
			answered++
			tested++
		default:
			tested++
		}
	}
	switch {
	case p.Error != "":
		return notChecked + ": " + p.Error
	case tested == 0 && unroutable > 0:
		return fmt.Sprintf("%s: this machine has no route to %s of clients", notChecked, count(unroutable, "URL"))
	case tested == 0:
		return notChecked + ": clients are told no URL"
	}
	fact := fmt.Sprintf("%d of %s answer from here", answered, count(tested, "URL"))
	if unroutable > 0 {
		fact += fmt.Sprintf("; %d cannot be tested, because this machine has no route", unroutable)
	}
	if p.OmittedURLs > 0 {
		fact += fmt.Sprintf("; %d more were not tested", p.OmittedURLs)
	}
	if n := directly(p.Pods); n > 0 {
		fact += fmt.Sprintf("; %d answer directly", n)
	} else if why := p.untested(); why != "" {
		fact += "; pods were not tested directly: " + why
	}
	for _, u := range p.URLs {
		if t := u.Train; t.Returned > 0 {
			fact += fmt.Sprintf("; round trip %.0f ms, %s lost", t.Milliseconds, t.lost())
			break
		}
	}
	return fact + "; proves the way from this machine, not from other networks"
}

// untested returns why no pod was tested directly, or "".
func (p *Probe) untested() string {
	for _, t := range p.Pods {
		if t.dead() {
			return ""
		}
		if t.Result == ProbeFailed {
			return t.Detail
		}
	}
	return p.PodsUntested
}

// directly returns the number of pods that have answered directly.
func directly(all []ProbedPod) int {
	pods := map[string]bool{}
	for _, p := range all {
		if p.Result == ProbeAnswered {
			pods[p.Pod] = true
		}
	}
	return len(pods)
}

// allocationRules check the answers to Allocate requests.
var allocationRules = []Rule{
	{"allocations are made", func(s *Snapshot, g *Gateway) (found []Finding) {
		p := s.probe(g)
		var order []ProbedAllocation
		at := map[ProbedAllocation][]string{}
		for _, u := range p.URLs {
			if a := u.Allocation; a != nil && !a.Relay.IsValid() {
				if at[*a] == nil {
					order = append(order, *a)
				}
				at[*a] = append(at[*a], u.at())
			}
		}
		for _, a := range order {
			f := Finding{Severity: Error, Object: ref("Gateway", g), Field: "Allocate request"}
			where := " at " + few(at[a])
			switch c, known := allocateCauses[a.Code]; {
			case known:
				f.Field = cmp.Or(c.field, f.Field)
				f.Problem = fmt.Sprintf("%s%s (error %d), with a credential of %s", c.problem, where, a.Code, p.Credential)
				f.Remedy = c.remedy
				if a.Code == 486 {
					f.Severity = Warning // the problem concerns the user of the test only
				}
			case a.Code != 0:
				f.Problem = fmt.Sprintf("the request is refused%s with error %d, with a credential of %s", where, a.Code, p.Credential)
				f.Remedy = "see the refusals of the Gateway"
			default:
				f.Problem = fmt.Sprintf("STUN is answered%s, and the request for an allocation is not: %s", where, a.Error)
				f.Remedy = "see the logs of the pods, and what inspects packets on the way"
			}
			f.Command = fmt.Sprintf("stunnerctl refusals %s/%s", g.Namespace, g.Name)
			found = append(found, f)
		}
		return found
	}},
}

// allocateCauses are the error codes of Allocate requests (RFC 8489 §14.8, RFC 8656 §19).
var allocateCauses = map[int]struct{ field, problem, remedy string }{
	401: {
		"spec.authRef", "the shared secret, the password or the realm of the running pods is another one: a new credential is refused",
		"compare the Secret of the GatewayConfig with what gives credentials; a process that has the older secret is restarted",
	},
	403: {"", "allocations are forbidden", "see authType of the GatewayConfig: without credentials only STUN is served"},
	440: {"spec.addresses", "there is no relay address of the requested family", "give the pods addresses of both families"},
	442: {"", "the server does not relay UDP", "let the URL lead to the pods of the Gateway"},
	486: {"spec.userQuota", "the user of the test has as many allocations as userQuota admits", "try again when its allocations have ended"},
	508: {"capacity", "the gateway is full or drains", "add pods; see stunnerctl status"},
}

func allocationFact(s *Snapshot, g *Gateway) string {
	p := s.probe(g)
	var relays []string
	tried := 0
	for _, u := range p.URLs {
		if u.Allocation != nil {
			tried++
			if r := u.Allocation.Relay; r.IsValid() && !slices.Contains(relays, r.Addr().String()) {
				relays = append(relays, r.Addr().String())
			}
		}
	}
	switch {
	case p.Error != "":
		return notChecked + ": " + p.Error
	case p.CredentialError != "":
		return notChecked + ": no credential: " + p.CredentialError
	case tried == 0:
		return notChecked + ": no address answers"
	case len(relays) == 0:
		return fmt.Sprintf("no relay with a credential of %s", p.Credential)
	}
	return fmt.Sprintf("relays at %s with a credential of %s; proves the secret and the relay, not the credentials of an app",
		few(relays), p.Credential)
}

// listens is the remedy for a backend that does not answer, without an ICMP message about the reason.
const listens = "see whether it runs and listens on this UDP port, and whether NetworkPolicies and firewalls let the pods " +
	"reach it"

// packetRules check the answers of backends to datagrams through the Gateway.
var packetRules = []Rule{
	{"backends are allowed", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, b := range s.probe(g).Backends {
			if b.Result == ProbeDenied {
				found = append(found, b.finding(g, Error,
					fmt.Sprintf("the pods refuse the backend %s (error 403), which the published config allows", b.Peer),
					"see which rule refuses it; a pod with an older config is restarted"))
			}
		}
		return found
	}},
	{"backends answer", func(s *Snapshot, g *Gateway) (found []Finding) {
		all := s.probe(g).Backends
		for _, b := range all {
			problem := fmt.Sprintf("backend %s: %d datagrams sent through the gateway, %d returned", b.Peer, b.Sent, b.Returned)
			reported, remedy, isReported := b.unreached()
			switch {
			case isReported && b.Result == ProbeUndelivered && !(b.OnePort && others(all, b)):
				// A media server may open its port only during a call.
				found = append(found, b.finding(g, Info, reported, remedy))
			case isReported:
				found = append(found, b.finding(g, Warning, reported, remedy))
			case b.Elsewhere != "":
			case b.Result == ProbeFailed:
				found = append(found, b.finding(g, Info, fmt.Sprintf("backend %s was not tested: %s", b.Peer, b.Detail),
					"give the pods addresses of the family of the backend, if clients need it"))
			case b.Result == ProbeNoAnswer && b.OnePort && others(all, b):
				found = append(found, b.finding(g, Warning, problem+"; other backends of the route answer", listens))
			case b.Result == ProbeAnswered && b.Long.Sent > 0 && b.Long.Answered == 0:
				found = append(found, b.finding(g, Warning, fmt.Sprintf("backend %s: %d of %d short datagrams returned through the gateway, and "+
					"none of %d of %d bytes: long packets are lost between the pods and the backend", b.Peer, b.Returned, b.Sent, b.Long.Sent,
					b.Long.Bytes), widen))
			case b.Result == ProbeAnswered && b.Train.lossy() && !s.probe(g).lossyAt(b.Listener):
				found = append(found, b.finding(g, Warning, fmt.Sprintf("backend %s: %s are lost between the pods and the backend, so that calls "+
					"stutter", b.Peer, b.Train.lost()), lessLoss+"; and see the load of the media server"))
			}
		}
		found = append(found, answersFromElsewhere(g, all)...)
		found = append(found, backendsOf(all, func(b ProbedBackend) string {
			if b.Result != ProbeNoAnswer || b.Elsewhere != "" || b.OnePort && others(all, b) {
				return ""
			}
			return fmt.Sprintf("%s (%d sent, %d returned)", b.Peer, b.Sent, b.Returned)
		}, func(route, backends string) Finding {
			return ProbedBackend{Route: route}.finding(g, Info, "no answer through the gateway from "+backends+": a media server need not "+
				"answer STUN without the credentials of a call", "if calls have no media, "+listens)
		})...)
		return append(found, backendsOf(all, func(b ProbedBackend) string {
			if b.Code == 0 {
				return ""
			}
			return fmt.Sprintf("%s (error %d)", b.Peer, b.Code)
		}, func(route, backends string) Finding {
			return ProbedBackend{Route: route}.finding(g, Info, backends+" refuses a connectivity check without the credentials of a call, as "+
				"most media servers do: the way there and back works", "if calls have no media, see whether the app gives clients the ICE user "+
				"fragment and password of this media server, and its log")
		})...)
	}},
}

// lossyAt reports whether the way to a listener loses packets. Losses on the way to backends then have no meaning.
func (p *Probe) lossyAt(listener string) bool {
	return slices.ContainsFunc(p.URLs, func(u ProbedURL) bool { return u.Listener == listener && u.Train.lossy() })
}

// others reports whether another backend of the route has answered.
func others(all []ProbedBackend, b ProbedBackend) bool {
	return slices.ContainsFunc(all, func(o ProbedBackend) bool { return o.Route == b.Route && o.Result == ProbeAnswered })
}

// finding returns a finding about a backend, or about several of a route without Peer.
func (b ProbedBackend) finding(g *Gateway, severity Severity, problem, remedy string) Finding {
	f := Finding{
		Severity: severity, Object: "UDPRoute " + b.Route, Field: "spec.rules[].backendRefs", Problem: problem, Remedy: remedy,
	}
	if b.Peer.IsValid() {
		f.Command = fmt.Sprintf("stunnerctl can-reach %s/%s %s", g.Namespace, g.Name, b.Peer)
	}
	return f
}

func packetFact(s *Snapshot, g *Gateway) string {
	p := s.probe(g)
	answered := 0
	for _, b := range p.Backends {
		if b.Result == ProbeAnswered {
			answered++
		}
	}
	omitted := ""
	if p.OmittedBackends > 0 {
		omitted = fmt.Sprintf("; %d more were not tested (many, prefixes, or any port)", p.OmittedBackends)
	}
	switch {
	case p.Error != "":
		return notChecked + ": " + p.Error
	case len(p.Backends) == 0 && omitted != "":
		return notChecked + ": the backends are prefixes, host names, or have any port"
	case len(p.Backends) == 0:
		return notChecked + ": there is no allocation to send through"
	}
	return fmt.Sprintf("%d of %s answer datagrams through the gateway%s; an answer proves the whole way, silence does not disprove it",
		answered, count(len(p.Backends), "backend"), omitted)
}
