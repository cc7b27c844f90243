package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const secretText = "0123456789abcdef0123456789abcdef"

// signed returns a token of the given header and claims, signed with the secret of the tests.
func signed(t testing.TB, header, claims string) http.Header {
	t.Helper()
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(header)) + "." + encode([]byte(claims))
	mac, err := jwt.SigningMethodHS256.Sign(text, []byte(secretText))
	if err != nil {
		t.Fatal(err)
	}
	return http.Header{"Authorization": {"Bearer " + text + "." + encode(mac)}}
}

func secretPolicy(t testing.TB, maxAge time.Duration) *Policy {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secretText), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := NewPolicy(
		t.Context(), Config{Issuer: "issuer", Audience: "audience", SecretFile: path, MaxAge: maxAge},
		slog.New(slog.DiscardHandler),
	)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const plainHeader = `{"alg":"HS256","typ":"JWT"}`

// plain are valid claims, without the braces.
func plain() string {
	return fmt.Sprintf(`"iss":"issuer","aud":"audience","sub":"ada","exp":%d`, time.Now().Add(time.Minute).Unix())
}

// J-05, J-07: a duplicate or differently capitalized name of an evaluated claim or header parameter is refused.
func TestClaimsAreExact(t *testing.T) {
	p := secretPolicy(t, 0)
	who, err := p.Identify(
		signed(t, plainHeader, "{"+plain()+`,"stunner":["media/*"],"other":{"SUB":1,"a":[1]}}`), "", "test",
	)
	if err != nil || who.UserID != "ada" ||
		!who.Gateways.Contains("media", "x") || who.Gateways.Contains("x", "media") {
		t.Fatalf("%+v, %v", who, err)
	}
	values := map[string]string{
		"iss": `"issuer"`, "aud": `"audience"`, "sub": `"root"`, "exp": "9999999999", "nbf": "1", "iat": "1",
		"jti": `"1"`, "stunner": `["*/*"]`,
	}
	for _, name := range claimNames {
		value := values[name]
		if value == "" {
			t.Fatalf("claim %s has no value in this test", name)
		}
		variants := []string{
			strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:],
			name[:len(name)-1] + strings.ToUpper(name[len(name)-1:]),
		}
		if strings.Contains(name, "s") {
			variants = append(variants, strings.Replace(name, "s", "\u017f", 1)) // EqualFold equates it with s
		}
		for _, variant := range variants {
			for _, claims := range []string{
				plain() + `,"` + variant + `":` + value, `"` + variant + `":` + value + "," + plain(),
			} {
				if who, err := p.Identify(signed(t, plainHeader, "{"+claims+"}"), "", "test"); err == nil {
					t.Errorf("%s is taken: %+v", claims, who)
				}
			}
		}
		for _, claims := range []string{
			plain() + `,"` + name + `":` + value + `,"` + name + `":` + value,
			plain() + `,"stunner":["media/*"],"stunner":["*/*"]`,
		} {
			if who, err := p.Identify(signed(t, plainHeader, "{"+claims+"}"), "", "test"); err == nil {
				t.Errorf("%s is taken: %+v", claims, who)
			}
		}
	}
	for _, header := range []string{
		`{"alg":"HS256","ALG":"none"}`, `{"alg":"none","alg":"HS256"}`, `{"alg":"HS256","Typ":"x"}`,
		`{"alg":"HS256","CRIT":["x"]}`, `{"alg":"HS256","\u212aid":"x"}`, `{"alg":"HS256","typ":"JWT","typ":"JWT"}`,
	} {
		if who, err := p.Identify(signed(t, header, "{"+plain()+"}"), "", "test"); err == nil {
			t.Errorf("%s is taken: %+v", header, who)
		}
	}
}

// J-01: a token with another type in its header is refused.
func TestTypeOfTokens(t *testing.T) {
	p := secretPolicy(t, 0)
	for typ, good := range map[string]bool{
		``: true, `,"typ":"JWT"`: true, `,"typ":"jwt"`: true, `,"typ":"at+jwt"`: true,
		`,"typ":"application/at+JWT"`: true,
		`,"typ":"logout+jwt"`:         false, `,"typ":"dpop+jwt"`: false, `,"typ":"JWE"`: false, `,"typ":""`: false,
		`,"typ":7`: false, `,"typ":null`: false, `,"typ":"application/"`: false, `,"typ":["JWT"]`: false,
	} {
		if _, err := p.Identify(signed(t, `{"alg":"HS256"`+typ+`}`, "{"+plain()+"}"), "", "test"); (err == nil) != good {
			t.Errorf("%s: %v", typ, err)
		}
	}
}

// J-04: with a maximum age, a token needs the claim iat and must not be older.
func TestJ04LongestAge(t *testing.T) {
	issued := func(ago time.Duration) string { return fmt.Sprintf(`,"iat":%d`, time.Now().Add(-ago).Unix()) }
	for maxAge, tests := range map[time.Duration]map[string]bool{
		0: {"": true, issued(1000 * time.Hour): true},
		time.Minute: {
			"": false, issued(0): true, issued(80 * time.Second): true, issued(95 * time.Second): false,
			issued(-20 * time.Second): true, `,"iat":null`: false,
		},
	} {
		p := secretPolicy(t, maxAge)
		for claims, good := range tests {
			if _, err := p.Identify(signed(t, plainHeader, "{"+plain()+claims+"}"), "", "test"); (err == nil) != good {
				t.Errorf("longest age %s, %q: %v", maxAge, claims, err)
			}
		}
	}
}

