package rest

import (
	"context"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// Keys of the values that middleware stores in the context of a request.
type (
	sourceKey   struct{}
	identityKey struct{}
	requestKey  struct{}
)

// sourceOf returns the source that limitSource stored.
func sourceOf(ctx context.Context) source {
	from, _ := ctx.Value(sourceKey{}).(source)
	return from
}

// identityOf returns the identity that authenticate stored.
func identityOf(ctx context.Context) access.Identity {
	who, _ := ctx.Value(identityKey{}).(access.Identity)
	return who
}

// requestOf returns the request id that setRequestID stored.
func requestOf(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}
