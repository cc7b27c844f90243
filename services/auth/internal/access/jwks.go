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

func urlKeys(ctx context.Context, url string, log *slog.Logger) (func(*jwt.Token, string) (any, error), error) {
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
	return newRotation(known.Keyfunc, asking.Keyfunc).key, nil
}

// waiting is how many requests may wait for one fetch. Each of them holds a connection.
const waiting = 400

// rotation finds keys that were published after the last fetch. While one token makes the set be fetched, others with unknown kids wait for it instead of
// being refused; tokens with known kids never wait. A source may take a fourth of the room that is left, so that sources that make up kids leave some
// for others. Within a minute after a fetch every unknown kid is refused at once: the set was whole.
type rotation struct {
	known, asking jwt.Keyfunc
	turn          *rate.Limiter

	mu       sync.Mutex
	fetching chan struct{} // is closed when the fetch is over; nil while there is none
	total    int
	of       map[string]int // waiting requests by source
}

func newRotation(known, asking jwt.Keyfunc) *rotation {
	return &rotation{known: known, asking: asking, turn: rate.NewLimiter(rate.Every(unknownKeyOnce), 1), of: map[string]int{}}
}

func (r *rotation) key(t *jwt.Token, from string) (any, error) {
	if _, ok := t.Header["kid"]; !ok {
		return nil, errNoKeyID
	}
	k, err := r.known(t)
	if !errors.Is(err, jwkset.ErrKeyNotFound) {
		return k, err
	}
	over, first, err := r.join(from)
	switch {
	case err != nil:
		return nil, err
	case first:
		defer r.end(over)
		return r.asking(t)
	case over != nil:
		<-over // fetchTimeout bounds it
		r.leave(from)
	}
	return r.known(t) // it may have been fetched meanwhile
}

// join returns the fetch to wait for, if there is one, and whether the caller is to make it.
func (r *rotation) join(from string) (over chan struct{}, first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fetching == nil && !r.turn.Allow():
		return nil, false, nil
	case r.fetching == nil:
		r.fetching = make(chan struct{})
		return r.fetching, true, nil
	case r.total >= waiting || r.of[from] > (waiting-r.total)/4:
		return nil, false, errors.New("header kid: no key has it, and too many wait for the key set")
	}
	r.total++
	r.of[from]++
	return r.fetching, false, nil
}

func (r *rotation) end(over chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetching = nil
	close(over)
}

func (r *rotation) leave(from string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total--
	if r.of[from]--; r.of[from] == 0 {
		delete(r.of, from)
	}
}

var errNoKeyID = errors.New("header kid: it is missing")

// withKeyID wants a kid, so that the key's own alg is always compared with the token's.
func withKeyID(keys jwt.Keyfunc) jwt.Keyfunc {
	return func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["kid"]; !ok {
			return nil, errNoKeyID
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
