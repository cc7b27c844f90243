package scale

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/reader"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

var readers = flag.Int("readers", 300, "dataplane pods that read configs over TLS with tokens; 5 for each Gateway")

// podsOfGateway is the number of pods of a Gateway.
const podsOfGateway = 5

// Groups of the operator: administrators have all rights; reviewers have no right to non-resource URLs such as the keys
// of tokens.
const (
	administrators = "system:masters"
	reviewers      = "reviewers"
)

// The ServiceAccount of the pods and the audience of their tokens.
const (
	account  = "dataplane"
	audience = "stunner-discovery"
)

// Limits for a restart with readers that authenticate by tokens.
const (
	maxQuestions = 1.1 // requests to the API server for each reader
	fewReaders   = 1_000
)

// backWithin is the limit of the time from the start of the operator until the last reader is served.
func backWithin(count int) time.Duration {
	if count <= fewReaders {
		return 5 * time.Second
	}
	return 15 * time.Second
}

// after a kill of the operator all dataplanes, with tokens and over TLS, are served again within 5 s, or within
// 15 s if there are more than 1,000. The API server gets at most 1.1 requests for each reader, and no write. The same
// holds while a fifth of the clients send invalid tokens.
func TestStrictReaders(t *testing.T) {
	s := newStrictTest(t)
	for _, mode := range []struct{ name, group string }{
		{"keys of the API server", administrators}, {"a review of each token", reviewers},
	} {
		t.Run(mode.name, func(t *testing.T) {
			s := s.with(t, mode.group)
			s.round("after the first start", s.start)
			s.round("after a kill", s.restart)
			s.sendInvalidTokens()
			s.round("after a kill, with invalid tokens", s.restart)
		})
	}
}

// strictTest is a scaleTest with dataplane pods and their tokens.
type strictTest struct {
	*scaleTest
	stalls   *stall.Monitor
	tokens   []string // tokens of the pods
	security *tls.Config
	rounds   int
	byReview bool         // the operator has no right to read keys
	forged   atomic.Int64 // tokens with a wrong signature, while the operator has no keys
	refused  atomic.Int64 // number of refused tokens
	accepted atomic.Int64
}

func newStrictTest(t *testing.T) *strictTest {
	t.Helper()
	kube := runner.NewCluster(t)
	b := &strictTest{
		scaleTest: &scaleTest{T: t, kube: kube, userObjects: newUserObjects(t, kube.Admin)},
		stalls:    stall.Start(),
	}
	t.Cleanup(b.stalls.Stop)
	for _, o := range []string{
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"reviewers"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"reviewers"},
		  "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reviewers"},
		  "subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"reviewers"}]}`,
	} {
		if err := b.create(b.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	b.grow(*readers / podsOfGateway)
	b.deploy()
	return b
}

// with returns the same objects, pods and tokens for an operator with the rights of a group.
func (b *strictTest) with(t *testing.T, group string) *strictTest {
	t.Helper()
	return &strictTest{
		scaleTest: &scaleTest{
			T: t, kube: b.kube, userObjects: b.userObjects, operator: newOperator(t, b.kube, "strict", group),
		},
		stalls: b.stalls, tokens: b.tokens, byReview: group == reviewers,
	}
}

// deploy creates the pods and their tokens.
func (b *strictTest) deploy() {
	b.Helper()
	for n := range namespaces {
		if err := b.create(b.Context(), fmt.Sprintf(
			`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"namespace":%q,"name":%q}}`, namespaceOf(n),
			account,
		)); err != nil {
			b.Fatal(err)
		}
	}
	config := rest.CopyConfig(b.kube.Admin.Config)
	config.UserAgent = "world"
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	b.tokens = make([]string, b.size*podsOfGateway)
	b.each(0, len(b.tokens), func(ctx context.Context, pod int) error {
		gateway, name := pod%b.size, podOf(pod)
		if err := b.create(ctx, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":%q,"name":%q,
			"labels":{"app":"stunner","stunner.l7mp.io/related-gateway-name":%q,"stunner.l7mp.io/related-gateway-namespace":%q}},
			"spec":{"nodeName":"worker","serviceAccountName":%q,"automountServiceAccountToken":false,"containers":[{"name":"stunnerd","image":"example.net/stunnerd"}]}}`,
			namespaceOf(gateway), name, nameOf(gateway), namespaceOf(gateway), account)); err != nil {
			return err
		}
		made, err := clients.CoreV1().Pods(namespaceOf(gateway)).Patch(ctx, name, types.MergePatchType,
			[]byte(`{"status":{"phase":"Running","podIP":"192.0.2.200","podIPs":[{"ip":"192.0.2.200"}]}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			return err
		}
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{audience}, ExpirationSeconds: new(int64(3600)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: name, UID: made.UID,
			},
		}}
		request, err = clients.CoreV1().ServiceAccounts(namespaceOf(gateway)).CreateToken(
			ctx, account, request, metav1.CreateOptions{},
		)
		if err == nil {
			b.tokens[pod] = request.Status.Token
		}
		return err
	})
}

func podOf(pod int) string { return fmt.Sprintf("pod-%d", pod) }

// start starts the operator, and a reader for each pod as soon as there is a CA.
func (b *strictTest) start() {
	b.Helper()
	b.operator.start()
	b.operator.await("there is a CA", func(ctx context.Context) error {
		m, err := b.in("v1", "configmaps", 0).Get(ctx, "stunner-discovery-ca", metav1.GetOptions{})
		if err != nil {
			return err
		}
		data, _ := m.Object["data"].(map[string]any)
		pem, _ := data["ca.crt"].(string)
		b.security = &tls.Config{RootCAs: x509.NewCertPool()}
		if !b.security.RootCAs.AppendCertsFromPEM([]byte(pem)) {
			return errors.New("the ConfigMap has no certificate")
		}
		return nil
	})
	for pod, token := range b.tokens {
		b.readers = append(
			b.readers, reader.ReadAs(b.Context(), b.operator.Discovery, idOf(pod%b.size), token, b.security),
		)
	}
}

