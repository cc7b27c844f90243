package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/sync/singleflight"
	"k8s.io/client-go/rest"
)

// Paths at which the API server publishes its issuer and the keys that verify ServiceAccount tokens. The ClusterRole
// system:service-account-issuer-discovery lets every ServiceAccount read both.
const (
	issuerPath = "/.well-known/openid-configuration"
	keysPath   = "/openid/v1/jwks"
)

const (
	// keysRefresh is the time after a fetch of the key set from which its next use starts another fetch.
	keysRefresh = 5 * time.Minute
	// keysRetry is the minimum interval between two fetches of the key set. A fetch is repeated after an error, and if
	// a token has an unknown key.
	keysRetry = 10 * time.Second
	// keysTTL is how long a key set stays in use if fetching it again fails.
	keysTTL = time.Hour
)

// keySet is the token issuer of the API server with its public keys.
type keySet struct {
	issuer string
	key    jwt.Keyfunc
}

// fetchKeys fetches the key set from the API server.
func fetchKeys(ctx context.Context, c rest.Interface) (keySet, error) {
	document, err := c.Get().AbsPath(issuerPath).DoRaw(ctx)
	if err != nil {
		return keySet{}, fmt.Errorf("read issuer of tokens at %s: %w", issuerPath, err)
	}
	var published struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(document, &published); err != nil || published.Issuer == "" {
		return keySet{}, fmt.Errorf("read issuer of tokens at %s: no issuer in the answer", issuerPath)
	}
	raw, err := c.Get().AbsPath(keysPath).DoRaw(ctx)
	if err != nil {
		return keySet{}, fmt.Errorf("read keys of tokens at %s: %w", keysPath, err)
	}
	set, err := keyfunc.NewJWKSetJSON(raw)
	if err != nil {
		return keySet{}, fmt.Errorf("read keys of tokens at %s: %w", keysPath, err)
	}
	return keySet{issuer: published.Issuer, key: set.Keyfunc}, nil
}

// tokenKeys caches the key set of the API server, so that one fetch serves all clients.
type tokenKeys struct {
	fetch func(context.Context) (keySet, error)
	log   *slog.Logger
	// fetches combines concurrent fetches into one.
	fetches singleflight.Group

	mu  sync.Mutex
	set keySet
	// tried is the time of the last fetch of the key set, fetched the time of the last successful fetch.
	tried, fetched time.Time
}

// errNoKeys means that a token cannot be verified locally, because the key set is not available or the token has
// another issuer.
var errNoKeys = errors.New("the key set of the API server does not decide")

// verify returns the claims of a token if the API server has signed it for the audience. The error errNoKeys means that
// the token must be verified by a TokenReview instead.
func (k *tokenKeys) verify(ctx context.Context, token, audience string) (tokenClaims, error) {
	set, err := k.current(ctx, false)
	if err != nil {
		return tokenClaims{}, err
	}
	c, err := parseToken(token, audience, set)
	if errors.Is(err, jwt.ErrTokenUnverifiable) { // the key may have been added after the key set was fetched
		if set, err = k.current(ctx, true); err == nil {
			c, err = parseToken(token, audience, set)
		}
	}
	if errors.Is(err, jwt.ErrTokenInvalidIssuer) { // an API server may accept issuers that it does not publish
		return tokenClaims{}, fmt.Errorf("%w: %w", errNoKeys, err)
	}
	return c, err
}

// current returns the key set, or errNoKeys if there is none. It waits for a fetch if there is no key set, or if newer
// is true because the key of a token is not in the key set, but not within keysRetry after the last fetch.
func (k *tokenKeys) current(ctx context.Context, newer bool) (keySet, error) {
	k.mu.Lock()
	set, sinceTry, age := k.set, time.Since(k.tried), time.Since(k.fetched)
	k.mu.Unlock()
	missing := set.key == nil || age > keysTTL
	switch {
	case (missing || newer) && sinceTry >= keysRetry:
		select {
		case done := <-k.start():
			if done.Err == nil {
				return done.Val.(keySet), nil
			}
		case <-ctx.Done():
		}
	case sinceTry >= keysRefresh:
		k.start()
	}
	if missing {
		return keySet{}, errNoKeys
	}
	return set, nil
}

// start fetches the key set, unless a fetch is in progress.
func (k *tokenKeys) start() <-chan singleflight.Result {
	return k.fetches.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), authorizeTimeout)
		defer cancel()
		set, err := k.fetch(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.tried = time.Now()
		if err != nil {
			k.log.Warn("fetch keys of ServiceAccount tokens; until then the API server is asked about each token",
				"error", err)
			return nil, err
		}
		k.set, k.fetched = set, k.tried
		return set, nil
	})
}

type tokenClaims struct {
	jwt.RegisteredClaims
	Kubernetes struct {
		Namespace string      `json:"namespace"`
		Account   tokenObject `json:"serviceaccount"`
		Pod       tokenObject `json:"pod"`
	} `json:"kubernetes.io"`
}

// tokenObject is an object to which a token is bound, such as a pod.
type tokenObject struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// tokenSkew is the tolerated difference between the clocks of the API server and of this process.
const tokenSkew = time.Minute

// tokenMethods are the signature algorithms that API servers use for ServiceAccount tokens.
var tokenMethods = []string{"RS256", "RS384", "RS512", "ES256", "ES384", "ES512"}

// parseToken verifies the signature, issuer, audience and validity period of a token.
func parseToken(token, audience string, set keySet) (c tokenClaims, err error) {
	_, err = jwt.ParseWithClaims(token, &c, set.key, jwt.WithValidMethods(tokenMethods), jwt.WithAudience(audience),
		jwt.WithIssuer(set.issuer), jwt.WithExpirationRequired(), jwt.WithLeeway(tokenSkew))
	return c, err
}

// readToken returns the unverified claims of a token. An error means that the API server would reject the token for its
// format, audience or expiry.
func readToken(token, audience string) (c tokenClaims, err error) {
	if _, _, err = jwt.NewParser(jwt.WithValidMethods(tokenMethods)).ParseUnverified(token, &c); err != nil {
		return c, err
	}
	v := jwt.NewValidator(jwt.WithAudience(audience), jwt.WithExpirationRequired(), jwt.WithLeeway(tokenSkew))
	return c, v.Validate(c)
}
