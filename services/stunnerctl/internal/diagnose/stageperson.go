package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// peerRules check whether clients may reach the peer that `why` was asked about, in the running pods.
var peerRules = []Rule{
	{"pods allow the peer", func(s *Snapshot, g *Gateway) (found []Finding) {
		answers := decoded[inspection.Reach](g.Live.Reach)
		if len(answers) == 0 {
			problem := cmp.Or(g.Live.Errors["reach"], s.Unreachable, "no pod has answered")
			return []Finding{{
				Severity: Warning, Object: ref("Gateway", g), Field: "peer " + s.Asked.Peer,
				Problem: "it is unknown whether clients reach the peer: " + problem,
				Remedy:  "see the connection of the pods to the operator", Command: s.operatorPods(),
			}}
		}
		denied, allowed := map[string]inspection.ListenerReach{}, map[string]bool{}
		in := map[string][]string{}
		for _, a := range answers {
			for _, l := range a.Body.Listeners {
				if l.Allowed {
					allowed[l.Listener] = true
					continue
				}
				denied[l.Listener] = l
				in[l.Listener] = append(in[l.Listener], a.Pod)
			}
		}
		for _, name := range slices.Sorted(keys(denied)) {
			l := denied[name]
			f := Finding{
				Severity: Error, Object: g.routeFor(ref("Gateway", g)), Field: causeOf(l.Reason).field,
				Problem: fmt.Sprintf(
					"listener %s: %s: %s",
					lastPart(name),
					l.Reason,
					l.Text,
				), Remedy: causeOf(l.Reason).remedy,
				Command: fmt.Sprintf("kubectl get udproutes.%s -A -o wide", ownAPI),
			}
			switch {
			case allowed[name]:
				f.Severity = Warning
				f.Problem += fmt.Sprintf(" (only in %s: it has another config than the other pods)", few(in[name]))
				f.Remedy = "see the stage config"
			case len(allowed) > 0:
				f.Severity = Warning
			}
			found = append(found, f)
		}
		return found
	}},
}

func peerFact(s *Snapshot, g *Gateway) string {
	for _, a := range decoded[inspection.Reach](g.Live.Reach) {
		for _, l := range a.Body.Listeners {
			if l.Allowed {
				return fmt.Sprintf("%s allowed by route %s, endpoint %s", s.Asked.Peer, l.Cluster, l.Endpoint)
			}
		}
	}
	return s.Asked.Peer + " is not allowed"
}

// personRules check the sessions, refusals and credentials of a user or of a client.
var personRules = []Rule{
	{"the person has a call", func(s *Snapshot, g *Gateway) []Finding {
		for _, list := range []struct{ name, right string }{{"sessions", "sessions"}, {"refusals", "refusals"}} {
			if text := g.Live.Errors[list.name]; text != "" {
				return []Finding{{
					Severity: Warning, Object: ref("Gateway", g), Field: list.name,
					Problem: "cannot be read: " + text, Remedy: "bind ClusterRole stunner-viewer in namespace " + g.Namespace,
					Command: fmt.Sprintf("kubectl auth can-i get gateways/%s -n %s", list.right, g.Namespace),
				}}
			}
		}
		if len(g.Refusals) > 0 &&
			(g.sessions() == 0 || g.Refusals[0].Reason == "peer_denied" || g.Refusals[0].Reason == "port_denied") {
			r := g.Refusals[0]
			f := s.refused(g, r, r.Times)
			f.Problem = fmt.Sprintf("%s was refused: %s", s.person(), f.Problem)
			f.Command = fmt.Sprintf("stunnerctl refusals %s/%s%s", g.Namespace, g.Name, s.personFlags())
			if g.sessions() > 0 {
				f.Severity = Warning
			}
			return []Finding{f}
		}
		if g.sessions() > 0 {
			return nil
		}
		return s.noSession(g)
	}},
}

