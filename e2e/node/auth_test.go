//go:build node

package node_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Settings of the auth service in the chart's values.
const (
	issuer   = "https://login.example.org"
	audience = "calls"
	signing  = "what the web app and the auth service share"
)

// claims are the claims of a token and its signing parameters.
type claims struct {
	key, alg string
	Issuer   string   `json:"iss"`
	Audience string   `json:"aud"`
	Subject  string   `json:"sub"`
	Expiry   int64    `json:"exp"`
	Gateways []string `json:"stunner,omitempty"`
}

// token makes a JSON Web Token (RFC 7519) without the library of the auth service, which is under test.
func token(t *testing.T, change func(*claims)) string {
	t.Helper()
	c := claims{
		key: signing, alg: "HS256", Issuer: issuer, Audience: audience, Subject: "ada",
		Expiry: time.Now().Add(time.Hour).Unix(),
	}
	change(&c)
	payload, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"typ":"JWT","alg":"`+c.alg+`"}`)) + "." + encode(payload)
	mac := hmac.New(sha256.New, []byte(c.key))
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil))
}

// J-06, K-04: with tokens configured in the chart, only a valid token gets credentials. Requests are counted, and no
// log contains a token or key.
func TestTokens(t *testing.T) {
	s, system := newTestNamespace(t), testNamespace{t, home}
	s.prepare()
	system.kubectl("", "create", "secret", "generic", "web-app", "--from-literal=jwt-secret="+signing)
	s.shell([]string{"helm"}, fmt.Sprintf(`cd %s/charts
helm install stunner-crds stunner-crds --namespace stunner-system --set gatewayAPI.enabled=true
helm install stunner stunner --namespace stunner-system --wait --set stunnerAuthService.jwt.issuer=%s --set stunnerAuthService.jwt.audience=%s \
  --set stunnerAuthService.jwt.existingSecret=web-app --set 'stunnerAuthService.gateways={*/*}' \
  --set 'stunnerAuthService.deployment.container.authService.args={--log-level=all:DEBUG}'`,
		harnesstest.Root(t), issuer, audience))
	s.follow(nil, firstGateway)
	s.wait("condition=Available", "deployment", "--all")
	s.wait("condition=Programmed", "gateway/front-door")

	good := token(t, func(*claims) {})
	m := caller{testNamespace: s, auth: s.publish(), peer: s.echo(), token: good}
	m.call(t) // afterwards both replicas are reachable and serve the Gateway
	before := system.counted("stunner-auth")
	answers := map[int]int{}
	for _, c := range []struct {
		name, token string
		want        int
	}{
		{"no token", "", http.StatusUnauthorized},
		{"an invalid token", "guessed", http.StatusUnauthorized},
		{"a forged token", token(
			t, func(c *claims) { c.key = "what somebody else thinks that they might share" },
		), http.StatusUnauthorized},
		{"an unsigned token", unsigned(token(t, func(c *claims) { c.alg = "none" })), http.StatusUnauthorized},
		{"changed claims with a valid signature of others", unsigned(
			token(t, func(c *claims) { c.Subject = "root" }),
		) + good[strings.LastIndex(good, ".")+1:], http.StatusUnauthorized},
		{"a token of another issuer", token(
			t, func(c *claims) { c.Issuer = "https://login.example.com" },
		), http.StatusUnauthorized},
		{"a token for another audience", token(t, func(c *claims) { c.Audience = "mail" }), http.StatusUnauthorized},
		{"a token that has expired", token(
			t, func(c *claims) { c.Expiry = time.Now().Add(-time.Hour).Unix() },
		), http.StatusUnauthorized},
		{"a token for another gateway", token(
			t, func(c *claims) { c.Gateways = []string{"elsewhere/*"} },
		), http.StatusForbidden},
		{"a token for this gateway", token(
			t, func(c *claims) { c.Gateways = []string{s.namespace + "/front-door"} },
		), http.StatusCreated},
		{"a good token", good, http.StatusCreated},
	} {
		code, answer, err := m.post(t.Context(), c.token)
		if err != nil || code != c.want ||
			strings.Contains(string(answer), "credential") != (c.want == http.StatusCreated) {
			t.Errorf("%s: status %d, want %d, %v: %s", c.name, code, c.want, err, answer)
		}
		answers[c.want]++
	}
	after := system.counted("stunner-auth")
	grew := func(name string, labels ...string) int {
		return int(count(t, after, name, labels...) - count(t, before, name, labels...))
	}
	for code, want := range answers {
		if n := grew(
			"stunner_auth_requests_total", `route="/v1/ice-servers"`, fmt.Sprintf(`code="%d"`, code),
		); n != want {
			t.Errorf("the metrics count %d responses with status %d, want %d", n, code, want)
		}
	}
	if n, want := grew("stunner_auth_credentials_total"), answers[http.StatusCreated]; n != want {
		t.Errorf("the metrics count %d credentials, want %d", n, want)
	}
	t.Logf("responses of the auth service by status: %v", answers)
	m.belongs(t, "ada")
	system.discreet("stunner-auth", "caller refused", good[strings.LastIndex(good, ".")+1:], signing)
}

// unsigned returns a token without its signature.
func unsigned(token string) string { return token[:strings.LastIndex(token, ".")+1] }

// belongs checks the subject in the user name of a credential.
func (m caller) belongs(t *testing.T, subject string) {
	t.Helper()
	ice, err := m.ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, user, _ := strings.Cut(ice.Username, ":"); user != subject {
		t.Errorf("the credential is for %q, want %q", user, subject)
	}
}

// discreet checks that the logs of a service contain a given text, and no secret.
func (s testNamespace) discreet(service, done string, secrets ...string) {
	s.Helper()
	var logs strings.Builder
	for _, p := range s.pods("app=" + service) {
		logs.WriteString(s.kubectl("", "logs", p.Name))
	}
	if !strings.Contains(logs.String(), done) {
		s.Errorf("the logs of %s do not contain %q:\n%s", service, done, logs.String())
	}
	for _, secret := range secrets {
		if strings.Contains(logs.String(), secret) {
			s.Errorf("the logs of %s contain %q", service, secret)
		}
	}
}
