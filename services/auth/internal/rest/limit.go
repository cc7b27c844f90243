package rest

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// setSource stores the source of a request in its context.
func (s server) setSource(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := readSource(r, s.Rates.Proxies, s.Rates.Header)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sourceKey{}, from)))
	})
}

// limitSource answers 429 to requests above the rate limit of their source. It runs before authentication, so that
// requests with invalid tokens are limited too.
func (s server) limitSource(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait := s.limiters.source(sourceOf(r.Context()), s.Rates.Networks, s.Now())
		if withinRate(w, r, wait, sourceRateLimited) {
			next.ServeHTTP(w, r)
		}
	})
}

// limitSubject answers 429 to requests above the rate limit of the subject of their token. The limit covers all
// addresses that the subject uses.
func (s server) limitSubject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := identityOf(r.Context())
		if !who.Known || withinRate(w, r, s.limiters.subject(who.UserID, s.Now()), subjectRateLimited) {
			next.ServeHTTP(w, r)
		}
	})
}

// withinRate reports whether a request may proceed. If wait is not 0, it refuses the request with wait in the header
// Retry-After.
func withinRate(w http.ResponseWriter, r *http.Request, wait time.Duration, reason access.Reason) bool {
	if wait == 0 {
		return true
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	fail(reason).write(w, r)
	return false
}
