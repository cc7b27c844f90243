package tenant

import (
	"context"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Limits for the cost of a pod.
const (
	flips       = 500
	flipPause   = 2 * time.Millisecond
	flipWrites  = 6
	podStreams  = 64
	fairStreams = 16
)

// tokenAttempts: config discovery sends a tenant's pod configs of the tenant's Gateways only, and accepts reports only
// for the pod itself.
func tokenAttempts() (attempts []attempt) {
	const theirs = "/api/v1/configs/" + first
	ofAccount := func(name string, audiences ...string) func(*tenant) string {
		return func(n *tenant) string { return n.tokenOf(n.account(name), nil, audiences...) }
	}
	ofPod := func(namespace, gateway string) func(*tenant) string {
		return func(n *tenant) string {
			return n.podToken("spy", labelsOf(strings.ReplaceAll(namespace, "TENANT", n.name), gateway))
		}
	}
	literal := func(token string) func(*tenant) string { return func(*tenant) string { return token } }
	for _, c := range []struct {
		name  string
		code  int
		token func(*tenant) string
	}{
		{"a pod sends no token", 401, literal("")},
		{"a pod sends a forged token", 401, literal("eyJhbGciOiJub25lIn0.eyJzdWIiOiJzeXN0ZW06YWRtaW4ifQ.")},
		{"a pod sends its token for the API server", 401, ofAccount("spy")},
		{"a pod sends a token for another audience", 401, ofAccount("spy", "stunner-auth")},
		{"an account sends a token that is not bound to a pod", 403, ofAccount("spy", audience)},
		{"an account has the name of the auth service's", 403, ofAccount("stunner-auth", audience)},
		{"an account has the name of the operator's", 403, ofAccount("stunner-operator-1", audience)},
		{"a pod without labels requests the config of others", 403, func(n *tenant) string { return n.podToken("spy", nil) }},
		{"a pod has the labels of a dataplane of others", 403, ofPod(others, "gateway0")},
		{"a pod has the name of a Gateway of others in its labels", 403, ofPod("TENANT", "gateway0")},
		{"a pod has an empty name of a Gateway in its labels", 403, ofPod("TENANT", "")},
	} {
		attempts = append(attempts, attempt{name: c.name, try: func(n *tenant) {
			token := c.token(n)
			for _, path := range []string{
				theirs, "/api/v1/configs", "/api/v1/configs/" + others, "/api/v1/configs/club/members-only",
				"/api/v1/configs/" + shared, "/api/v1/reports",
			} {
				n.gets(token, path, c.code)
				n.gets(token, path+"?watch=true", c.code)
			}
		}})
	}
	return append(attempts, []attempt{
		{
			name: "the labels of a pod change after its token was accepted",
			try: func(n *tenant) {
				token := n.dataplaneToken("door")
				n.gets(token, "/api/v1/configs/"+n.name+"/door", 404)
				spy := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "spy-of-door"}}
				n.must(n.patch(spy, map[string]any{"metadata": map[string]any{"labels": labelsOf(others, "gateway0")}}))
				n.gets(token, theirs, 403)
			},
		},
		{
			name:  "a request path traverses from the tenant's config to that of others",
			apply: gateway(""),
			try: func(n *tenant) {
				token := n.dataplaneToken("door")
				for _, path := range []string{
					"TENANT/../media-1/gateway0", "TENANT/door/../../media-1/gateway0",
					"TENANT%2Fdoor%2F..%2F..%2Fmedia-1/gateway0", "TENANT/..%2fmedia-1%2fgateway0", "/media-1/gateway0",
					"media-1%2fgateway0", "TENANT/door?id=media-1/gateway0", "TENANT/door%00/media-1",
					"%6dedia-1/gateway0", "", "TENANT/",
				} {
					code, body := n.ask(token, "/api/v1/configs/"+strings.ReplaceAll(path, "TENANT", n.name))
					if strings.Contains(string(body), first+"/udp") {
						n.Errorf("%s: %d %s", path, code, body)
					}
				}
			},
		},
		{
			name: "the tenant requests a token of the auth service's account",
			try: func(n *tenant) {
				account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "stunner-auth"}}
				n.isRefused(n.SubResource("token").Create(n.Context(), account, &authenticationv1.TokenRequest{
					Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}},
				}), "forbidden")
			},
		},
		{
			name: "the tenant acts as the operator",
			try: func(n *tenant) {
				access, err := run.Cluster.User(n.name)
				n.must(err)
				out, err := run.Cluster.Command(
					n.Context(), "get", "secrets", "-n", "kube-system", "--kubeconfig", access.Kubeconfig, "--as", operator,
				).CombinedOutput()
				if err == nil || !strings.Contains(string(out), "cannot impersonate") {
					n.Errorf("the API server returned %v: %s", err, out)
				}
			},
		},
		{
			name:  "a pod sends reports for a dataplane of others",
			apply: gateway(""),
			try: func(n *tenant) {
				pods, err := run.Gateways[0].Dataplanes()
				n.must(err)
				refused := func(ctx context.Context) (float64, error) {
					return harness.Metric(ctx, run.Health+"/metrics", "stunner_operator_discovery_refused_total")
				}
				before, err := refused(n.Context())
				n.must(err)
				n.send(n.stream(),
					`{"report":{"id":"media-1/gateway0","pod":"`+pods[0].Name+
						`","accepted":false,"error":"all is lost","draining":true}}`,
					`{"report":{"id":"TENANT/door","pod":"`+pods[0].Name+`","accepted":false,"allocations":999999}}`,
					`{"report":{"id":"media-1/gateway0","pod":"spy-of-door","accepted":false,"allocations":999999}}`)
				n.await(func(ctx context.Context) error {
					now, err := refused(ctx)
					if err == nil && now < before+2 { // the first report is about another config
						err = fmt.Errorf("%.0f refusals, before %.0f", now, before)
					}
					return err
				})
			},
		},
		{
			name:  "a pod sends reports with impossible values",
			apply: gateway(""),
			try: func(n *tenant) {
				const begin = `{"report":{"id":"TENANT/door","pod":"spy-of-door","accepted":`
				n.send(n.stream(),
					begin+`false,"allocations":9223372036854775807,"error":"`+strings.Repeat("x\n", 10_000)+`"}}`,
					begin+`true,"allocations":-1}}`, `{"report":[]}`, `null`, `{`,
					begin+`false,"revision":"`+strings.Repeat("r", 10_000)+`","error":"\u0000\u202e"}}`)
				n.settle()
				text, err := n.conditions(n.Context(), "gateway/door")
				n.must(err)
				if len(text) > 4096 {
					n.Errorf("the status of the Gateway has %d bytes", len(text))
				}
			},
		},
		{
			name:  "a pod sends changing reports continuously",
			apply: gateway(""),
			try: func(n *tenant) {
				_, revision := n.ask(n.dataplaneToken("door"), "/api/v1/configs/"+n.name+"/door")
				stream, begun := n.stream(), time.Now()
				for i := range flips {
					n.send(stream, fmt.Sprintf(`{"report":{"id":"TENANT/door","pod":"spy-of-door","accepted":%t,`+
						`"draining":%t,"error":"%d of %d","allocations":%d}}`, i%2 == 0, i%3 == 0, i, len(revision), i))
					time.Sleep(flipPause) // the interval of the attack
				}
				n.settle()
				var list []string
				for _, w := range writes(n.T, n.name, begun) {
					if strings.Contains(w, "gateways/") || strings.Contains(w, "pods/") {
						list = append(list, w)
					}
				}
				if took := time.Since(begun); float64(len(list)) > flipWrites+took.Seconds() {
					n.Errorf("%d reports in %s cause %d writes of the operator", flips, took, len(list))
				}
			},
		},
		{
			name:  "a pod opens many streams",
			apply: gateway(""),
			try: func(n *tenant) {
				token, ended := n.dataplaneToken("door"), make(chan struct{}, podStreams)
				for range podStreams {
					if _, err := n.dial(token, ended); err != nil {
						ended <- struct{}{}
					}
				}
				for gone := range podStreams - fairStreams {
					select {
					case <-ended:
					case <-time.After(soon):
						n.Fatalf("one pod has %d streams open", podStreams-gone)
					}
				}
			},
		},
	}...)
}
