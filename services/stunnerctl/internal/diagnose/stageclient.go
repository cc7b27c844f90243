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
			return []Finding{s.unknown(g, "peer "+s.Asked.Peer, "whether clients reach the peer", "reach")}
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

// unknown is the finding if no pod has answered a question of the command line.
func (s *Snapshot) unknown(g *Gateway, field, question, subject string) Finding {
	f := Finding{
		Severity: Warning, Object: ref("Gateway", g), Field: field,
		Problem: fmt.Sprintf("it is unknown %s: %s", question, s.notAsked(g, subject)),
		Remedy:  "see the connection of the pods to the operator", Command: s.operatorPods(),
	}
	switch {
	case isDenied(g.Live.Errors[subject]):
		f.Remedy = "ask an administrator to bind ClusterRole stunner-viewer to you in namespace " + g.Namespace
		f.Command = fmt.Sprintf("kubectl auth can-i get %s -n %s", rightFor(subject), g.Namespace)
	case g.Live.Errors[subject] != "":
		f.Remedy, f.Command = "see the log of the operator", s.operatorLog()
	case s.Unreached != nil:
		f.Remedy = cmp.Or(s.Unreached.Remedy, f.Remedy)
	}
	return f
}

// isDenied reports whether the operator has refused a request because the user lacks a right.
func isDenied(text string) bool {
	return strings.Contains(text, "bind ClusterRole") || strings.Contains(text, "forbidden")
}

// rightFor returns the resource whose get a request to the operator needs.
func rightFor(subject string) string {
	if subject == "sessions" || subject == "refusals" {
		return "gateways/" + subject
	}
	return "gateways"
}

func peerFact(s *Snapshot, g *Gateway) string {
	answers := decoded[inspection.Reach](g.Live.Reach)
	if len(answers) == 0 {
		return notChecked + ": no pod has answered"
	}
	for _, a := range answers {
		for _, l := range a.Body.Listeners {
			if l.Allowed {
				return fmt.Sprintf("%s allowed by route %s, endpoint %s", s.Asked.Peer, l.Cluster, l.Endpoint)
			}
		}
	}
	return s.Asked.Peer + " is not allowed"
}

// clientRules check the sessions, refusals and credentials of a user or of a client.
var clientRules = []Rule{
	{"the client has a call", func(s *Snapshot, g *Gateway) []Finding {
		if subject := g.missingAnswer(); subject != "" {
			return []Finding{s.unknown(g, subject, "whether "+s.client()+" has a call", subject)}
		}
		if len(g.Refusals) > 0 &&
			(g.sessions() == 0 || g.Refusals[0].Reason == "peer_denied" || g.Refusals[0].Reason == "port_denied") {
			r := g.Refusals[0]
			f := s.refused(g, r, r.Times)
			f.Problem = fmt.Sprintf("%s was refused: %s", s.client(), f.Problem)
			f.Command = fmt.Sprintf("stunnerctl refusals %s/%s%s", g.Namespace, g.Name, s.clientFlags())
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

// missingAnswer returns which of the lists of a client no pod has answered, or "".
func (g *Gateway) missingAnswer() string {
	switch {
	case len(decoded[inspection.SessionList](g.Live.Sessions)) == 0:
		return "sessions"
	case len(decoded[inspection.RefusalList](g.Live.Refusals)) == 0:
		return "refusals"
	}
	return ""
}

// noSession returns the finding for a user or client without sessions and refusals.
func (s *Snapshot) noSession(g *Gateway) []Finding {
	f := Finding{
		Severity: Error, Object: ref("Gateway", g), Field: "sessions",
		Problem: s.client() + " has no call, and no pod has refused a request: the client has not reached the Gateway",
		Remedy:  "check the TURN URL of the client, and that its network reaches the address and port: try TURN-TCP or TURN-TLS on 443",
		Command: fmt.Sprintf("stunnerctl icetest %s/%s", g.Namespace, g.Name),
	}
	if n := len(silent(g.Live.Sessions)); n > 0 {
		f.Severity = Warning
		f.Problem = fmt.Sprintf("%s has no call in the pods that answered; %s did not answer",
			s.client(), count(n, "pod"))
		f.Remedy = "see why these pods do not answer"
		f.Command = fmt.Sprintf("stunnerctl status %s/%s", g.Namespace, g.Name)
		return []Finding{f}
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
		f.Problem = s.client() + " has no call, and the auth service has given no credential to this user"
		f.Remedy = "let the app request ICE servers from the auth service for this user, and see its answer there"
		f.Command = fmt.Sprintf("stunnerctl auth %s/%s%s", g.Namespace, g.Name, s.clientFlags())
	case !grants[0].Expires.IsZero() && grants[0].Expires.Before(s.reference()):
		f.Field = "credential"
		f.Problem = fmt.Sprintf(
			"%s has no call, and the last credential expired %s ago",
			s.client(),
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

// grants returns the credentials that auth services gave to the user, the newest first.
func (g *Gateway) grants() (all []inspection.Grant) {
	for _, a := range decoded[inspection.GrantList](g.Live.Grants) {
		all = append(all, a.Body.Grants...)
	}
	slices.SortStableFunc(all, func(a, b inspection.Grant) int { return b.Time.Compare(a.Time) })
	return all
}

// sessions returns the number of sessions of the user or client.
func (g *Gateway) sessions() (n int) {
	for _, a := range decoded[inspection.SessionList](g.Live.Sessions) {
		n += a.Body.Total
	}
	return n
}

// client describes the user or client that `why` was asked about.
func (s *Snapshot) client() string {
	var parts []string
	if s.Asked.User != "" {
		parts = append(parts, "user "+s.Asked.User)
	}
	if s.Asked.Client != "" {
		parts = append(parts, "client "+s.Asked.Client)
	}
	return strings.Join(parts, " at ")
}

func (s *Snapshot) clientFlags() (flags string) {
	if s.Asked.User != "" {
		flags += " --user " + s.Asked.User
	}
	if s.Asked.Client != "" {
		flags += " --client " + s.Asked.Client
	}
	return flags
}

func clientFact(s *Snapshot, g *Gateway) string {
	if g.missingAnswer() != "" {
		return notChecked + ": no pod has answered"
	}
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
	return s.client() + ": " + fact
}
