package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// maxConfigAge is the age of a config after which a pod counts as disconnected. Connections are renewed in seconds.
const maxConfigAge = 30 * time.Second

// configRules check that the running pods have the published config.
var configRules = []Rule{
	{"operator answers", func(s *Snapshot, g *Gateway) []Finding {
		text := g.Live.Errors["status"]
		if text == "" {
			return nil
		}
		f := Finding{
			Severity: Warning, Object: ref("Gateway", g), Field: "status of the pods",
			Problem: "the operator does not answer: " + text,
			Remedy:  "see the log of the operator",
			Command: s.operatorLog(),
		}
		if isDenied(text) {
			f.Severity, f.Remedy = Info, "ask an administrator to bind ClusterRole stunner-viewer to you in namespace "+g.Namespace
			f.Problem = "the pods were not asked: " + text
			f.Command = fmt.Sprintf("kubectl auth can-i get %s -n %s", rightFor("status"), g.Namespace)
		}
		return []Finding{f}
	}},
	{"pods run the published config", func(_ *Snapshot, g *Gateway) []Finding { return g.configProblems() }},
	{"pods are connected", func(s *Snapshot, g *Gateway) (found []Finding) {
		if g.Live.Status == nil {
			return nil
		}
		told := map[string]bool{}
		for _, status := range g.Statuses {
			told[status.Pod] = true
		}
		for _, a := range silent(g.Live.Status) {
			if told[a.Pod] || *a.Body == inspection.NotConnected && g.shouldConnect(a.Pod) {
				continue
			}
			told[a.Pod] = true
			if replica, ok := strings.CutPrefix(a.Pod, "replica "); ok {
				found = append(found, Finding{
					Severity: Warning, Object: "operator replica " + replica, Field: "inspection API",
					Problem: "does not answer, so the pods that are connected to it are missing: " + *a.Body,
					Remedy:  "see its pod and its log", Command: s.operatorPods(),
				})
				continue
			}
			severity := Warning
			if hangs(*a.Body) { // its calls are interrupted
				severity = Error
			}
			found = append(found, Finding{
				Severity: severity, Object: objectName("Pod", g.Namespace, a.Pod), Field: "config discovery",
				Problem: "does not answer the operator: " + *a.Body,
				Remedy:  silenceRemedy(*a.Body),
				Command: fmt.Sprintf("kubectl logs -n %s %s --tail=20", g.Namespace, a.Pod),
			})
		}
		for _, pod := range g.Pods {
			if told[pod.Name] || !g.shouldConnect(pod.Name) {
				continue
			}
			severity := Warning
			if len(g.Statuses) == 0 {
				severity = Error
			}
			found = append(found, Finding{
				Severity: severity, Object: ref("Pod", pod), Field: "config discovery",
				Problem: "has no connection to the operator: it keeps its last config, and changes do not take effect",
				Remedy: "see `lost` in the log of the pod: a NetworkPolicy or firewall that blocks TCP port 13478 of Service " +
					"stunner-config-discovery, DNS, an outdated CA in its ConfigMap, or a missing token",
				Command: fmt.Sprintf("kubectl logs -n %s %s --tail=20", pod.Namespace, pod.Name),
			})
		}
		return found
	}},
	{"pods know the fields of the config", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, status := range g.Statuses {
			if len(status.Unknown) == 0 {
				continue
			}
			found = append(found, Finding{
				Severity: Warning, Object: objectName("Pod", g.Namespace, status.Pod), Field: "spec.containers[0].image",
				Problem: "its release does not know, and ignores, " + few(status.Unknown),
				Remedy:  "update spec.image of the Dataplane to the release of the operator",
			})
		}
		return found
	}},
}

// hangs reports whether a pod that is connected does not answer in time, by the reason in the answer of the operator.
func hangs(reason string) bool { return strings.Contains(reason, "within") }

// silenceRemedy is the remedy for a pod that does not answer the operator, by the reason in the answer of the operator.
func silenceRemedy(reason string) string {
	switch {
	case reason == inspection.NotConnected:
		return "its log says why it has no connection; if the pod runs an older release, replace it when it has no calls"
	case strings.Contains(reason, "answers no requests"):
		return "the pod runs an older release: replace it when it has no calls"
	case hangs(reason) || strings.HasPrefix(reason, "busy"):
		return "the process may hang: see its log, its CPU limit and the events of its liveness probe; " +
			"if it does not recover, delete the pod"
	}
	return "see the log of the pod"
}

