package command

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

// turnFlags are the flags of TURN clients: credentials, and the certificate of the server.
type turnFlags struct {
	user, password, passwordFile, secretFile string
	insecure                                 bool
	sni, caFile                              string
	auth                                     authFlags
	// instead lists the flags of a command that replace the auth service. It is empty if the command has all of these
	// flags.
	instead string
}

func (f *turnFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(
		&f.user,
		"user",
		"",
		"user name; with a shared secret or the auth service, the user ID in the ephemeral user name",
	)
	flags.StringVar(&f.password, "password", "", "password; visible in the list of processes, see --password-file")
	flags.StringVar(&f.passwordFile, "password-file", "", `file with the password; "-" is the standard input`)
	flags.StringVar(
		&f.secretFile,
		"secret-file",
		"",
		`file with the shared secret of ephemeral credentials; "-" is the standard input`,
	)
	flags.BoolVarP(&f.insecure, "insecure", "i", false, "do not verify the certificate of the TURN server")
	flags.StringVar(
		&f.sni,
		"sni",
		"",
		"server name in the TLS or DTLS handshake and in the certificate; empty means the host",
	)
	flags.StringVar(
		&f.caFile,
		"turn-ca-file",
		"",
		"PEM file with the certificates that verify the TURN server; empty means those of "+
			"the system and, for a Gateway, the certificate of the listener",
	)
	flags.StringVar(
		&f.auth.tokenFile,
		"auth-token-file",
		"",
		"file with the JSON Web Token that the auth service needs, if any",
	)
	flags.StringVar(
		&f.auth.address,
		"auth-server-address",
		"",
		"HOST, HOST:PORT or URL of the auth service, instead of a forwarded port",
	)
	flags.StringVar(
		&f.auth.serviceNamespace,
		"auth-service-namespace",
		"",
		"namespace of the auth service; empty means that of the operator",
	)
	flags.IntVar(&f.auth.servicePort, "auth-service-port", 8088, "port of the auth service")
}

// authority returns the credentials of the flags, which take precedence over those of a TURN URI. It is the zero
// Authority if there are none.
func (f *turnFlags) authority(in io.Reader, uri turncat.Target) (credential.Authority, error) {
	if f.passwordFile == "-" && f.secretFile == "-" {
		return credential.Authority{}, usagef(
			"--password-file and --secret-file: only one of them can be the standard input",
		)
	}
	a := credential.Authority{
		Username: cmp.Or(f.user, uri.URI.Username), Password: cmp.Or(credential.Secret(f.password), uri.URI.Password),
		SharedSecret: uri.SharedSecret,
	}
	var err error
	if f.passwordFile != "" {
		if a.Password, err = readSecret(f.passwordFile, in); err != nil {
			return a, fmt.Errorf("--password-file: %w", err)
		}
	}
	if f.secretFile != "" {
		if a.SharedSecret, err = readSecret(f.secretFile, in); err != nil {
			return a, fmt.Errorf("--secret-file: %w", err)
		}
	}
	if a.Password == "" && a.SharedSecret == "" {
		return credential.Authority{}, nil
	}
	if a.SharedSecret == "" && a.Username == "" {
		return a, usagef("a password without a user name: use --user")
	}
	return a, nil
}

// mint is the signature of functions that return a valid credential. They are safe for concurrent use.
type mint func(context.Context) (credential.Credential, error)

// minter returns a mint for an authority.
func minter(a credential.Authority) mint {
	return cached(func(context.Context) (credential.Credential, error) {
		return a.Mint(a.Username, turncatTTL, time.Now())
	})
}

// cached returns a mint that calls next only if the last credential expires soon.
func cached(next mint) mint {
	var mu sync.Mutex
	var last credential.Credential
	return func(ctx context.Context) (credential.Credential, error) {
		mu.Lock()
		defer mu.Unlock()
		if last.Username != "" && (last.Expires.IsZero() || time.Until(last.Expires) > renewal) {
			return last, nil
		}
		fresh, err := next(ctx)
		if err == nil {
			last = fresh
		}
		return fresh, err
	}
}

// credentials returns the mint for a Gateway: from the flags, or else from the auth service.
func (g *globals) credentials(f turnFlags, gateway types.NamespacedName) (mint, error) {
	authority, err := f.authority(g.In, turncat.Target{})
	if err != nil {
		return nil, err
	}
	if authority != (credential.Authority{}) {
		return minter(authority), nil
	}
	f.auth.turn = true
	return cached(func(ctx context.Context) (credential.Credential, error) {
		query := url.Values{
			"service": {"turn"}, "namespace": {gateway.Namespace}, "gateway": {gateway.Name}, "dtls": {"true"},
			"username": {cmp.Or(f.user, "stunnerctl")},
		}
		ctx, cancel := context.WithTimeout(ctx, authTimeout)
		defer cancel()
		given, err := g.askAuth(ctx, f.auth, query)
		if err != nil {
			return credential.Credential{}, fmt.Errorf("ask the auth service for a credential: %w: or use %s", err,
				cmp.Or(f.instead, "--user with --password-file, or --secret-file"))
		}
		user, _ := given["username"].(string)
		password, _ := given["password"].(string)
		ttl, _ := given["ttl"].(float64)
		if user == "" || password == "" {
			return credential.Credential{}, errors.New(
				"the auth service gives no credential: the Gateway has no TURN credentials",
			)
		}
		made := credential.Credential{Username: user, Password: credential.Secret(password)}
		if ttl > 0 {
			made.Expires = time.Now().Add(time.Duration(ttl) * time.Second)
		}
		return made, nil
	}), nil
}

