package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// gatewayProbe is the result of the packets to a healthy Gateway.
func gatewayProbe() *Probe {
	at := netip.MustParseAddrPort
	return &Probe{
		Credential: "the auth service",
		URLs: []ProbedURL{
			{Listener: "udp", Transport: "udp", Address: at("192.0.2.7:3478"), Result: ProbeAnswered, Sent: 8, Answered: 8,
				Allocation: &ProbedAllocation{Relay: at("192.0.2.7:50000")}},
			{Listener: "udp", Transport: "udp", Address: at("[2001:db8::7]:3478"), Result: ProbeUnroutable, Sent: 8},
		},
		Pods:        []ProbedPod{{Pod: "front-door-1", Result: ProbeAnswered}, {Pod: "front-door-2", Result: ProbeFailed, Detail: "forbidden"}},
		OmittedURLs: 3, OmittedBackends: 2,
		Backends: []ProbedBackend{{Listener: "udp", Route: "meet/media", Peer: at("10.0.0.1:20000"), Result: ProbeAnswered, Sent: 3, Returned: 3}},
	}
}

// TestProbedHealthy: a healthy Gateway has no finding. The fact of each step names the test and its result.
func TestProbedHealthy(t *testing.T) {
	s := load(t, nil, nil, nil)
	s.Probes = map[string]*Probe{"meet/front-door": gatewayProbe()}
	r := Why(s, "meet", "front-door")
	if len(r.Findings) > 0 {
		t.Errorf("%s", show(r.Findings))
	}
	for _, want := range []Step{
		{"reach", OK, "1 of 1 URL answer from here; 1 cannot be tested, because this machine has no route; 3 more were not tested; " +
			"1 answer directly; proves the way from this machine, not from other networks"},
		{"allocation", OK, "relays at 192.0.2.7 with a credential of the auth service; proves the secret and the relay, not the " +
			"credentials of an app"},
		{"packets", OK, "1 of 1 backend answer datagrams through the gateway; 2 more were not tested (many, prefixes, or any port); an " +
			"answer proves the whole way, silence does not disprove it"},
	} {
		if !slices.Contains(r.Steps, want) {
			t.Errorf("no step %+v in %+v", want, r.Steps)
		}
	}
}

// TestProbesAreSkipped: a stage without packets is not reported as checked, and its fact has the reason.
func TestProbesAreSkipped(t *testing.T) {
	unrouted := &Probe{URLs: []ProbedURL{gatewayProbe().URLs[1]}}
	noCredential := gatewayProbe()
	noCredential.URLs[0].Allocation, noCredential.CredentialError, noCredential.Backends = nil, "401: use --auth-token-file", nil
	for _, row := range []struct {
		probe *Probe
		facts [3]string
	}{
		{nil, [3]string{"no packets were sent", "no packets were sent", "no packets were sent"}},
		{unrouted, [3]string{"no route to 1 URL", "no address answers", "no allocation"}},
		{&Probe{}, [3]string{"clients are told no URL", "no address answers", "no allocation"}},
		{noCredential, [3]string{"", "no credential: 401: use --auth-token-file", "prefixes, host names"}},
	} {
		s := load(t, nil, nil, nil)
		s.Probes = map[string]*Probe{}
		if row.probe != nil {
			s.Probes["meet/front-door"] = row.probe
		}
		r := Why(s, "meet", "front-door")
		if len(r.Findings) > 0 {
			t.Errorf("%s", show(r.Findings))
		}
		for i, step := range r.Steps[len(r.Steps)-3:] {
			if want := row.facts[i]; want != "" && (step.State != Skipped || !strings.Contains(step.Fact, want)) {
				t.Errorf("%+v, want %q", step, want)
			}
		}
	}
}

// TestAddressBehindNAT: on the host of a dataplane, an address that is not its own need not be reachable.
func TestAddressBehindNAT(t *testing.T) {
	p := gatewayProbe()
	p.URLs = p.URLs[:1]
	p.URLs[0].Result, p.URLs[0].Answered, p.URLs[0].Seconds = ProbeNoAnswer, 0, 5
	p.Pods = []ProbedPod{{Pod: "host", Listener: "udp", Result: ProbeAnswered}}
	for _, row := range []struct {
		own      string
		severity Severity
		evidence string
	}{
		{"192.0.2.7", Error, "the way from here to its address is interrupted"},
		{"10.0.0.1", Warning, "the NAT is at fault, or does not let a host of its own network reach the address"},
	} {
		s := load(t, nil, nil, nil)
		s.Folder, s.HostAddresses = true, []netip.Addr{netip.MustParseAddr(row.own)}
		s.Probes = map[string]*Probe{"meet/front-door": p}
		found := reachRules[1].Check(s, s.gateway("meet", "front-door"))
		if len(found) != 1 || found[0].Severity != row.severity || !strings.Contains(found[0].Problem, row.evidence) {
			t.Errorf("%s: %s", row.own, show(found))
		}
	}
}
