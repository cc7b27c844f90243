package rest

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"
)

// limitSource answers 429 to requests above the rate limit of their source. It runs before authentication, so that
// requests with invalid tokens are limited too.
func (s server) limitSource(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := readSource(r, s.Rates.Proxies, s.Rates.Header)
		if withinRate(w, r, s.limiters.source(from, s.Rates.Networks, s.Now())) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sourceKey{}, from)))
		}
	})
}

// limitSubject answers 429 to requests above the rate limit of the subject of their token. The limit covers all
// addresses that the subject uses.
func (s server) limitSubject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := identityOf(r.Context())
		if !who.Known || withinRate(w, r, s.limiters.subject(who.Subject, s.Now())) {
			next.ServeHTTP(w, r)
		}
	})
}

// withinRate reports whether a request may proceed. If wait is not 0, it answers the request with 429, and with wait in
// the header Retry-After.
func withinRate(w http.ResponseWriter, r *http.Request, wait time.Duration) bool {
	if wait == 0 {
		return true
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	fail(http.StatusTooManyRequests).write(w, r)
	return false
}
