package rest_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
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

// keys are the keys of the tests: one of each published type, and a key that is not published.
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

// filePolicy is policy as a policy file, with further fields of the issuer.
func (k keys) filePolicy(t *testing.T, fields string) *access.Policy {
	t.Helper()
	jwk, err := jwkset.NewJWKFromKey(k.ec.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: "ec"}})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{jwk.Marshal()}})
	if err != nil {
		t.Fatal(err)
	}
	return openPolicy(t, fmt.Sprintf("version: v1\nissuers:\n- issuer: %s\n  audience: %s\n  jwksFile: %s\n  %s\n",
		issuer, audience, write(t, "jwks.json", raw), strings.ReplaceAll(fields, "\n", "\n  ")))
}

// keyPolicy is the policy of one API key, with further fields of the key.
func keyPolicy(t *testing.T, name, secret, fields string) *access.Policy {
	t.Helper()
	return openPolicy(t, fmt.Sprintf("version: v1\nkeys:\n- name: %s\n  hashes: [sha256:%x]\n  %s\n",
		name, sha256.Sum256([]byte(secret)), strings.ReplaceAll(fields, "\n", "\n  ")))
}

func openPolicy(t *testing.T, text string) *access.Policy {
	t.Helper()
	p, err := access.OpenPolicy(t.Context(), write(t, "policy.yaml", []byte(text)), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
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
func sign(t testing.TB, method jwt.SigningMethod, key any, kid any, header, claims map[string]any) string {
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
func TestValidTokens(t *testing.T) {
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

// J-01, J-02, J-04, J-05, J-06, J-07, K-04: invalid tokens get 401 with the reason, cause no fetch, and are not logged.
func TestInvalidTokens(t *testing.T) {
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

	tests := map[string]struct {
		token  string
		reason access.Reason
	}{
		"J-01 alg none":                       {unsigned(t, `{"alg":"none","typ":"JWT","kid":"ec"}`), access.TokenAlgorithm},
		"J-01 alg None":                       {unsigned(t, `{"alg":"None","typ":"JWT","kid":"ec"}`), access.TokenAlgorithm},
		"J-01 alg nOnE":                       {unsigned(t, `{"alg":"nOnE","typ":"JWT","kid":"ec"}`), access.TokenAlgorithm},
		"J-01 no alg":                         {unsigned(t, `{"typ":"JWT","kid":"ec"}`), access.TokenAlgorithm},
		"J-01 alg is a list":                  {unsigned(t, `{"alg":["ES256"],"kid":"ec"}`), access.TokenAlgorithm},
		"J-01 HMAC by the public key, PEM":    {hs(asPEM("PUBLIC KEY", pkix)), access.TokenAlgorithm},
		"J-01 HMAC by the public key, PKCS 1": {hs(asPEM("RSA PUBLIC KEY", pkcs1)), access.TokenAlgorithm},
		"J-01 HMAC by the public key, DER":    {hs(pkix), access.TokenAlgorithm},
		"J-01 HMAC by nothing":                {hs([]byte{}), access.TokenAlgorithm},
		"J-01 RS256 for an EC key":            {sign(t, jwt.SigningMethodRS256, k.rsa, "ec", nil, good()), access.TokenAlgorithm},
		"J-01 ES256 for an RSA key":           {sign(t, jwt.SigningMethodES256, k.ec, "any-rsa", nil, good()), access.TokenAlgorithm},
		"J-01 RS512 for a key of RS256":       {sign(t, jwt.SigningMethodRS512, k.rsa, "rsa", nil, good()), access.TokenAlgorithm},
		"J-01 a key for encryption":           {sign(t, jwt.SigningMethodRS256, k.stranger, "enc", nil, good()), access.KeyUnknown},
		"J-01 a stranger's key, known kid":    {sign(t, jwt.SigningMethodRS256, k.stranger, "rsa", nil, good()), access.TokenSignature},
		"J-02 kid is a path":                  {kid("../../etc/passwd"), access.KeyUnknown},
		"J-02 kid is SQL":                     {kid("' or 1=1"), access.KeyUnknown},
		"J-02 kid is a URL":                   {kid(attacker.URL), access.KeyUnknown},
		"J-02 kid of 129 bytes":               {kid(strings.Repeat("k", 129)), access.TokenHeader},
		"J-02 kid of 1 MB":                    {kid(strings.Repeat("k", 1<<20)), access.TokenHeader},
		"J-02 kid is a number":                {kid(1), access.TokenHeader},
		"J-02 kid is missing":                 {kid(nil), access.KeyIDMissing},
		"J-02 brings its key as jwk":          {strange(map[string]any{"jwk": own.Marshal()}), access.TokenHeader},
		"J-02 brings its key as jku":          {strange(map[string]any{"jku": attacker.URL}), access.KeyUnknown},
		"J-02 brings its key as x5u":          {strange(map[string]any{"x5u": attacker.URL}), access.KeyUnknown},
		"J-02 brings its key as x5c":          {strange(map[string]any{"x5c": []string{base64.StdEncoding.EncodeToString(pkix)}}), access.TokenHeader},
		"J-02 crit":                           {es(map[string]any{"crit": []string{"exp"}}, good()), access.TokenHeader},
		"J-02 crit b64":                       {es(map[string]any{"crit": []string{"b64"}, "b64": true}, good()), access.TokenHeader},
		"J-02 crit of nothing":                {es(map[string]any{"crit": []string{}}, good()), access.TokenHeader},
		"J-04 expired 31 s":                   {claim("exp", in(-31*time.Second)), access.TokenExpired},
		"J-04 not before 35 s":                {claim("nbf", in(35*time.Second)), access.TokenNotYetValid},
		"J-04 issued in 35 s":                 {claim("iat", in(35*time.Second)), access.TokenNotYetValid},
		"J-04 no exp":                         {claim("exp", nil), access.TokenExpiryMissing},
		"J-04 exp is text":                    {claim("exp", "2099-01-01"), access.TokenClaims},
		"J-04 exp is a number in quotes":      {claim("exp", strconv.FormatInt(in(time.Minute), 10)), access.TokenClaims},
		"J-04 nbf is a number in quotes":      {claim("nbf", "1"), access.TokenClaims},
		"J-04 exp is 1e400":                   {claim("exp", json.RawMessage("1e400")), access.TokenClaims},
		"J-04 exp is negative":                {claim("exp", -1), access.TokenExpired},
		"J-05 other audience":                 {claim("aud", "other"), access.TokenAudience},
		"J-05 a prefix of the audience":       {claim("aud", audience[:4]), access.TokenAudience},
		"J-05 the audience is a prefix":       {claim("aud", audience+"-2"), access.TokenAudience},
		"J-05 audience in another case":       {claim("aud", strings.ToUpper(audience)), access.TokenAudience},
		"J-05 no audience":                    {claim("aud", nil), access.TokenAudience},
		"J-05 other issuer":                   {claim("iss", "https://login.example.net"), access.TokenIssuer},
		"J-05 issuer with a slash":            {claim("iss", issuer+"/"), access.TokenIssuer},
		"J-05 no issuer":                      {claim("iss", nil), access.TokenIssuer},
		"J-05 gateways is no list":            {claim("stunner", "media/oslo"), access.TokenGateways},
		"J-05 gateways is null":               {claim("stunner", json.RawMessage("null")), access.TokenGateways},
		"J-05 gateways of another form":       {claim("stunner", []string{"oslo"}), access.TokenGateways},
		"J-05 gateways beyond a namespace":    {claim("stunner", []string{"*/*", "media/a/b"}), access.TokenGateways},
		"J-07 no subject":                     {claim("sub", nil), access.TokenSubject},
		"J-07 subject with a NUL":             {claim("sub", "a\x00b"), access.TokenSubject},
		"J-06 garbage":                        {"garbage", access.TokenMalformed},
		"J-05 aud is empty":                   {claim("aud", ""), access.TokenAudience},
		"J-05 aud is a number":                {claim("aud", 7), access.TokenClaims},
		"J-06 two parts":                      {valid[:strings.LastIndexByte(valid, '.')], access.TokenMalformed},
		"J-06 cut signature":                  {valid[:len(valid)-2], access.TokenSignature},
		"J-06 a token and more":               {valid + " " + valid, access.TokenMalformed},
		"J-06 padding":                        {valid + "=", access.TokenMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { wantRefusal(t, s.ask(t, tt.token, `{}`), tt.reason) })
	}
	if fetched.Load() != 0 {
		t.Errorf("tokens made the service fetch %d times", fetched.Load())
	}
	if log := s.logs.String(); strings.Contains(log, valid[:40]) || strings.Contains(log, "garbage") {
		t.Error("a token stands in the log")
	}
}

// wantRefusal checks the reason of a refused token, in the body and in the header WWW-Authenticate.
func wantRefusal(t *testing.T, answer *http.Response, reason access.Reason) {
	t.Helper()
	challenge := answer.Header.Get("WWW-Authenticate")
	p := wantProblem(t, answer, http.StatusUnauthorized, "")
	if p.Reason != string(reason) {
		t.Errorf("reason %s, want %s", p.Reason, reason)
	}
	if want := `Bearer realm="stunner", error="invalid_token", error_description="` + p.Detail + `"`; challenge != want {
		t.Errorf("WWW-Authenticate %s, want %s", challenge, want)
	}
}

// J-06: a request without a token gets 401, even if it has other errors.
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
			if got := answer.Header.Get("WWW-Authenticate"); got != `Bearer realm="stunner"` {
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
	wantRefusal(t, s.do(t, r), access.TokenRepeated)
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
	for name, tt := range map[string]struct {
		token  string
		reason access.Reason
	}{
		"another secret": {
			sign(t, jwt.SigningMethodHS256, []byte("0123456789abcdef0123456789abcdeF"), nil, nil, good()),
			access.TokenSignature,
		},
		"another algorithm": {sign(t, jwt.SigningMethodHS512, secret, nil, nil, good()), access.TokenAlgorithm},
		"RS256":             {sign(t, jwt.SigningMethodRS256, k.rsa, nil, nil, good()), access.TokenAlgorithm},
		"none":              {unsigned(t, `{"alg":"none"}`), access.TokenAlgorithm},
	} {
		t.Run(name, func(t *testing.T) { wantRefusal(t, s.ask(t, tt.token, `{}`), tt.reason) })
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
		"no user name":             {"ada", "", 200, "ada"},
		"its own":                  {"ada", "ada", 200, "ada"},
		"somebody else's":          {"ada", "bob", 403, ""},
		"another case":             {"ada", "Ada", 403, ""},
		"colons are written out":   {"system:serviceaccount:web:app", "", 200, "system%3Aserviceaccount%3Aweb%3Aapp"},
		"and may be asked for":     {"system:app", "system:app", 200, "system%3Aapp"},
		"and collide with nothing": {"system%3Aapp", "", 200, "system%253Aapp"},
		"128 bytes stay":           {strings.Repeat("s", 128), "", 200, strings.Repeat("s", 128)},
		"129 bytes are hashed":     {strings.Repeat("s", 129), "", 200, hashOf(strings.Repeat("s", 129))},
		"43 colons are hashed":     {strings.Repeat(":", 43), "", 200, hashOf(strings.Repeat(":", 43))},
		"and may be asked for too": {strings.Repeat("s", 129), strings.Repeat("s", 129), 200, hashOf(strings.Repeat("s", 129))},
		"the longest workload": {
			longestAccount, "", 200, "sha256-2b4bd4e7c4f783dce20d2df85afa22cab845bbf26c6732b7709e0de6e8ae7961",
		},
		"a subject that looks like a hash": {
			hashOf(strings.Repeat("s", 129)), "", 200, hashOf(hashOf(strings.Repeat("s", 129))),
		},
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

// longestAccount is the longest subject of a Kubernetes service account.
var longestAccount = "system:serviceaccount:" + strings.Repeat("n", 63) + ":" + strings.Repeat("a", 253)

func hashOf(subject string) string { return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(subject))) }
