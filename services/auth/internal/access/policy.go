package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Policy identifies callers by the Rules in force. The zero Policy is open.
type Policy struct {
	state atomic.Pointer[state]
	// file is the policy file, or nil.
	file *rulesFile
}

// state contains Rules, prepared for the checks of requests.
type state struct {
	parser     *jwt.Parser
	algorithms []string // of all issuers
	issuers    map[string]*verifier
	keys       []APIKey
	open       *Grant
	remembered *remembered
}

// verifier verifies the tokens of one issuer.
type verifier struct {
	source *source
	// claims validates the claims of a token (issuer, audience, times) before the key of the token is looked up.
	claims     *jwt.Validator
	algorithms []string
	maxAge     time.Duration
	required   Claims
	grant      Grant
	rules      []Rule
	caller     string // beginning of Identity.Caller
}

// NewPolicy returns a Policy of the --jwt-… flags. It refreshes the keys of a JWK set URL until ctx ends.
func NewPolicy(ctx context.Context, c Config, log *slog.Logger) (*Policy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Policy{}
	if c.open() {
		return p, nil
	}
	s, err := newState(ctx, c.Rules(), nil, log)
	if err != nil {
		return nil, err
	}
	p.state.Store(s)
	return p, nil
}

// newState returns the state of valid Rules. It keeps the sources of keys of a previous state whose settings are equal,
// so that a change of the policy loses no key.
func newState(ctx context.Context, r Rules, previous *state, log *slog.Logger) (*state, error) {
	s := &state{issuers: map[string]*verifier{}, keys: r.Keys, open: r.Open, remembered: newRemembered()}
	kept := map[string]*source{}
	if previous != nil {
		for _, v := range previous.issuers {
			kept[v.source.settings] = v.source
		}
	}
	var opened []*source
	for i, issuer := range r.Issuers {
		from := kept[issuer.settings()]
		if from == nil {
			var err error
			if from, err = issuer.openSource(ctx, log); err != nil {
				for _, other := range opened {
					other.end()
				}
				return nil, err
			}
			opened = append(opened, from)
		}
		s.issuers[issuer.Issuer] = newVerifier(issuer, from, i)
		s.algorithms = append(s.algorithms, issuer.algorithms()...)
	}
	// The claims are validated before the key of a token is looked up.
	s.parser = jwt.NewParser(
		jwt.WithValidMethods(s.algorithms), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation())
	return s, nil
}

func newVerifier(i Issuer, from *source, at int) *verifier {
	return &verifier{
		source: from, algorithms: i.algorithms(), maxAge: i.MaxAge, required: i.Required, grant: i.Grant, rules: i.Rules,
		caller: fmt.Sprintf("subject %d ", at),
		claims: jwt.NewValidator(
			jwt.WithIssuer(i.Issuer), jwt.WithAudience(i.Audience), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
			jwt.WithLeeway(leeway)),
	}
}

// grantOf returns the grant of a token with the given claims.
func (v *verifier) grantOf(claims map[string]json.RawMessage) Grant {
	grant := v.grant
	for _, r := range v.rules {
		if r.Claims.match(claims) {
			grant = r.Grant
			break
		}
	}
	if grant.User.parts == nil {
		grant.User = subjectTemplate
	}
	return grant
}

// Open reports whether requests need no credentials.
func (p *Policy) Open() bool {
	s := p.state.Load()
	return s == nil || s.open != nil
}

// TakesKeys reports whether the service accepts API keys.
func (p *Policy) TakesKeys() bool {
	s := p.state.Load()
	return s != nil && len(s.keys) > 0
}

// Identify returns the identity of the caller that sent the HTTP headers, or an API key outside of the headers. Its
// error is a Refusal. from is the source of the request: the number of requests of one source that wait for a fetch of
// a key set is limited.
func (p *Policy) Identify(h http.Header, key, from string) (Identity, error) {
	s := p.state.Load()
	if s == nil {
		return Identity{}, nil
	}
	return s.identify(h, key, from, time.Now())
}

func (s *state) identify(h http.Header, key, from string, now time.Time) (Identity, error) {
	locked := len(s.issuers)+len(s.keys) > 0
	if len(s.keys) == 0 {
		key = "" // TURN REST clients send a key even to services that do not check it
	}
	if len(h.Values("Authorization")) == 0 || !locked {
		switch {
		case key != "":
			return s.byKey(key, now)
		case s.open != nil:
			return Identity{Grant: *s.open, Caveats: s.open.Scope, user: s.open.User}.withUserID()
		}
	}
	token, err := bearer(h)
	switch {
	case err != nil:
		return Identity{}, err
	// A JSON Web Token has three parts. An API key has no dots.
	case len(s.keys) > 0 && (len(s.issuers) == 0 || strings.Count(token, ".") != 2):
		return s.byKey(token, now)
	}
	return s.byToken(token, from, now)
}

func (s *state) byKey(key string, now time.Time) (Identity, error) {
	found, err := findKey(s.keys, key, now)
	if err != nil {
		return Identity{}, err
	}
	return found.identity()
}

func (s *state) byToken(token, from string, now time.Time) (Identity, error) {
	hash := sha256.Sum256([]byte(token))
	if who, ok := s.remembered.find(hash, now); ok {
		return who, nil
	}
	var (
		c   claims
		of  *verifier
		key any
	)
	keyOf := func(t *jwt.Token) (any, error) {
		// The header and the claims of a token are checked before its key is looked up, because the service may have to
		// fetch the key.
		err := checkHeader(t)
		if err == nil {
			err = c.checkPresent()
		}
		if err != nil {
			return nil, err
		}
		if of, err = s.verifier(&c, t.Method.Alg(), now); err != nil {
			return nil, err
		}
		key, err = of.source.key(t, from)
		return key, err
	}
	t, err := s.parser.ParseWithClaims(token, &c, keyOf)
	if err != nil {
		return Identity{}, s.refusalOf(t, err)
	}
	who, err := c.identity(of)
	if err == nil && len(token) <= maxRememberedToken {
		s.remembered.add(hash, &entry{
			who: who, verifier: of, key: key, until: of.until(&c),
			token: &jwt.Token{Method: t.Method, Header: t.Header},
		})
	}
	return who, err
}

// verifier returns the verifier of a token, whose claims and algorithm it accepts.
func (s *state) verifier(c *claims, algorithm string, now time.Time) (*verifier, error) {
	of := s.issuers[c.Issuer]
	if of == nil {
		return nil, refuse(TokenIssuer, "claim iss: the policy has no such issuer")
	}
	// An algorithm of one issuer must not be used with a key of another issuer.
	if !slices.Contains(of.algorithms, algorithm) {
		return nil, refuse(TokenAlgorithm, "header alg: %s is not accepted from the issuer", algorithm)
	}
	if err := of.claims.Validate(c); err != nil {
		return nil, err
	}
	return of, c.checkAge(of.maxAge, now)
}

// until returns when a valid token expires or becomes too old.
func (v *verifier) until(c *claims) time.Time {
	until := c.ExpiresAt.Add(leeway)
	if v.maxAge > 0 {
		if old := c.IssuedAt.Add(v.maxAge + leeway); old.Before(until) {
			return old
		}
	}
	return until
}
