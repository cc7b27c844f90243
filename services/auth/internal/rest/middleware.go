package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/rs/cors"
	strict "sigs.k8s.io/json"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// Limits of a request; the listener adds those of headers, times and connections.
const (
	maxURL  = 8 << 10
	maxBody = 64 << 10
)

// createPath is the one path whose body is read.
const createPath = "/v1/ice-servers"

// retryAfter is how long a client of a service that is not ready should wait: discovery answers within that time.
const retryAfter = 2 * time.Second

// observe logs and counts requests. Neither query nor headers are logged: they hold keys and tokens.
func (s server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := s.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		next.ServeHTTP(ww, r)
		route, took := chi.RouteContext(r.Context()).RoutePattern(), s.Now().Sub(began)
		s.Metrics.answered(route, ww.Status(), took)
		s.Log.LogAttrs(r.Context(), slog.LevelDebug, "answered request",
			slog.String("method", r.Method), slog.String("route", route), slog.Int("status", ww.Status()),
			slog.Duration("took", took), slog.String("remote", r.RemoteAddr), slog.String("request", requestOf(r.Context())))
	})
}

// survive turns a panic into a 500 and a log line: one bad request must not end the others.
func (s server) survive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				s.Log.Error("request panicked", "method", r.Method, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()), "request", requestOf(r.Context()))
				fail(http.StatusInternalServerError).write(w, r)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// secure sets what every answer carries: credentials must stay in no cache, and nobody guesses types.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Pragma", "no-cache")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

func limitURL(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.RequestURI) > maxURL {
			fail(http.StatusRequestURITooLong).write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// preflightAge is how long, in seconds, a browser may remember what a page of another origin may do here.
const preflightAge = 600

// share lets pages of the listed origins read answers. Tokens come in a header that scripts set, so that no credentials of the browser's own
// are asked for.
func (s server) share(next http.Handler) http.Handler {
	if len(s.Origins) == 0 {
		return next
	}
	return cors.New(cors.Options{
		AllowedOrigins: s.Origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost},
		AllowedHeaders: []string{"Authorization", "Content-Type"},
		ExposedHeaders: []string{"Retry-After", "X-Config-Age", requestIDHeader},
		MaxAge:         preflightAge,
	}).Handler(next)
}

type identityKey struct{}

// identityOf is who authenticate let in.
func identityOf(ctx context.Context) access.Identity {
	who, _ := ctx.Value(identityKey{}).(access.Identity)
	return who
}

// authenticate answers 401 with the same body whatever is wrong with a token: only the log knows.
func (s server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.Policy.Identify(r.Header, sourceOf(r.Context()).String())
		if err != nil {
			challenge := "Bearer" // RFC 6750 §3: no error code for a request that brought nothing
			if !errors.Is(err, access.ErrNoToken) {
				challenge = `Bearer error="invalid_token"`
			}
			s.Log.Debug("refuse caller", "source", sourceOf(r.Context()).String(), "request", requestOf(r.Context()), "reason", err)
			w.Header().Set("WWW-Authenticate", challenge)
			fail(http.StatusUnauthorized).write(w, r)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, who)))
	})
}

// ready answers 503 before the first config, and says how old the configs are afterwards.
func (s server) ready(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Directory.Ready() != nil {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
			fail(http.StatusServiceUnavailable).write(w, r)
			return
		}
		w.Header().Set("X-Config-Age", strconv.Itoa(int(s.Directory.Age()/time.Second)))
		next.ServeHTTP(w, r)
	})
}

// checkQuery refuses what binding would read in one of several ways.
func checkQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			bad("query", "is not percent-encoded as it must be").write(w, r)
			return
		}
		for name, v := range values {
			if !clean(name) {
				bad("query", "holds control characters or is no UTF-8").write(w, r)
				return
			}
			if len(v) > 1 {
				bad(name, doubled).write(w, r)
				return
			}
			if !clean(v[0]) {
				bad(name, "holds control characters or is no UTF-8").write(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

const doubled = "is there more than once"

func clean(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// checkBody reads the body whole, so that it is measured and known to be one JSON value before anything is bound. The compatible calls
// take parameters from the query only; what they bring as a body is dropped.
func checkBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		f := bodyFailure(r, body, err)
		if f == nil && r.URL.Path == createPath {
			body, f = known(body)
		}
		if f != nil {
			f.write(w, r)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func bodyFailure(r *http.Request, body []byte, err error) *failure {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return fail(http.StatusRequestEntityTooLarge)
	case err != nil:
		return bad("body", "cannot be read")
	case r.URL.Path != createPath || len(body) == 0:
		return nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return fail(http.StatusUnsupportedMediaType)
	}
	if !utf8.Valid(body) {
		return bad("body", "is no UTF-8")
	}
	var one json.RawMessage
	return failureFor(json.Unmarshal(body, &one))
}

// known reduces a body to the fields of the contract, each of which may be there once. What is bound afterwards tells no capitals from small
// letters, and takes the last of several. A body that cannot be read is left to it as well.
func known(body []byte) ([]byte, *failure) {
	var request IceServersRequest
	twice, err := strict.UnmarshalStrict(body, &request, strict.DisallowDuplicateFields)
	if err != nil {
		return body, nil
	}
	for _, each := range twice {
		var field strict.FieldError
		if errors.As(each, &field) {
			return nil, bad(field.FieldPath(), doubled)
		}
	}
	if body, err = json.Marshal(request); err != nil {
		return nil, fail(http.StatusInternalServerError)
	}
	return body, nil
}

// fail answers with what err means to the client; what it does not understand is the service's own fault and goes to the log.
func (s server) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := failureFor(err)
	if f == nil {
		s.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "request", requestOf(r.Context()), "error", err)
		f = fail(http.StatusInternalServerError)
	}
	f.write(w, r)
}