// restart kills the operator with SIGKILL, like the OOM killer, and starts another operator.
func (b *strictTest) restart() {
	b.Helper()
	if err := b.operator.Process.Kill(); err != nil {
		b.Fatal(err)
	}
	b.all("is disconnected", func(_ int, s reader.State) bool { return !s.Connected })
	b.operator.start()
}

// round starts the operator. It prints the time until all readers are served, and the requests to the API server.
func (b *strictTest) round(when string, start func()) {
	b.Helper()
	begun := time.Now()
	start()
	b.all("is served", func(_ int, s reader.State) bool { return !s.Served.IsZero() })
	var waits []time.Duration
	for _, r := range b.readers {
		waits = append(waits, r.State().Served.Sub(begun))
	}
	slices.Sort(waits)
	n, writes := len(waits), 0
	last := waits[n-1] - b.stalls.Stalled(begun, begun.Add(waits[n-1]))
	b.operator.settles()
	questions, fetched, wrote := b.asked(begun)
	for _, some := range wrote {
		writes += some
	}
	b.Logf("%d readers %s: served again p50 %s, p99 %s, all %s (%s without stalls of the machine); %.3f requests per reader, %d fetches of keys, %d writes; CPU %s, peak %d MiB; invalid tokens refused so far %d",
		n, when, round(waits[n/2]), round(waits[n*99/100]), round(waits[n-1]), round(last), float64(questions)/float64(
			n,
		), fetched, writes, b.operator.cpu(), b.operator.peak(), b.refused.Load())
	if allowed := maxQuestions*float64(n) + float64(b.forged.Load()); float64(questions) > allowed {
		b.Errorf(
			"%s: %d requests to the API server for %d readers, want at most %.0f", when, questions, n,
			allowed,
		)
	}
	if got := b.accepted.Load(); got > 0 {
		b.Errorf("%s: %d invalid tokens were accepted", when, got)
	}
	if b.rounds++; b.rounds == 1 {
		return // everything is written; the time to create the CA does not count
	}
	if last > backWithin(n) {
		b.Errorf("%s: the last of %d readers was served after %s, want at most %s", when, n, round(last), backWithin(n))
	}
	if len(wrote) > 0 {
		b.Errorf("%s: the operator wrote %v, want nothing", when, wrote)
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// asked returns the number of requests about readers since a time: TokenReviews and reads of pods. fetched counts
// requests for all readers, wrote counts writes.
func (b *strictTest) asked(since time.Time) (questions, fetched int, wrote map[string]int) {
	b.Helper()
	all, err := b.kube.Audit(since)
	if err != nil {
		b.Fatal(err)
	}
	wrote = map[string]int{}
	for _, e := range all {
		switch {
		case e.User != runner.User:
		case e.Resource == "tokenreviews", e.Resource == "pods":
			questions++
		case strings.HasPrefix(e.Path, "/openid/"), strings.HasPrefix(e.Path, "/.well-known/"):
			fetched++
		case e.Write() && !asks[e.Resource]:
			wrote[e.Verb+" "+e.Resource]++
		}
	}
	return questions, fetched, wrote
}

// sendInvalidTokens makes a fifth of the clients send invalid tokens until the test ends.
func (b *strictTest) sendInvalidTokens() {
	ctx, cancel := context.WithCancel(b.Context())
	var group sync.WaitGroup
	b.Cleanup(func() { cancel(); group.Wait() })
	for n := range len(b.tokens) / 4 {
		group.Go(func() {
			transport := &http.Transport{
				TLSClientConfig: b.security, DisableKeepAlives: true, TLSHandshakeTimeout: 5 * time.Second,
				ResponseHeaderTimeout: 5 * time.Second,
			}
			for turn := 0; ctx.Err() == nil; turn++ {
				b.spoil(ctx, transport, n, turn)
				select {
				case <-ctx.Done():
				case <-time.After(time.Second/2 + rand.N(time.Second)):
				}
			}
		})
	}
}

// spoil makes one request with an invalid token, which differs in each turn.
func (b *strictTest) spoil(ctx context.Context, transport *http.Transport, n, turn int) {
	token := bad(b.tokens[n], n, turn)
	if b.byReview && turn%4 == 3 {
		b.forged.Add(1)
	}
	r, err := http.NewRequestWithContext(
		ctx, http.MethodGet, "https://"+b.operator.Discovery+"/api/v1/configs/"+idOf(n%b.size), nil,
	)
	if err != nil {
		b.Error(err)
		return
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return
	}
	answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusUnauthorized:
		b.refused.Add(1)
	case http.StatusOK:
		b.accepted.Add(1)
	}
}

// bad makes an invalid token: no token, a token for another audience, an expired token, or a token of another pod with
// a wrong signature.
func bad(good string, n, turn int) string {
	parts := strings.Split(good, ".")
	raw, _ := base64.RawURLEncoding.DecodeString(parts[1])
	var claims map[string]any
	_ = json.Unmarshal(raw, &claims)
	claims["jti"] = fmt.Sprintf("%d-%d", n, turn)
	switch turn % 4 {
	case 0:
		return fmt.Sprintf("garbage-%d-%d", n, turn)
	case 1:
		claims["aud"] = []string{"https://kubernetes.default.svc"}
	case 2:
		claims["exp"] = time.Now().Add(-time.Hour).Unix()
	}
	raw, _ = json.Marshal(claims)
	return parts[0] + "." + base64.RawURLEncoding.EncodeToString(raw) + "." + parts[2]
}
