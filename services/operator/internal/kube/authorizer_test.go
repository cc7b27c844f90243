package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

const testIssuer = "https://kubernetes.default.svc"

// signer signs tokens like an API server.
type signer struct {
	*testing.T
	key *ecdsa.PrivateKey
	id  string
}

func newSigner(t *testing.T, id string) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{t, key, id}
}

// set returns the published key set.
func (s signer) set() keySet {
	s.Helper()
	point, err := s.key.PublicKey.Bytes()
	if err != nil {
		s.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	raw, err := json.Marshal(map[string]any{"keys": []any{map[string]string{
		"use": "sig", "kty": "EC", "alg": "ES256", "crv": "P-256", "kid": s.id, "x": part(point[1:33]),
		"y": part(point[33:]),
	}}})
	if err != nil {
		s.Fatal(err)
	}
	keys, err := keyfunc.NewJWKSetJSON(raw)
	if err != nil {
		s.Fatal(err)
	}
	return keySet{issuer: testIssuer, key: keys.Keyfunc}
}

// token returns a signed pod-bound token with changed claims.
func (s signer) token(change func(c map[string]any)) string {
	s.Helper()
	claims := map[string]any{
		"iss": testIssuer, "aud": []string{manifest.DiscoveryAudience}, "exp": time.Now().Add(time.Hour).Unix(),
		"nbf": time.Now().Unix(),
		"sub": accountPrefix + "media:dataplane",
		"kubernetes.io": map[string]any{
			"namespace": "media", "serviceaccount": map[string]any{"name": "dataplane", "uid": "a"},
			"pod": map[string]any{"name": "relay", "uid": "7d3e"},
		},
	}
	change(claims)
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims(claims))
	token.Header["kid"] = s.id
	text, err := token.SignedString(s.key)
	if err != nil {
		s.Fatal(err)
	}
	return text
}

// shows returns a request with a token.
func shows(t *testing.T, token string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.RemoteAddr = "192.0.2.7:4711"
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// asked is an authorizer with a fake API server that counts requests.
type asked struct {
	authorizer
	fetches, questions atomic.Int64
}

func newAsked(
	t *testing.T, fetch func() (keySet, error), answer func() (authenticationv1.TokenReviewStatus, error),
	there ...*corev1.Pod,
) *asked {
	t.Helper()
	known := fake.NewClientBuilder()
	for _, pod := range there {
		known.WithObjects(pod)
	}
	a := &asked{}
	a.readers = []string{accountPrefix + "auth:auth", accountPrefix + "auth:whole" + WholeConfigs}
	a.pods = &podIndex{ready: make(chan struct{}), cache: known.Build()}
	close(a.pods.ready)
	a.keys = &tokenKeys{log: slog.New(slog.DiscardHandler), fetch: func(context.Context) (
		keySet, error,
	) {
		a.fetches.Add(1)
		return fetch()
	}}
	a.authorizer.reviews = &tokenReviews{review: func(context.Context, string) (
		authenticationv1.TokenReviewStatus, error,
	) {
		a.questions.Add(1)
		return answer()
	}}
	return a
}

func relayPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "media", Name: "relay", UID: "7d3e",
		Labels: map[string]string{
			manifest.AppLabel: manifest.AppValue, resource.RelatedGatewayName: "door",
			resource.RelatedGatewayNamespace: "media",
		},
	}, Spec: corev1.PodSpec{NodeName: "north", ServiceAccountName: "dataplane"}}
}

// confirmed returns the TokenReview status of an authenticated user.
func confirmed(user, pod, uid string) authenticationv1.TokenReviewStatus {
	info := authenticationv1.UserInfo{Username: accountPrefix + user}
	if pod != "" {
		info.Extra = map[string]authenticationv1.ExtraValue{podName: {pod}, podUID: {uid}}
	}
	return authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{manifest.DiscoveryAudience}, User: info,
	}
}

