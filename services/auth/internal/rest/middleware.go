package rest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/rs/cors"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// createPath is the path of the API for web apps, whose parameters are in the request body.
const createPath = "/v1/ice-servers"

// revocationsPath is the path of revocations.
const revocationsPath = "/v1/revocations"

// usagePath is the path of usage. It refuses unknown parameters, because a mistyped parameter would select more than
// the caller intends.
const usagePath = "/v1/usage"

var usageParameters = fieldsOf(reflect.TypeFor[GetUsageParams]())

// retryAfter is the value of the header Retry-After while the service cannot answer a request, and the cause is not a
// rate limit. Config discovery usually sends the configs within this time.
const retryAfter = 2 * time.Second

// requestIDHeader is the HTTP header with the id of a request. A trusted proxy may set it in the request, and every
// answer has it.
const requestIDHeader = "X-Request-Id"

var requestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// begin stores the state of a request in its context, with its source and its id: the id that a trusted proxy has sent,
// if it matches requestID, or else a new id. All log lines of this package about the request contain the id.
func (s server) begin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		viaProxy := err == nil && holds(s.Rates.Proxies, peer.Addr().Unmap())
		if !viaProxy || !requestID.MatchString(id) {
			id = rand.Text()
		}
		w.Header().Set(requestIDHeader, id)
		c := &call{id: id, viaProxy: viaProxy, source: readSource(r, s.Rates.Proxies, s.Rates.Header), fleet: s.Fleet.Clusters()}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	})
}

// observe counts a request in the metrics, traces it, and logs its outcome: the credentials that it got, or why it was refused. It
// does not log the query and the headers of a request, because they may contain keys and tokens.
func (s server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := s.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		r, span := s.startSpan(r)
		ctx := r.Context()
		o := &callOf(ctx).outcome
		next.ServeHTTP(ww, r)
		if o.failure == nil && ww.Status() >= http.StatusBadRequest {
			o.failure = fail(testPage)
			o.failure.Status = ww.Status()
		}
		route, ended := chi.RouteContext(r.Context()).RoutePattern(), s.Now()
		took := ended.Sub(began)
		s.Metrics.answered(route, ww.Status(), took)
		s.endSpan(ctx, span, r, ww.Status())
		s.audit(ctx, o, ended)
		s.Log.LogAttrs(ctx, slog.LevelDebug, "answered request",
			slog.String("method", r.Method), slog.String("route", route), slog.Int("status", ww.Status()),
			slog.Duration("took", took), slog.String("remote", r.RemoteAddr),
			slog.String("request", requestOf(ctx)))
	})
}

// recoverPanic answers 500 and logs the stack if a handler panics. Other requests are not affected.
func (s server) recoverPanic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				s.Log.Error("request panicked", "method", r.Method, "path", r.URL.Path, "panic", v,
					"stack", string(debug.Stack()), "request", requestOf(r.Context()))
				fail(internalError).write(w, r)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// everyAnswer are the headers of every answer. Answers share the values, so they must not be changed.
var everyAnswer = http.Header{
	"Cache-Control": {"no-store"}, "Pragma": {"no-cache"}, "X-Content-Type-Options": {"nosniff"},
}

// setHeaders sets the headers of every answer: no cache may store credentials, and no client may guess content types.
func setHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		maps.Copy(w.Header(), everyAnswer)
		next.ServeHTTP(w, r)
	})
}

func limitURL(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.RequestURI) > maxURL {
			fail(urlTooLong).write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// preflightAge is how long a browser may cache a CORS preflight, in seconds.
const preflightAge = 600

// cors lets web pages of the configured origins read answers (CORS). It does not allow credentials that the browser
// adds by itself, such as cookies, because the scripts of a page set the header Authorization.
func (s server) cors(next http.Handler) http.Handler {
	if len(s.Origins) == 0 {
		return next
	}
	return cors.New(cors.Options{
		AllowedOrigins: s.Origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost, http.MethodDelete},
		AllowedHeaders: []string{"Authorization", "Content-Type"},
		ExposedHeaders: []string{"Retry-After", "WWW-Authenticate", "X-Config-Age", requestIDHeader},
		MaxAge:         preflightAge,
	}).Handler(next)
}

// authenticate stores the Identity of the caller in the context of a request. It refuses a request without valid
// credentials, unless the policy accepts such callers.
func (s server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers, name := compatHeaders(r)
		_, done := s.stage(r.Context(), "identify caller")
		who, err := s.Policy.Identify(headers, s.queryKey(r), sourceOf(r.Context()).String())
		done()
		if err == nil && name != "" && who.Key != "" && who.Key != name {
			err = fail(apiKeyMismatch)
		}
		if err != nil {
			s.Log.Debug("caller refused", "source", sourceOf(r.Context()).String(), "request", requestOf(r.Context()),
				"reason", err)
			s.fail(w, r, err)
			return
		}
		callOf(r.Context()).who = who
		next.ServeHTTP(w, r)
	})
}

