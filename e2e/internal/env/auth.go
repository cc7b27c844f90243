package env

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// tokenSecret signs the tokens of web apps. tokenIssuer and tokenAudience are claims of these tokens.
const (
	tokenSecret   = "signs-the-tokens-of-web-applications"
	tokenIssuer   = "https://login.example.org"
	tokenAudience = "calls"
)

type authService struct {
	address   string   // HOST:PORT of the API
	health    string   // HOST:PORT of the probes
	arguments []string // without the arguments for config discovery
}

// startAuth starts the auth service and waits until it is ready.
func (e *Env) startAuth(ctx context.Context) error {
	host := e.input.address().String()
	var ports [2]int
	for i := range ports {
		port, err := harness.FreePort()
		if err != nil {
			return err
		}
		ports[i] = port
	}
	e.auth = authService{
		address: net.JoinHostPort(host, strconv.Itoa(ports[0])), health: net.JoinHostPort(host, strconv.Itoa(ports[1])),
	}
	policy, err := e.writePolicy()
	if err != nil {
		return err
	}
	e.auth.arguments = []string{
		"--address", host, "--port", strconv.Itoa(ports[0]), "--health-address", e.auth.health, "--shutdown-delay=0",
		"--rate-limit=0", "--cluster-rate-limit=0", "--max-urls=0", "--log-level=all:DEBUG", "--policy", policy,
	}
	return e.input.startAuth(ctx, &e.auth)
}

// platformKey is the API key of a caller that may revoke the credentials of all users, and read their usage.
const platformKey = "the-key-of-the-platform"

// writePolicy writes the policy of the auth service, and returns its file. The policy accepts the platform, and users
// with a token. If the shape has no tokens, the policy accepts all callers.
func (e *Env) writePolicy() (file string, err error) {
	users := "open: {}\n"
	if e.Shape[Credentials] == JWT {
		secret := filepath.Join(e.Dir, "jwt-secret")
		if err := os.WriteFile(secret, []byte(tokenSecret), 0o600); err != nil {
			return "", err
		}
		users = fmt.Sprintf("issuers:\n- {issuer: %q, audience: %s, secretFile: %q}\n", tokenIssuer, tokenAudience, secret)
	}
	file = filepath.Join(e.Dir, "callers.yaml")
	platform := fmt.Sprintf("keys:\n- {name: platform, hashes: [\"sha256:%x\"], revoke: any, usage: any}\n",
		sha256.Sum256([]byte(platformKey)))
	return file, os.WriteFile(file, []byte("version: v1\n"+users+platform), 0o600)
}

// token returns a token of a web app for a user, signed with HMAC-SHA256 (RFC 7519).
func token(user string) string {
	encode := base64.RawURLEncoding.EncodeToString
	claims, err := json.Marshal(map[string]any{
		"iss": tokenIssuer, "aud": tokenAudience, "sub": user, "exp": time.Now().Add(time.Hour).Unix(),
	})
	if err != nil {
		panic(err) // strings and numbers are valid JSON
	}
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(claims)
	mac := hmac.New(sha256.New, []byte(tokenSecret))
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil))
}

// ICE is the answer of the auth service for some Gateways.
type ICE struct {
	Servers []struct {
		URLs                 []string `json:"urls"`
		Username, Credential string
	} `json:"iceServers"`
}

// ErrNoAddress reports that the auth service knows no public address of the Gateways.
var ErrNoAddress = errors.New("no matching gateway has a public address")

// ICEServers requests the ICE servers of Gateways as a web app does. It also requests TURN over DTLS, which browsers do
// not support. Without Gateways the auth service selects them.
func (e *Env) ICEServers(ctx context.Context, user string, gateways ...*Gateway) (answer ICE, err error) {
	return e.iceServers(ctx, user, credential.Caveats{}, gateways...)
}

