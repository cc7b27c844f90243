package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// recent is the maximum age of refusals that rules report.
const recent = 10 * time.Minute

// cause is the meaning of a reason of /refusals for a Gateway.
type cause struct {
	field, remedy string
}

// credentialCauses are the reasons that concern the credential of a client.
var credentialCauses = map[string]cause{
	"expired_credential": {
		"credential", "get a new credential for each call; if it was fresh, correct the clock of the auth service or of the node (NTP)",
	},
	"revoked_credential": {
		"Revocation", "get a new credential; to let the user in with the earlier ones, delete the Revocation (kubectl get revocations -A)",
	},
	"wrong_password": {
		"spec.authRef", "use the same shared secret in auth service and Gateway: an app that signs by itself must leave out the line break at the end of " +
			"the Secret, as the Gateway does; if they are the same, restart the auth service, which reads it again",
	},
	"unknown_user": {
		"spec.realm", "use the realm and the user name of the GatewayConfig: credentials of the auth service have both",
	},
	"stun_only": {
		"spec.authType", "set authRef of the GatewayConfig to a Secret with credentials; without them only STUN is served",
	},
	"caveat_malformed": {
		"user name",
		"correct the service that signs the user name: the form of caveats is in docs/reference/caveats.md",
	},
	"caveat_unknown": {
		"user name",
		"update the dataplane, or leave out the caveat: one that cannot be enforced is never ignored",
	},
	"caveat_gateway": {
		"user name",
		"get a credential for this Gateway",
	},
	"caveat_not_before": {
		"credential",
		"wait until the credential is valid; if it should be, correct the clock of the auth service or of the node (NTP)",
	},
	"stale_nonce": {"nonce", "use a client that repeats the request with the new nonce (RFC 8489 section 9.2.5)"},
	"other_user":  {"USERNAME", "use the credential with which the allocation was created"},
}

// memoryOfCalls is the memory limit that a dataplane needs for calls (docs/reference/memory.md).
const memoryOfCalls = "64 KiB for each call, about 110 KiB over TLS and 155 KiB over DTLS"

// limitCauses are the reasons that concern limits.
var limitCauses = map[string]cause{
	"quota": {
		"spec.userQuota",
		"raise userQuota of the GatewayConfig, or give each user a user id of its own",
	},
	"source_quota": {
		"spec.sourceQuota",
		"remove sourceQuota of the GatewayConfig, or raise it: the clients of an office or a conference share an address",
	},
	"caveat_allocations": {
		"scope.allocations",
		"end other calls of the user, or request a credential with more allocations",
	},
	"caveat_rate": {
		"scope.bytesPerSecond",
		"send less, or request a credential with a higher rate",
	},
	"caveat_bytes": {
		"scope.bytes",
		"get a new credential",
	},
	"capacity": {
		"capacity",
		"add pods, or raise the memory limit in spec.resources of the Dataplane: " + memoryOfCalls,
	},
	"no_relay": {
		"relayPortRange",
		"widen spec.relayPortRange of the Dataplane, or raise the limit of file descriptors of the node",
	},
	"permission_limit": {"permissions", "request permissions for fewer peers: an allocation has at most 256"},
	"channel_limit":    {"channels", "bind fewer channels: an allocation has at most 64"},
	"byte_rate": {
		"spec.userByteRate",
		"raise sessionByteRate or userByteRate of the GatewayConfig, or send less",
	},
	"rate_limited": {
		"source address",
		"correct the credential: the address has sent too many wrong ones, and is admitted again in a minute",
	},
}

// routeCauses are the reasons that concern routes and peers.
var routeCauses = map[string]cause{
	"peer_denied": {
		"spec.rules[].backendRefs",
		"add the peer to a UDPRoute of the Gateway: a Service, or a StaticService with its prefix",
	},
	"caveat_route": {
		"scope.routes",
		"request a credential that names the UDPRoute of the peer, or none",
	},
	"port_denied": {"spec.rules[].backendRefs[].port", "widen port and endPort of the route, or leave both out"},
	"draining":    {"pods", "wait for the new pods: clients repeat the request"},
	"handshake": {
		"tls.certificateRefs",
		"use a certificate that the client trusts, for the name that it connects to",
	},
	"proxy_header_invalid": {
		"annotation stunner.l7mp.io/proxy-protocol",
		"make the load balancer send the PROXY protocol, or take its prefix out of the annotation",
	},
	"proxy_header_unexpected": {
		"annotation stunner.l7mp.io/proxy-protocol",
		"add the prefix of the load balancer to the annotation, unless the client has forged the header",
	},
}

// causeOf returns the cause of a reason. Pods of a later release may have reasons that are unknown here.
func causeOf(reason string) cause {
	for _, all := range []map[string]cause{credentialCauses, limitCauses, routeCauses, clientCauses} {
		if c, ok := all[reason]; ok {
			return c
		}
	}
	return cause{"request", "see the meaning of the reason in docs/reference/reasons.md"}
}

