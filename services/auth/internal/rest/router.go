package rest

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// Options is what the service is made of.
type Options struct {
	Directory *gateway.Directory
	Policy    *access.Policy
	// Gateways are those that the service gives credentials for, whoever asks.
	Gateways access.Gateways
	// DefaultTTL and MaxTTL apply to gateways that have no lifetime of their own.
	DefaultTTL, MaxTTL time.Duration
	// PublicAddr replaces the host of every URL, unless the request brings its own; empty means not at all.
	PublicAddr string
	// Demo is served at /demo/; nil means that there is no test page.
	Demo http.Handler
	// Echo gets POST /demo/echo from callers that the Policy lets in; nil means that there is none.
	Echo http.Handler
	// Origins are those of web pages that may read answers (CORS); empty means none.
	Origins []string
	Rates   Rates
	// CapToToken ends credentials with the token that they were asked for with.
	CapToToken bool
	Metrics    *Metrics
	Log        *slog.Logger
	// Audit gets a line for each credential that is given.
	Audit *slog.Logger
	Now   func() time.Time
}

// New returns the handler of the public port. This is the one place that says in which order a request is looked at.
func New(o Options) (http.Handler, error) {
	buckets, err := newBuckets(o.Rates)
	if err != nil {
		return nil, err
	}
	s := server{o, buckets}
	r := chi.NewRouter()
	r.Use(s.number, s.observe, s.survive, secure, limitURL, s.share, s.limitSource)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		(&failure{status: http.StatusNotFound, detail: "There is nothing at this path."}).write(w, r)
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Allow", strings.Join(methods(r, req.URL.Path), ", "))
		fail(http.StatusMethodNotAllowed).write(w, req)
	})

	r.Group(func(r chi.Router) {
		r.Use(s.authenticate, s.limitSubject, s.ready, checkQuery, checkBody)
		HandlerWithOptions(NewStrictHandlerWithOptions(s, nil, StrictHTTPServerOptions{
			RequestErrorHandlerFunc:  s.fail,
			ResponseErrorHandlerFunc: s.fail,
		}), ChiServerOptions{BaseRouter: r, ErrorHandlerFunc: s.fail})
	})
	if o.Demo != nil {
		r.Get("/demo", http.RedirectHandler("/demo/", http.StatusMovedPermanently).ServeHTTP)
		r.Get("/demo/*", http.StripPrefix("/demo", o.Demo).ServeHTTP)
	}
	if o.Echo != nil {
		r.With(s.authenticate, s.limitSubject).Post("/demo/echo", o.Echo.ServeHTTP)
	}
	return r, nil
}

// methods lists those that a path knows, for the header Allow (RFC 9110 §15.5.6).
func methods(r chi.Router, path string) (out []string) {
	for _, m := range []string{http.MethodGet, http.MethodPost} {
		if r.Match(chi.NewRouteContext(), m, path) {
			out = append(out, m)
		}
	}
	return out
}
