package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
)

type authFlags struct {
	user, tokenFile, listener string
	turn                      bool
	ttl                       time.Duration
	address, serviceNamespace string
	servicePort               int
}

// Bounds of a request to the auth service.
const (
	authTimeout = 10 * time.Second
	authLimit   = 4 << 20
)

func newAuth(g *globals) *cobra.Command {
	var f authFlags
	c := &cobra.Command{
		Use:   "auth [GATEWAY]",
		Short: "Get an ICE configuration from the auth service",
		Long: `Prints the ICE configuration that the auth service gives for a Gateway, or for
all Gateways of the namespace. It is valid as argument of RTCPeerConnection.
Passwords are <redacted> unless --show-secrets.

In a cluster it forwards a port to a pod of the auth service, for which you need
the right to create pods/portforward in the namespace of the auth service. With
--auth-server-address it asks that address directly.`,
		Example: `  # An ICE configuration for ada that works
  stunnerctl auth media/frankfurt -u ada --show-secrets

  # A credential in the form of the TURN REST API
  stunnerctl auth media/frankfurt --auth-turn-credential

  # Without a cluster
  stunnerctl auth media/frankfurt --auth-server-address 127.0.0.1:8088`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			query, err := f.query(g, names)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), authTimeout)
			defer cancel()
			answer, err := g.askAuth(ctx, f, query)
			if err != nil {
				return fmt.Errorf("ask the auth service: %w", err)
			}
			if !g.showSecrets && maskSecrets(answer) {
				g.note("Passwords are %s: use --show-secrets to print them.", redacted)
			}
			if p := g.printer(); !p.IsTable() {
				return p.Value(answer)
			}
			g.format = "json" // print JSON, which is the argument of RTCPeerConnection
			return g.printer().Value(answer)
		},
	}
	flags := c.Flags()
	flags.StringVarP(&f.user, "user", "u", "", "user ID of the credential")
	flags.StringVar(&f.listener, "listener", "", "only this listener of the Gateway")
	flags.DurationVar(&f.ttl, "ttl", 0, "lifetime of the credential; 0 is the default of the Gateway")
	flags.BoolVar(&f.turn, "auth-turn-credential", false, "print a credential in the form of the TURN REST API instead")
	flags.StringVar(
		&f.tokenFile,
		"auth-token-file",
		"",
		"file with the JSON Web Token that the auth service needs, if any",
	)
	flags.StringVar(&f.address, "auth-server-address", "", "HOST, HOST:PORT or URL of the auth service, instead of a "+
		"forwarded port")
	flags.StringVar(&f.serviceNamespace, "auth-service-namespace", "", "namespace of the auth service; empty means "+
		"that of the operator")
	flags.IntVar(&f.servicePort, "auth-service-port", 8088, "port of the auth service")
	_ = c.RegisterFlagCompletionFunc("listener", g.completeListeners)
	c.AddCommand(newAuthKey(g))
	return g.completesGateways(c, 1)
}

func (f *authFlags) query(g *globals, names []string) (url.Values, error) {
	query := url.Values{"service": {"turn"}}
	set := func(name, value string) {
		if value != "" {
			query.Set(name, value)
		}
	}
	set("username", f.user)
	set("listener", f.listener)
	switch {
	case f.ttl < 0 || f.ttl%time.Second != 0:
		return nil, usagef("--ttl %s: give whole seconds, such as 90s or 2h, or 0", f.ttl)
	case f.ttl > 0:
		set("ttl", strconv.Itoa(int(f.ttl.Seconds())))
	}
	switch {
	case len(names) > 0:
		gateway, err := g.parseName(names[0])
		if err != nil {
			return nil, err
		}
		set("namespace", gateway.Namespace)
		set("gateway", gateway.Name)
	case f.listener != "":
		return nil, usagef("--listener: name the Gateway of the listener")
	case !g.allNamespaces:
		set("namespace", g.namespace())
	}
	return query, nil
}

// askAuth returns the answer of the auth service.
func (g *globals) askAuth(ctx context.Context, f authFlags, query url.Values) (map[string]any, error) {
	base, dial, err := g.authService(f)
	if err != nil {
		return nil, err
	}
	path := "/ice"
	if f.turn {
		path = "/"
	}
	target := base.JoinPath(path)
	target.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	if f.tokenFile != "" {
		token, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--auth-token-file: %w", err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	client := &http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, authLimit))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, authProblem(response.StatusCode, body)
	}
	var answer map[string]any
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the answer is not that of an auth service: %w", err)
	}
	return answer, nil
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// authService returns the URL of the auth service and the function that connects to it.
func (g *globals) authService(f authFlags) (*url.URL, dialFunc, error) {
	if f.address != "" {
		address := f.address
		if !strings.Contains(address, "://") {
			if _, _, err := net.SplitHostPort(address); err != nil {
				address = net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(f.servicePort))
			}
			address = "http://" + address
		}
		base, err := url.Parse(address)
		if err != nil || base.Host == "" {
			return nil, nil, usagef("--auth-server-address %q: use HOST, HOST:PORT or a URL", f.address)
		}
		if f.tokenFile != "" && base.Scheme != "https" && !connect.IsLoopback(base.Hostname()) {
			return nil, nil, usagef(
				"--auth-server-address %q: a token is sent over verified TLS only: use https://HOST, or leave the flag "+
					"out, so that a port is forwarded", f.address)
		}
		return base, (&net.Dialer{}).DialContext, nil
	}
	s, err := g.open()
	if err != nil {
		return nil, nil, err
	}
	cluster, err := connect.AsCluster(s, "auth", "use --auth-server-address HOST:PORT")
	if err != nil {
		return nil, nil, usageError{err}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		g.progress("connecting to the auth service")
		names, err := cluster.Installation(ctx, cmp.Or(f.serviceNamespace, g.operatorNamespace))
		if err != nil {
			return nil, fmt.Errorf("%w, or use --auth-service-namespace, or --auth-server-address", err)
		}
		conn, err := cluster.Dial(ctx, names.Namespace, "app="+names.Auth, int32(f.servicePort))
		if err != nil {
			return nil, fmt.Errorf("%w: use --auth-service-namespace, or --auth-server-address", err)
		}
		return conn, nil
	}
	return &url.URL{Scheme: "http", Host: "stunner-auth"}, dial, nil
}

// authProblem returns the error in an answer of the auth service.
func authProblem(status int, body []byte) error {
	var problem struct {
		Detail string `json:"detail"`
		Errors []struct {
			Parameter string `json:"parameter"`
			Message   string `json:"message"`
		} `json:"errors"`
	}
	_ = json.Unmarshal(body, &problem)
	text := fmt.Sprintf("%d %s", status, http.StatusText(status))
	if problem.Detail != "" {
		text += ": " + problem.Detail
	}
	for _, e := range problem.Errors {
		text += fmt.Sprintf(" %s: %s.", e.Parameter, e.Message)
	}
	if status == http.StatusUnauthorized {
		text += ": use --auth-token-file"
	}
	return errors.New(text)
}

const redacted = string(credential.Redacted)

// maskSecrets replaces the passwords in an answer. It reports whether there were any.
func maskSecrets(value any) (found bool) {
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			if name == "credential" || name == "password" {
				value[name], found = redacted, true
			} else if maskSecrets(v) {
				found = true
			}
		}
	case []any:
		for _, v := range value {
			found = maskSecrets(v) || found
		}
	}
	return found
}
