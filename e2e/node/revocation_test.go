//go:build node

package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

const (
	// revokedCalls is the number of calls of the revoked user over all pods. otherCalls is the number of calls of
	// another user.
	revokedCalls, otherCalls = 51, 9
	// revokedWithin is how soon the calls of a revoked user end.
	revokedWithin = 2 * time.Second
	// revokingKey is the API key of the caller that revokes.
	revokingKey = "the key of the people who run the calls"
)

// TestRevocation: the calls of a revoked user at three pods end within two seconds. Calls at a pod without connection
// to the operator end when it is connected again. Other calls lose nothing. The credential stays refused after a
// restart of the operator and the auth service.
func TestRevocation(t *testing.T) {
	s, system := newTestNamespace(t), testNamespace{t, home}
	s.prepare()
	policy := fmt.Sprintf("version: v1\nkeys:\n- name: ops\n  hashes: [sha256:%x]\n  revoke: any\n", sha256.Sum256([]byte(revokingKey)))
	system.kubectl("", "create", "configmap", "callers", "--from-literal=policy.yaml="+policy)
	s.shell([]string{"helm"}, fmt.Sprintf(`cd %s/charts
helm install stunner-crds stunner-crds --namespace stunner-system --set gatewayAPI.enabled=true
helm install stunner stunner --namespace stunner-system --wait --set stunnerAuthService.policy.existingConfigMap=callers \
  --set stunnerAuthService.revocations.enabled=true --set 'stunnerAuthService.gateways={*/*}'`, harnesstest.Root(t)))
	s.kubectl("", "patch", "dataplane", "default", "--type=merge", "--patch",
		`{"spec":{"replicas":3,"resources":{"requests":{"cpu":"50m"}}}}`)
	s.follow(nil, firstGateway)
	s.wait("condition=Available", "deployment", "--all")
	s.wait("condition=Programmed", "gateway/front-door")
	c := caller{testNamespace: s, auth: s.publish(), peer: s.echo(), token: revokingKey}
	r := revoking{c, map[string]call.Options{}}
	r.caller.call(t) // afterwards the auth service is reachable
	pods := (&callsByPod{caller: r.caller}).awaitPods(3)

	calls := map[string][]*call.Call{} // of the revoked user, by pod
	var others []*call.Call
	for i := range revokedCalls {
		pod := pods[i%len(pods)]
		calls[pod] = append(calls[pod], r.dial("ada", pod))
	}
	for i := range otherCalls {
		others = append(others, r.dial("bob", pods[i%len(pods)]))
	}
	isolated := pods[0]
	reconnect := r.isolate(isolated)

	sent := time.Now()
	var made struct{ ID string }
	r.must(r.ask(t.Context(), http.MethodPost, "/v1/revocations", map[string]string{"user": "ada"}, &made))
	for _, pod := range pods[1:] {
		last := r.ends(calls[pod])
		t.Logf("pod %s: the last of %d calls ends %s after the request", pod, len(calls[pod]), last.Sub(sent).Round(time.Millisecond))
		if last.Sub(sent) > revokedWithin {
			t.Errorf("pod %s: the last call ends after %s, want %s", pod, last.Sub(sent), revokedWithin)
		}
	}
	for _, c := range calls[isolated] {
		ctx, cancel := context.WithTimeout(t.Context(), silence)
		if err := c.AwaitMore(ctx, 20); err != nil {
			t.Errorf("a call at the pod without connection: %v", err)
		}
		cancel()
	}
	if shown := s.kubectl("", "get", "revocations", "--output=name"); !strings.Contains(shown, made.ID) {
		t.Errorf("kubectl shows %q, want %s", shown, made.ID)
	}
	reconnect()
	back := time.Now()
	last := r.ends(calls[isolated])
	t.Logf("pod %s: the last of %d calls ends %s after it has a connection again", isolated, len(calls[isolated]),
		last.Sub(back).Round(time.Millisecond))

	for _, name := range []string{"stunner-operator", "stunner-auth"} {
		system.kubectl("", "rollout", "restart", "deployment/"+name)
		system.kubectl("", "rollout", "status", "deployment/"+name, "--timeout="+timeout.String())
	}
	for _, pod := range pods {
		if c, err := call.Start(t.Context(), r.of("ada", pod)); err == nil {
			c.End(0)
			t.Errorf("pod %s accepts the revoked credential after the restart", pod)
		} else if !strings.Contains(err.Error(), "401") {
			t.Errorf("pod %s refuses the revoked credential with: %v", pod, err)
		}
	}
	for _, c := range others {
		if stats := c.End(silence); stats.Lost != 0 || stats.Err != nil {
			t.Errorf("a call of another user: %s", stats)
		}
	}
	t.Logf("%d calls of another user have lost nothing", len(others))
}

