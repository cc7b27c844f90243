package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// authorizeTimeout bounds how long a reader of configs waits for an answer: a dataplane gives up after 5 s.
const authorizeTimeout = 4 * time.Second

// reviewer says who may read configs: a dataplane pod reads the config of its Gateway, the accounts in readers read what an auth
// service needs of all, and whole configs where they are marked with WholeConfigs.
//
// The token of a pod is verified here, with the keys of the API server and the pods that a watch tells of: after a restart thousands of readers come at
// once, and cost the API server one fetch and one list. The API server is asked about a token when that does not decide, when the token is an account's
// that reads everything, and every few minutes while a stream is open.
type authorizer struct {
	keys    *tokenKeys
	pods    *podIndex
	reviews *tokenReviews
	// readers are user names, such as system:serviceaccount:NAMESPACE:NAME.
	readers []string
}

// newAuthorizer takes readers as NAMESPACE/SERVICEACCOUNT.
func newAuthorizer(c *rest.Config, readers []string, log *slog.Logger) (*authorizer, error) {
	c = rest.CopyConfig(c)
	c.QPS = -1 // the number of questions at a time is bounded
	clients, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	fetch := func(ctx context.Context) (keySet, error) { return fetchKeys(ctx, clients.CoreV1().RESTClient()) }
	r := &authorizer{keys: &tokenKeys{fetch: fetch, log: log}, pods: newPodIndex(), reviews: &tokenReviews{ask: asks(clients)}}
	for _, account := range readers {
		r.readers = append(r.readers, accountPrefix+strings.Replace(account, "/", ":", 1))
	}
	return r, nil
}

// WholeConfigs marks an account of Provider.DiscoveryReaders that reads whole configs. No name of an account ends so.
const WholeConfigs = ":whole"

// asks has the API server review tokens.
func asks(clients kubernetes.Interface) func(context.Context, string) (authenticationv1.TokenReviewStatus, error) {
	return func(ctx context.Context, token string) (authenticationv1.TokenReviewStatus, error) {
		review, err := clients.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{manifest.DiscoveryAudience}},
		}, metav1.CreateOptions{})
		if err != nil {
			return authenticationv1.TokenReviewStatus{}, err
		}
		return review.Status, nil
	}
}

// accountPrefix begins the user name of every ServiceAccount.
const accountPrefix = "system:serviceaccount:"

// authorize is for discovery.ServerOptions. An error means that the caller is nobody, unless nobody can say.
func (r *authorizer) authorize(req *http.Request) (discovery.Grant, error) {
	ctx, cancel := context.WithTimeout(req.Context(), authorizeTimeout)
	defer cancel()
	token, said, err := tokenOf(req)
	if err != nil {
		return discovery.Grant{}, err
	}
	claims, err := r.keys.verify(ctx, token, manifest.DiscoveryAudience)
	switch {
	case errors.Is(err, errNoKeys):
		return r.reviewed(ctx, r.reviews.of, token, said, req)
	case err != nil:
		return discovery.Grant{}, fmt.Errorf("verify token: %w", err)
	case slices.Contains(r.readers, claims.Subject), slices.Contains(r.readers, claims.Subject+WholeConfigs):
		return r.reviewed(ctx, r.reviews.of, token, said, req)
	case claims.Kubernetes.Pod.Name == "":
		return discovery.Grant{}, nil
	}
	grant, found, err := r.podGrant(ctx, claims.Kubernetes.Namespace, claims.Kubernetes.Pod, claims.Subject)
	if err != nil || found {
		return grant, err
	}
	return r.reviewed(ctx, r.reviews.of, token, said, req)
}

// confirm is for discovery.ServerOptions: the API server has the last word on a token with which a stream was opened.
func (r *authorizer) confirm(req *http.Request) (discovery.Grant, error) {
	ctx, cancel := context.WithTimeout(req.Context(), reviewTimeout)
	defer cancel()
	token, said, err := tokenOf(req)
	if err != nil {
		return discovery.Grant{}, err
	}
	return r.reviewed(ctx, r.reviews.again, token, said, req)
}

// tokenOf returns the token that a request shows, and what it says of itself. A token that cannot be good is an error: nobody is asked about it.
func tokenOf(req *http.Request) (token string, said tokenClaims, err error) {
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", said, errors.New("authorize reader of configs: send a ServiceAccount token as bearer token")
	}
	if said, err = readToken(token, manifest.DiscoveryAudience); err != nil {
		return "", said, fmt.Errorf("read token: send a ServiceAccount token for audience %s: %w", manifest.DiscoveryAudience, err)
	}
	return token, said, nil
}

// tokenQuestion is how the API server is asked about a token.
type tokenQuestion func(ctx context.Context, token string, expiry time.Time, source netip.Addr) (authenticationv1.TokenReviewStatus, error)

// reviewed is what a caller may read as the API server knows it.
func (r *authorizer) reviewed(ctx context.Context, ask tokenQuestion, token string, said tokenClaims, req *http.Request) (discovery.Grant, error) {
	var source netip.Addr
	if at, err := netip.ParseAddrPort(req.RemoteAddr); err == nil {
		source = at.Addr().Unmap()
	}
	status, err := ask(ctx, token, said.ExpiresAt.Time, source)
	switch {
	case err != nil:
		return discovery.Grant{}, err
	case !status.Authenticated || !slices.Contains(status.Audiences, manifest.DiscoveryAudience):
		return discovery.Grant{}, fmt.Errorf("review token: it is not valid for audience %s", manifest.DiscoveryAudience)
	case slices.Contains(r.readers, status.User.Username+WholeConfigs):
		return discovery.Grant{All: true}, nil
	case slices.Contains(r.readers, status.User.Username):
		return discovery.Grant{All: true, ForAuth: true}, nil
	}
	namespace, _, ok := strings.Cut(strings.TrimPrefix(status.User.Username, accountPrefix), ":")
	name, uid := status.User.Extra[podName], status.User.Extra[podUID]
	if !ok || len(name) != 1 || len(uid) != 1 {
		return discovery.Grant{}, nil
	}
	r.pods.await(ctx, types.NamespacedName{Namespace: namespace, Name: name[0]})
	grant, _, err := r.podGrant(ctx, namespace, tokenObject{Name: name[0], UID: uid[0]}, status.User.Username)
	return grant, err
}

// The names under which the API server tells to which pod a token is bound.
const (
	podName = "authentication.kubernetes.io/pod-name"
	podUID  = "authentication.kubernetes.io/pod-uid"
)

// podGrant lets a dataplane pod read the config of the Gateway in its labels. A pod that is no dataplane gets a grant for nothing. A pod that is not
// known is not found.
func (r *authorizer) podGrant(ctx context.Context, namespace string, bound tokenObject, account string) (grant discovery.Grant, found bool, err error) {
	pod, err := r.pods.get(ctx, types.NamespacedName{Namespace: namespace, Name: bound.Name})
	if err != nil || pod == nil {
		return discovery.Grant{}, false, err
	}
	id, ok := gatewayOf(pod)
	if !ok || string(pod.UID) != bound.UID || accountPrefix+namespace+":"+pod.Spec.ServiceAccountName != account {
		return discovery.Grant{}, true, nil
	}
	return discovery.Grant{ID: id, Pod: pod.Name, Node: pod.Spec.NodeName}, true, nil
}
