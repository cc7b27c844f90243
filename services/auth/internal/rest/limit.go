package rest

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"
)

// limitSource limits the rate of each source. It runs before authentication, so that invalid tokens are limited too.
func (s server) limitSource(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := readSource(r, s.Rates.Proxies, s.Rates.Header)
		if withinRate(w, r, s.limiters.source(from, s.Rates.Networks, s.Now())) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sourceKey{}, from)))
		}
	})
}

// limitSubject limits the rate of each subject of a token, over all addresses that the subject uses.
func (s server) limitSubject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := identityOf(r.Context())
		if !who.Known || withinRate(w, r, s.limiters.subject(who.Subject, s.Now())) {
			next.ServeHTTP(w, r)
		}
	})
}

// withinRate reports whether a request may proceed. It answers 429 if the request has to wait.
func withinRate(w http.ResponseWriter, r *http.Request, wait time.Duration) bool {
	if wait == 0 {
		return true
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	fail(http.StatusTooManyRequests).write(w, r)
	return false
}
