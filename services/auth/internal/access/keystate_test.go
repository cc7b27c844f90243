package access

import (
	"crypto/ecdsa"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

// refusedFor checks the reason for which a request is refused.
func refusedFor(t *testing.T, p *Policy, h http.Header, want Reason) {
	t.Helper()
	who, err := p.Identify(h, "", "test")
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Reason != want {
		t.Errorf("%+v, %v, want the reason %s", who, err, want)
	}
}

// J-03: while a service has not fetched any key set, it refuses a token with the reason KeysUnavailable, and not as a
// token with an unknown key, because the token may be valid.
func TestJ03WithoutAKeySetKeysAreUnavailable(t *testing.T) {
	i := newIssuer(t)
	i.rotate(t, "key")
	i.fail(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	p := i.policy(t, io.Discard)
	refusedFor(t, p, i.headers(t, "key"), KeysUnavailable)
	if k := p.Keys(); !k.ReadAt.IsZero() || !strings.Contains(k.Problem, "503") {
		t.Errorf("%+v, want no read and status 503", k)
	}
}

// The state of the keys contains the time of the last successful fetch, and the error of the latest fetch.
func TestKeyStateOfAURL(t *testing.T) {
	withIssuer(t, func(t *testing.T, i *issuer, p *Policy) {
		accepted(t, p, i.headers(t, "first"))
		began := p.Keys()
		if time.Since(began.ReadAt) > time.Second || began.Problem != "" {
			t.Errorf("at the start %+v", began)
		}
		i.fail(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
		time.Sleep(3*refreshInterval + time.Second)
		if k := p.Keys(); k.ReadAt != began.ReadAt || !strings.Contains(k.Problem, "parse key set") {
			t.Errorf("without an answer %+v, want the read at %s and a problem", k, began.ReadAt)
		}
		accepted(t, p, i.headers(t, "first"))
		stranger := &issuer{keys: map[string]*ecdsa.PrivateKey{}}
		stranger.rotate(t, "elsewhere")
		refusedFor(t, p, stranger.headers(t, "elsewhere"), KeyUnknown)
		i.fail(nil)
		time.Sleep(refreshInterval)
		if k := p.Keys(); time.Since(k.ReadAt) > refreshInterval || k.Problem != "" {
			t.Errorf("with an answer again %+v", k)
		}
	})
}

// J-03: if the key of a token cannot be fetched because too many requests wait for the key set, the token does not
// count as a token with an unknown key.
func TestJ03TooManyWaitForTheKeySet(t *testing.T) {
	missing := func(*jwt.Token) (any, error) { return nil, jwkset.ErrKeyNotFound }
	r := newRotation(missing, missing)
	r.fetching, r.total = make(chan struct{}), maxWaiting
	_, err := r.key(&jwt.Token{Header: map[string]any{"kid": "new"}}, "test")
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Reason != KeyLookups {
		t.Errorf("%v", err)
	}
}

// An open policy has no keys.
func TestKeyStateOfAnOpenPolicy(t *testing.T) {
	if k := new(Policy).Keys(); k != (KeyState{}) {
		t.Errorf("%+v", k)
	}
}
