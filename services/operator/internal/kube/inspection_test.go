package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// people is an authorizer of the inspection API with a fake API server.
type people struct {
	*inspectors
	readers *asked
	// users are the users by token for the API server.
	users map[string]authenticationv1.UserInfo
	// away is the error of all reviews. denied is the error of SubjectAccessReviews only.
	away, denied    error
	tokens, rights  atomic.Int64
	mu              sync.Mutex
	reviewed        []authorizationv1.SubjectAccessReviewSpec
	slow            time.Duration
	mayGetInMedia   string
	mostConcurrency atomic.Int64
}

func newPeople(t *testing.T, own string, readers *asked) *people {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(own+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &people{readers: readers, mayGetInMedia: "ada", users: map[string]authenticationv1.UserInfo{
		"of-ada": {
			Username: "ada", UID: "7", Groups: []string{"media-team"},
			Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a", "b"}},
		},
		"of-bob": {Username: "bob"},
	}}
	p.inspectors = &inspectors{readers: &readers.authorizer, tokenFile: file}
	p.inspectors.tokens = &tokenReviews{review: func(_ context.Context, token string) (
		authenticationv1.TokenReviewStatus, error,
	) {
		p.tokens.Add(1)
		time.Sleep(p.slow)
		user, known := p.users[token]
		return authenticationv1.TokenReviewStatus{Authenticated: known, User: user}, p.away
	}}
	var running atomic.Int64
	p.access = newAccessReviews(func(_ context.Context, r *authorizationv1.SubjectAccessReview) (bool, error) {
		p.rights.Add(1)
		p.mostConcurrency.Store(max(p.mostConcurrency.Load(), running.Add(1)))
		defer running.Add(-1)
		time.Sleep(p.slow)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reviewed = append(p.reviewed, r.Spec)
		of := r.Spec.ResourceAttributes
		return r.Spec.User == p.mayGetInMedia && of.Namespace == "media" && of.Verb == "get",
			errors.Join(p.away, p.denied)
	})
	return p
}

// K-16: a caller needs a token for the API server and the right to the Gateway. A token for config discovery of the
// auth service grants usage only. Tokens of dataplanes grant nothing here and cause no reviews. Replicas and accounts
// marked WholeConfigs need no right.
func TestInspectionNeedsATokenAndARight(t *testing.T) {
	s, other := newSigner(t, "first"), newSigner(t, "first")
	account := func(of signer, name string) string {
		return of.token(func(c map[string]any) {
			c["sub"] = accountPrefix + name
			c["kubernetes.io"] = map[string]any{}
		})
	}
	same := func(map[string]any) {}
	sessions := inspect.Attributes{Verb: "get", Resource: "gateways/sessions", Namespace: "media", Name: "door"}
	kick, elsewhere, usage := sessions, sessions, sessions
	kick.Verb, elsewhere.Namespace, usage.Resource = "delete", "other", "gateways/usage"
	away := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "subjectaccessreviews"}, "", errors.New("rbac"))
	for name, c := range map[string]struct {
		header       string
		right        inspect.Attributes
		account      string // the account that a review of a discovery token returns
		away, denied error
		code         int
		want         string // a part of the error, or the name of the caller
		reviews      [3]int64
	}{
		"no token":       {right: sessions, code: 401, want: "no token: send a token for the API server"},
		"a password":     {header: "Basic YWRhOmFkYQ==", right: sessions, code: 401, want: "no token"},
		"an empty token": {header: "Bearer ", right: sessions, code: 401, want: "no token"},
		"an invented token": {
			header: "Bearer invented", right: sessions, code: 401, want: "does not accept the token", reviews: [3]int64{0, 1, 0},
		},
		"a token for another audience": {
			header: "Bearer " + s.token(func(c map[string]any) { c["aud"] = "vault" }), right: sessions, code: 401,
			want: "does not accept the token", reviews: [3]int64{0, 1, 0},
		},
		"with the right": {header: "bearer of-ada", right: sessions, want: "ada", reviews: [3]int64{0, 1, 1}},
		"without the verb": {
			header: "Bearer of-ada", right: kick, code: 403, reviews: [3]int64{0, 1, 1},
			want: `user "ada" needs delete on gateways/sessions.gateway.networking.k8s.io in namespace media: ` +
				`bind ClusterRole stunner-session-manager there with a RoleBinding`,
		},
		"in another namespace": {
			header: "Bearer of-ada", right: elsewhere, code: 403, reviews: [3]int64{0, 1, 1},
			want: "in namespace other: bind ClusterRole stunner-viewer there",
		},
		"another user": {
			header: "Bearer of-bob", right: sessions, code: 403, want: `user "bob" needs get`, reviews: [3]int64{0, 1, 1},
		},
		"all namespaces": {
			header: "Bearer of-bob", right: inspect.Attributes{Verb: "list", Resource: "gateways"}, code: 403,
			want: "in all namespaces: bind ClusterRole stunner-viewer with a ClusterRoleBinding", reviews: [3]int64{0, 1, 1},
		},
		"the API server is away": {
			header: "Bearer of-ada", right: sessions, away: away, code: 503, want: "connection refused",
			reviews: [3]int64{0, 1, 0},
		},
		"the operator may not review access": {
			header: "Bearer of-ada", right: sessions, denied: forbidden, code: 503,
			want: "the operator may not create subjectaccessreviews: apply its ClusterRole", reviews: [3]int64{0, 1, 1},
		},
		"a dataplane": {
			header: "Bearer " + s.token(same), right: sessions, code: 401, want: "grants configs only",
		},
		"the auth service": {
			header: "Bearer " + account(s, "auth:auth"), right: sessions, code: 401, want: "grants configs only",
		},
		"usage for the auth service": {
			header: "Bearer " + account(s, "auth:auth"), right: usage, account: "auth:auth",
			want: accountPrefix + "auth:auth", reviews: [3]int64{1, 0, 0},
		},
		"usage for an auth service with a forged token": {
			header: "Bearer " + account(other, "auth:auth"), right: usage, account: "auth:auth", code: 401,
			want: "grants configs only",
		},
		"usage for an account that is no reader": {
			header: "Bearer " + account(s, "auth:other"), right: usage, account: "auth:other", code: 401,
			want: "grants configs only",
		},
		"usage for a dataplane": {
			header: "Bearer " + s.token(same), right: usage, code: 401, want: "grants configs only",
		},
		"usage without the right": {
			header: "Bearer of-bob", right: usage, code: 403, reviews: [3]int64{0, 1, 1},
			want: `user "bob" needs get on gateways/usage.gateway.networking.k8s.io in namespace media: ` +
				`no role of STUNner grants it, add it to a role of your own`,
		},
		"a replica": {
			header: "Bearer " + account(s, "stunner-system:operator"), right: kick, account: "stunner-system:operator",
			want: accountPrefix + "stunner-system:operator", reviews: [3]int64{1, 0, 0},
		},
		"a forged replica": {
			header: "Bearer " + account(other, "stunner-system:operator"), right: kick,
			account: "stunner-system:operator", code: 401, want: "grants configs only",
		},
		"a replica whose token is another's": {
			header: "Bearer " + account(s, "stunner-system:operator"), right: kick, account: "auth:auth", code: 401,
			want: "grants configs only", reviews: [3]int64{1, 0, 0},
		},
		"a reader of whole configs": {
			header: "Bearer " + account(s, "auth:whole"), right: elsewhere, account: "auth:whole",
			want: accountPrefix + "auth:whole", reviews: [3]int64{1, 0, 0},
		},
	} {
		readers := newAsked(t, func() (keySet, error) { return s.set(), nil },
			func() (authenticationv1.TokenReviewStatus, error) { return confirmed(c.account, "", ""), nil }, relayPod())
		readers.readers = append(readers.readers, accountPrefix+"stunner-system:operator")
		p := newPeople(t, account(s, "stunner-system:operator"), readers)
		p.away, p.denied = c.away, c.denied
		r := shows(t, "")
		if r.Header.Set("Authorization", c.header); c.header == "" {
			r.Header.Del("Authorization")
		}
		caller, err := p.authorize(r, c.right)
		code, said := 0, caller
		var refusal *inspect.Error
		switch {
		case errors.As(err, &refusal):
			code, said = refusal.Code, refusal.Message
		case errors.Is(err, discovery.ErrUndecided):
			code, said = 503, err.Error()
		case err != nil:
			t.Errorf("%s: %v", name, err)
		}
		got := [3]int64{readers.questions.Load(), p.tokens.Load(), p.rights.Load()}
		if code != c.code || !strings.Contains(said, c.want) || got != c.reviews {
			t.Errorf("%s: %d %q after reviews %d, want %d %q after %d", name, code, said, got, c.code, c.want, c.reviews)
		}
		if _, token, _ := strings.Cut(c.header, " "); token != "" && strings.Contains(said, token) {
			t.Errorf("%s: the answer contains the token: %s", name, said)
		}
	}
}

