package rest

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

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

// limitCaller answers 429 to requests above the rate limit of their caller. The limit covers all addresses that the
// caller uses.
func (s server) limitCaller(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait := s.limiters.caller(identityOf(r.Context()), sourceOf(r.Context()), s.Rates, s.Now())
		if withinRate(w, r, wait, subjectRateLimited) {
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
