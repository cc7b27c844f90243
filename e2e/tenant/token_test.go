package tenant

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

const audience = "stunner-discovery"

// victims are the labels of a dataplane pod of the victim.
var victims = map[string]string{
	"app": "stunner", "stunner.l7mp.io/related-gateway-name": "front-door",
	"stunner.l7mp.io/related-gateway-namespace": "victim",
}

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
func tokenAttempts() []attempt {
	const theirs = "/api/v1/configs/victim/front-door"
	everything := []string{
		theirs, "/api/v1/configs", "/api/v1/configs/victim", "/api/v1/configs/victim/side-door",
		"/api/v1/configs/lobby/lounge", "/api/v1/reports",
	}
	refuses := func(code int, token func(*tenant) string) func(*tenant) {
		return func(n *tenant) {
			n.Helper()
			shown := token(n)
			for _, path := range everything {
				n.gets(shown, path, code)
				n.gets(shown, path+"?watch=true", code)
			}
		}
	}
	pod := func(labels map[string]string) func(*tenant) string {
		return func(n *tenant) string {
			own := map[string]string{}
			for key, value := range labels {
				own[key] = strings.ReplaceAll(value, "TENANT", n.name)
			}
			return n.podToken("spy", own)
		}
	}
	return []attempt{
		{name: "a pod sends no token", try: refuses(401, func(*tenant) string { return "" })},
		{name: "a pod sends a forged token", try: refuses(
			401, func(*tenant) string { return "eyJhbGciOiJub25lIn0.eyJzdWIiOiJzeXN0ZW06YWRtaW4ifQ." },
		)},
		{name: "a pod sends its token for the API server", try: refuses(
			401, func(n *tenant) string { return n.tokenOf(n.account("spy"), nil) },
		)},
		{name: "a pod sends a token for another audience", try: refuses(
			401, func(n *tenant) string { return n.tokenOf(n.account("spy"), nil, "stunner-auth") },
		)},
		{name: "an account sends a token for config discovery that is not bound to a pod", try: refuses(
			403, func(n *tenant) string { return n.tokenOf(n.account("spy"), nil, audience) },
		)},
		{name: "an account has the name of the auth service's", try: refuses(
			403, func(n *tenant) string { return n.tokenOf(n.account("stunner-auth"), nil, audience) },
		)},
		{name: "an account has the name of the operator's", try: refuses(
			403, func(n *tenant) string { return n.tokenOf(n.account("stunner-operator"), nil, audience) },
		)},
		{name: "a pod without labels requests the victim's config", try: refuses(403, pod(nil))},
		{name: "a pod has the labels of the victim's dataplane", try: refuses(403, pod(victims))},
		{name: "a pod has the name of the victim's Gateway in its labels, and its own namespace", try: refuses(403, pod(map[string]string{
			"app": "stunner", "stunner.l7mp.io/related-gateway-name": "front-door", "stunner.l7mp.io/related-gateway-namespace": "TENANT"}))},
		{name: "a pod has an empty name of a Gateway in its labels", try: refuses(403, pod(map[string]string{
			"app": "stunner", "stunner.l7mp.io/related-gateway-name": "", "stunner.l7mp.io/related-gateway-namespace": "TENANT"}))},
		{
			name: "the labels of a pod change after its token was accepted",
			try: func(n *tenant) {
				token := n.podToken("spy", map[string]string{
					"app": "stunner", "stunner.l7mp.io/related-gateway-name": "door",
					"stunner.l7mp.io/related-gateway-namespace": n.name,
				})
				n.gets(token, "/api/v1/configs/"+n.name+"/door", 404)
				n.must(n.Patch(
					n.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "spy"}},
					mergePatch(map[string]any{"metadata": map[string]any{"labels": victims}}),
				))
				n.gets(token, theirs, 403)
			},
		},
		{
			name:  "a request path traverses from the tenant's config to the victim's",
			apply: gateway(""),
			try: func(n *tenant) {
				token := n.podToken("spy", map[string]string{
					"app": "stunner", "stunner.l7mp.io/related-gateway-name": "door",
					"stunner.l7mp.io/related-gateway-namespace": n.name,
				})
				for _, path := range []string{
					"/api/v1/configs/TENANT/../victim/front-door",
					"/api/v1/configs/TENANT/door/../../victim/front-door",
					"/api/v1/configs/TENANT%2Fdoor%2F..%2F..%2Fvictim/front-door",
					"/api/v1/configs/TENANT/..%2fvictim%2ffront-door", "/api/v1/configs//victim/front-door",
					"/api/v1/configs/victim%2ffront-door", "/api/v1/configs/TENANT/door?id=victim/front-door",
					"/api/v1/configs/TENANT/door%00/victim", "/api/v1/configs/%76ictim/front-door", "/api/v1/configs/",
					"/api/v1/configs/TENANT/",
				} {
					code, body := n.ask(token, strings.ReplaceAll(path, "TENANT", n.name))
					n.finds(path, body)
					if strings.Contains(string(body), "victim/front-door/udp") {
						n.Errorf("%s: %d %s", path, code, body)
					}
				}
			},
		},
		{
			name: "the tenant requests a token of the auth service's account",
			try: func(n *tenant) {
				request := &authenticationv1.TokenRequest{
					Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}},
				}
				n.isRefused(n.SubResource("token").Create(
					n.Context(),
					&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "stunner-auth"}},
					request,
				), "forbidden")
			},
		},
		{
			name: "the tenant acts as the operator",
			try: func(n *tenant) {
				access, err := control.User(n.name)
				n.must(err)
				out, err := control.Command(
					n.Context(), "get", "secrets", "-n", "kube-system", "--kubeconfig", access.Kubeconfig, "--as",
					"system:serviceaccount:stunner-system:stunner-operator",
				).CombinedOutput()
				if err == nil || !strings.Contains(string(out), "cannot impersonate") {
					n.Errorf("the API server returned %v: %s", err, out)
				}
			},
		},
		{
			name:  "a pod sends reports for the victim's dataplane",
			apply: gateway(""),
			try: func(n *tenant) {
				names, err := house.podOf(n.Context(), house.victim.doors["victim/front-door"].ObjectKey)
				n.must(err)
				before, err := bed.Metric(
					n.Context(), "http://"+house.health+"/metrics", "stunner_operator_discovery_refused_total",
				)
				n.must(err)
				stream := n.stream("door")
				for _, report := range []string{
					`{"id":"victim/front-door","pod":"` + names + `","accepted":false,"error":"all is lost","draining":true}`,
					`{"id":"` + n.name + `/door","pod":"` + names + `","accepted":false,"allocations":999999}`,
					`{"id":"victim/front-door","pod":"spy-of-door","accepted":false,"allocations":999999}`,
				} {
					n.must(stream.Write(n.Context(), websocket.MessageText, []byte(`{"report":`+report+`}`)))
				}
				n.await(func(ctx context.Context) error {
					now, err := bed.Metric(
						ctx, "http://"+house.health+"/metrics", "stunner_operator_discovery_refused_total",
					)
					if err == nil && now < before+2 { // the first one is for another config than that of the stream
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
				stream := n.stream("door")
				for _, report := range []string{
					`{"report":{"id":"TENANT/door","pod":"spy-of-door","accepted":false,"allocations":9223372036854775807,"error":"` + strings.Repeat("x\n", 10_000) + `"}}`,
					`{"report":{"id":"TENANT/door","pod":"spy-of-door","accepted":true,"allocations":-1}}`,
					`{"report":[]}`, `null`, `{`,
					`{"report":{"id":"TENANT/door","pod":"spy-of-door","accepted":false,"revision":"` + strings.Repeat(
						"r", 10_000,
					) + `","error":"\u0000\u202e"}}`,
				} {
					n.must(stream.Write(
						n.Context(), websocket.MessageText, []byte(strings.ReplaceAll(report, "TENANT", n.name)),
					))
				}
				n.settles()
				text, err := n.says(n.Context(), "gateway/door")
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
				_, revision := n.ask(n.doorToken("door"), "/api/v1/configs/"+n.name+"/door")
				stream, begun := n.stream("door"), time.Now()
				for i := range flips {
					n.must(stream.Write(n.Context(), websocket.MessageText, fmt.Appendf(nil, `{"report":{"id":"%s/door","pod":"spy-of-door","accepted":%t,"draining":%t,"error":"%d of %d","allocations":%d}}`,
						n.name, i%2 == 0, i%3 == 0, i, len(revision), i)))
					time.Sleep(flipPause) // the rate of the attack
				}
				n.settles()
				var writes []string
				for _, w := range n.writes(begun) {
					if strings.Contains(w, "gateways/") || strings.Contains(w, "pods/") {
						writes = append(writes, w)
					}
				}
				if took := time.Since(begun); float64(len(writes)) > flipWrites+took.Seconds() {
					n.Errorf("%d reports in %s cause %d writes of the operator", flips, took, len(writes))
				}
			},
		},
		{
			name:  "a pod opens many streams",
			apply: gateway(""),
			try: func(n *tenant) {
				token, ended := n.doorToken("door"), make(chan struct{}, podStreams)
				for range podStreams {
					if _, err := n.dial(token, "door", ended); err != nil {
						ended <- struct{}{}
					}
				}
				for gone := range podStreams - fairStreams {
					select {
					case <-ended:
					case <-time.After(moment):
						n.Fatalf("one pod has %d streams open", podStreams-gone)
					}
				}
			},
		},
	}
}

// gets checks that config discovery answers a request with a status code and without any secret.
func (n *tenant) gets(token, path string, want int) {
	n.Helper()
	code, body := n.ask(token, path)
	if code != want {
		n.Errorf("%s: status %d, want %d: %.200s", path, code, want, body)
	}
	n.finds(path, body)
}

// mergePatch returns a merge patch.
func mergePatch(fields map[string]any) client.Patch {
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // maps of strings
	}
	return client.RawPatch(types.MergePatchType, text)
}

