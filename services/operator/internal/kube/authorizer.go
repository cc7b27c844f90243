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
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// authorizer decides which configs a client may read. A dataplane pod may read the config of its Gateway. A
// ServiceAccount in readers may read the part of all configs that an auth service needs, or whole configs if its entry
// has the suffix WholeConfigs.
//
// The token of a pod is verified locally, with the published keys of the API server and with the watched pods, because
// thousands of dataplanes reconnect at once after a restart of the operator. A TokenReview request is made only if the
// local check gives no result, if the token belongs to a ServiceAccount in readers, and every few minutes for an open
// stream.
type authorizer struct {
	clients kubernetes.Interface
	keys    *tokenKeys
	pods    *podIndex
	reviews *tokenReviews
	// byAddress means that a dataplane pod without a token is authenticated by its IP address, because dataplanes of
	// the existing system have no token.
	byAddress bool
	log       *slog.Logger
	// gateways reads Gateways from the cache. It is nil until the cache exists; every Gateway then counts as existing.
	gateways atomic.Pointer[client.Reader]
	// readers are the user names system:serviceaccount:NAMESPACE:NAME of the clients that may read the configs of all
	// Gateways, optionally with the suffix WholeConfigs.
	readers []string
}

// newAuthorizer returns an authorizer for the clients of config discovery.
func newAuthorizer(s Settings, pods *podIndex) (*authorizer, error) {
	c := rest.CopyConfig(s.Config)
	c.QPS = -1 // maxConcurrentReviews limits the requests in place of QPS
	clients, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	fetch := func(ctx context.Context) (keySet, error) { return fetchKeys(ctx, clients.CoreV1().RESTClient()) }
	review := func(ctx context.Context, token string) (authenticationv1.TokenReviewStatus, error) {
		return createReview(ctx, clients, token, manifest.DiscoveryAudience)
	}
	r := &authorizer{
		clients: clients,
		keys:    &tokenKeys{fetch: fetch, log: s.Log}, pods: pods, reviews: &tokenReviews{review: review},
		byAddress: s.DiscoveryAuth == AuthPodAddress, log: s.Log,
	}
	for _, account := range s.DiscoveryReaders {
		r.readers = append(r.readers, accountPrefix+strings.Replace(account, "/", ":", 1))
	}
	return r, nil
}

// createReview makes a TokenReview request. Without audiences, the token must be for the API server.
func createReview(
	ctx context.Context, clients kubernetes.Interface, token string, audiences ...string,
) (authenticationv1.TokenReviewStatus, error) {
	review, err := clients.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.TokenReviewStatus{}, err
	}
	return review.Status, nil
}

// authorize implements discovery.ServerOptions.Authorize. If the error wraps discovery.ErrUndecided, the token could
// not be checked; any other error rejects the token.
func (r *authorizer) authorize(req *http.Request) (discovery.Grant, error) {
	ctx, cancel := context.WithTimeout(req.Context(), authorizeTimeout)
	defer cancel()
	if r.byAddress && req.Header.Get("Authorization") == "" {
		return r.addressGrant(ctx, req)
	}
	token, claimed, err := tokenOf(req)
	if err != nil {
		return discovery.Grant{}, err
	}
	claims, err := r.keys.verify(ctx, token, manifest.DiscoveryAudience)
	switch {
	case errors.Is(err, errNoKeys):
		return r.grantByReview(ctx, token, claimed, req, false)
	case err != nil:
		return discovery.Grant{}, fmt.Errorf("verify token: %w", err)
	case slices.Contains(r.readers, claims.Subject), slices.Contains(r.readers, claims.Subject+WholeConfigs):
		return r.grantByReview(ctx, token, claimed, req, false)
	case claims.Kubernetes.Pod.Name == "":
		return discovery.Grant{}, nil
	}
	grant, found, err := r.podGrant(ctx, claims.Kubernetes.Namespace, claims.Kubernetes.Pod, claims.Subject)
	if err != nil || found {
		return grant, err
	}
	return r.grantByReview(ctx, token, claimed, req, false)
}

// confirm implements discovery.ServerOptions.Confirm. It authorizes an open stream again: by a new TokenReview, or by
// address for a client that was authenticated by its address.
func (r *authorizer) confirm(req *http.Request) (discovery.Grant, error) {
	ctx, cancel := context.WithTimeout(req.Context(), reviewTimeout)
	defer cancel()
	if r.byAddress && req.Header.Get("Authorization") == "" {
		return r.addressGrant(ctx, req)
	}
	token, claimed, err := tokenOf(req)
	if err != nil {
		return discovery.Grant{}, err
	}
	return r.grantByReview(ctx, token, claimed, req, true)
}

