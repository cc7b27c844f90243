package diagnose

import (
	"fmt"
)

// continuityRules check that calls continue when a pod crashes, and when their datagrams arrive at another pod.
var continuityRules = []Rule{
	{"pods store their sessions", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, s := range g.Statuses {
			if s.Journal == nil || s.Journal.Problem == "" {
				continue
			}
			found = append(found, g.calls(s.Pod, "journal",
				"does not store all of its sessions, so that a crash ends calls: "+s.Journal.Problem,
				"give the volume of its state folder 0.5 kB for each session, and let only this pod write to it"))
		}
		return found
	}},
	{"pods forward to each other", func(_ *Snapshot, g *Gateway) (found []Finding) {
		if len(g.Statuses) < 2 {
			return nil // there is no other pod
		}
		for _, s := range g.Statuses {
			if s.Forwarding == nil || s.Forwarding.Problem == "" {
				continue
			}
			found = append(found, g.calls(s.Pod, "forwarding",
				"does not forward to the other pods, so that UDP calls whose packets arrive at another pod end: "+
					s.Forwarding.Problem,
				"see docs/runbooks/StunnerForwardingOff.md: config discovery with authentication and a connected pod are needed"))
		}
		return found
	}},
}

// calls returns a finding about a field of the status of a pod whose calls may end.
func (g *Gateway) calls(pod, field, problem, remedy string) Finding {
	return Finding{
		Severity: Warning, Object: objectName("Pod", g.Namespace, pod), Field: field, Problem: problem, Remedy: remedy,
		Command: fmt.Sprintf("kubectl logs -n %s %s --tail=20", g.Namespace, pod),
	}
}