// anyoneCanCause are the reasons that scanners on the internet cause, so they are not errors by themselves.
var anyoneCanCause = []string{"wrong_password", "unknown_user", "rate_limited"}

// credentialReasons are the reasons that credentialRules report. The other reasons are a part of each call.
var credentialReasons = []string{
	"expired_credential", "caveat_malformed", "caveat_unknown", "caveat_gateway", "caveat_not_before", "stun_only",
	"wrong_password", "unknown_user",
}

// credentialRules check the clients' credentials, from the refusals of the last minutes.
var credentialRules = []Rule{
	{"credentials are valid", func(s *Snapshot, g *Gateway) (found []Finding) {
		if s.Asked.hasClient() {
			return nil // the stage client reports these refusals
		}
		for _, reason := range credentialReasons {
			r := s.recentRefusals(g, reason)
			anyone := slices.Contains(anyoneCanCause, reason)
			scan := anyone && g.allocations() > 0 && r.affected < manyClients
			if r.last == nil || scan || reason == "stun_only" && g.servesSTUNOnly() {
				continue
			}
			f := s.refused(g, *r.last, r.times)
			f.Severity = r.severity(g)
			switch {
			case anyone && g.allocations() > 0:
				f.Severity = Info
				f.Problem += fmt.Sprintf("; %d clients are affected. If these are not your clients, it is a scan", r.affected)
			case anyone:
				f.Problem += "; no client has a call now. If these are not your clients, it is a scan"
			}
			found = append(found, f)
		}
		return found
	}},
	{"clocks agree", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, c := range s.podClocks(g) {
			if off := s.offset(c); off.Abs() > clockTolerance {
				found = append(found, clockFinding(c.Of, off))
			}
		}
		return found
	}},
}

// servesSTUNOnly reports whether the Gateway is configured to serve STUN without relays.
func (g *Gateway) servesSTUNOnly() bool { return g.Config != nil && g.Config.Spec.STUNMode }

// refusals are the recent refusals with one reason.
type refusals struct {
	last *Refusal
	// times is the number of refusals. affected is the number of users or clients.
	times, affected int
}

// recentRefusals returns the recent refusals with a reason.
func (s *Snapshot) recentRefusals(g *Gateway, reason string) (found refusals) {
	users, clients := map[string]bool{}, map[string]bool{}
	for i, r := range g.Refusals {
		if r.Reason != reason || s.reference().Sub(r.Last) > recent {
			continue
		}
		if found.last == nil {
			found.last = &g.Refusals[i]
		}
		found.times += r.Times
		users[r.User], clients[r.Client] = true, true
	}
	found.affected = max(len(users), len(clients))
	return found
}

// manyClients is the number of users or clients whose equal refusals suggest that the Gateway is at fault.
const manyClients = 3

// severity returns how serious refusals of clients are. On a Gateway with calls, one or two refused clients are likely
// at fault themselves, which is an info.
func (r refusals) severity(g *Gateway) Severity {
	if g.allocations() == 0 || r.affected >= manyClients {
		return Warning
	}
	return Info
}

// refused returns the finding of a refusal.
func (s *Snapshot) refused(g *Gateway, r Refusal, times int) Finding {
	c := causeOf(r.Reason)
	object := ref("Gateway", g)
	if strings.HasPrefix(c.field, "spec.auth") || strings.HasPrefix(c.field, "spec.realm") ||
		strings.Contains(c.field, "uota") ||
		strings.Contains(c.field, "ByteRate") {
		if g.Config != nil {
			object = ref("GatewayConfig", g.Config)
		}
	}
	problem := fmt.Sprintf("%s: %s", r.Reason, r.Text)
	if times > 1 {
		problem += fmt.Sprintf(" (%d times, last %s ago)", times, span(max(s.reference().Sub(r.Last), 0)))
	} else {
		problem += fmt.Sprintf(" (%s ago)", span(max(s.reference().Sub(r.Last), 0)))
	}
	return Finding{
		Severity: Error, Object: object, Field: c.field, Problem: problem, Remedy: c.remedy,
		Command: fmt.Sprintf("stunnerctl refusals %s/%s --reason %s", g.Namespace, g.Name, r.Reason),
	}
}

func credentialFact(s *Snapshot, g *Gateway) string {
	if len(g.Statuses) == 0 {
		return notChecked + ": no pod has answered"
	}
	auth := g.Statuses[0].Auth
	fact := fmt.Sprintf("%s, realm %s", cmp.Or(string(auth.Type), "none"), cmp.Or(auth.Realm, "none"))
	if g.Live.Refusals == nil {
		return fact + "; refusals were not read"
	}
	return fact
}
