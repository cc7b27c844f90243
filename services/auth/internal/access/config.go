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
	"unicode"

	"github.com/golang-jwt/jwt/v5"
)

// Algorithms of signatures. A Policy accepts either symmetric or asymmetric algorithms. If it accepted both, a token
// could be forged by using a public key as the HMAC secret.
var (
	symmetric  = []string{"HS256", "HS384", "HS512"}
	asymmetric = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

// minSecret is the minimum length of the secret of a symmetric algorithm in bytes: the size of its hash (RFC 7518
// §3.2).
var minSecret = map[string]int{"HS256": 32, "HS384": 48, "HS512": 64}

// Config configures the verification of the tokens of one issuer.
type Config struct {
	// Issuer is the claim "iss" of its tokens, compared exactly.
	Issuer string
	// Audience is the claim "aud" of its tokens, compared exactly.
	Audience string
	// Algorithms lists the accepted algorithms of signatures. They must fit the type of the key. An empty list means
	// HS256 for a secret, and all asymmetric algorithms for a JWK set.
	Algorithms []string
	// SecretFile, JWKSFile, JWKSURL and Discovery are the possible sources of the keys that verify tokens. Exactly one
	// must be set.
	SecretFile string
	JWKSFile   string
	JWKSURL    string
	// Discovery means that the URL of the JWK set is read from ISSUER/.well-known/openid-configuration (OpenID Connect
	// Discovery 1.0).
	Discovery bool
	// JWKSHosts are the hosts, HOST or HOST:PORT, to which Discovery may lead in addition to the host of the issuer.
	JWKSHosts []string
	// CAFile has the certificates that verify the server of the keys; empty means the certificates of the system.
	CAFile string
	// TokenFile has a bearer token for the server of the keys, for example the token of the pod's ServiceAccount.
	TokenFile string
	// MaxAge is the maximum time since a token was issued; 0 means no limit.
	MaxAge time.Duration
	// Required are claims that a token must have.
	Required Claims
}

// Rules returns the policy of the --jwt-… flags. The zero Config is open. Any other Config is the only issuer.
func (c Config) Rules() Rules {
	if c.open() {
		return Rules{Open: &Grant{}}
	}
	return Rules{Issuers: []Issuer{{Config: c}}}
}

// open reports whether nothing is configured.
func (c Config) open() bool {
	return c.Issuer == "" && c.Audience == "" && c.MaxAge == 0 && len(c.Algorithms) == 0 && c.keySources() == 0
}

func (c Config) keySources() (n int) {
	for _, source := range []bool{c.SecretFile != "", c.JWKSFile != "", c.JWKSURL != "", c.Discovery} {
		if source {
			n++
		}
	}
	return n
}

// fieldError is an error about a field of a Config; an empty field means the whole Config.
type fieldError struct{ field, text string }

// flags are the flags of the fields of a Config.
var flags = map[string]string{
	"issuer": "--jwt-issuer", "audience": "--jwt-audience", "secretFile": "--jwt-secret-file",
	"jwksFile": "--jwt-jwks-file", "jwksURL": "--jwt-jwks-url", "algorithms": "--jwt-algorithms", "maxAge": "--jwt-max-age",
}

// Given returns the names of the flags that are set.
func (c Config) Given() (given []string) {
	for flag, there := range map[string]bool{
		"--jwt-issuer": c.Issuer != "", "--jwt-audience": c.Audience != "", "--jwt-secret-file": c.SecretFile != "",
		"--jwt-jwks-file": c.JWKSFile != "", "--jwt-jwks-url": c.JWKSURL != "", "--jwt-algorithms": len(c.Algorithms) > 0,
		"--jwt-max-age": c.MaxAge != 0,
	} {
		if there {
			given = append(given, flag)
		}
	}
	slices.Sort(given)
	return given
}

// Validate refuses an incomplete configuration, so that a service that should require tokens does not serve every
// caller by mistake. Its errors name the flags.
func (c Config) Validate() error {
	if c.open() {
		return nil
	}
	var errs []error
	for _, e := range c.check("--jwt-secret-file, --jwt-jwks-file or --jwt-jwks-url") {
		flag := flags[e.field]
		switch {
		case flag == "":
		case unicode.IsLetter(rune(e.text[0])):
			flag += " "
		default: // the text begins with a value of the flag
			flag += ": "
		}
		errs = append(errs, errors.New(flag+e.text))
	}
	return errors.Join(errs...)
}

// check returns the errors of a Config. keys names the sources of keys.
func (c Config) check(keys string) (errs []fieldError) {
	add := func(field, format string, args ...any) {
		errs = append(errs, fieldError{field, fmt.Sprintf(format, args...)})
	}
	if c.Issuer == "" {
		add("issuer", "is missing: tokens are checked against it")
	}
	if c.Audience == "" {
		add("audience", "is missing: tokens are checked against it")
	}
	switch n := c.keySources(); {
	case n == 0:
		add("", "a key is missing: give %s", keys)
	case n > 1:
		add("", "%s exclude each other: give one", strings.Replace(keys, " or ", " and ", 1))
	}
	if c.JWKSURL != "" {
		if err := checkURL(c.JWKSURL); err != nil {
			add("jwksURL", "%v", err)
		}
	}
	if c.Discovery {
		if err := checkURL(c.Issuer); err != nil {
			add("issuer", "%v", err)
		}
	}
	if c.MaxAge < 0 {
		add("maxAge", "%d is out of range: use 1 or more, or 0 for any age", int64(c.MaxAge/time.Second))
	}
	for _, a := range c.Algorithms {
		if !slices.Contains(c.fitting(), a) {
			add("algorithms", "%q does not fit the key: use some of %s", a, strings.Join(c.fitting(), ","))
		}
	}
	return errs
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
		return errors.New("must be https://HOST/…")
	}
	addr, err := netip.ParseAddr(u.Hostname())
	loopback := u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
	if u.Scheme == "https" || u.Scheme == "http" && loopback {
		return nil
	}
	return errors.New("must be https://HOST/… (http only to this host)")
}

