package rest

import (
	"context"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// call is the state of one request. It is one value in the context of the request, because each further value would
// copy the request.
type call struct {
	id       string // of the request
	viaProxy bool   // the connection comes from a trusted proxy
	source   source
	fleet    Clusters
	who      access.Identity
	outcome  outcome
}

// callKey is the key of the call in the context of a request.
type callKey struct{}

// callOf returns the state of a request that begin has stored.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// fleetOf returns the clusters with which a request is answered.
func fleetOf(ctx context.Context) *Clusters { return &callOf(ctx).fleet }

// sourceOf returns the source of a request.
func sourceOf(ctx context.Context) source { return callOf(ctx).source }

// identityOf returns the identity that authenticate has stored.
func identityOf(ctx context.Context) *access.Identity { return &callOf(ctx).who }

// requestOf returns the id of a request.
func requestOf(ctx context.Context) string { return callOf(ctx).id }