// K-01: a token is verified with the keys of the API server and the watched pods. A TokenReview is made only if that
// does not decide.
func TestTokensAreVerifiedWithTheKeysOfTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, other := newSigner(t, "first"), newSigner(t, "first")
		same := func(map[string]any) {}
		set := func(key string, value any) func(map[string]any) {
			return func(c map[string]any) { c[key] = value }
		}
		bound := func(pod, uid string) func(map[string]any) {
			return func(c map[string]any) {
				c["kubernetes.io"].(map[string]any)["pod"] = map[string]any{"name": pod, "uid": uid}
			}
		}
		door := discovery.Grant{ID: "media/door", Pod: "relay", Node: "north"}
		away, unknown := errors.New("connection refused"), authenticationv1.TokenReviewStatus{}
		stranger := relayPod()
		stranger.Labels[resource.RelatedGatewayNamespace] = "other"
		for name, c := range map[string]struct {
			token     string
			keys      error
			answer    authenticationv1.TokenReviewStatus
			away      error
			pod       *corev1.Pod
			want      discovery.Grant
			refused   bool
			undecided bool
			questions int64
		}{
			"good":                             {token: s.token(same), want: door},
			"good, and the API server is away": {token: s.token(same), away: away, want: door},
			"no token":                         {token: "made.up.token", refused: true},
			"signed by another":                {token: other.token(same), refused: true},
			"signed with an unknown key":       {token: newSigner(t, "second").token(same), refused: true},
			"not signed":                       {token: unsigned(s.token(same)), refused: true},
			"another audience":                 {token: s.token(set("aud", []string{"other"})), refused: true},
			"expired": {
				token: s.token(set("exp", time.Now().Add(-2*time.Minute).Unix())), refused: true,
			},
			"never expires": {token: s.token(set("exp", nil)), refused: true},
			"not yet good": {
				token: s.token(set("nbf", time.Now().Add(time.Hour).Unix())), refused: true,
			},
			"another pod of the name": {token: s.token(bound("relay", "8f00"))},
			"another account":         {token: s.token(set("sub", accountPrefix+"media:other"))},
			"no pod": {
				token: s.token(set("kubernetes.io", map[string]any{"namespace": "media"})),
			},
			"a pod of another Gateway": {token: s.token(same), pod: stranger},
			"a pod that is gone": {
				token: s.token(bound("gone", "7d3e")), answer: unknown, refused: true, questions: 1,
			},
			"a pod that only the API knows": {
				token: s.token(bound("app", "1")), answer: confirmed("media:app", "app", "1"), questions: 1,
			},
			"a pod that is not known, and away": {
				token: s.token(bound("app", "1")), away: away, undecided: true, questions: 1,
			},
			"a reader of what signs": {
				token: s.token(set("sub", accountPrefix+"auth:auth")), answer: confirmed("auth:auth", "", ""),
				want: discovery.Grant{All: true, ForAuth: true}, questions: 1,
			},
			"a reader of everything": {
				token: s.token(set("sub", accountPrefix+"auth:whole")), answer: confirmed("auth:whole", "", ""),
				want: discovery.Grant{All: true}, questions: 1,
			},
			"a reader that is revoked": {
				token: s.token(set("sub", accountPrefix+"auth:auth")), answer: unknown, refused: true, questions: 1,
			},
			"another issuer": {
				token: s.token(set("iss", "https://old")), answer: confirmed("media:dataplane", "relay", "7d3e"),
				want: door, questions: 1,
			},
			"no keys": {
				token: s.token(same), keys: away, answer: confirmed("media:dataplane", "relay", "7d3e"), want: door,
				questions: 1,
			},
			"no keys, another audience": {token: s.token(set("aud", "other")), keys: away, refused: true},
			"no keys, expired": {
				token: s.token(set("exp", time.Now().Add(-2*time.Minute).Unix())), keys: away, refused: true,
			},
			"no keys, no token": {token: "made-up", keys: away, refused: true},
			"no keys, refused": {
				token: other.token(same), keys: away, answer: unknown, refused: true, questions: 1,
			},
			"no keys, and away": {
				token: s.token(same), keys: away, away: away, undecided: true, questions: 1,
			},
			"no keys, for another audience": {
				token: s.token(same), keys: away, answer: authenticationv1.TokenReviewStatus{Authenticated: true},
				refused: true, questions: 1,
			},
			"no keys, another pod of the name": {
				token: s.token(same), keys: away, answer: confirmed("media:dataplane", "relay", "8f00"), questions: 1,
			},
		} {
			pod := c.pod
			if pod == nil {
				pod = relayPod()
				pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}}
			}
			a := newAsked(
				t, func() (keySet, error) { return s.set(), c.keys },
				func() (authenticationv1.TokenReviewStatus, error) { return c.answer, c.away }, pod,
			)
			grant, err := a.authorize(shows(t, c.token))
			if grant != c.want || errors.Is(err, discovery.ErrUndecided) != c.undecided ||
				(err != nil) != (c.undecided || c.refused) {
				t.Errorf("%s: %+v, %v", name, grant, err)
			}
			if got := a.questions.Load(); got != c.questions {
				t.Errorf("%s: the API server is asked %d times, want %d", name, got, c.questions)
			}
		}
	})
}