// A SubjectAccessReview has the complete identity of the user, and no identity of the operator.
func TestAccessReviewIsAboutTheCaller(t *testing.T) {
	p := newPeople(t, "", &asked{})
	_, err := p.authorize(shows(t, "of-ada"),
		inspect.Attributes{Verb: "get", Resource: "gateways/refusals", Namespace: "media", Name: "door"})
	if err != nil || len(p.reviewed) != 1 {
		t.Fatalf("%v, reviewed %+v", err, p.reviewed)
	}
	of, user := p.reviewed[0].ResourceAttributes, p.reviewed[0]
	if user.User != "ada" || user.UID != "7" || !slices.Equal(user.Groups, []string{"media-team"}) ||
		!maps.EqualFunc(user.Extra, map[string]authorizationv1.ExtraValue{"scopes": {"a", "b"}},
			slices.Equal[authorizationv1.ExtraValue]) ||
		*of != (authorizationv1.ResourceAttributes{
			Namespace: "media", Name: "door", Verb: "get", Group: "gateway.networking.k8s.io", Resource: "gateways",
			Subresource: "refusals",
		}) {
		t.Errorf("reviewed %+v of %+v", of, user)
	}
}

// Parallel and repeated requests of one caller cause one TokenReview and one SubjectAccessReview in ten seconds,
// errors are not cached, and the number of concurrent reviews and of cached results is bounded.
func TestInspectionReviewsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeople(t, "", &asked{})
		p.slow = 100 * time.Millisecond
		right := inspect.Attributes{Verb: "get", Resource: "gateways", Namespace: "media", Name: "door"}
		come := func(n int, of func(i int) inspect.Attributes) (allowed int64) {
			var yes atomic.Int64
			var group sync.WaitGroup
			for i := range n {
				group.Go(func() {
					if _, err := p.authorize(shows(t, "of-ada"), of(i)); err == nil {
						yes.Add(1)
					}
				})
			}
			group.Wait()
			return yes.Load()
		}
		one := func(int) inspect.Attributes { return right }
		for step, want := range []struct{ allowed, tokens, rights int64 }{{1_000, 1, 1}, {1_000, 1, 1}} {
			if got := come(1_000, one); got != want.allowed || p.tokens.Load() != want.tokens ||
				p.rights.Load() != want.rights {
				t.Errorf("step %d: %d allowed after %d and %d reviews", step, got, p.tokens.Load(), p.rights.Load())
			}
		}
		time.Sleep(inspectionTTL)
		p.mayGetInMedia = "" // this change revokes the right
		if got := come(10, one); got != 0 || p.tokens.Load() != 2 || p.rights.Load() != 2 {
			t.Errorf("%d allowed after %d and %d reviews", got, p.tokens.Load(), p.rights.Load())
		}
		time.Sleep(inspectionTTL)
		p.mayGetInMedia, p.denied = "ada", errors.New("connection refused")
		come(1, one)
		p.denied = nil
		if got := come(1, one); got != 1 {
			t.Error("the error of a review is cached")
		}
		come(100, func(i int) inspect.Attributes {
			many := right
			many.Name = fmt.Sprint("door-", i)
			return many
		})
		if most := p.mostConcurrency.Load(); most > maxConcurrentAccessReviews {
			t.Errorf("%d concurrent reviews", most)
		}
		for i := range 2 * maxCachedAccess {
			p.access.store(accessKey{right: inspect.Attributes{Name: fmt.Sprint(i)}}, accessResult{})
		}
		synctest.Wait() // reviews that timed out for their callers still store their results
		if n := len(p.access.known); n > maxCachedAccess {
			t.Errorf("%d cached results", n)
		}
		time.Sleep(reviewTimeout) // the last reviews end
	})
}

