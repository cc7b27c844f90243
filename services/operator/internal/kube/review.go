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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// reviewTime bounds how long a reader of configs waits for the API server to look at its token: a dataplane waits no longer for an answer.
const reviewTime = 4 * time.Second

// How many questions a second the API server is asked, and how many at once: after a restart all dataplanes come back, and each costs two.
const (
	reviewRate  = 200
	reviewBurst = 400
)

// reviewer says who may read configs by asking the API server whose token it is: a dataplane pod reads the config of its Gateway, the
// accounts in readers read what an auth service needs of all, and whole configs where they are marked with WholeConfigs.
type reviewer struct {
	clients kubernetes.Interface
	// readers are user names, such as system:serviceaccount:NAMESPACE:NAME.
	readers []string
}

// newReviewer takes readers as NAMESPACE/SERVICEACCOUNT.
func newReviewer(c *rest.Config, readers []string) (reviewer, error) {
	c = rest.CopyConfig(c)
	c.QPS, c.Burst = reviewRate, reviewBurst
	clients, err := kubernetes.NewForConfig(c)
	if err != nil {
		return reviewer{}, fmt.Errorf("reach API server: %w", err)
	}
	r := reviewer{clients: clients}
	for _, account := range readers {
		r.readers = append(r.readers, accountPrefix+strings.Replace(account, "/", ":", 1))
	}
	return r, nil
}

// WholeConfigs marks an account of Provider.DiscoveryReaders that reads whole configs. No name of an account ends so.
const WholeConfigs = ":whole"

// accountPrefix begins the user name of every ServiceAccount.
const accountPrefix = "system:serviceaccount:"

// authorize is for discovery.ServerOptions. An error means that the caller is nobody, unless nobody can say.
func (r reviewer) authorize(req *http.Request) (discovery.Grant, error) {
	ctx, cancel := context.WithTimeout(req.Context(), reviewTime)
	defer cancel()
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return discovery.Grant{}, errors.New("authorize reader of configs: send a ServiceAccount token as bearer token")
	}
	review, err := r.clients.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{manifest.DiscoveryAudience}},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return discovery.Grant{}, fmt.Errorf("review token: %w: %w", discovery.ErrUndecided, err)
	case !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, manifest.DiscoveryAudience):
		return discovery.Grant{}, fmt.Errorf("review token: it is not valid for audience %s", manifest.DiscoveryAudience)
	case slices.Contains(r.readers, review.Status.User.Username+WholeConfigs):
		return discovery.Grant{All: true}, nil
	case slices.Contains(r.readers, review.Status.User.Username):
		return discovery.Grant{All: true, ForAuth: true}, nil
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
func (r reviewer) podGrant(ctx context.Context, user authenticationv1.UserInfo) (discovery.Grant, error) {
	namespace, _, ok := strings.Cut(strings.TrimPrefix(user.Username, accountPrefix), ":")
	name, uid := user.Extra[podName], user.Extra[podUID]
	if !ok || len(name) != 1 || len(uid) != 1 {
		return discovery.Grant{}, nil
	}
	pod, err := r.clients.CoreV1().Pods(namespace).Get(ctx, name[0], metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return discovery.Grant{}, fmt.Errorf("read pod %s/%s of token: %w", namespace, name[0], err)
	case err != nil:
		return discovery.Grant{}, fmt.Errorf("read pod %s/%s of token: %w: %w", namespace, name[0], discovery.ErrUndecided, err)
	}
	labels := pod.Labels
	if string(pod.UID) != uid[0] || labels[manifest.AppLabel] != manifest.AppValue || labels[resource.RelatedGatewayNamespace] != namespace {
		return discovery.Grant{}, nil
	}
	return discovery.Grant{ID: namespace + "/" + labels[resource.RelatedGatewayName], Pod: pod.Name, Node: pod.Spec.NodeName}, nil
}