// unsigned returns a token with the algorithm "none".
func unsigned(token string) string {
	c := tokenClaims{}
	_, _, _ = jwt.NewParser().ParseUnverified(token, &c)
	text, _ := jwt.NewWithClaims(jwt.SigningMethodNone, c).SignedString(jwt.UnsafeAllowNoneSignatureType)
	return text
}

// Keys are fetched once for all clients, again for an unknown key, and rarely for invalid tokens. If the keys cannot be
// fetched, the old keys are used for an hour.
func TestKeysAreFetchedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newSigner(t, "first"), newSigner(t, "second")
		var mu sync.Mutex
		set, failure := first.set(), error(nil)
		published := func() (keySet, error) {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			return set, failure
		}
		answers := func(with keySet, err error) {
			mu.Lock()
			defer mu.Unlock()
			set, failure = with, err
		}
		a := newAsked(t, published, func() (authenticationv1.TokenReviewStatus, error) {
			return authenticationv1.TokenReviewStatus{}, errors.New("connection refused")
		}, relayPod())
		comes := func(s signer, n int) (good int) {
			var served atomic.Int64
			var group sync.WaitGroup
			for range n {
				group.Go(func() {
					token := s.token(func(c map[string]any) { c["exp"] = time.Now().Add(10 * time.Hour).Unix() })
					if grant, err := a.authorize(shows(t, token)); err == nil && grant.ID != "" {
						served.Add(1)
					}
				})
			}
			group.Wait()
			return int(served.Load())
		}
		for _, step := range []struct {
			name    string
			first   func()
			by      signer
			served  int
			fetches int64
		}{
			{"all at once", func() {}, first, 20, 1},
			{"all again", func() { time.Sleep(keysRetry) }, first, 20, 1},
			{"a key that is not published", func() {}, second, 0, 2},
			{"and again", func() {}, second, 0, 2},
			{"it is published", func() { time.Sleep(keysRetry); answers(second.set(), nil) }, second, 20, 3},
			{"the old key is not published any more", func() { time.Sleep(keysRetry) }, first, 0, 4},
			{"a while later", func() { time.Sleep(keysRefresh) }, second, 20, 5},
			{"the API server is away", func() {
				time.Sleep(keysRefresh)
				answers(
					second.set(), errors.New("connection refused"),
				)
			}, second, 20, 6},
			{"for long", func() { time.Sleep(keysTTL) }, second, 0, 7},
			{"it is back", func() { time.Sleep(keysRetry); answers(second.set(), nil) }, second, 20, 8},
		} {
			step.first()
			if got := comes(step.by, 20); got != step.served {
				t.Errorf("%s: %d are served, want %d", step.name, got, step.served)
			}
			time.Sleep(2 * time.Second) // the fetch in the background ends
			if got := a.fetches.Load(); got != step.fetches {
				t.Errorf("%s: fetched %d times, want %d", step.name, got, step.fetches)
			}
		}
	})
}

