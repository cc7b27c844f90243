package access

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuer is an identity provider that publishes keys and signs with any of them.
type issuer struct {
	*httptest.Server
	fetches atomic.Int32

	mu     sync.Mutex
	keys   map[string]*ecdsa.PrivateKey
	answer http.HandlerFunc // nil serves the keys
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{keys: map[string]*ecdsa.PrivateKey{}}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.fetches.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.answer != nil {
		i.answer(w, r)
		return
	}
	var set jwkset.JWKSMarshal
	for id, key := range i.keys {
		set.Keys = append(set.Keys, marshal(id, key.Public()))
	}
	_ = json.NewEncoder(w).Encode(set)
}

func (i *issuer) rotate(t *testing.T, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys[id] = key
}

func (i *issuer) fail(answer http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = answer
}

// headers are the headers of a request with a token that the named key signed.
func (i *issuer) headers(t *testing.T, id string) http.Header {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	return headers(t, i.keys[id], id)
}

func headers(t *testing.T, key *ecdsa.PrivateKey, id string) http.Header {
	t.Helper()
	return issued(t, key, id, "issuer", time.Minute)
}

// lasting returns the headers of the key "first" for a token with another lifetime.
func lasting(t *testing.T, key *ecdsa.PrivateKey, life time.Duration) http.Header {
	t.Helper()
	return issued(t, key, "first", "issuer", life)
}

func issued(t *testing.T, key *ecdsa.PrivateKey, id, by string, life time.Duration) http.Header {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": by, "aud": "audience", "sub": "ada", "exp": time.Now().Add(life).Unix(),
	})
	token.Header["kid"] = id
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return http.Header{"Authorization": {"Bearer " + signed}}
}

func (i *issuer) policy(t *testing.T, log io.Writer) *Policy {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	p, err := NewPolicy(
		ctx, Config{Issuer: "issuer", Audience: "audience", JWKSURL: i.URL}, slog.New(slog.NewTextHandler(log, nil)),
	)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func marshal(id string, key crypto.PublicKey) jwkset.JWKMarshal {
	jwk, err := jwkset.NewJWKFromKey(key, jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: id}})
	if err != nil {
		panic(err)
	}
	return jwk.Marshal()
}

func accepted(t *testing.T, p *Policy, h http.Header) {
	t.Helper()
	if who, err := p.Identify(h, "", "test"); err != nil || who.UserID != "ada" {
		t.Errorf("identity %+v: %v", who, err)
	}
}

// J-03: a rotated key is fetched once for many requests, and the previous key stays valid.
func TestJ03RotationUnderLoad(t *testing.T) {
	i := newIssuer(t)
	i.rotate(t, "first")
	p := i.policy(t, io.Discard)
	accepted(t, p, i.headers(t, "first"))
	i.rotate(t, "second")
	h := i.headers(t, "second")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { accepted(t, p, h) })
	}
	all.Wait()
	accepted(t, p, i.headers(t, "first"))
	if n := i.fetches.Load(); n != 2 {
		t.Errorf("%d fetches, want one at the start and one for the new kid", n)
	}
}

// J-03: a hundred unknown key ids make at most one fetch.
func TestJ03FloodOfUnknownKeys(t *testing.T) {
	i := newIssuer(t)
	i.rotate(t, "known")
	p := i.policy(t, io.Discard)
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		if _, err := p.Identify(headers(t, stranger, fmt.Sprintf("unknown-%d", n)), "", "test"); err == nil {
			t.Fatal("a stranger is let in")
		}
	}
	accepted(t, p, i.headers(t, "known"))
	if n := i.fetches.Load(); n > 2 {
		t.Errorf("%d fetches for 100 unknown kids", n)
	}
}

// J-03: an invalid answer (error, unreadable, empty, weak keys, too large, redirect) keeps the last valid keys.
func TestJ03LastGoodKeysStay(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weakSet, err := json.Marshal(jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{marshal("weak", weak.Public())}})
	if err != nil {
		t.Fatal(err)
	}
	body := func(content string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) }
	}
	elsewhere := newIssuer(t)
	elsewhere.rotate(t, "stolen")
	tests := map[string]struct {
		answer http.HandlerFunc
		want   string // text in the log
	}{
		"an error": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "502",
		},
		"no JSON":                  {body("<html>"), "parse key set"},
		"no keys":                  {body(`{"keys":[]}`), "no public RSA"},
		"an RSA key of 1,024 bits": {body(string(weakSet)), "no public RSA"},
		"too many bytes":           {body(`{"keys":[],"x":"` + strings.Repeat("x", 256<<10) + `"}`), "larger than"},
		"a redirect": {
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
			"302",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i := newIssuer(t)
			i.rotate(t, "known")
			var log bytes.Buffer
			p := i.policy(t, &log)
			i.fail(tt.answer)
			if _, err := p.Identify(elsewhere.headers(t, "stolen"), "", "test"); err == nil {
				t.Error("a stranger is let in")
			}
			accepted(t, p, i.headers(t, "known"))
			if n := i.fetches.Load(); n != 2 {
				t.Errorf("%d fetches", n)
			}
			if !strings.Contains(log.String(), tt.want) {
				t.Errorf("log does not say %q: %s", tt.want, &log)
			}
		})
	}
	if elsewhere.fetches.Load() != 0 {
		t.Error("the redirect was followed")
	}
}

// J-03: an issuer that is unreachable at the start is requested again.
func TestJ03IssuerIsAwayAtTheStart(t *testing.T) {
	i := newIssuer(t)
	i.rotate(t, "key")
	i.fail(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	p := i.policy(t, io.Discard)
	i.fail(nil)
	accepted(t, p, i.headers(t, "key"))
}
