package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Audience is what a token must be made for, to be good for config discovery: one for anything else opens nothing here.
const Audience = "stunner-discovery"

// reviewTime bounds how long a reader of configs waits for the API server to look at its token.
const reviewTime = 10 * time.Second

// Reviewer says who may read configs by asking the API server whose token it is: a dataplane pod reads the config of its Gateway, the
// accounts in Readers read all.
type Reviewer struct {
	Clients kubernetes.Interface
	// Readers are user names, such as system:serviceaccount:NAMESPACE:NAME.
	Readers []string
}

// Authorize is for discovery.ServerOptions. An error means that the caller is nobody.
func (r Reviewer) Authorize(req *http.Request) (discovery.Grant, error) {
	ctx, cancel := context.WithTimeout(req.Context(), reviewTime)
	defer cancel()
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return discovery.Grant{}, errors.New("authorize reader of configs: send a ServiceAccount token as bearer token")
	}
	review, err := r.Clients.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return discovery.Grant{}, fmt.Errorf("review token: %w", err)
	case !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, Audience):
		return discovery.Grant{}, fmt.Errorf("review token: it is not valid for audience %s", Audience)
	case slices.Contains(r.Readers, review.Status.User.Username):
		return discovery.Grant{All: true}, nil
	}
	return r.podGrant(ctx, review.Status.User)
}

// The names under which the API server tells to which pod a token is bound.
const (
	podName = "authentication.kubernetes.io/pod-name"
	podUID  = "authentication.kubernetes.io/pod-uid"
)

// podGrant lets a dataplane pod read the config of the Gateway in its labels, which is one of its own namespace. An account that is neither gets a
// grant for nothing.
func (r Reviewer) podGrant(ctx context.Context, user authenticationv1.UserInfo) (discovery.Grant, error) {
	namespace, _, ok := strings.Cut(strings.TrimPrefix(user.Username, "system:serviceaccount:"), ":")
	name, uid := user.Extra[podName], user.Extra[podUID]
	if !ok || len(name) != 1 || len(uid) != 1 {
		return discovery.Grant{}, nil
	}
	pod, err := r.Clients.CoreV1().Pods(namespace).Get(ctx, name[0], metav1.GetOptions{})
	if err != nil {
		return discovery.Grant{}, fmt.Errorf("read pod %s/%s of token: %w", namespace, name[0], err)
	}
	labels := pod.Labels
	if string(pod.UID) != uid[0] || labels[manifest.AppLabel] != manifest.AppValue || labels[resource.RelatedGatewayNamespace] != namespace {
		return discovery.Grant{}, nil
	}
	return discovery.Grant{ID: namespace + "/" + labels[resource.RelatedGatewayName]}, nil
}