// one TokenReview is made for each token, however many clients wait for it. Results are cached, and errors are
// not cached.
func TestEachTokenIsReviewedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, failure := newSigner(t, "first"), error(nil)
		a := newAsked(t, func() (keySet, error) { return keySet{}, errors.New("forbidden") }, func() (
			authenticationv1.TokenReviewStatus, error,
		) {
			time.Sleep(time.Second)
			return confirmed("media:dataplane", "relay", "7d3e"), failure
		}, relayPod())
		const readers = 200 // more than the API server reviews within authorizeTimeout
		tokens := make([]string, readers)
		for i := range tokens {
			tokens[i] = s.token(func(c map[string]any) { c["jti"] = fmt.Sprint(i) })
		}
		come := func() (served, undecided int64) {
			var yes, later atomic.Int64
			var group sync.WaitGroup
			for _, token := range tokens {
				group.Go(func() {
					switch grant, err := a.authorize(shows(t, token)); {
					case errors.Is(err, discovery.ErrUndecided):
						later.Add(1)
					case err == nil && grant.ID != "":
						yes.Add(1)
					}
				})
			}
			group.Wait()
			return yes.Load(), later.Load()
		}
		served, undecided := come()
		if served < 3*maxConcurrentReviews || served+undecided != readers || undecided == 0 {
			t.Errorf("%d are served and %d are undecided", served, undecided)
		}
		for range 5 {
			come()
		}
		if served, _ = come(); served != readers || a.questions.Load() != readers {
			t.Errorf("%d are served in the end, after %d questions", served, a.questions.Load())
		}
		time.Sleep(acceptedTTL)
		failure = errors.New("connection refused")
		for round := int64(2); round < 4; round++ { // each round makes another review, because errors are not cached
			time.Sleep(time.Minute)
			if _, err := a.authorize(shows(t, tokens[0])); !errors.Is(err, discovery.ErrUndecided) ||
				a.questions.Load() != readers+round-1 {
				t.Errorf("the API server is away: %v after %d questions", err, a.questions.Load())
			}
		}
		failure = nil
		if _, err := a.confirm(shows(t, tokens[0])); err != nil {
			t.Error(err)
		}
		before := a.questions.Load()
		if _, err := a.confirm(shows(t, tokens[0])); err != nil || a.questions.Load() != before+1 {
			t.Errorf("a stream is confirmed by an old answer: %v", err)
		}
	})
}

// Requests from sources of invalid tokens are queued behind all others, and the memory for them is bounded.
func TestBadTokensWaitBehindGoodOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		q := &tokenReviews{review: func(_ context.Context, token string) (authenticationv1.TokenReviewStatus, error) {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			order = append(order, token)
			return authenticationv1.TokenReviewStatus{Authenticated: token == "good"}, nil
		}}
		hour := time.Now().Add(time.Hour)
		bad, good := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		if _, err := q.get(t.Context(), "garbage", hour, bad, false); err != nil {
			t.Fatal(err)
		}
		for i := range 10 * maxConcurrentReviews {
			if _, err := q.put(fmt.Sprint("garbage ", i), hour, bad, false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := q.get(t.Context(), "good", hour, good, false); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if place := slices.Index(order, "good"); place > 2*maxConcurrentReviews {
			t.Errorf("the good token is asked about after %d bad ones", place)
		}
		mu.Unlock()
		for i := range maxQueuedReviews + maxCachedReviews {
			if _, err := q.put(fmt.Sprint("more ", i), hour, bad, false); err != nil &&
				!errors.Is(err, discovery.ErrUndecided) {
				t.Fatal(err)
			}
		}
		q.mu.Lock()
		if len(q.reviews) > maxCachedReviews || len(q.back) > maxQueuedReviews {
			t.Errorf("%d tokens are remembered, and %d wait", len(q.reviews), len(q.back))
		}
		q.back = nil
		q.mu.Unlock()
		synctest.Wait()
		time.Sleep(time.Minute)
	})
}

