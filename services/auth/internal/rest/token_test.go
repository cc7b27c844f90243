package rest_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

const (
	issuer   = "https://login.example.org"
	audience = "turn-credentials"
)

// keys are the keys of the tests: one of each published type, and one that is not published.
type keys struct {
	rsa, stranger *rsa.PrivateKey
	ec            *ecdsa.PrivateKey
	ed            ed25519.PrivateKey
}

func newKeys(t *testing.T) (k keys) {
	t.Helper()
	var errs [4]error
	k.rsa, errs[0] = rsa.GenerateKey(rand.Reader, 2048)
	k.stranger, errs[1] = rsa.GenerateKey(rand.Reader, 2048)
	k.ec, errs[2] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, k.ed, errs[3] = ed25519.GenerateKey(rand.Reader)
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// policy trusts the published keys: "rsa" for RS256 only, "any-rsa" for all RSA algorithms, "ec", "ed", and "enc",
// which is not for signatures.
func (k keys) policy(t *testing.T) *access.Policy {
	t.Helper()
	var set jwkset.JWKSMarshal
	for _, entry := range []struct {
		id  string
		key any
		alg jwkset.ALG
		use jwkset.USE
	}{
		{"rsa", k.rsa.Public(), jwkset.AlgRS256, jwkset.UseSig},
		{"any-rsa", k.rsa.Public(), "", ""},
		{"ec", k.ec.Public(), jwkset.AlgES256, jwkset.UseSig},
		{"ed", k.ed.Public(), jwkset.AlgEdDSA, jwkset.UseSig},
		{"enc", k.stranger.Public(), "", jwkset.UseEnc},
	} {
		jwk, err := jwkset.NewJWKFromKey(
			entry.key,
			jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: entry.id, ALG: entry.alg, USE: entry.use}},
		)
		if err != nil {
			t.Fatal(err)
		}
		set.Keys = append(set.Keys, jwk.Marshal())
	}
	raw, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return newPolicy(t, access.Config{Issuer: issuer, Audience: audience, JWKSFile: write(t, "jwks.json", raw)})
}

func newPolicy(t *testing.T, c access.Config) *access.Policy {
	t.Helper()
	p, err := access.NewPolicy(t.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// good are the claims of a valid token.
func good() map[string]any {
	return map[string]any{"iss": issuer, "aud": audience, "sub": "ada", "exp": time.Now().Add(time.Minute).Unix()}
}

// with changes claims; nil removes one.
func with(changes map[string]any) map[string]any {
	claims := good()
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return claims
}

// sign returns a token; header entries are added to alg and kid.
func sign(t *testing.T, method jwt.SigningMethod, key any, kid any, header, claims map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, jwt.MapClaims(claims))
	maps.Copy(token.Header, header)
	if kid != nil {
		token.Header["kid"] = kid
	}
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// unsigned returns a token with the given header and an invalid signature.
func unsigned(t *testing.T, header string) string {
	t.Helper()
	claims, err := json.Marshal(good())
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(header)) + "." + encode(claims) + "."
}

func asPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// ask sends a POST with a token; "" sends none.
func (s *service) ask(t *testing.T, token, body string) *http.Response {
	t.Helper()
	r := postRequest(body)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return s.do(t, r)
}

// J-02, J-04, J-05: valid tokens are accepted, within the leeway of their times.
func TestTokensThatAreGood(t *testing.T) {
	k := newKeys(t)
	s := newService(t, k.policy(t), gateways()...)
	soon := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	tests := map[string]string{
		"RS256":                    sign(t, jwt.SigningMethodRS256, k.rsa, "rsa", nil, good()),
		"PS384 with a key for all": sign(t, jwt.SigningMethodPS384, k.rsa, "any-rsa", nil, good()),
		"ES256":                    sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, good()),
		"EdDSA":                    sign(t, jwt.SigningMethodEdDSA, k.ed, "ed", nil, good()),
		"J-04 expired 25 s": sign(
			t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"exp": soon(-25 * time.Second)}),
		),
		"J-04 not before 25 s": sign(
			t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"nbf": soon(25 * time.Second)}),
		),
		"J-05 audience in a list": sign(
			t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"aud": []string{"other", audience}}),
		),
		"J-02 jku is not looked at": sign(
			t, jwt.SigningMethodES256, k.ec, "ec", map[string]any{"jku": "http://127.0.0.1:1/"}, good(),
		),
		"the subject of a workload": sign(
			t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"sub": "system:serviceaccount:web:app"}),
		),
		"a claim for all of a space": sign(
			t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"stunner": []string{"media/*"}}),
		),
	}
	for name, token := range tests {
		t.Run(name, func(t *testing.T) {
			decode[rest.IceServers](t, s.ask(t, token, `{}`), http.StatusCreated)
		})
	}
}