// gatewayListener is a listener of a published config at one of its public addresses.
type gatewayListener struct {
	name string // the name in the Gateway
	uri  config.URI
	// unroutable means that this host has no route to the address, for example because it has no IPv6.
	unroutable bool
	// certificates are the certificates of the listener, in PEM.
	certificates []string
	endpoints    []string // that the routes of the listener allow
}

// gatewayListeners returns the listeners of a Gateway, as the operator publishes them, at each of their public addresses.
// It is an error if a listener, or the named listener, has no public address.
func (g *globals) gatewayListeners(
	ctx context.Context,
	gateway types.NamespacedName,
	only func(name string, p config.Protocol) bool,
) ([]gatewayListener, error) {
	s, err := g.open()
	if err != nil {
		return nil, err
	}
	published, err := readConfig(ctx, s, gateway)
	if err != nil {
		return nil, err
	}
	var c config.Config
	if err := json.Unmarshal(published.Config, &c); err != nil {
		return nil, fmt.Errorf("gateway %s: read config: %w", gateway, err)
	}
	var found []gatewayListener
	for _, l := range c.Listeners {
		name := l.Name[strings.LastIndexByte(l.Name, '/')+1:]
		if !only(name, l.ClientProtocol()) {
			continue
		}
		uris := l.URIs()
		if len(uris) == 0 {
			return nil, fmt.Errorf(
				"listener %s of Gateway %s has no public address: see stunnerctl why %[2]s",
				name,
				gateway,
			)
		}
		certificates := []string{l.Cert}
		for _, certificate := range l.Certificates {
			certificates = append(certificates, certificate.Cert)
		}
		for _, uri := range uris {
			found = append(found, gatewayListener{
				name: name, uri: uri, unroutable: !routable(uri), certificates: certificates,
				endpoints: allEndpoints(c, l.Routes),
			})
		}
	}
	return found, nil
}

// routable reports whether this host has a route to the address of a listener. It sends nothing.
func routable(uri config.URI) bool {
	addr, err := netip.ParseAddr(uri.Host)
	if err != nil {
		return true // for a name, the resolver selects a reachable address
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, uint16(uri.Port))))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func allEndpoints(c config.Config, routes []string) (endpoints []string) {
	for _, cluster := range c.Clusters {
		if slices.Contains(routes, cluster.Name) {
			endpoints = append(endpoints, cluster.Endpoints...)
		}
	}
	return endpoints
}

// endpoint returns the TURN server of a listener, without a credential. Its certificate is trusted, because the
// operator has published it; its name is verified.
func (f *turnFlags) endpoint(l gatewayListener) (turncat.Endpoint, error) {
	roots, err := readRoots(f.caFile)
	if err != nil {
		return turncat.Endpoint{}, err
	}
	if roots == nil && l.uri.Protocol().Secure() {
		if roots, err = x509.SystemCertPool(); err != nil {
			roots = x509.NewCertPool()
		}
		for _, encoded := range l.certificates {
			if pem, err := base64.StdEncoding.DecodeString(encoded); err == nil {
				roots.AppendCertsFromPEM(pem)
			}
		}
	}
	return turncat.Endpoint{
		Host: l.uri.Host, Port: l.uri.Port, Protocol: l.uri.Protocol(), ServerName: f.sni, Roots: roots,
		Insecure: f.insecure,
	}, nil
}

// gatewayServer returns the TURN server of a k8s:// target. The published config is read again for each allocation,
// because the address may have changed.
func (g *globals) gatewayServer(f turnFlags, t turncat.Target) (turncat.Server, error) {
	gateway := types.NamespacedName{Namespace: cmp.Or(t.Namespace, g.namespace()), Name: t.Gateway}
	mint, err := g.credentials(f, gateway)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (turncat.Endpoint, error) {
		found, err := g.gatewayListeners(
			ctx,
			gateway,
			func(name string, _ config.Protocol) bool { return name == t.Listener },
		)
		if err != nil {
			return turncat.Endpoint{}, err
		}
		if len(found) == 0 {
			return turncat.Endpoint{}, fmt.Errorf("gateway %s has no listener %s: see stunnerctl config %[1]s",
				gateway, t.Listener)
		}
		best := slices.IndexFunc(found, func(l gatewayListener) bool { return !l.unroutable })
		e, err := f.endpoint(found[max(best, 0)])
		if err == nil {
			e.Credential, err = mint(ctx)
		}
		return e, err
	}, nil
}