// configProblems returns the findings of pods that do not run the published config.
func (g *Gateway) configProblems() (found []Finding) {
	running := 0
	for _, s := range g.Statuses {
		if g.current(s) {
			running++
		}
	}
	for _, s := range g.Statuses {
		f := Finding{
			Severity: Warning, Object: objectName("Pod", g.Namespace, s.Pod), Field: "config " + short(s.Revision),
			Command: fmt.Sprintf("kubectl logs -n %s %s --tail=20", g.Namespace, s.Pod),
		}
		if running == 0 {
			f.Severity = Error
		}
		rejected := cmp.Or(s.Config.Rejected, rejectedProblem(s))
		switch {
		case rejected != "":
			f.Problem = "rejects the published config, and runs the previous one: " + rejected
			f.Remedy = "correct the field that the message names; for a field that its release cannot read, update spec.image of the Dataplane"
		case s.Lost != "" || age(s) > maxConfigAge:
			f.Problem = fmt.Sprintf("has had no connection to the operator for %s: %s",
				cmp.Or(age(s), time.Second).Round(time.Second), cmp.Or(s.Lost, "no error"))
			f.Remedy = "let the pod reach TCP port 13478 of Service stunner-config-discovery: NetworkPolicies, DNS, its CA and token"
		case !g.current(s):
			f.Problem = fmt.Sprintf("runs config %s; %s is published", short(s.Revision), short(g.Live.Config.Revision))
			f.Remedy = "wait a second; if it still runs that config, see the log of the pod"
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

// rejectedProblem returns the problem of a status without the state of its config, as an older release sends it.
func rejectedProblem(s *inspection.Status) string {
	if len(s.Failures) > 0 || s.Config.Revision != "" {
		return "" // a later stage checks the listeners that failed
	}
	return s.Problem
}

func age(s *inspection.Status) time.Duration {
	return time.Duration(s.Config.Age * float64(time.Second))
}

// current reports whether a dataplane runs the published config. It returns true if that is unknown.
func (g *Gateway) current(s *inspection.Status) bool {
	published := g.Live.Config
	return published == nil || published.Revision == "" || s.Revision == "" || s.Revision == published.Revision
}

// short returns the first characters of a revision.
func short(revision string) string {
	const digits = 8
	if len(revision) > digits {
		return revision[:digits] + "…"
	}
	return cmp.Or(revision, "none")
}

func configFact(s *Snapshot, g *Gateway) string {
	switch {
	case g.Live.Status == nil:
		return notChecked + ": the pods were not asked"
	case len(g.Statuses) == 0:
		return "no pod answers"
	}
	n := 0
	for _, status := range g.Statuses {
		if g.current(status) {
			n++
		}
	}
	revision := g.Statuses[0].Revision
	if g.Live.Config != nil {
		revision = cmp.Or(g.Live.Config.Revision, revision)
	}
	return fmt.Sprintf("%s in force in %d of %d", short(revision), n, len(g.Statuses))
}

// certificateNotice is how long before its expiry a certificate is a warning, as for the alert.
const certificateNotice = 7 * 24 * time.Hour

// listenerRules check the listeners that run, and their certificates.
var listenerRules = []Rule{
	{"listeners are open", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, s := range g.Statuses {
			for _, name := range slices.Sorted(keys(s.Failures)) {
				found = append(found, Finding{
					Severity: Error, Object: objectName("Pod", g.Namespace, s.Pod), Field: "listener " + lastPart(name),
					Problem: "is not open: " + s.Failures[name],
					Remedy:  "use a free port: in the host network every Gateway of a node needs ports of its own",
					Command: fmt.Sprintf("kubectl logs -n %s %s --tail=20", g.Namespace, s.Pod),
				})
			}
		}
		return found
	}},
	{"certificates are valid", func(s *Snapshot, g *Gateway) (found []Finding) {
		in, serving := map[string][]string{}, map[string]int{} // pods by finding, number of pods by field
		for _, status := range g.Statuses {
			for _, l := range status.Listeners {
				if l.Certificate == nil {
					continue
				}
				serving[certificateField(l)]++
				for _, f := range s.certificates(g, l) {
					key := f.Field + f.Problem
					if in[key] = append(in[key], status.Pod); len(in[key]) == 1 {
						found = append(found, f)
					}
				}
			}
		}
		for i := range found {
			f := &found[i]
			if pods := in[f.Field+f.Problem]; len(pods) < serving[f.Field] {
				f.Problem += fmt.Sprintf(" (only in %s: the other pods serve another one)", few(pods))
				f.Remedy = "compare its config with the published one, and see its log: it has another certificate than the others"
				f.Command = fmt.Sprintf("stunnerctl config diff %s/%s", g.Namespace, g.Name)
			}
		}
		return found
	}},
}

func certificateField(l inspection.ListenerStatus) string {
	return fmt.Sprintf("spec.listeners[%s].tls.certificateRefs", lastPart(l.Name))
}

// certificates returns the findings about all certificates that a pod serves at a listener.
func (s *Snapshot) certificates(g *Gateway, l inspection.ListenerStatus) (found []Finding) {
	add := func(severity Severity, problem, remedy string) {
		found = append(found, Finding{
			Severity: severity, Object: ref("Gateway", g), Field: certificateField(l),
			Problem: problem, Remedy: remedy, Command: describe("gateway", g),
		})
	}
	now, date := s.reference(), "2006-01-02 15:04 MST"
	const renew = "renew the certificate in the Secret; the pods load it without a restart"
	for i, c := range l.AllCertificates() {
		the := "the certificate"
		if i > 0 {
			the += " for " + cmp.Or(few(c.Names), "no name")
		}
		switch {
		case now.After(c.NotAfter):
			add(Error, the+" expired on "+c.NotAfter.UTC().Format(date), renew)
		case now.Before(c.NotBefore):
			add(Error, the+" is not valid before "+c.NotBefore.UTC().Format(date), "correct the clock of its issuer, or wait")
		case c.NotAfter.Sub(now) < certificateNotice:
			add(Warning, fmt.Sprintf("%s expires in %s, on %s", the, span(c.NotAfter.Sub(now)), c.NotAfter.UTC().Format(date)), renew)
		}
		if c.SelfSigned {
			add(Warning, the+" is self-signed: browsers do not connect", "use a certificate of a CA that clients trust")
		}
	}
	if host := uncovered(l); host != "" {
		c := l.Certificate
		remedy := "use a certificate for " + host
		if i := slices.IndexFunc(c.Names, isHostname); i >= 0 {
			remedy += ", or set spec.addresses[0] of the Gateway to type Hostname, value " + c.Names[i]
		}
		add(Warning, fmt.Sprintf("clients are told the address %s, and the certificate is for %s", host, cmp.Or(few(c.Names), "no name")), remedy)
	}
	return found
}

// isHostname reports whether a name of a certificate is neither an IP address nor a wildcard.
func isHostname(name string) bool {
	_, err := netip.ParseAddr(name)
	return err != nil && !strings.Contains(name, "*")
}

// uncovered returns the first host that clients of a listener receive and for which none of its certificates is valid.
// Otherwise it returns "".
func uncovered(l inspection.ListenerStatus) string {
	var certificates [][]string
	for _, c := range l.AllCertificates() {
		certificates = append(certificates, c.Names)
	}
	for _, host := range l.PublicHosts() {
		if !config.CertificatesCover(certificates, host) {
			return host
		}
	}
	return ""
}

// span returns a duration in the largest fitting unit.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return count(int(d/(24*time.Hour)), "day")
	case d >= 2*time.Hour:
		return count(int(d/time.Hour), "hour")
	case d >= 2*time.Minute:
		return count(int(d/time.Minute), "minute")
	}
	return count(int(d/time.Second), "second")
}

// lastPart returns the part of NAMESPACE/GATEWAY/LISTENER after the last slash.
func lastPart(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func listenerFact(s *Snapshot, g *Gateway) string {
	if len(g.Statuses) == 0 {
		return notChecked + ": no pod has answered"
	}
	fact := count(max(g.listeners(), len(g.Statuses[0].Listeners)), "listener") + " open"
	if len(g.Statuses[0].Failures) > 0 {
		fact = fmt.Sprintf("%d of %s closed", len(g.Statuses[0].Failures), count(g.listeners(), "listener"))
	}
	for _, l := range g.Statuses[0].Listeners {
		if l.Certificate != nil {
			fact += fmt.Sprintf(
				", certificate of %s for %s",
				lastPart(l.Name),
				span(l.Certificate.NotAfter.Sub(s.reference())),
			)
		}
	}
	return fact
}

// shouldConnect reports whether a pod is known to be ready and not to end, so that it must have a connection.
func (g *Gateway) shouldConnect(name string) bool {
	return slices.ContainsFunc(g.Pods, func(pod *corev1.Pod) bool {
		return pod.Name == name && ready(pod) && pod.DeletionTimestamp == nil
	})
}
