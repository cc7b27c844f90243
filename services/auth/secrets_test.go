package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// K-04: no log line contains a secret, at any level, in either format. The audit log can be disabled.
func TestNoSecretIsLogged(t *testing.T) {
	const shared, fixedUser, fixedPassword, tokenSecret = "marker-shared-secret", "marker-user", "marker-password", "marker-of-32-bytes-signs-a-token."
	const audited = "gave credential"
	cert, private := pair(t)
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte(tokenSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	token := func(secret string, claims jwt.MapClaims) string {
		text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	claims := jwt.MapClaims{"iss": "i", "aud": "a", "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()}
	good, forged := token(tokenSecret, claims), token(strings.Repeat("f", 32), claims)
	for name, auth := range map[string]config.Auth{
		"ephemeral": {Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: shared}},
		"static": {
			Type:        config.AuthStatic,
			Credentials: map[string]credential.Secret{config.KeyUsername: fixedUser, config.KeyPassword: fixedPassword},
		},
	} {
		c := config.Config{
			Version: config.Version, Admin: config.Admin{Name: "media/oslo"}, Auth: auth,
			Listeners: []config.Listener{{
				Name: "media/oslo/tls", Protocol: config.TURNTLS, PublicAddress: "192.0.2.9", PublicPort: 443,
				Port: 443, Cert: cert, Key: private,
			}},
		}
		c.Default()
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "gateway.json")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"--log-level", "all:TRACE"}, {"--log-level", "all:TRACE", "--log-format", "json"}, {},
			{"--log-level", "audit:DISABLE"}, {"--log-level", "all:TRACE,audit:DISABLE"},
		} {
			t.Run(name+" "+strings.Join(args, " "), func(t *testing.T) {
				p := launch(t, append(
					args, "-c", file, "--shutdown-delay", "0", "--jwt-issuer", "i", "--jwt-audience", "a",
					"--jwt-secret-file", secretFile, "--rate-burst", "1000",
				)...)
				url := "http://" + p.public
				bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
				secrets := []string{
					shared, fixedPassword, fixedUser, string(private), tokenSecret,
					good[strings.LastIndexByte(good, '.')+1:], forged[strings.LastIndexByte(forged, '.')+1:],
					"marker-of-a-client",
				}
				var status int
				var body string
				deadline, tick := time.After(20*time.Second), time.NewTicker(20*time.Millisecond)
				defer tick.Stop()
				for status != http.StatusCreated { // the service is ready once the file exists, and answers when it has read the file
					select {
					case <-tick.C:
						status, body = fetch(t, http.MethodPost, url+"/v1/ice-servers", bearer(good))
					case <-deadline:
						t.Fatalf("%d %s\n%s", status, body, p.logs)
					}
				}
				var answer struct{ ICEServers []struct{ Credential string } }
				if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.ICEServers) != 1 {
					t.Fatalf("%v: %s", err, body)
				}
				secrets = append(secrets, answer.ICEServers[0].Credential)
				for _, path := range []string{
					"/?service=turn&key=marker-of-a-client", "/ice?api=marker-of-a-client&ttl=x", "/ice",
					"/marker-less",
				} {
					for _, token := range []string{good, forged, "marker-of-a-client", good + "." + forged, ""} {
						fetch(t, http.MethodGet, url+path, bearer(token))
					}
				}
				p.end(t)
				text := p.logs.String()
				for _, secret := range secrets {
					if strings.Contains(text, secret) {
						t.Errorf("%q is in the log:\n%s", secret, text)
					}
				}
				if off := strings.Contains(strings.Join(args, ""), "DISABLE"); strings.Contains(text, audited) == off ||
					len(text) == 0 {
					t.Errorf("switched off: %t\n%s", off, text)
				}
			})
		}
	}
}

// pair is a certificate and its key, as configs hold them.
func pair(t *testing.T) (cert string, private credential.Secret) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return text("CERTIFICATE", der), credential.Secret(text("PRIVATE KEY", keyDER))
}