// iceServers is ICEServers for credentials with caveats.
func (e *Env) iceServers(
	ctx context.Context, user string, scope credential.Caveats, gateways ...*Gateway,
) (answer ICE, err error) {
	type reference struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	question := struct {
		DTLS     bool                `json:"dtls"`
		Username string              `json:"username,omitempty"`
		Scope    *credential.Caveats `json:"scope,omitempty"`
		Gateways []reference         `json:"gateways,omitempty"`
	}{DTLS: true}
	for _, g := range gateways {
		question.Gateways = append(question.Gateways, reference{g.Namespace, g.Name})
	}
	if !scope.IsZero() {
		question.Scope = &scope
	}
	bearer := ""
	if e.Shape[Credentials] == JWT {
		bearer = token(user)
	} else {
		question.Username = user
	}
	code, err := e.askAuth(ctx, http.MethodPost, "/v1/ice-servers", bearer, question, &answer)
	if code == http.StatusNotFound {
		err = ErrNoAddress
	}
	if err != nil {
		return answer, fmt.Errorf("ask for ICE servers: %w", err)
	}
	return answer, nil
}

// askAuth sends a request to the auth service and decodes the JSON of the response into answer. It sends no token if
// bearer is empty, and no body if question is nil. If answer is nil, it ignores the body of the response.
func (e *Env) askAuth(ctx context.Context, method, path, bearer string, question, answer any) (code int, err error) {
	var body []byte
	if question != nil {
		if body, err = json.Marshal(question); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+e.auth.address+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if question != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	code, body, err = harness.Do(req)
	if err == nil && code >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: status %d: %s", method, path, code, body)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(body, answer)
	}
	return code, err
}

// Endpoint is an address that the auth service returns to clients.
type Endpoint struct {
	URI    config.URI
	Addr   netip.AddrPort
	Secret credential.Credential
}

// Endpoints returns the addresses that the auth service returns to clients of a Gateway.
func (g *Gateway) Endpoints(ctx context.Context, user string) (list []Endpoint, err error) {
	answer, err := g.env.ICEServers(ctx, user, g)
	if err != nil {
		return nil, err
	}
	for _, s := range answer.Servers {
		for _, url := range s.URLs {
			uri, err := config.ParseURI(url)
			if err != nil {
				return nil, err
			}
			a, err := netip.ParseAddr(uri.Host)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", url, err)
			}
			list = append(list, Endpoint{uri, netip.AddrPortFrom(a, uint16(uri.Port)), credential.Credential{
				Username: s.Username, Password: credential.Secret(s.Credential)}})
		}
	}
	return list, nil
}

// Credential returns a credential of a user for a Gateway, of the kind that the shape has: the static credential, a
// credential that is signed with the shared secret, or a credential of the auth service.
func (g *Gateway) Credential(ctx context.Context, user string) (username, password string, err error) {
	if g.env.Shape[Credentials] == Static {
		return g.env.user, g.env.secret, nil
	}
	return g.CredentialWith(ctx, user, credential.Caveats{})
}

// CredentialWith is Credential for a credential with caveats. Such a credential is valid for this Gateway only. The
// shape must have ephemeral credentials.
func (g *Gateway) CredentialWith(
	ctx context.Context, user string, c credential.Caveats,
) (username, password string, err error) {
	if g.env.Shape[Credentials] == JWT {
		answer, err := g.env.iceServers(ctx, user, c, g)
		if err == nil && len(answer.Servers) == 0 {
			err = fmt.Errorf("the auth service knows no server of %s", g.ID())
		}
		if err == nil {
			return answer.Servers[0].Username, answer.Servers[0].Credential, nil
		}
		// Without a public address, the auth service issues no credential. The client gets the same credential from mint.
		if !errors.Is(err, ErrNoAddress) {
			return "", "", err
		}
	}
	if !c.IsZero() {
		c.Gateway = g.ID()
	}
	return g.mint(user, c, time.Now())
}

// CredentialAt makes a credential with the key of the Gateway. It is valid for an hour from the given time. The shape
// must have ephemeral credentials.
func (g *Gateway) CredentialAt(user string, at time.Time) (username, password string, err error) {
	return g.mint(user, credential.Caveats{}, at)
}

// mint makes a credential with the key of the Gateway, which is valid for an hour.
func (g *Gateway) mint(user string, c credential.Caveats, at time.Time) (username, password string, err error) {
	secret := credential.Secret(g.env.secret)
	if g.env.PerGateway {
		if secret, err = secret.Derive(g.ID()); err != nil {
			return "", "", err
		}
	}
	minted, err := credential.Authority{SharedSecret: secret}.MintWith(c, user, time.Hour, at)
	return minted.Username, string(minted.Password), err
}
