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

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// tokenSecret signs the tokens of web apps.
const tokenSecret = "signs-the-tokens-of-web-applications"

// authService is the auth service.
type authService struct {
	address   string   // HOST:PORT of the API
	health    string   // HOST:PORT of the probes
	arguments []string // without those for config discovery
}

// startAuth starts the auth service and waits until it is ready.
func (e *Env) startAuth(ctx context.Context) error {
	host := e.input.address().String()
	var ports [2]int
	for i := range ports {
		port, err := bed.FreePort()
		if err != nil {
			return err
		}
		ports[i] = port
	}
	e.auth = authService{
		address: net.JoinHostPort(host, strconv.Itoa(ports[0])), health: net.JoinHostPort(host, strconv.Itoa(ports[1])),
	}
	e.auth.arguments = []string{
		"--address", host, "--port", strconv.Itoa(ports[0]), "--health-address", e.auth.health, "--shutdown-delay=0",
		"--rate-limit=0", "--cluster-rate-limit=0", "--max-urls=0", "--log-level=all:DEBUG",
	}
	if e.Shape[Credentials] == JWT {
		file := filepath.Join(e.Dir, "jwt-secret")
		if err := os.WriteFile(file, []byte(tokenSecret), 0o600); err != nil {
			return err
		}
		e.auth.arguments = append(e.auth.arguments,
			"--jwt-secret-file", file, "--jwt-issuer=https://login.example.org", "--jwt-audience=calls")
	}
	return e.input.startAuth(ctx, &e.auth)
}

// token returns a token of a web app for a user, signed with HMAC-SHA256 (RFC 7519).
func token(user string) string {
	encode := base64.RawURLEncoding.EncodeToString
	claims, err := json.Marshal(map[string]any{
		"iss": "https://login.example.org", "aud": "calls", "sub": user, "exp": time.Now().Add(time.Hour).Unix(),
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

// ErrNoAddress reports that the auth service knows no address of the Gateways.
var ErrNoAddress = errors.New("no matching gateway has a public address")

// ICEServers asks the auth service for the ICE servers of Gateways as a web app does, TURN over DTLS included, which
// browsers do not support. Without Gateways the auth service selects them.
func (e *Env) ICEServers(ctx context.Context, user string, gateways ...*Gateway) (answer ICE, err error) {
	type reference struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	question := struct {
		DTLS     bool        `json:"dtls"`
		Gateways []reference `json:"gateways,omitempty"`
	}{DTLS: true}
	for _, g := range gateways {
		question.Gateways = append(question.Gateways, reference{g.Namespace, g.Name})
	}
	body, err := json.Marshal(question)
	if err != nil {
		return answer, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.auth.address+"/v1/ice-servers", bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token(user))
	code, body, err := bed.Do(req)
	if err == nil && code == http.StatusNotFound {
		err = ErrNoAddress
	}
	if err == nil && code != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", code, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil {
		return answer, fmt.Errorf("ask for ICE servers: %w", err)
	}
	return answer, nil
}

// Endpoint is an address that the auth service tells clients.
type Endpoint struct {
	URI    config.URI
	Addr   netip.AddrPort
	Secret credential.Credential
}

// Endpoints returns what the auth service tells clients of a Gateway.
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

// Credential returns a credential of a user for a Gateway, in the way of the shape: the static one, one that the shared
// secret signs, or one of the auth service.
func (g *Gateway) Credential(ctx context.Context, user string) (username, password string, err error) {
	e := g.env
	switch e.Shape[Credentials] {
	case Static:
		return e.user, e.secret, nil
	case Ephemeral:
		return g.mint(user)
	}
	answer, err := e.ICEServers(ctx, user, g)
	if errors.Is(err, ErrNoAddress) {
		// A client that knows an address from elsewhere needs the same credential.
		return g.mint(user)
	}
	if err != nil {
		return "", "", err
	}
	if len(answer.Servers) == 0 {
		return "", "", fmt.Errorf("the auth service knows no server of %s", g.ID())
	}
	return answer.Servers[0].Username, answer.Servers[0].Credential, nil
}

// mint makes a credential with the key of the Gateway.
func (g *Gateway) mint(user string) (username, password string, err error) {
	return g.CredentialAt(user, time.Now())
}

// CredentialAt makes a credential of an hour, which begins at a time, with the key of the Gateway. The credentials of the shape
// are ephemeral.
func (g *Gateway) CredentialAt(user string, at time.Time) (username, password string, err error) {
	secret := credential.Secret(g.env.secret)
	if g.env.PerGateway {
		if secret, err = secret.Derive(g.ID()); err != nil {
			return "", "", err
		}
	}
	minted, err := credential.Authority{SharedSecret: secret}.Mint(user, time.Hour, at)
	return minted.Username, string(minted.Password), err
}
