//go:build node

package node_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
)

// K-01, K-08, T-01, T-04: a pod of another namespace, and a client with a valid credential, have access only to the
// granted resources. Each attempt is counted.
func unauthorizedClientsAreRefused(s site) {
	s.open("", udpListener, tcpListener)
	foreign := newSite(s.T, "stranger")
	s.discoveryRefuses(foreign)
	s.relaysRefuse(foreign)
}

// discoveryRefuses: configs and reports need a token with the right audience, of a pod or account with access to them.
// Requests go to the Service's cluster IP, and only the token identifies the sender.
func (s site) discoveryRefuses(foreign site) {
	system := testNamespace{s.T, home}
	pod := foreign.pods("app=echo")[0].Name
	token := func(audience string) string {
		return foreign.kubectl(
			"", "create", "token", "default", "--audience="+audience, "--bound-object-kind=Pod",
			"--bound-object-name="+pod,
		)
	}
	server := system.kubectl(
		"", "get", "service", "stunner-config-discovery", "--output=jsonpath={.spec.clusterIP}",
	) + ":13478"
	before := system.counted("stunner-operator")
	own, other := token("stunner-discovery"), token("something-else")
	config := "/api/v1/configs/" + s.namespace + "/front-door"
	wants := map[string]int{}
	for _, c := range []struct {
		name, path, token string
		want              int
	}{
		{"no token", config, "", http.StatusUnauthorized},
		{"no token, all configs", "/api/v1/configs", "", http.StatusUnauthorized},
		{"no token, reports", "/api/v1/reports", "", http.StatusUnauthorized},
		{"an invalid token", config, "guessed", http.StatusUnauthorized},
		{"a token for another audience", config, other, http.StatusUnauthorized},
		{"a token of another pod", config, own, http.StatusForbidden},
		{"a token of another pod, all configs", "/api/v1/configs", own, http.StatusForbidden},
		{"a token of another pod, the namespace", "/api/v1/configs/" + s.namespace, own, http.StatusForbidden},
		{"a token of another pod, reports", "/api/v1/reports", own, http.StatusForbidden},
	} {
		code, body := s.get("https://"+server+c.path, c.token)
		if code != c.want || strings.Contains(body, string(s.secret)) {
			s.Errorf("config discovery, %s: %d, want %d: %s", c.name, code, c.want, body)
		}
		wants[map[int]string{http.StatusUnauthorized: "unauthenticated", http.StatusForbidden: "forbidden"}[c.want]]++
	}
	if code, body := s.get("http://"+server+config, own); code == http.StatusOK {
		s.Errorf("config discovery accepts plain HTTP: %s", body)
	}
	after := system.counted("stunner-operator")
	for reason, want := range wants {
		const name = "stunner_operator_discovery_refused_total"
		label := `reason="` + reason + `"`
		if got := count(s.T, after, name, label) - count(s.T, before, name, label); got != float64(want) {
			s.Errorf("the metrics count %v requests with reason %s, want %d", got, reason, want)
		}
	}
	s.Logf("requests refused by config discovery: %v", wants)
}

// counted returns the metrics of all replicas of a service.
func (s testNamespace) counted(service string) (metrics string) {
	s.Helper()
	for _, p := range s.pods("app=" + service) {
		metrics += page(s, p.Name, 8086, "metrics")
	}
	return metrics
}

// get sends a request without verifying the server, because an attacker has no CA.
func (s site) get(url, token string) (code int, body string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{
		Timeout:   silence,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err.Error()
	}
	return res.StatusCode, string(text)
}