// queryKey returns the API key in the query of a TURN REST request, in the parameter key or its older name api. The
// paths of the API for web apps have no such parameter, because a URL is in the logs of proxies.
func (s server) queryKey(r *http.Request) string {
	if r.URL.Path != "/" && r.URL.Path != "/ice" || r.URL.RawQuery == "" || !s.Policy.TakesKeys() {
		return ""
	}
	query := r.URL.Query()
	return cmp.Or(query.Get("key"), query.Get("api"))
}

// ready answers 503 while gateway.Clusters.Ready returns an error: no gateway config has arrived, or the clocks differ too
// much. Otherwise it sets the header X-Config-Age, and calls the next handler.
func (s server) ready(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clusters := fleetOf(r.Context()).All
		switch err := clusters.Ready(); {
		case errors.Is(err, gateway.ErrClocks):
			fail(clocksDiffer).write(w, r)
			return
		case err != nil:
			fail(noConfig).write(w, r)
			return
		}
		w.Header().Set("X-Config-Age", strconv.Itoa(int(clusters.Age()/time.Second)))
		next.ServeHTTP(w, r)
	})
}

// checkQuery refuses a query with invalid encoding, control characters or a duplicate parameter, and any parameter of
// a path that has its parameters in the body. The generated parameter binding ignores invalid encoding and unknown
// parameters, and accepts control characters. Clients of the other paths send parameters of other TURN REST servers,
// which are ignored.
func checkQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			refuse(queryUnreadable, "query", "is not percent-encoded as it must be").write(w, r)
			return
		}
		for name, v := range values {
			if !clean(name) {
				refuse(queryUnreadable, "query", "holds control characters or is no UTF-8").write(w, r)
				return
			}
			if len(v) > 1 {
				refuse(parameterRepeated, name, doubled).write(w, r)
				return
			}
			if !clean(v[0]) {
				bad(name, "holds control characters or is no UTF-8").write(w, r)
				return
			}
		}
		if fields := bodyFields(r.URL.Path); fields != nil {
			if f := unknownParameter(values, fields); f != nil {
				f.write(w, r)
				return
			}
		}
		if r.URL.Path == usagePath {
			for _, name := range slices.Sorted(maps.Keys(values)) {
				if !slices.Contains(usageParameters, name) {
					refuse(parameterUnknown, name, unknown(name, usageParameters)).write(w, r)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

const doubled = "is there more than once"

func clean(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// checkBody refuses a body that is too large. The body of a request to createPath must be one JSON object with fields
// that the API defines, each at most once. The bodies of the forms of other services may have further fields. The body
// of any other request is passed on unchecked, and no operation reads it.
func checkBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body []byte
		var err error
		if r.Body != http.NoBody {
			body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		}
		f := bodyFailure(r, body, err)
		switch path := r.URL.Path; {
		case f != nil:
		case r.Method == http.MethodPost && forms[path].fields != nil:
			f = forms[path].checkFields(body)
		case strings.HasPrefix(path, cloudflarePath):
			f = checkRepeated(body)
		case strings.HasPrefix(path, twilioPath):
			f = checkForm(r, body)
		}
		if f != nil {
			f.write(w, r)
			return
		}
		if r.Body != http.NoBody {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if len(body) == 0 {
			r.Header.Del("Content-Type") // without a body the header has no meaning, and the generated binding would parse it
		}
		next.ServeHTTP(w, r)
	})
}

func bodyFailure(r *http.Request, body []byte, err error) *failure {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return fail(bodyTooLarge)
	case err != nil:
		return refuse(bodyUnreadable, "body", "cannot be read")
	case r.Method == http.MethodPost && r.URL.Path == revocationsPath && len(body) == 0:
		return refuse(bodyUnreadable, "body", "is missing: it must have user or credential")
	case forms[r.URL.Path].fields == nil && !strings.HasPrefix(r.URL.Path, cloudflarePath) || len(body) == 0:
		return nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return fail(bodyNotJSON)
	}
	if !utf8.Valid(body) {
		return refuse(bodyUnreadable, "body", "is no UTF-8")
	}
	var one json.RawMessage
	return failureFor(json.Unmarshal(body, &one))
}

// failRequest answers a request that the generated code cannot bind. Every such error is the fault of the client.
func (s server) failRequest(w http.ResponseWriter, r *http.Request, err error) {
	f := failureFor(err)
	if f == nil {
		s.Log.Debug("request not understood", "request", requestOf(r.Context()), "error", err)
		f = refuse(bodyUnreadable, "body", "cannot be read")
	}
	f.write(w, r)
}

// fail answers a request with the failure for an error. An internal error is logged and answered with 500.
func (s server) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := failureFor(err)
	if f == nil {
		s.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "request", requestOf(r.Context()),
			"error", err)
		f = fail(internalError)
	}
	f.write(w, r)
}
