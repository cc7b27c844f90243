package rest

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/grantlog"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
	"github.com/stunner-gateway/stunner/services/auth/internal/revoke"
	"github.com/stunner-gateway/stunner/services/auth/internal/usage"
)

// Clusters are the clusters with which a request is answered.
type Clusters struct {
	All gateway.Clusters
	// Regions orders the regions by their distance to a client; nil if there is one cluster.
	Regions *region.Map
	// GrantLogs record each credential, by the cluster of its gateway. Without an entry, none is recorded.
	GrantLogs map[string]*grantlog.Log
	// Operators answer requests for usage, by the name of their cluster. A cluster without an entry has no operator,
	// because its configs are read from a file.
	Operators map[string]discovery.Inspector
}

// Fleet has the Clusters in force. They may be replaced while requests are answered: each request uses the Clusters
// that were in force when it began.
type Fleet struct{ now atomic.Pointer[Clusters] }

// NewFleet returns a Fleet with clusters in force.
func NewFleet(c Clusters) *Fleet {
	f := &Fleet{}
	f.Replace(c)
	return f
}

// Replace puts other clusters into force.
func (f *Fleet) Replace(c Clusters) { f.now.Store(&c) }

// Clusters returns the clusters in force.
func (f *Fleet) Clusters() Clusters { return *f.now.Load() }

// Options configures the service.
type Options struct {
	// Fleet has the clusters whose gateways the service serves.
	Fleet  *Fleet
	Policy *access.Policy
	// Gateways are the only gateways for which the service gives credentials, independent of the token of the caller.
	Gateways access.Gateways
	// DefaultTTL is the time to live of a credential if the request does not set the ttl. It applies to gateways whose
	// config sets no lifetime.
	DefaultTTL time.Duration
	// MaxTTL is the longest time to live of a credential. It applies to gateways whose config sets no lifetime.
	MaxTTL time.Duration
	// PublicAddr replaces the host of every ICE URL, unless the request sets a host. Empty means that no host is
	// replaced.
	PublicAddr string
	// MaxURLs is the number of URLs of a gateway above which no second URL of a listener is added; 0 means no maximum.
	MaxURLs int
	// Demo is the test page at /demo/; nil means that there is no test page.
	Demo http.Handler
	// Echo handles POST /demo/echo of callers that Policy identifies; nil means that the test page has no echo peer.
	Echo http.Handler
	// Origins are the origins of web pages that may read answers (CORS); empty means none.
	Origins []string
	Rates   Rates
	// CapToToken limits the time to live of ephemeral credentials to the rest of the lifetime of the token, but at
	// least to one second. Fixed credentials do not expire.
	CapToToken bool
	Metrics    *Metrics
	// Tracer starts the spans of requests; nil means that none are traced.
	Tracer trace.Tracer
	Log    *slog.Logger
	// Audit receives one line for each request of the API.
	Audit *slog.Logger
	// Revocations stores revocations; nil means that the service stores none.
	Revocations *revoke.Registry
	Now         func() time.Time
}

// server implements the operations of openapi/auth.yaml (server.go) and the middleware.
type server struct {
	Options
	limiters limiters
	usage    *usage.Asker
}
