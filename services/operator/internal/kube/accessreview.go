package kube

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
)

// Bounds of SubjectAccessReview requests.
const (
	// maxConcurrentAccessReviews limits the requests in progress.
	maxConcurrentAccessReviews = 8
	// accessTTL is how long the result of a review is cached. A right that is revoked stays usable that long.
	accessTTL = 10 * time.Second
	// maxCachedAccess limits the cached results.
	maxCachedAccess = 5_000
)

// accessReviews makes SubjectAccessReview requests to the API server. Concurrent and repeated requests for one token
// and right share a result.
type accessReviews struct {
	review func(context.Context, *authorizationv1.SubjectAccessReview) (bool, error)
	// shared combines concurrent reviews of one token and right into one.
	shared singleflight.Group
	slots  chan struct{}

	mu    sync.Mutex
	known map[accessKey]accessResult
}

// accessKey identifies a result: the token, by its hash, and the right.
type accessKey struct {
	token tokenHash
	right inspect.Attributes
}

type accessResult struct {
	allowed bool
	until   time.Time
}

func newAccessReviews(review func(context.Context, *authorizationv1.SubjectAccessReview) (bool, error)) *accessReviews {
	return &accessReviews{
		review: review, slots: make(chan struct{}, maxConcurrentAccessReviews), known: map[accessKey]accessResult{},
	}
}

// createAccessReview makes a SubjectAccessReview request.
func createAccessReview(
	ctx context.Context, clients kubernetes.Interface, review *authorizationv1.SubjectAccessReview,
) (allowed bool, err error) {
	answer, err := clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// allowed reports whether the user to whom a token belongs has a right.
func (a *accessReviews) allowed(
	ctx context.Context, token string, user authenticationv1.UserInfo, right inspect.Attributes,
) (bool, error) {
	key := accessKey{sha256.Sum256([]byte(token)), right}
	a.mu.Lock()
	known, ok := a.known[key]
	a.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.allowed, nil
	}
	// The review continues if the caller disconnects, because other callers may wait for its result.
	done := a.shared.DoChan(fmt.Sprintf("%x %q", key.token, key.right), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), authorizeTimeout)
		defer cancel()
		select {
		case a.slots <- struct{}{}:
			defer func() { <-a.slots }()
		case <-ctx.Done():
			return false, ctx.Err()
		}
		allowed, err := a.review(ctx, reviewOf(user, right))
		if err == nil {
			a.store(key, accessResult{allowed, time.Now().Add(accessTTL)})
		}
		return allowed, err
	})
	select {
	case result := <-done:
		switch {
		case apierrors.IsForbidden(result.Err):
			return false, fmt.Errorf("review access: %w: the operator may not create subjectaccessreviews: "+
				"apply its ClusterRole of this release", discovery.ErrUndecided)
		case result.Err != nil:
			return false, fmt.Errorf("review access: %w: %w", discovery.ErrUndecided, result.Err)
		}
		return result.Val.(bool), nil
	case <-ctx.Done():
		return false, fmt.Errorf("review access: %w: the API server has not answered yet", discovery.ErrUndecided)
	}
}

// store caches a result. If the cache is full, it removes the expired results, or else all.
func (a *accessReviews) store(key accessKey, r accessResult) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxCachedAccess {
		for other, result := range a.known {
			if time.Now().After(result.until) {
				delete(a.known, other)
			}
		}
	}
	if len(a.known) >= maxCachedAccess {
		clear(a.known)
	}
	a.known[key] = r
}

// reviewOf returns the SubjectAccessReview of a right.
func reviewOf(user authenticationv1.UserInfo, right inspect.Attributes) *authorizationv1.SubjectAccessReview {
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	resource, subresource := right.Split()
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: right.Namespace, Name: right.Name, Verb: right.Verb, Group: inspect.Group, Resource: resource,
			Subresource: subresource,
		},
	}}
}