// source is a source of the keys of an issuer.
type source struct {
	// key finds the key of a token. It may fetch the keys and wait; from is the source of the request.
	key func(t *jwt.Token, from string) (any, error)
	// known finds the key of a token among the keys that were already fetched.
	known jwt.Keyfunc
	state func() KeyState
	// settings are the settings of the source. A new policy keeps a source with the same settings, with its keys.
	settings string
	end      context.CancelFunc
}

// settings returns everything on which the keys of an issuer depend.
func (c Config) settings() string {
	return fmt.Sprintf("%q", []any{
		c.Discovery, c.Issuer, c.JWKSURL, c.JWKSFile, c.SecretFile, c.JWKSHosts, c.CAFile, c.TokenFile, c.algorithms(),
	})
}

// openSource returns the source of the keys. It refreshes the keys of a URL until ctx ends. If the URL is unreachable,
// openSource returns no error, because the keys are requested again later.
func (c Config) openSource(ctx context.Context, log *slog.Logger) (*source, error) {
	ctx, end := context.WithCancel(ctx)
	s, err := c.keys(ctx, log)
	if err != nil {
		end()
		return nil, err
	}
	s.settings, s.end = c.settings(), end
	return s, nil
}

func (c Config) keys(ctx context.Context, log *slog.Logger) (*source, error) {
	switch {
	case c.Discovery:
		return urlKeys(ctx, discoveryURL(c.Issuer), newDiscovery(c), log)
	case c.JWKSURL != "":
		return urlKeys(ctx, c.JWKSURL, newFetcher(c), log)
	}
	flag, path, parse := "--jwt-jwks-file", c.JWKSFile, setKeys
	if c.SecretFile != "" {
		flag, path, parse = "--jwt-secret-file", c.SecretFile, c.secretKey
	}
	file, err := openKeyFile(flag, path, log, parse)
	if err != nil {
		return nil, err
	}
	return &source{
		key: func(t *jwt.Token, _ string) (any, error) { return file.key(t) }, known: file.key, state: file.state,
	}, nil
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