// Without authentication of config discovery, only callers on this host and other replicas are answered.
func TestOpenInspectionIsForThisHost(t *testing.T) {
	for remote, want := range map[string]bool{
		"127.0.0.1:4711": true, "[::1]:4711": true, "[::ffff:127.0.0.1]:1": true, "10.0.0.2:4711": true, "10.0.0.3:4711": false,
		"192.0.2.1:1": false, "": false,
	} {
		_, err := authorizeOpen(&http.Request{RemoteAddr: remote, Host: "127.0.0.1:1"}, []string{"http://10.0.0.2:13478"})
		if (err == nil) != want {
			t.Errorf("%q: %v", remote, err)
		}
	}
}

// The problems of the inspection API are the conditions that report one, with their object and field.
func TestProblemsAreShownWithTheirObject(t *testing.T) {
	w := newWriter(nil, nil, nil, nil, nil, nil, nil)
	problem := func(part, kind, reason, message string) desired {
		return desired{ours: true, problems: []condition.Problem{{Part: part, Condition: metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		}}}}
	}
	w.desired[translate.ObjectRef{
		Kind: translate.KindGateway, NamespacedName: types.NamespacedName{Namespace: "media", Name: "door"},
	}] = problem("spec.listeners[tls]", condition.ResolvedRefs, "InvalidCertificateRef", "no Secret")
	w.desired[translate.ObjectRef{Kind: translate.KindClass, NamespacedName: types.NamespacedName{Name: "calls"}}] =
		problem("", condition.Accepted, "InvalidParameters", "")
	var seen inspected
	if got := seen.problems(); got != nil {
		t.Errorf("before the start: %+v", got)
	}
	seen.writer.Store(w)
	var got []string
	for _, p := range seen.problems() {
		got = append(got, strings.Join([]string{p.Object, p.Field, p.Condition, p.Status, p.Reason, p.Message}, "|"))
	}
	slices.Sort(got)
	if want := []string{
		"Gateway media/door|spec.listeners[tls]|ResolvedRefs|False|InvalidCertificateRef|no Secret",
		"GatewayClass calls||Accepted|False|InvalidParameters|",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
