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

// Where the API server publishes its issuer and the keys by which tokens of ServiceAccounts are verified. Kubernetes lets every ServiceAccount read both,
// by the ClusterRole system:service-account-issuer-discovery.
const (
	issuerPath = "/.well-known/openid-configuration"
	keysPath   = "/openid/v1/jwks"
)

// Times of the key set.
const (
	// keysRefresh is how often the key set is fetched again.
	keysRefresh = 5 * time.Minute
	// keysRetry is the shortest time between two fetches that unknown keys, or failures, cause.
	keysRetry = 10 * time.Second
	// keysTTL is for how long the key set is used while it cannot be fetched again.
	keysTTL = time.Hour
)

// keySet is what the API server publishes.
type keySet struct {
	issuer string
	key    jwt.Keyfunc
}

// fetchKeys reads the key set from the API server.
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

// keys holds the key set of the API server: one fetch serves all readers.
type tokenKeys struct {
	fetch func(context.Context) (keySet, error)
	log   *slog.Logger
	// fetches lets all who wait for the key set share one fetch.
	fetches singleflight.Group

	mu             sync.Mutex
	set            keySet
	tried, fetched time.Time
}

// errNoKeys says that the key set does not decide: it is not available, or belongs to another issuer than the token.
var errNoKeys = errors.New("the key set of the API server does not decide")

// verify returns the claims of a token that the API server has signed for an audience. Its error is errNoKeys when the API server has to be asked.
func (k *tokenKeys) verify(ctx context.Context, token, audience string) (tokenClaims, error) {
	set, err := k.current(ctx, false)
	if err != nil {
		return tokenClaims{}, err
	}
	c, err := parseToken(token, audience, set)
	if errors.Is(err, jwt.ErrTokenUnverifiable) { // signed with a key that is not in the set, maybe not yet
		if set, err = k.current(ctx, true); err == nil {
			c, err = parseToken(token, audience, set)
		}
	}
	if errors.Is(err, jwt.ErrTokenInvalidIssuer) { // an API server may have more issuers than it publishes
		return tokenClaims{}, fmt.Errorf("%w: %w", errNoKeys, err)
	}
	return c, err
}

// current returns the key set. It waits for a fetch when there is none, and when the caller needs a key that is not in it.
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

// start fetches the key set, unless that is going on.
func (k *tokenKeys) start() <-chan singleflight.Result {
	return k.fetches.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), authorizeTimeout)
		defer cancel()
		set, err := k.fetch(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.tried = time.Now()
		if err != nil {
			k.log.Warn("fetch keys of ServiceAccount tokens; until then the API server is asked about each token", "error", err)
			return nil, err
		}
		k.set, k.fetched = set, k.tried
		return set, nil
	})
}

// tokenClaims are the claims of a token of a ServiceAccount.
type tokenClaims struct {
	jwt.RegisteredClaims
	Kubernetes struct {
		Namespace string      `json:"namespace"`
		Account   tokenObject `json:"serviceaccount"`
		Pod       tokenObject `json:"pod"`
	} `json:"kubernetes.io"`
}

// tokenObject is an object to which a token is bound.
type tokenObject struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// tokenSkew is by how much the clocks of the API server and of this process may differ.
const tokenSkew = time.Minute

// tokenMethods are the algorithms with which an API server signs tokens.
var tokenMethods = []string{"RS256", "RS384", "RS512", "ES256", "ES384", "ES512"}

// parseToken verifies signature, issuer, audience and times of a token.
func parseToken(token, audience string, set keySet) (c tokenClaims, err error) {
	_, err = jwt.ParseWithClaims(token, &c, set.key, jwt.WithValidMethods(tokenMethods), jwt.WithAudience(audience), jwt.WithIssuer(set.issuer),
		jwt.WithExpirationRequired(), jwt.WithLeeway(tokenSkew))
	return c, err
}

// readToken returns the claims of a token whose signature nobody has verified. An error means that no API server would accept it for the audience.
func readToken(token, audience string) (c tokenClaims, err error) {
	if _, _, err = jwt.NewParser(jwt.WithValidMethods(tokenMethods)).ParseUnverified(token, &c); err != nil {
		return c, err
	}
	return c, jwt.NewValidator(jwt.WithAudience(audience), jwt.WithExpirationRequired(), jwt.WithLeeway(tokenSkew)).Validate(c)
}