// doorToken returns a token of a pod that has the labels of a dataplane of a Gateway.
func (n *tenant) doorToken(gateway string) string {
	n.Helper()
	return n.podToken("spy-of-"+gateway, map[string]string{
		"app": "stunner", "stunner.l7mp.io/related-gateway-name": gateway,
		"stunner.l7mp.io/related-gateway-namespace": n.name,
	})
}

// stream follows the config of a Gateway of the tenant, like a dataplane.
func (n *tenant) stream(gateway string) *websocket.Conn {
	n.Helper()
	conn, err := n.dial(n.doorToken(gateway), gateway, make(chan struct{}, 1))
	n.must(err)
	return conn
}

// dial opens a stream. It sends to ended when the stream has ended.
func (n *tenant) dial(token, gateway string, ended chan<- struct{}) (*websocket.Conn, error) {
	n.Helper()
	client, err := secure()
	n.must(err)
	conn, response, err := websocket.Dial(n.Context(), "https://localhost:"+portOf(
		house.discovery,
	)+"/api/v1/configs/"+n.name+"/"+gateway+"?watch=true",
		&websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		return nil, fmt.Errorf("follow config: %w: %v", err, response)
	}
	n.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(32 << 20)
	ctx := context.WithoutCancel(n.Context())
	go func() { // answers pings, too
		for {
			if _, _, err := conn.Read(ctx); err != nil {
				ended <- struct{}{}
				return
			}
		}
	}()
	return conn, nil
}

