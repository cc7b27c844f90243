package rest

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// Options configures the service.
type Options struct {
	Directory *gateway.Directory
	Policy    *access.Policy
	// Gateways are the gateways that the service gives credentials for, to any caller.
	Gateways access.Gateways
	// DefaultTTL and MaxTTL apply to gateways that have no lifetime of their own.
	DefaultTTL, MaxTTL time.Duration
	// PublicAddr replaces the host of every URL, unless the request has its own. Empty means no replacement.
	PublicAddr string
	// Demo is the test page at /demo/; nil means none.
	Demo http.Handler
	// Echo handles POST /demo/echo of callers that the Policy admits; nil means none.
	Echo http.Handler
	// Origins are the origins of web pages that may read answers (CORS); empty means none.
	Origins []string
	Rates   Rates
	// CapToToken limits the lifetime of a credential to that of the token in the request.
	CapToToken bool
	Metrics    *Metrics
	Log        *slog.Logger
	// Audit receives one line for each credential.
	Audit *slog.Logger
	Now   func() time.Time
}

// server implements the operations of openapi/auth.yaml. Its methods are in the files of middleware and operations.
type server struct {
	Options
	limiters limiters
}