// noSession returns the finding for a person without sessions and refusals.
func (s *Snapshot) noSession(g *Gateway) []Finding {
	f := Finding{
		Severity: Error, Object: ref("Gateway", g), Field: "sessions",
		Problem: s.person() + " has no call, and no pod has refused a request: the client has not reached the Gateway",
		Remedy:  "check the TURN URL of the client, and that its network reaches the address and port: try TURN-TCP or TURN-TLS on 443",
		Command: fmt.Sprintf("stunnerctl icetest %s/%s", g.Namespace, g.Name),
	}
	if s.Asked.User == "" || g.Live.Grants == nil {
		return []Finding{f}
	}
	grants := g.grants()
	incomplete := len(decoded[inspection.GrantList](g.Live.Grants)) == 0 || len(silent(g.Live.Grants)) > 0
	if len(grants) == 0 && incomplete {
		return []Finding{f} // an auth service that does not answer may have given a credential
	}
	switch {
	case len(grants) == 0:
		f.Object, f.Field = "auth service", "grants"
		f.Problem = s.person() + " has no call, and the auth service has given no credential to this user"
		f.Remedy = "let the app request ICE servers from the auth service for this user, and see its answer there"
		f.Command = fmt.Sprintf("stunnerctl auth %s/%s%s", g.Namespace, g.Name, s.personFlags())
	case !grants[0].Expires.IsZero() && grants[0].Expires.Before(s.reference()):
		f.Field = "credential"
		f.Problem = fmt.Sprintf(
			"%s has no call, and the last credential expired %s ago",
			s.person(),
			span(s.reference().Sub(grants[0].Expires)),
		)
		f.Remedy = "get a new credential for each call, or raise authLifetime of the GatewayConfig"
	default:
		f.Problem += fmt.Sprintf(
			"; the auth service gave a credential %s ago",
			span(max(s.reference().Sub(grants[0].Time), 0)),
		)
	}
	return []Finding{f}
}

// grants returns the credentials that auth services gave to the person, the newest first.
func (g *Gateway) grants() (all []inspection.Grant) {
	for _, a := range decoded[inspection.GrantList](g.Live.Grants) {
		all = append(all, a.Body.Grants...)
	}
	slices.SortStableFunc(all, func(a, b inspection.Grant) int { return b.Time.Compare(a.Time) })
	return all
}

// sessions returns the number of sessions of the person.
func (g *Gateway) sessions() (n int) {
	for _, a := range decoded[inspection.SessionList](g.Live.Sessions) {
		n += a.Body.Total
	}
	return n
}

// person describes the person that `why` was asked about.
func (s *Snapshot) person() string {
	var parts []string
	if s.Asked.User != "" {
		parts = append(parts, "user "+s.Asked.User)
	}
	if s.Asked.Client != "" {
		parts = append(parts, "client "+s.Asked.Client)
	}
	return strings.Join(parts, " at ")
}

func (s *Snapshot) personFlags() (flags string) {
	if s.Asked.User != "" {
		flags += " --user " + s.Asked.User
	}
	if s.Asked.Client != "" {
		flags += " --client " + s.Asked.Client
	}
	return flags
}

func personFact(s *Snapshot, g *Gateway) string {
	fact := count(g.sessions(), "call")
	for _, a := range decoded[inspection.SessionList](g.Live.Sessions) {
		for _, one := range a.Body.Sessions {
			fact += fmt.Sprintf(", over %s in pod %s for %s", lastPart(one.Listener), a.Pod, one.Age)
			break
		}
	}
	if grants := g.grants(); len(grants) > 0 {
		fact += fmt.Sprintf("; credential of %s", grants[0].Time.UTC().Format("15:04:05 MST"))
		if !grants[0].Expires.IsZero() {
			fact += " until " + grants[0].Expires.UTC().Format("2006-01-02 15:04 MST")
		}
	}
	return s.person() + ": " + fact
}
