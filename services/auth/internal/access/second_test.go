package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
	"github.com/golang-jwt/jwt/v5"
)

// second verifies tokens with another library.
type second struct{ keys jose.JSONWebKeySet }

// accepts returns the subject of a token that the other library accepts.
func (s second) accepts(text string) (subject string, err error) {
	token, err := josejwt.ParseSigned(text, []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512,
		jose.EdDSA,
	})
	if err != nil {
		return "", err
	}
	var c josejwt.Claims
	if err := token.Claims(s.keys, &c); err != nil {
		return "", err
	}
	return c.Subject, c.ValidateWithLeeway(
		josejwt.Expected{Issuer: "issuer", AnyAudience: josejwt.Audience{"audience"}, Time: time.Now()}, leeway,
	)
}

// F-09: every accepted token is accepted by another library with the same subject. Header and claims are arbitrary; the
// signature is of a published key, of another key, or arbitrary.
func FuzzSecondLibrary(f *testing.F) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		f.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	set := jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{marshal("rsa", rsaKey.Public()), marshal("ec", ecKey.Public())}}
	raw, err := json.Marshal(set)
	if err != nil {
		f.Fatal(err)
	}
	file := filepath.Join(f.TempDir(), "jwks.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		f.Fatal(err)
	}
	p, err := NewPolicy(
		f.Context(), Config{Issuer: "issuer", Audience: "audience", JWKSFile: file}, slog.New(slog.DiscardHandler),
	)
	if err != nil {
		f.Fatal(err)
	}
	var other second
	if err := json.Unmarshal(raw, &other.keys); err != nil {
		f.Fatal(err)
	}
	signers := []struct {
		method jwt.SigningMethod
		key    any
	}{
		{jwt.SigningMethodRS256, rsaKey}, {jwt.SigningMethodPS256, rsaKey}, {jwt.SigningMethodES256, ecKey},
		{jwt.SigningMethodES256, stranger},
	}
	good := "{" + `"iss":"issuer","aud":"audience","sub":"ada","exp":9999999999` + "}"
	for _, header := range []string{
		`{"alg":"RS256","kid":"rsa"}`, `{"alg":"PS256","kid":"rsa","typ":"JWT"}`, `{"alg":"ES256","kid":"ec"}`,
		`{"alg":"none","kid":"ec"}`, `{"alg":"ES256","kid":"ec","crit":["b64"],"b64":false}`,
		`{"alg":"ES256","kid":"ec","jwk":{}}`, `{"alg":"HS256","kid":"ec"}`, `{"alg":"ES256","alg":"none","kid":"ec"}`,
		`{"ALG":"ES256","kid":"ec"}`, `{"alg":"ES256","kid":"ec","b64":false}`,
	} {
		for signer := range signers {
			f.Add(header, good, byte(signer), "")
		}
	}
	for _, claims := range []string{
		`{"iss":"issuer","aud":["x","audience"],"sub":"ada","exp":1e10}`,
		`{"iss":"issuer","aud":"audience","exp":"9999999999"}`, `{"exp":1}`, `{}`, `[]`, `null`,
		`{"iss":"issuer","aud":"audience","sub":"ada","exp":9999999999,"nbf":9999999999}`,
		`{"iss":"issuer","aud":"audience","sub":"ada","sub":"bob","exp":9999999999}`,
	} {
		f.Add(`{"alg":"ES256","kid":"ec"}`, claims, byte(2), "")
	}
	f.Add(`{"alg":"ES256","kid":"ec"}`, good, byte(9), "c2lnbmF0dXJl")

	f.Fuzz(func(t *testing.T, header, claims string, by byte, signature string) {
		encode := base64.RawURLEncoding.EncodeToString
		text := encode([]byte(header)) + "." + encode([]byte(claims))
		if s := int(by); s < len(signers) {
			made, err := signers[s].method.Sign(text, signers[s].key)
			if err != nil {
				t.Fatal(err)
			}
			signature = encode(made)
		}
		text += "." + signature
		if strings.ContainsAny(signature, " \t\r\n") {
			return // the request would have another header
		}
		who, err := p.Identify(http.Header{"Authorization": {"Bearer " + text}}, "", "test")
		if err != nil {
			return
		}

		if subject, err := other.accepts(text); err != nil || subject != who.Subject {
			t.Errorf(
				"%s\n%s\nis accepted for %q; the other library says %q, %v", header, claims, who.Subject, subject, err,
			)
		}
	})
}