// J-03: an invalid token with any kid causes no fetch.
func TestJ03InvalidTokensCauseNoFetch(t *testing.T) {
	i := newIssuer(t)
	i.rotate(t, "known")
	p := i.policy(t, io.Discard)
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	good := jwt.MapClaims{"iss": "issuer", "aud": "audience", "sub": "ada", "exp": in(time.Minute)}
	for name, changes := range map[string]map[string]any{
		"another issuer": {"iss": "other"}, "no issuer": {"iss": nil}, "another audience": {"aud": "other"},
		"expired": {"exp": in(-time.Hour)}, "no expiry": {"exp": nil},
		"not yet": {"nbf": in(time.Hour)}, "from the future": {"iat": in(time.Hour)}, "another case": {"SUB": "root"},
	} {
		claims := maps.Clone(good)
		maps.Copy(claims, changes)
		maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
		for header, value := range map[string]any{"typ": "JWT", "crit": []string{"exp"}} {
			token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
			token.Header["kid"], token.Header[header] = "unknown", value
			text, err := token.SignedString(stranger)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Identify(http.Header{"Authorization": {"Bearer " + text}}, "", "test"); err == nil {
				t.Errorf("%s: let in", name)
			}
		}
	}
	if n := i.fetches.Load(); n != 1 {
		t.Errorf("%d fetches, want 1 at the start", n)
	}
}

// J-03: while a fetch blocks, sources with invented key ids do not use up the places of others, and tokens with known
// keys do not wait.
func TestJ03InventedKeyIDsDoNotBlockOtherSources(t *testing.T) {
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	withIssuer(t, func(t *testing.T, i *issuer, p *Policy) {
		accepted(t, p, i.headers(t, "first"))
		i.rotate(t, "second")
		fresh := i.headers(t, "second")
		var results [2000]error
		ended := make(chan struct{})
		for n := range results {
			h := headers(t, stranger, fmt.Sprint("unknown-", n))
			go func() {
				_, results[n] = p.Identify(h, "", fmt.Sprint("source ", n%40))
				ended <- struct{}{}
			}()
		}
		synctest.Wait() // one request fetches the keys, and the others wait for it
		newcomers := make(chan error, 20)
		for n := range cap(newcomers) {
			go func() {
				_, err := p.Identify(fresh, "", fmt.Sprint("newcomer ", n))
				newcomers <- err
			}()
		}
		synctest.Wait()
		began := time.Now()
		accepted(t, p, i.headers(t, "first"))
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a known key waited for %s", waited)
		}
		for range cap(newcomers) {
			if err := <-newcomers; err != nil {
				t.Errorf("a new key is refused: %v", err)
			}
		}
		for range results {
			<-ended
		}
		for _, err := range results {
			if err == nil {
				t.Error("a stranger is let in")
			}
		}
		if n := i.fetches.Load(); n != 2 {
			t.Errorf("%d fetches, want one at the start and one for the unknown kids", n)
		}
	})
}

// J-01: the identity of an accepted token comes from its payload, by exact names.
func FuzzClaims(f *testing.F) {
	for _, claims := range []string{
		`{}`, `{"sub":"ada","SUB":"root"}`, `{"sub":"ada","sub":"root"}`, `{"\u0073ub":"ada"}`,
		`{"stunner":["a/b"],"Stunner":["*/*"]}`, `{"exp":1e10,"aud":["audience"]}`, `null`, `[]`,
		`{"sub":{"sub":"ada"}}`,
	} {
		f.Add(claims)
	}
	p := secretPolicy(f, 0)
	f.Fuzz(func(t *testing.T, claims string) {
		claims = strings.Replace(claims, "{", "{"+strings.Replace(plain(), `"sub":"ada",`, "", 1)+",", 1)
		who, err := p.Identify(signed(t, plainHeader, claims), "", "test")
		if err != nil {
			return
		}
		d := json.NewDecoder(strings.NewReader(claims))
		if _, err := d.Token(); err != nil {
			t.Fatalf("%s is accepted, and is no JSON: %v", claims, err)
		}
		seen := map[string]json.RawMessage{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			var value json.RawMessage
			if err := d.Decode(&value); err != nil {
				t.Fatal(err)
			}
			if _, twice := seen[name.(string)]; twice {
				t.Errorf("%s is accepted with %s twice", claims, name)
			}
			seen[name.(string)] = value
		}
		var subject string
		if json.Unmarshal(seen["sub"], &subject) != nil || subject != who.Subject {
			t.Errorf("%s is accepted as %q", claims, who.Subject)
		}
		if _, limited := seen["stunner"]; limited == who.Gateways.Contains("nowhere", "nothing") &&
			!strings.Contains(string(seen["stunner"]), "*") {
			t.Errorf("%s is accepted with %+v", claims, who.Gateways)
		}
	})
}
