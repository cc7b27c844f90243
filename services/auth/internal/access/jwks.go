package access

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"
)

// Limits of a key set and of requests for it.
const (
	maxSet             = 256 << 10 // bytes
	maxKeys            = 64
	minRSA             = 2048 // bits (RFC 7518 §3.3)
	fetchTimeout       = 5 * time.Second
	refreshInterval    = 10 * time.Minute
	unknownKeyInterval = time.Minute // minimum time between two fetches that an unknown kid has caused
)

// setKeys parses a JWK set and returns its keys.
func setKeys(raw []byte) (jwt.Keyfunc, error) {
	set, err := usableKeys(raw)
	if err != nil {
		return nil, err
	}
	keys, err := keyfunc.NewJWKSetJSON(set)
	if err != nil {
		return nil, fmt.Errorf("holds no JWK set: %w", err)
	}
	return withKeyID(keys.Keyfunc), nil
}

// urlKeys returns the keys of a JWK set at a URL that a fetcher reads.
func urlKeys(ctx context.Context, url string, fetch *fetcher, log *slog.Logger) (*source, error) {
	store, err := jwkset.NewStorageFromHTTP(url, jwkset.HTTPClientStorageOptions{
		Client:                    fetch.client(),
		Ctx:                       ctx,
		HTTPTimeout:               fetchTimeout,
		NoErrorReturnFirstHTTPReq: true,
		RefreshErrorHandler: func(_ context.Context, err error) {
			log.Warn("cannot fetch key set, keep known token keys", "url", url, "error", err)
		},
		RefreshInterval: refreshInterval,
	})
	if err != nil {
		return nil, fmt.Errorf("open key set %s: %w", url, err)
	}
	refresher, err := jwkset.NewHTTPClient(jwkset.HTTPClientOptions{
		HTTPURLs:          map[string]jwkset.Storage{url: store},
		RateLimitWaitMax:  fetchTimeout,
		RefreshUnknownKID: rate.NewLimiter(rate.Inf, 0), // rotation limits the rate of these fetches
	})
	if err != nil {
		return nil, fmt.Errorf("open key set %s: %w", url, err)
	}
	known, err := keyfunc.New(keyfunc.Options{Ctx: ctx, Storage: store})
	if err != nil {
		return nil, fmt.Errorf("open key set %s: %w", url, err)
	}
	refreshed, err := keyfunc.New(keyfunc.Options{Ctx: ctx, Storage: refresher})
	if err != nil {
		return nil, fmt.Errorf("open key set %s: %w", url, err)
	}
	found := newRotation(known.Keyfunc, refreshed.Keyfunc)
	return &source{
		key: func(t *jwt.Token, from string) (any, error) {
			k, err := found.key(t, from)
			if errors.Is(err, jwkset.ErrKeyNotFound) && fetch.reads.state().ReadAt.IsZero() {
				return nil, refuse(KeysUnavailable, "header kid: no key set has been fetched yet: %w", err)
			}
			return k, err
		},
		known: withKeyID(known.Keyfunc),
		state: fetch.reads.state,
	}, nil
}

// maxWaiting is the number of requests to the service that may wait for one fetch of the key set. Each of them occupies
// a connection.
const maxWaiting = 400

// rotation finds keys that were published after the last fetch of the key set. The first token with an unknown kid
// causes a fetch. Other tokens with unknown kids wait for that fetch; tokens with known kids do not wait. One source
// may have a quarter of the waiting requests that maxWaiting still allows, so that a source that sends invented kids
// does not exclude others. After the fetch, and until unknownKeyInterval has passed since its start, every unknown kid
// is refused at once.
type rotation struct {
	known, refreshed jwt.Keyfunc
	limit            *rate.Limiter

	mu       sync.Mutex
	fetching chan struct{} // closed at the end of the running fetch; nil without one
	total    int
	waiting  map[string]int // waiting requests by source
}

func newRotation(known, refreshed jwt.Keyfunc) *rotation {
	return &rotation{known: known, refreshed: refreshed, limit: rate.NewLimiter(rate.Every(unknownKeyInterval), 1),
		waiting: map[string]int{}}
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
		return r.refreshed(t)
	case over != nil:
		<-over // after fetchTimeout at the latest
		r.leave(from)
	}
	return r.known(t) // the fetch may have added the key
}

// join returns a channel that is closed at the end of the running fetch of the key set. If first is true, the caller
// must make the fetch. The channel is nil if no fetch is running and unknownKeyInterval does not allow another one yet.
// The error means that too many requests wait for the fetch.
func (r *rotation) join(from string) (over chan struct{}, first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fetching == nil && !r.limit.Allow():
		return nil, false, nil
	case r.fetching == nil:
		r.fetching = make(chan struct{})
		return r.fetching, true, nil
	case r.total >= maxWaiting || r.waiting[from] > (maxWaiting-r.total)/4:
		return nil, false, refuse(KeyLookups, "header kid: no key has it, and too many wait for the key set")
	}
	r.total++
	r.waiting[from]++
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
	if r.waiting[from]--; r.waiting[from] == 0 {
		delete(r.waiting, from)
	}
}

var errNoKeyID = refuse(KeyIDMissing, "header kid: it is missing")

// withKeyID refuses a token without a kid, so that the alg of a key is always compared with the alg of the token.
func withKeyID(keys jwt.Keyfunc) jwt.Keyfunc {
	return func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["kid"]; !ok {
			return nil, errNoKeyID
		}
		return keys(t)
	}
}

// usableKeys returns the keys of a JWK set that can verify signatures. A set without such a key is an error, so that an
// empty set does not replace the known keys.
func usableKeys(raw []byte) (json.RawMessage, error) {
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
		return nil, errors.New(
			"parse key set: it holds no public RSA (2048 bits or more), EC or Ed25519 key with a kid for signatures")
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
		return false // private or symmetric key
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
