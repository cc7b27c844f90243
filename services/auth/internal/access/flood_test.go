package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// away is an identity provider with a latency of some milliseconds, without a network, for tests in virtual time.
type away struct{ *issuer }

// RoundTrip answers with the keys of the issuer, unless the request is canceled.
func (a away) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	case <-time.After(100 * time.Millisecond):
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Result(), nil
}

// J-03: tokens with unknown key ids cause at most one fetch a minute, and new keys are accepted within two minutes.
func TestJ03FloodDoesNotHideNewKeys(t *testing.T) {
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	withIssuer(t, func(t *testing.T, i *issuer, p *Policy) {
		accepted(t, p, i.headers(t, "first"))
		flood := func(during time.Duration) {
			for start, n := time.Now(), 0; time.Since(start) < during; n++ {
				if _, err := p.Identify(headers(t, stranger, fmt.Sprint("unknown-", n)), "", "test"); err == nil {
					t.Error("a stranger is let in")
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		flood(time.Second)
		i.rotate(t, "second")
		flood(2 * unknownKeyInterval)
		accepted(t, p, i.headers(t, "second"))
		if n := i.fetches.Load(); n > 4 {
			t.Errorf("%d fetches in two minutes, want one at the start, one at the first stranger and one a minute", n)
		}
	})
}

// withIssuer runs a test in virtual time, with an issuer that has one key, "first", and a policy that trusts it.
func withIssuer(t *testing.T, test func(t *testing.T, i *issuer, p *Policy)) {
	t.Helper()
	real := http.DefaultTransport
	defer func() { http.DefaultTransport = real }()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{keys: map[string]*ecdsa.PrivateKey{}}
		http.DefaultTransport = away{i}
		i.rotate(t, "first")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p, err := NewPolicy(
			ctx, Config{Issuer: "issuer", Audience: "audience", JWKSURL: "https://issuer.example.org/keys"},
			slog.New(slog.NewTextHandler(io.Discard, nil)),
		)
		if err != nil {
			t.Fatal(err)
		}
		test(t, i, p)
	})
}