// A client without a token has the grant of the only running pod with its address.
func TestAuthorizer_PodAddress(t *testing.T) {
	pod := func(name, address string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: name, Labels: map[string]string{
				manifest.AppLabel: manifest.AppValue, resource.RelatedGatewayName: "edge",
				resource.RelatedGatewayNamespace: "media",
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address}, {IP: "2001:db8::7"}}},
		}
		change(p)
		return p
	}
	none := func(*corev1.Pod) {}
	relay := pod("relay", "192.0.2.7", none)
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		from string
		want string // ID of the grant
		err  bool
	}{
		"its address":             {[]*corev1.Pod{relay}, "192.0.2.7:4711", "media/edge", false},
		"its second address":      {[]*corev1.Pod{relay}, "[2001:db8::7]:4711", "media/edge", false},
		"mapped to IPv6":          {[]*corev1.Pod{relay}, "[::ffff:192.0.2.7]:4711", "media/edge", false},
		"another address":         {[]*corev1.Pod{relay}, "192.0.2.8:4711", "", true},
		"no address":              {[]*corev1.Pod{relay}, "", "", true},
		"two pods at the address": {[]*corev1.Pod{relay, pod("other", "192.0.2.7", none)}, "192.0.2.7:4711", "", true},
		"a pod that has ended": {[]*corev1.Pod{relay, pod("ended", "192.0.2.7", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.PodIPs = corev1.PodSucceeded, p.Status.PodIPs[:1]
		})}, "192.0.2.7:4711", "media/edge", false},
		"the network of the node": {[]*corev1.Pod{pod("relay", "192.0.2.7", func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
		})}, "192.0.2.7:4711", "", true},
		"a Gateway of another namespace": {[]*corev1.Pod{pod("relay", "192.0.2.7", func(p *corev1.Pod) {
			p.Labels[resource.RelatedGatewayNamespace] = "other"
		})}, "192.0.2.7:4711", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			known := fake.NewClientBuilder().WithIndex(&corev1.Pod{}, addressIndex, podAddresses)
			for _, p := range c.pods {
				trimmed, _ := trimPod(p.DeepCopy())
				known.WithObjects(trimmed.(*corev1.Pod))
			}
			a := &authorizer{
				byAddress: true, log: slog.New(slog.DiscardHandler),
				pods: &podIndex{ready: make(chan struct{}), cache: known.Build()},
			}
			close(a.pods.ready)
			r := shows(t, "")
			r.Header.Del("Authorization")
			r.RemoteAddr = c.from
			for name, ask := range map[string]func(*http.Request) (discovery.Grant, error){
				"authorize": a.authorize, "confirm": a.confirm,
			} {
				if g, err := ask(r); g.ID != c.want || g.All || (err != nil) != c.err {
					t.Errorf("%s: grant %+v, error %v, want %q", name, g, err, c.want)
				}
			}
		})
	}
}

// A pod that cannot be a dataplane opens no stream: a pod without a node, and a pod of a Gateway that does not exist. A
// pod without a node may try again, because the watch of pods may be late. A pod that no node has reported opens few
// streams.
func TestPodThatCannotBeADataplaneOpensNoStream(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	door := &gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: "door"}}
	pending, running := relayPod(), relayPod()
	pending.Spec.NodeName = ""
	running.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}}
	for name, c := range map[string]struct {
		pod      *corev1.Pod
		gateways client.Reader
		absent   bool
		reported bool
		err      error
	}{
		"a dataplane":           {running, fake.NewClientBuilder().WithScheme(s).WithObjects(door).Build(), false, true, nil},
		"before the cache":      {running, nil, false, true, nil},
		"a pod that never runs": {relayPod(), nil, false, false, nil},
		"a pod without a node":  {pending, nil, false, true, discovery.ErrUndecided},
		"a Gateway that is not": {running, fake.NewClientBuilder().WithScheme(s).Build(), true, true, nil},
	} {
		a := &authorizer{pods: &podIndex{
			ready: make(chan struct{}), cache: fake.NewClientBuilder().WithObjects(c.pod).Build(),
		}}
		close(a.pods.ready)
		if c.gateways != nil {
			a.gateways.Store(&c.gateways)
		}
		bound := tokenObject{Name: "relay", UID: "7d3e"}
		grant, found, err := a.podGrant(t.Context(), "media", bound, accountPrefix+"media:dataplane")
		if grant.Absent != c.absent || grant.Unreported == c.reported || !found || !errors.Is(err, c.err) || (grant.ID == "media/door") != (c.err == nil) {
			t.Errorf("%s: grant %+v, %v", name, grant, err)
		}
	}
}
