package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Algorithms of signatures. A Policy accepts either symmetric or asymmetric algorithms. If it accepted both, a token
// could be forged by using a public key as the HMAC secret.
var (
	symmetric  = []string{"HS256", "HS384", "HS512"}
	asymmetric = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

// minSecret is the minimum length of the secret of a symmetric algorithm in bytes: the size of its hash (RFC 7518 §3.2).
var minSecret = map[string]int{"HS256": 32, "HS384": 48, "HS512": 64}

// Config configures the verification of tokens. With the zero Config the Policy is open.
type Config struct {
	Issuer   string
	Audience string
	// Algorithms lists the accepted algorithms of signatures. They must fit the type of the key. An empty list means
	// HS256 for a secret, and all asymmetric algorithms for a JWK set.
	Algorithms []string
	// SecretFile, JWKSFile and JWKSURL are the possible sources of the keys that verify tokens. Exactly one must be
	// set, unless the whole Config is zero.
	SecretFile string
	JWKSFile   string
	JWKSURL    string
	// MaxAge is the maximum time since a token was issued; 0 means no limit.
	MaxAge time.Duration
}

// open reports whether nothing is configured.
func (c Config) open() bool {
	return c.Issuer == "" && c.Audience == "" && c.MaxAge == 0 && len(c.Algorithms) == 0 && len(c.keySources()) == 0
}

func (c Config) keySources() []string {
	all := []string{c.SecretFile, c.JWKSFile, c.JWKSURL}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// Validate refuses an incomplete configuration, so that a service that should require tokens does not serve every
// caller by mistake. Its errors name the flags.
func (c Config) Validate() error {
	if c.open() {
		return nil
	}
	var errs []error
	if c.Issuer == "" {
		errs = append(errs, errors.New("--jwt-issuer is missing: tokens are checked against it"))
	}
	if c.Audience == "" {
		errs = append(errs, errors.New("--jwt-audience is missing: tokens are checked against it"))
	}
	switch n := len(c.keySources()); {
	case n == 0:
		errs = append(errs, errors.New("a key is missing: give --jwt-secret-file, --jwt-jwks-file or --jwt-jwks-url"))
	case n > 1:
		errs = append(errs,
			errors.New("--jwt-secret-file, --jwt-jwks-file and --jwt-jwks-url exclude each other: give one"))
	}
	if c.JWKSURL != "" {
		errs = append(errs, checkURL(c.JWKSURL))
	}
	if c.MaxAge < 0 {
		errs = append(errs, fmt.Errorf("--jwt-max-age: %d is out of range: use 1 or more, or 0 for any age",
			int64(c.MaxAge/time.Second)))
	}
	for _, a := range c.Algorithms {
		if !slices.Contains(c.fitting(), a) {
			errs = append(errs, fmt.Errorf("--jwt-algorithms: %q does not fit the key: use some of %s",
				a, strings.Join(c.fitting(), ",")))
		}
	}
	return errors.Join(errs...)
}

func (c Config) fitting() []string {
	if c.SecretFile != "" {
		return symmetric
	}
	return asymmetric
}

func (c Config) algorithms() []string {
	switch {
	case len(c.Algorithms) > 0:
		return c.Algorithms
	case c.SecretFile != "":
		return symmetric[:1]
	}
	return asymmetric
}

// checkURL returns an error if the URL of a JWK set has no TLS, because an attacker that can change the JWK set can
// sign tokens. A URL on loopback needs no TLS.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("--jwt-jwks-url must be https://HOST/…")
	}
	addr, err := netip.ParseAddr(u.Hostname())
	loopback := u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
	if u.Scheme == "https" || u.Scheme == "http" && loopback {
		return nil
	}
	return errors.New("--jwt-jwks-url must be https://HOST/… (http only to this host)")
}

// NewPolicy returns a Policy with the keys that c configures. It refreshes the keys of a JWK set URL until ctx ends. If
// that URL is unreachable at the start, NewPolicy returns no error, because the keys are requested again later.
func NewPolicy(ctx context.Context, c Config, log *slog.Logger) (*Policy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.open() {
		return &Policy{}, nil
	}
	key, state, err := c.keys(ctx, log)
	if err != nil {
		return nil, err
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(c.algorithms()),
		jwt.WithIssuer(c.Issuer),
		jwt.WithAudience(c.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(leeway),
		jwt.WithStrictDecoding(),
	}
	parser, claims := jwt.NewParser(options...), jwt.NewValidator(options...)
	return &Policy{
		key: key, keys: state, maxAge: c.MaxAge, algorithms: c.algorithms(), parser: parser, claims: claims,
	}, nil
}

// keys returns the function that finds the key of a token, and that which returns the state of the keys.
func (c Config) keys(
	ctx context.Context, log *slog.Logger,
) (key func(*jwt.Token, string) (any, error), state func() KeyState, err error) {
	if c.JWKSURL != "" {
		return urlKeys(ctx, c.JWKSURL, log)
	}
	flag, path, parse := "--jwt-jwks-file", c.JWKSFile, setKeys
	if c.SecretFile != "" {
		flag, path, parse = "--jwt-secret-file", c.SecretFile, c.secretKey
	}
	file, err := openKeyFile(flag, path, log, parse)
	if err != nil {
		return nil, nil, err
	}
	return func(t *jwt.Token, _ string) (any, error) { return file.key(t) }, file.state, nil
}

func (c Config) secretKey(raw []byte) (jwt.Keyfunc, error) {
	secret := bytes.TrimRight(raw, "\r\n")
	for _, a := range c.algorithms() {
		if len(secret) < minSecret[a] {
			return nil, fmt.Errorf("holds %d bytes: at least %d are needed for %s: use a longer secret, or other "+
				"--jwt-algorithms", len(secret), minSecret[a], a)
		}
	}
	return func(*jwt.Token) (any, error) { return secret, nil }, nil
}
