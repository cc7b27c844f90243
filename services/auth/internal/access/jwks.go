package access

import (
	"bytes"
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"
)

// Limits of a key set and of how it is fetched.
const (
	maxSet         = 256 << 10 // bytes
	maxKeys        = 64
	minRSA         = 2048 // bits (RFC 7518 §3.3)
	fetchTimeout   = 5 * time.Second
	refreshEvery   = 10 * time.Minute
	unknownKeyOnce = time.Minute // an unknown kid asks for the set again, at most this often
)

// setKeys reads the keys of a JWK set.
func setKeys(raw []byte) (jwt.Keyfunc, error) {
	set, err := usable(raw)
	if err != nil {
		return nil, err
	}
	keys, err := keyfunc.NewJWKSetJSON(set)
	if err != nil {
		return nil, fmt.Errorf("holds no JWK set: %w", err)
	}
	return withKeyID(keys.Keyfunc), nil
}

func urlKeys(ctx context.Context, url string, log *slog.Logger) (jwt.Keyfunc, error) {
	store, err := jwkset.NewStorageFromHTTP(url, jwkset.HTTPClientStorageOptions{
		Client:                    client(),
		Ctx:                       ctx,
		HTTPTimeout:               fetchTimeout,
		NoErrorReturnFirstHTTPReq: true,
		RefreshErrorHandler: func(_ context.Context, err error) {
			log.Warn("keep known token keys: key set cannot be fetched", "url", url, "error", err)
		},
		RefreshInterval: refreshEvery,
	})
	if err != nil {
		return nil, fmt.Errorf("open --jwt-jwks-url: %w", err)
	}
	refreshing, err := jwkset.NewHTTPClient(jwkset.HTTPClientOptions{
		HTTPURLs:          map[string]jwkset.Storage{url: store},
		RateLimitWaitMax:  fetchTimeout,
		RefreshUnknownKID: rate.NewLimiter(rate.Inf, 0), // rotation says when
	})
	if err != nil {
		return nil, fmt.Errorf("open --jwt-jwks-url: %w", err)
	}
	known, err := keyfunc.New(keyfunc.Options{Ctx: ctx, Storage: store})
	if err != nil {
		return nil, fmt.Errorf("open --jwt-jwks-url: %w", err)
	}
	asking, err := keyfunc.New(keyfunc.Options{Ctx: ctx, Storage: refreshing})
	if err != nil {
		return nil, fmt.Errorf("open --jwt-jwks-url: %w", err)
	}
	r := &rotation{known: known.Keyfunc, asking: asking.Keyfunc, turn: rate.NewLimiter(rate.Every(unknownKeyOnce), 1)}
	return withKeyID(r.key), nil
}

// rotation finds keys that were published after the last fetch. While one token makes the set be fetched, others that
// carry the same new kid wait for it instead of being refused; tokens with known kids never wait. Nobody waits for the turn to fetch: what is
// waited for is taken from the time that the fetch has, and whoever shows unknown kids without end would always come when little is left of it.
type rotation struct {
	known, asking jwt.Keyfunc
	mu            sync.Mutex
	turn          *rate.Limiter
}

func (r *rotation) key(t *jwt.Token) (any, error) {
	if k, err := r.known(t); err == nil {
		return k, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.known(t) // somebody may have fetched it meanwhile
	if !errors.Is(err, jwkset.ErrKeyNotFound) || !r.turn.Allow() {
		return k, err
	}
	return r.asking(t)
}

// withKeyID wants a kid, so that the key's own alg is always compared with the token's.
func withKeyID(keys jwt.Keyfunc) jwt.Keyfunc {
	return func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["kid"]; !ok {
			return nil, errors.New("header kid: it is missing")
		}
		return keys(t)
	}
}

// usable reduces a JWK set to the public keys that may verify a signature. A set without any is an error, so that an empty
// answer does not wipe the known keys.
func usable(raw []byte) (json.RawMessage, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("parse key set: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("parse key set: it holds %d keys: at most %d are read", len(set.Keys), maxKeys)
	}
	var out jwkset.JWKSMarshal
	for _, k := range set.Keys {
		var m jwkset.JWKMarshal
		if json.Unmarshal(k, &m) == nil && verifies(m) {
			out.Keys = append(out.Keys, m)
		}
	}
	if len(out.Keys) == 0 {
		return nil, errors.New("parse key set: it holds no public RSA (2048 bits or more), EC or Ed25519 key with a kid for signatures")
	}
	return json.Marshal(out)
}

func verifies(m jwkset.JWKMarshal) bool {
	switch {
	case m.KID == "" || len(m.KID) > maxKeyID:
		return false
	case m.USE != "" && m.USE != jwkset.UseSig:
		return false
	case m.D != "" || m.K != "":
		return false // private and symmetric keys have no place in a published set
	}
	jwk, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return false
	}
	if pub, ok := jwk.Key().(*rsa.PublicKey); ok {
		return pub.N.BitLen() >= minRSA
	}
	return true
}

// client fetches key sets: it follows no redirect, and what it hands on has been measured and checked.
func client() *http.Client {
	return &http.Client{
		Timeout:       fetchTimeout,
		Transport:     checked{http.DefaultTransport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type checked struct{ next http.RoundTripper }

// RoundTrip replaces the answer's body with the usable part of the key set in it.
func (c checked) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxSet+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxSet {
		return nil, fmt.Errorf("read key set: it is larger than %d bytes", maxSet)
	}
	set, err := usable(raw)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(set))
	return resp, nil
}