// tokenOf returns the bearer token of a request and its unverified claims. It returns an error, without a TokenReview,
// for a token that the API server would reject for its format, audience or expiry.
func tokenOf(req *http.Request) (token string, claimed tokenClaims, err error) {
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", claimed, errors.New("authorize reader of configs: send a ServiceAccount token as bearer token")
	}
	if claimed, err = readToken(token, manifest.DiscoveryAudience); err != nil {
		return "", claimed, fmt.Errorf("read token: send a ServiceAccount token for audience %s: %w",
			manifest.DiscoveryAudience, err)
	}
	return token, claimed, nil
}

// grantByReview returns the grant of a token according to the result of its TokenReview. If anew is true, the token is
// reviewed again even if a result is cached.
func (r *authorizer) grantByReview(
	ctx context.Context, token string, claimed tokenClaims, req *http.Request, anew bool,
) (discovery.Grant, error) {
	status, err := r.reviews.get(ctx, token, claimed.ExpiresAt.Time, sourceOf(req), anew)
	switch {
	case err != nil:
		return discovery.Grant{}, err
	case !status.Authenticated || !slices.Contains(status.Audiences, manifest.DiscoveryAudience):
		return discovery.Grant{}, fmt.Errorf("review token: it is not valid for audience %s",
			manifest.DiscoveryAudience)
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

// sourceOf returns the IP address from which a client sent a request; the zero Addr if it is unknown.
func sourceOf(req *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(req.RemoteAddr)
	return at.Addr().Unmap()
}

// addressGrant returns the grant of a client without a token: it may read the config of the dataplane pod that has the
// IP address of the client.
func (r *authorizer) addressGrant(ctx context.Context, req *http.Request) (discovery.Grant, error) {
	pod, err := r.pods.atAddress(ctx, sourceOf(req))
	if err != nil {
		return discovery.Grant{}, err
	}
	id, ok := configOf(pod)
	if !ok {
		return discovery.Grant{}, nil
	}
	r.log.Info("dataplane pod without a token is admitted by its address", "pod", resource.KeyOf(pod), "gateway", id)
	return discovery.Grant{ID: id, Pod: pod.Name, Node: pod.Spec.NodeName}, nil
}

// verifyPeer implements discovery.ServerOptions.VerifyPeer. An address that cannot be verified yet is accepted here,
// because forwarding verifies it again before it is published.
func (r *authorizer) verifyPeer(id string, reported discovery.Peer) error {
	address := reported.Address.Addr()
	if list, known := r.pods.addresses(id, reported.Pod); known && !slices.Contains(list, address) {
		return fmt.Errorf("verify peer of pod %s: %s is not one of its addresses", reported.Pod, address)
	}
	return nil
}

// The keys of UserInfo.Extra whose values are the name and the UID of the pod to which a token is bound.
const (
	podName = "authentication.kubernetes.io/pod-name"
	podUID  = "authentication.kubernetes.io/pod-uid"
)

// podGrant returns the grant of a token that is bound to a pod. A dataplane pod may read the config of the Gateway in
// its labels, any other pod nothing. found is false if the pod is unknown.
func (r *authorizer) podGrant(
	ctx context.Context, namespace string, bound tokenObject, account string,
) (grant discovery.Grant, found bool, err error) {
	pod, err := r.pods.get(ctx, types.NamespacedName{Namespace: namespace, Name: bound.Name})
	if err != nil || pod == nil {
		return discovery.Grant{}, false, err
	}
	id, ok := configOf(pod)
	if !ok || string(pod.UID) != bound.UID || accountPrefix+namespace+":"+pod.Spec.ServiceAccountName != account {
		return discovery.Grant{}, true, nil
	}
	if pod.Spec.NodeName == "" { // the watch may not have delivered the node yet
		return discovery.Grant{}, true, fmt.Errorf("authorize pod %s: %w: it has no node",
			resource.KeyOf(pod), discovery.ErrUndecided)
	}
	grant = discovery.Grant{ID: id, Pod: pod.Name, Unreported: len(pod.Status.PodIPs) == 0, Node: pod.Spec.NodeName}
	grant.Absent = r.isAbsent(ctx, types.NamespacedName{Namespace: namespace, Name: pod.Labels[resource.RelatedGatewayName]})
	return grant, true, nil
}

// isAbsent reports whether a Gateway is known not to exist.
func (r *authorizer) isAbsent(ctx context.Context, gateway types.NamespacedName) bool {
	reader := r.gateways.Load()
	return reader != nil && apierrors.IsNotFound((*reader).Get(ctx, gateway, &gwapiv1.Gateway{}))
}