// relaysRefuse: a client with a valid credential gets neither a permission nor a channel to an address without a route.
// Each refusal is counted, and listed with its reason.
func (s site) relaysRefuse(foreign site) {
	system := testNamespace{s.T, home}
	clusterIP := func(namespace, service string) string {
		return testNamespace{s.T, namespace}.kubectl("", "get", "service", service, "--output=jsonpath={.spec.clusterIP}")
	}
	targets := map[string]netip.AddrPort{}
	for name, at := range map[string]string{
		"API server":               clusterIP("default", "kubernetes") + ":443",
		"API server on the node":   s.nodeIP().String() + ":6443",
		"kubelet":                  s.nodeIP().String() + ":10250",
		"metadata":                 "169.254.169.254:80",
		"pod of another tenant":    foreign.echo().String(),
		"its Service":              clusterIP(foreign.namespace, "echo") + ":7002",
		"config discovery":         clusterIP(home, "stunner-config-discovery") + ":13478",
		"operator":                 system.pods("app=stunner-operator")[0].Status.PodIP + ":8086",
		"DNS of the cluster":       clusterIP("kube-system", "kube-dns") + ":53",
		"another port of the peer": netip.AddrPortFrom(s.echo().Addr(), 7001).String(),
		"loopback":                 "127.0.0.1:8086",
	} {
		targets[name] = netip.MustParseAddrPort(at)
	}
	w := s.usual()[0]
	works := s.dial(w, s.echo())
	o := s.options(w, s.echo())
	client, err := ask.Dial(clientIP, w.at, o.Username, o.Password)
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	request := func(method stun.Method, attrs ...stun.Setter) stun.ErrorCode {
		s.Helper()
		ctx, cancel := context.WithTimeout(s.Context(), silence)
		defer cancel()
		answer, _, err := client.Do(ctx, method, attrs...)
		if err != nil {
			s.Fatal(err)
		}
		var code stun.ErrorCodeAttribute
		if err := code.GetFrom(answer); err != nil && !errors.Is(err, stun.ErrAttributeNotFound) {
			s.Fatal(err)
		}
		return code.Code
	}
	udp := stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}}
	if code := request(stun.MethodAllocate, udp); code != 0 {
		s.Fatalf("Allocate: %d", code)
	}
	pod, err := s.serving("")
	if err != nil {
		s.Fatal(err)
	}
	before := page(s.testNamespace, pod.Name, 8080, "metrics")
	number, wants := uint16(0x4000), 0
	for name, target := range targets {
		channel := stun.RawAttribute{Type: stun.AttrChannelNumber, Value: []byte{byte(number >> 8), byte(number), 0, 0}}
		number++
		answers := map[string]stun.ErrorCode{"ChannelBind": request(stun.MethodChannelBind, channel, ask.Peer(target))}
		if name != "another port of the peer" { // a permission covers all ports of an address (RFC 8656 §9)
			answers["CreatePermission"] = request(stun.MethodCreatePermission, ask.Peer(target))
		}
		for method, code := range answers {
			wants++
			if code != stun.CodeForbidden {
				s.Errorf("%s to %s at %s: %d, want 403", method, name, target, code)
			}
		}
	}
	after := page(s.testNamespace, pod.Name, 8080, "metrics")
	var counted float64
	for _, reason := range []string{`reason="peer_denied"`, `reason="port_denied"`} {
		counted += count(s.T, after, "stunner_refused_total", reason) - count(
			s.T, before, "stunner_refused_total", reason,
		)
	}
	if counted != float64(wants) {
		s.Errorf("the metrics count %v refusals, want %d", counted, wants)
	}
	refusals := page(s.testNamespace, pod.Name, 8086, "refusals")
	for name, target := range targets {
		if !strings.Contains(refusals, target.String()) {
			s.Errorf("/refusals has no entry for %s to %s:\n%s", name, target, refusals)
		}
	}
	s.Logf("%d requests to %d addresses refused", wants, len(targets))
	if code := request(
		stun.MethodRefresh, stun.RawAttribute{Type: stun.AttrLifetime, Value: []byte{0, 0, 0, 0}},
	); code != 0 {
		s.Errorf("deletion of the allocation: %d", code) // otherwise the pod would wait until the allocation expires
	}
	s.goOn("attempts", works)
	s.hangUp(works)
	// An invalid credential, or a credential of another Gateway, gets no allocation.
	o.Password = "guessed"
	s.refused(o, "401")
	elsewhere := foreign
	elsewhere.secret = "the secret of another Gateway"
	s.refused(elsewhere.options(w, s.echo()), "401")
}