// revoking is a caller whose API key of the auth service may revoke credentials.
type revoking struct {
	caller
	issued map[string]call.Options // credentials by user
}

func (r revoking) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// ask sends a request to the auth service.
func (r revoking) ask(ctx context.Context, method, path string, body, answer any) error {
	var content []byte
	if body != nil {
		content, _ = json.Marshal(body) // cannot fail: body contains strings only
	}
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:8088%s", r.auth, path), bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	code, data, err := harness.Do(req)
	if err == nil && code >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: status %d: %s", method, path, code, data)
	}
	if err == nil {
		err = json.Unmarshal(data, answer)
	}
	return err
}

// of returns the options of a call of a user through a pod. A user has one credential.
func (r revoking) of(user, pod string) call.Options {
	r.Helper()
	o, known := r.issued[user]
	if !known {
		var answer struct {
			Username, Password string
			URIs               []string `json:"uris"`
		}
		query := url.Values{"service": {"turn"}, "username": {user}, "namespace": {r.namespace}, "gateway": {"front-door"}}
		r.must(r.ask(r.Context(), http.MethodGet, "/?"+query.Encode(), nil, &answer))
		at, err := harness.ICEServer{URLs: answer.URIs}.Address(config.TURNUDP)
		r.must(err)
		o = call.Options{
			Gateway: at, Network: call.UDP, Peer: r.peer, Username: answer.Username, Password: answer.Password,
			Interval: interval,
		}
		r.issued[user] = o
	}
	o.Gateway = netip.AddrPortFrom(netip.MustParseAddr(pod), o.Gateway.Port())
	return o
}

// dial makes a call of a user through a pod.
func (r revoking) dial(user, pod string) *call.Call {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	c, err := call.Start(r.Context(), r.of(user, pod))
	r.must(err)
	r.must(c.Await(ctx, 1))
	return c
}

// ends waits until calls have had no echo for half a second, and returns the time of the last echo.
func (r revoking) ends(calls []*call.Call) (last time.Time) {
	r.Helper()
	r.until("the calls end", func(context.Context) error {
		for _, c := range calls {
			if echo := c.LastEcho(); time.Since(echo) < 500*time.Millisecond {
				return errors.New("a call of the revoked user continues")
			} else if echo.After(last) {
				last = echo
			}
		}
		return nil
	})
	for _, c := range calls {
		c.End(0)
	}
	return last
}

// isolate drops the segments between a pod and config discovery, until the returned function is called.
func (r revoking) isolate(pod string) (reconnect func()) {
	r.Helper()
	var at corev1.Pod
	for _, p := range r.pods(dataplanes) {
		if p.Status.PodIP == pod {
			at = p
		}
	}
	d := daemonOf(r.T, at)
	rule := func(verb string) {
		r.Helper()
		for chain, port := range map[string]string{"OUTPUT": "--dport", "INPUT": "--sport"} {
			out, err := exec.Command("nsenter", "--target", strconv.Itoa(d.child), "--net", "iptables", verb, chain,
				"--protocol", "tcp", port, "13478", "--jump", "DROP").CombinedOutput()
			if err != nil {
				r.Fatalf("%s: %s", err, out)
			}
		}
	}
	rule("--append")
	return func() { rule("--delete") }
}
