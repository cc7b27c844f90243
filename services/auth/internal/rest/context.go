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
	outcomeKey  struct{}
)

// sourceOf returns the source that setSource stored.
func sourceOf(ctx context.Context) source { return valueOf[source](ctx, sourceKey{}) }

// identityOf returns the identity that authenticate stored.
func identityOf(ctx context.Context) access.Identity {
	return valueOf[access.Identity](ctx, identityKey{})
}

// requestOf returns the request id that setRequestID stored.
func requestOf(ctx context.Context) string { return valueOf[string](ctx, requestKey{}) }

func valueOf[T any](ctx context.Context, key any) T {
	value, _ := ctx.Value(key).(T)
	return value
}
