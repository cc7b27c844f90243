// Package rest is the HTTP API of the auth service. Types, routing and parameter binding are generated from
// openapi/auth.yaml. The order of the middleware (router.go), the checks that the generator cannot make (middleware.go,
// check.go, strict.go) and the operations (server.go) are written by hand.
//
// A request passes these stages: length of the URL → origin → rate limit of the source → identity → rate limit of the
// caller → readiness → query and body → binding → checks → gateways → credentials → answer. An error at any stage is a
// failure with a reason of the table in refusal.go, which problem.go turns into an RFC 9457 problem.
//
// # Files
//
//	server.go         the answers
//	revocation.go     revocations
//	usage.go          usage
//	compat.go         the answers in the forms of other services
//	grant.go          the part of an answer for one Gateway, and the ttl
//	check.go          checks of requests
//	strict.go         names of the fields of a body, and of query parameters
//	refusal.go        the table of reasons for which a request is refused
//	problem.go        refusals as answers
//	recent.go         the refusals of the last minutes
//	source.go         the source address of a request
//	rate.go limit.go  rate limits, and their middleware
//	audit.go          the audit log
//	metrics.go        the metrics of the service
//	trace.go          the spans of requests
//	status.go         the state of the service, for the operator
package rest

import (
	_ "embed"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/stunner-gateway/stunner/services/auth/internal/usage"
)

// contract is openapi/auth.yaml as JSON. It is the same for every caller, and says nothing about the installation.
//
//go:embed openapi.json
var contract []byte

// New returns the handler of the public port. It defines the order in which a request is checked.
func New(o Options) http.Handler {
	s := server{o, newLimiters(o.Rates), usage.NewAsker()}
	r := chi.NewRouter()
	r.Use(s.begin, s.observe, s.recoverPanic, setHeaders, limitURL, s.cors, s.limitSource)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		fail(pathUnknown).write(w, r)
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Allow", strings.Join(methods(r, req.URL.Path), ", "))
		fail(methodNotAllowed).write(w, req)
	})

	r.Group(func(r chi.Router) {
		r.Use(s.authenticate, s.limitCaller, s.ready, checkQuery, checkBody)
		HandlerWithOptions(NewStrictHandlerWithOptions(s, nil, StrictHTTPServerOptions{
			RequestErrorHandlerFunc:  s.failRequest,
			ResponseErrorHandlerFunc: s.fail,
		}), ChiServerOptions{BaseRouter: r, ErrorHandlerFunc: s.failRequest})
	})
	r.Get("/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(contract) // fails only if the client has disconnected
	})
	if o.Demo != nil {
		r.Get("/demo", http.RedirectHandler("/demo/", http.StatusMovedPermanently).ServeHTTP)
		r.Get("/demo/*", http.StripPrefix("/demo", o.Demo).ServeHTTP)
	}
	if o.Echo != nil {
		r.With(s.authenticate, s.limitCaller).Post("/demo/echo", o.Echo.ServeHTTP)
	}
	return r
}

// methods returns the methods of a path, for the header Allow (RFC 9110 §15.5.6).
func methods(r chi.Router, path string) (out []string) {
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if r.Match(chi.NewRouteContext(), m, path) {
			out = append(out, m)
		}
	}
	return out
}