// J-01, J-02, J-04, J-05, J-06, J-07, K-04: invalid tokens get the same 401, cause no fetch, and are not logged.
func TestTokensThatAreNotGood(t *testing.T) {
	k := newKeys(t)
	s := newService(t, k.policy(t), gateways()...)
	var fetched atomic.Int32
	attacker := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) }))
	defer attacker.Close()

	pkix, err := x509.MarshalPKIXPublicKey(k.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	pkcs1 := x509.MarshalPKCS1PublicKey(&k.rsa.PublicKey)
	own, err := jwkset.NewJWKFromKey(k.stranger.Public(), jwkset.JWKOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hs := func(secret []byte) string { return sign(t, jwt.SigningMethodHS256, secret, "any-rsa", nil, good()) }
	es := func(header, claims map[string]any) string {
		return sign(t, jwt.SigningMethodES256, k.ec, "ec", header, claims)
	}
	kid := func(kid any) string { return sign(t, jwt.SigningMethodES256, k.ec, kid, nil, good()) }
	claim := func(name string, value any) string { return es(nil, with(map[string]any{name: value})) }
	strange := func(header map[string]any) string {
		return sign(t, jwt.SigningMethodRS256, k.stranger, "mine", header, good())
	}
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	valid := es(nil, good())

	tests := map[string]string{
		"J-01 alg none":                       unsigned(t, `{"alg":"none","typ":"JWT","kid":"ec"}`),
		"J-01 alg None":                       unsigned(t, `{"alg":"None","typ":"JWT","kid":"ec"}`),
		"J-01 alg nOnE":                       unsigned(t, `{"alg":"nOnE","typ":"JWT","kid":"ec"}`),
		"J-01 no alg":                         unsigned(t, `{"typ":"JWT","kid":"ec"}`),
		"J-01 alg is a list":                  unsigned(t, `{"alg":["ES256"],"kid":"ec"}`),
		"J-01 HMAC by the public key, PEM":    hs(asPEM("PUBLIC KEY", pkix)),
		"J-01 HMAC by the public key, PKCS 1": hs(asPEM("RSA PUBLIC KEY", pkcs1)),
		"J-01 HMAC by the public key, DER":    hs(pkix),
		"J-01 HMAC by nothing":                hs([]byte{}),
		"J-01 RS256 for an EC key":            sign(t, jwt.SigningMethodRS256, k.rsa, "ec", nil, good()),
		"J-01 ES256 for an RSA key":           sign(t, jwt.SigningMethodES256, k.ec, "any-rsa", nil, good()),
		"J-01 RS512 for a key of RS256":       sign(t, jwt.SigningMethodRS512, k.rsa, "rsa", nil, good()),
		"J-01 a key for encryption":           sign(t, jwt.SigningMethodRS256, k.stranger, "enc", nil, good()),
		"J-01 a stranger's key, known kid":    sign(t, jwt.SigningMethodRS256, k.stranger, "rsa", nil, good()),
		"J-02 kid is a path":                  kid("../../etc/passwd"),
		"J-02 kid is SQL":                     kid("' or 1=1"),
		"J-02 kid is a URL":                   kid(attacker.URL),
		"J-02 kid of 129 bytes":               kid(strings.Repeat("k", 129)),
		"J-02 kid of 1 MB":                    kid(strings.Repeat("k", 1<<20)),
		"J-02 kid is a number":                kid(1),
		"J-02 kid is missing":                 kid(nil),
		"J-02 brings its key as jwk":          strange(map[string]any{"jwk": own.Marshal()}),
		"J-02 brings its key as jku":          strange(map[string]any{"jku": attacker.URL}),
		"J-02 brings its key as x5u":          strange(map[string]any{"x5u": attacker.URL}),
		"J-02 brings its key as x5c": strange(
			map[string]any{"x5c": []string{base64.StdEncoding.EncodeToString(pkix)}},
		),
		"J-02 crit":                        es(map[string]any{"crit": []string{"exp"}}, good()),
		"J-02 crit b64":                    es(map[string]any{"crit": []string{"b64"}, "b64": true}, good()),
		"J-02 crit of nothing":             es(map[string]any{"crit": []string{}}, good()),
		"J-04 expired 31 s":                claim("exp", in(-31*time.Second)),
		"J-04 not before 35 s":             claim("nbf", in(35*time.Second)),
		"J-04 issued in 35 s":              claim("iat", in(35*time.Second)),
		"J-04 no exp":                      claim("exp", nil),
		"J-04 exp is text":                 claim("exp", "2099-01-01"),
		"J-04 exp is a number in quotes":   claim("exp", strconv.FormatInt(in(time.Minute), 10)),
		"J-04 nbf is a number in quotes":   claim("nbf", "1"),
		"J-04 exp is 1e400":                claim("exp", json.RawMessage("1e400")),
		"J-04 exp is negative":             claim("exp", -1),
		"J-05 other audience":              claim("aud", "other"),
		"J-05 a prefix of the audience":    claim("aud", audience[:4]),
		"J-05 the audience is a prefix":    claim("aud", audience+"-2"),
		"J-05 audience in another case":    claim("aud", strings.ToUpper(audience)),
		"J-05 no audience":                 claim("aud", nil),
		"J-05 other issuer":                claim("iss", "https://login.example.net"),
		"J-05 issuer with a slash":         claim("iss", issuer+"/"),
		"J-05 no issuer":                   claim("iss", nil),
		"J-05 gateways is no list":         claim("stunner", "media/oslo"),
		"J-05 gateways is null":            claim("stunner", json.RawMessage("null")),
		"J-05 gateways of another form":    claim("stunner", []string{"oslo"}),
		"J-05 gateways beyond a namespace": claim("stunner", []string{"*/*", "media/a/b"}),
		"J-07 no subject":                  claim("sub", nil),
		"J-07 subject of 129 bytes":        claim("sub", strings.Repeat("s", 129)),
		"J-07 subject with a NUL":          claim("sub", "a\x00b"),
		"J-06 garbage":                     "garbage",
		"J-06 two parts":                   valid[:strings.LastIndexByte(valid, '.')],
		"J-06 cut signature":               valid[:len(valid)-2],
		"J-06 a token and more":            valid + " " + valid,
		"J-06 padding":                     valid + "=",
	}
	var body string
	for name, token := range tests {
		t.Run(name, func(t *testing.T) {
			answer := s.ask(t, token, `{}`)
			if got := answer.Header.Get("WWW-Authenticate"); got != `Bearer error="invalid_token"` {
				t.Errorf("WWW-Authenticate %q", got)
			}
			sameRefusal(t, answer, &body)
		})
	}
	if fetched.Load() != 0 {
		t.Errorf("tokens made the service fetch %d times", fetched.Load())
	}
	if log := s.logs.String(); strings.Contains(log, valid[:40]) || strings.Contains(log, "garbage") {
		t.Error("a token stands in the log")
	}
}

// sameRefusal checks that refusals cannot be distinguished.
func sameRefusal(t *testing.T, answer *http.Response, first *string) {
	t.Helper()
	got := decodeText(t, answer)
	if *first == "" {
		*first = got
	}
	if answer.StatusCode != http.StatusUnauthorized || got != *first {
		t.Errorf("status %d, body %s, others got %s", answer.StatusCode, got, *first)
	}
}

// J-06: a request without a token gets 401, with any other error.
func TestJ06NoToken(t *testing.T) {
	s := newService(t, newKeys(t).policy(t), gateways()...)
	requests := map[string]*http.Request{
		"POST":        postRequest(`{}`),
		"bad body":    postRequest(`{`),
		"GET /":       httptest.NewRequest(http.MethodGet, "/?service=turn", nil),
		"bad query":   httptest.NewRequest(http.MethodGet, "/?ttl=x", nil),
		"GET /ice":    httptest.NewRequest(http.MethodGet, "/ice", nil),
		"other kinds": postRequest(`{}`),
	}
	requests["other kinds"].SetBasicAuth("ada", "secret")
	for name, r := range requests {
		t.Run(name, func(t *testing.T) {
			answer := s.do(t, r)
			if got := answer.Header.Get("WWW-Authenticate"); got != "Bearer" {
				t.Errorf("WWW-Authenticate %q", got)
			}
			wantProblem(t, answer, http.StatusUnauthorized, "")
		})
	}
}

// J-06: a request with two tokens gets 401.
func TestJ06TwoTokens(t *testing.T) {
	k := newKeys(t)
	s := newService(t, k.policy(t), gateways()...)
	r := postRequest(`{}`)
	for range 2 {
		r.Header.Add("Authorization", "Bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, good()))
	}
	wantProblem(t, s.do(t, r), http.StatusUnauthorized, "")
}

// J-01: with a shared secret only HS256 is accepted.
func TestJ01SharedSecret(t *testing.T) {
	k := newKeys(t)
	secret := []byte("0123456789abcdef0123456789abcdef")
	s := newService(t, newPolicy(
		t, access.Config{Issuer: issuer, Audience: audience, SecretFile: write(t, "secret", append(secret, '\n'))},
	), gateways()...)
	decode[rest.IceServers](
		t, s.ask(t, sign(t, jwt.SigningMethodHS256, secret, nil, nil, good()), `{}`), http.StatusCreated,
	)
	var body string
	for name, token := range map[string]string{
		"another secret": sign(
			t, jwt.SigningMethodHS256, []byte("0123456789abcdef0123456789abcdeF"), nil, nil, good(),
		),
		"another algorithm": sign(t, jwt.SigningMethodHS512, secret, nil, nil, good()),
		"RS256":             sign(t, jwt.SigningMethodRS256, k.rsa, nil, nil, good()),
		"none":              unsigned(t, `{"alg":"none"}`),
	} {
		t.Run(name, func(t *testing.T) { sameRefusal(t, s.ask(t, token, `{}`), &body) })
	}
}

// J-05: a token gives access to the gateways of its claim, and others get 403.
func TestJ05GatewaysOfAToken(t *testing.T) {
	k := newKeys(t)
	s := newService(t, k.policy(t), gateways()...)
	token := func(gateways ...string) string {
		return sign(
			t, jwt.SigningMethodES256, k.ec, "ec", nil,
			with(map[string]any{"stunner": append([]string{}, gateways...)}),
		)
	}
	one := func(id string) string {
		namespace, name, _ := strings.Cut(id, "/")
		return `{"gateways":[{"namespace":"` + namespace + `","name":"` + name + `"}]}`
	}
	tests := map[string]struct {
		token, body string
		status      int
		parameter   string
		servers     int
	}{
		"all means all that it may":               {token("media/oslo", "stun/only"), `{}`, 201, "", 2},
		"one that it may":                         {token("media/oslo"), one("media/oslo"), 201, "", 1},
		"one of a namespace that it may":          {token("media/*"), one("media/bergen"), 201, "", 1},
		"one that it may not":                     {token("media/oslo"), one("media/bergen"), 403, "gateways[0]", 0},
		"one of another namespace":                {token("media/*"), one("stun/only"), 403, "gateways[0]", 0},
		"a name that starts like one that it may": {token("media/os"), one("media/oslo"), 403, "gateways[0]", 0},
		"a namespace that starts like that":       {token("med/*"), one("media/oslo"), 403, "gateways[0]", 0},
		"one that does not exist, out of reach":   {token("media/oslo"), one("stun/atlantis"), 403, "gateways[0]", 0},
		"one that does not exist, within reach":   {token("media/*"), one("media/atlantis"), 404, "gateways[0]", 0},
		"nothing at all":                          {token(), `{}`, 403, "", 0},
		"an asterisk asked for is no wildcard":    {token("media/*"), one("media/*"), 404, "gateways[0]", 0},
		"only one without an address":             {token("media/pending"), `{}`, 404, "", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			answer := s.ask(t, tt.token, tt.body)
			if tt.status != http.StatusCreated {
				wantProblem(t, answer, tt.status, tt.parameter)
				return
			}
			if got := decode[rest.IceServers](t, answer, tt.status); len(got.IceServers) != tt.servers {
				t.Errorf("%d servers, want %d", len(got.IceServers), tt.servers)
			}
		})
	}
}

// J-07: the user is the subject of the token, and another user name gets 403.
func TestJ07UserOfAToken(t *testing.T) {
	k := newKeys(t)
	s := newService(t, k.policy(t), gateways()...)
	tests := map[string]struct {
		subject, username string
		status            int
		user              string
	}{
		"no user name":              {"ada", "", 200, "ada"},
		"its own":                   {"ada", "ada", 200, "ada"},
		"somebody else's":           {"ada", "bob", 403, ""},
		"another case":              {"ada", "Ada", 403, ""},
		"colons are written out":    {"system:serviceaccount:web:app", "", 200, "system%3Aserviceaccount%3Aweb%3Aapp"},
		"and may be asked for":      {"system:app", "system:app", 200, "system%3Aapp"},
		"and collide with nothing":  {"system%3Aapp", "", 200, "system%253Aapp"},
		"an expiry is no user name": {"ada", "1999999999:ada", 403, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			target := "/?service=turn&namespace=media&gateway=oslo"
			if tt.username != "" {
				target += "&username=" + tt.username
			}
			r := httptest.NewRequest(http.MethodGet, target, nil)
			r.Header.Set(
				"Authorization",
				"bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"sub": tt.subject})),
			)
			answer := s.do(t, r)
			if tt.status != http.StatusOK {
				wantProblem(t, answer, tt.status, "username")
				return
			}
			got := decode[rest.TurnAuth](t, answer, tt.status)
			if _, user, _ := strings.Cut(got.Username, ":"); user != tt.user {
				t.Errorf("user id %q, want %q", user, tt.user)
			}
		})
	}
}
