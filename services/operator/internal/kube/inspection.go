package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// newInspection returns the inspection API of this replica.
func newInspection(
	p *Provider, server *discovery.Server, readers *authorizer, id *trust.Identity, seen *inspected, m *meters,
) *inspect.API {
	o := inspect.Options{
		Pods: server, Running: seen.pods.inspected, Replicas: seen.replicas, Log: p.Log,
		OnRefusal: func(why string) { m.inspectionRefused.WithLabelValues(why).Inc() },
		Version:   telemetry.Version("operator"), Client: inspect.NewClient(id.Client(), p.TokenFile),
		State: func() inspection.Operator {
			return inspection.Operator{Replica: p.Identity, Leader: p.lease.leader(), Problems: seen.problems()}
		},
	}
	if readers == nil {
		o.Authorize = func(r *http.Request, _ inspect.Attributes) (string, error) { return authorizeOpen(r, seen.replicas()) }
	} else {
		o.Authorize = newInspectors(readers, p.TokenFile).authorize
	}
	return inspect.New(o)
}

// inspected is the state of the provider that the inspection API shows. Its fields except pods are set while the API is
// served.
type inspected struct {
	pods   *podIndex
	peers  atomic.Pointer[[]string]
	writer atomic.Pointer[writer]
}

// replicas returns the URLs of the other replicas.
func (i *inspected) replicas() []string {
	if urls := i.peers.Load(); urls != nil {
		return *urls
	}
	return nil
}

// problems returns the problems of the objects that the operator has translated.
func (i *inspected) problems() []inspection.Problem {
	if w := i.writer.Load(); w != nil {
		return w.problems()
	}
	return nil
}

func (w *writer) problems() (all []inspection.Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref, want := range w.desired {
		for _, p := range want.problems {
			all = append(all, p.Inspected(objectName(ref)))
		}
	}
	return all
}

func objectName(ref translate.ObjectRef) string {
	return ref.Kind + " " + strings.TrimPrefix(ref.NamespacedName.String(), "/")
}

// leader returns the identity of the leader; empty if it is unknown.
func (l *lease) leader() string {
	if e := l.elector.Load(); e != nil {
		return e.GetLeader()
	}
	return ""
}

// authorizeOpen admits callers of this host and other replicas. It is used if config discovery has no authentication.
func authorizeOpen(r *http.Request, replicas []string) (string, error) {
	if inspect.OnThisHost(r) {
		return "a caller on this host", nil
	}
	source := sourceOf(r)
	for _, replica := range replicas {
		if u, err := url.Parse(replica); err == nil && u.Hostname() == source.String() {
			return "replica " + source.String(), nil
		}
	}
	return "", inspect.Forbidden("with --discovery-auth=off callers on the same host only are answered: " +
		"use kubectl port-forward")
}

// inspectors authorizes callers of the inspection API. The replicas of the operator, and accounts that read whole
// configs, show a token for config discovery and may do everything. Accounts that read the configs of all Gateways,
// such as that of the auth service, show such a token too and have inspect.UsageRight. Any other caller shows a token
// for the API server, which reviews the token and the right of its user. The token has no other use.
type inspectors struct {
	readers   *authorizer
	tokens    *tokenReviews
	access    *accessReviews
	tokenFile string
}

func newInspectors(readers *authorizer, tokenFile string) *inspectors {
	clients := readers.clients
	return &inspectors{
		readers: readers, tokenFile: tokenFile,
		tokens: &tokenReviews{review: func(ctx context.Context, token string) (
			authenticationv1.TokenReviewStatus, error,
		) {
			return createReview(ctx, clients, token)
		}},
		access: newAccessReviews(func(ctx context.Context, r *authorizationv1.SubjectAccessReview) (bool, error) {
			return createAccessReview(ctx, clients, r)
		}),
	}
}

// inspectionTTL is how long the review of a token for the API server is used. It is short because people revoke tokens.
const inspectionTTL = 10 * time.Second

const tokenRemedy = "send a token for the API server as bearer token, such as that of a kubeconfig or of " +
	"kubectl create token"

// authorize implements inspect.Options.Authorize.
func (i *inspectors) authorize(r *http.Request, right inspect.Attributes) (caller string, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), authorizeTimeout)
	defer cancel()
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", inspect.Unauthenticated("no token: %s", tokenRemedy)
	}
	if claimed, err := readToken(token, manifest.DiscoveryAudience); err == nil {
		return i.authorizeReader(ctx, token, claimed, sourceOf(r), right)
	}
	status, err := i.tokens.get(ctx, token, time.Now().Add(inspectionTTL), sourceOf(r), false)
	if err != nil {
		return "", err
	}
	if !status.Authenticated {
		return "", inspect.Unauthenticated("the API server does not accept the token: %s", tokenRemedy)
	}
	allowed, err := i.access.allowed(ctx, token, status.User, right)
	if err != nil {
		return "", err
	}
	if !allowed {
		return "", inspect.Forbidden("user %q %s", status.User.Username, right.Missing())
	}
	return status.User.Username, nil
}

// authorizeReader authorizes a token for config discovery. Only a token of an account that may use the inspection API
// is reviewed, so that the tokens of dataplanes cause no reviews.
func (i *inspectors) authorizeReader(
	ctx context.Context, token string, claimed tokenClaims, source netip.Addr, right inspect.Attributes,
) (string, error) {
	refused := inspect.Unauthenticated("the token is for config discovery, which grants configs only: %s", tokenRemedy)
	claims, err := i.readers.keys.verify(ctx, token, manifest.DiscoveryAudience)
	switch {
	case errors.Is(err, errNoKeys):
		claims = claimed
	case err != nil:
		return "", refused
	}
	if !i.trusts(claims.Subject, right) {
		return "", refused
	}
	status, err := i.readers.reviews.get(ctx, token, claimed.ExpiresAt.Time, source, false)
	switch {
	case err != nil:
		return "", err
	case !status.Authenticated || !slices.Contains(status.Audiences, manifest.DiscoveryAudience) ||
		!i.trusts(status.User.Username, right):
		return "", refused
	}
	return status.User.Username, nil
}

// trusts reports whether an account has a right. An account in --discovery-readers with the suffix WholeConfigs has all
// rights. The account of this operator has all rights if it is in --discovery-readers. Any other account in
// --discovery-readers has inspect.UsageRight only.
func (i *inspectors) trusts(account string, right inspect.Attributes) bool {
	if slices.Contains(i.readers.readers, account+WholeConfigs) ||
		right.Is(inspect.UsageRight) && slices.Contains(i.readers.readers, account) {
		return true
	}
	own, err := i.ownAccount()
	return err == nil && account == own && slices.Contains(i.readers.readers, account)
}

// ownAccount returns the user name of the account of this replica's own token.
func (i *inspectors) ownAccount() (string, error) {
	token, err := os.ReadFile(i.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read token of this replica: %w", err)
	}
	claims, err := readToken(strings.TrimSpace(string(token)), manifest.DiscoveryAudience)
	return claims.Subject, err
}