// account creates a ServiceAccount.
func (n *tenant) account(name string) *corev1.ServiceAccount {
	n.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: name}}
	if err := n.Create(n.Context(), account); !apierrors.IsAlreadyExists(err) {
		n.must(err)
	}
	return account
}

// podToken creates a pod, unless it exists, and a token for config discovery that is bound to it.
func (n *tenant) podToken(name string, labels map[string]string) string {
	n.Helper()
	account := n.account("spy")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: n.name, Name: name, Labels: labels,
	}, Spec: corev1.PodSpec{
		ServiceAccountName: account.Name, NodeName: "worker-1",
		Containers: []corev1.Container{{Name: "spy", Image: "example.net/spy"}},
	}}
	if err := n.Create(n.Context(), pod); !apierrors.IsAlreadyExists(err) {
		n.must(err)
	}
	return n.tokenOf(
		account, &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name}, audience,
	)
}

// tokenOf requests a token as the tenant.
func (n *tenant) tokenOf(
	account *corev1.ServiceAccount, bound *authenticationv1.BoundObjectReference, audiences ...string,
) string {
	n.Helper()
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, BoundObjectRef: bound},
	}
	n.must(n.SubResource("token").Create(n.Context(), account, request))
	return request.Status.Token
}

// secure returns a client of config discovery that verifies its CA.
var secure = sync.OnceValues(func() (*http.Client, error) {
	pem, err := os.ReadFile(house.ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 64},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
})

// ask sends a request to config discovery.
func (n *tenant) ask(token, path string) (code int, body []byte) {
	n.Helper()
	client, err := secure()
	n.must(err)
	request, err := http.NewRequestWithContext(
		n.Context(), http.MethodGet, "https://localhost:"+portOf(house.discovery)+path, nil,
	)
	n.must(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	n.must(err)
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 32<<20))
	n.must(err)
	return response.StatusCode, body
}
