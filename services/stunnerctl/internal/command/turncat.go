package command

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

const (
	turncatTTL = time.Hour
	// window is the default of --window. Linux charges more than 4 kB of the receive buffer of a socket for a datagram
	// of 1,200 bytes, and the default buffer has 208 KiB. So sockets overflow from about 45 datagrams (54,000 bytes).
	window = 32 << 10
	// renewal is how long before its expiry a credential is replaced.
	renewal = time.Minute
	// maxSecretFile bounds a file with a password or a key, and maxCAFile one with certificates, in bytes.
	maxSecretFile = 64 << 10
	maxCAFile     = 4 << 20
)

const turncatHelp = `Carry datagrams and bytes of local clients through a TURN server to a UDP peer.

CLIENT
  udp://HOST:PORT                  each source address is a client
  tcp://HOST:PORT, unix://PATH     each connection is a client
  -, file://stdin                  standard input and output
SERVER
  turn://USER:PASSWORD@HOST:PORT?transport=udp|tcp|tls|dtls
  turns://USER:PASSWORD@HOST:PORT  TLS; DTLS with ?transport=udp
  turn://secret:KEY@HOST:PORT      ephemeral credentials, made with the shared secret KEY
  turn://HOST:PORT                 with the flags --user and --password-file, or --secret-file
  k8s://NAMESPACE/GATEWAY:LISTENER a listener of a Gateway, also with --operator and --folder;
                                   k8s:///GATEWAY:LISTENER uses -n
PEER
  udp://HOST:PORT                  an IPv6 address in brackets

The address of a Gateway's listener is that of its config. Without a password or secret, the auth service gives a
credential, for which you need the right to create pods/portforward in its namespace, or --auth-server-address.

A password in SERVER is visible in the list of processes. Percent-encode characters other than letters and digits in it.

Every client has an allocation of its own. A datagram of a UDP client stays a datagram; if its allocation is lost, the
client gets a new one with another relayed address. The bytes of other clients are sent in datagrams of at most 1,200
bytes, in order. TURN relays UDP, so turncat cannot repeat a datagram that is lost on the way.
  --pace server  At most --window bytes are in flight to the TURN server, so they cannot be lost there for lack of
                 buffers. They can be lost between the server and the peer.
  --pace echo    At most --window bytes are in flight to a peer that returns every byte, and back. Nothing is lost for
                 lack of buffers. A missing byte is an error.
  --pace none    The client's writes are not delayed.
A lost allocation, a datagram that the client reads too slowly, and a missing echo end such a client with an error.

Statistics are printed at the end with --stats or -v, and on SIGUSR1.`

type turncatFlags struct {
	turnFlags
	stats bool
	pace  string
	turncat.Options
}

func newTurncat(g *globals) *cobra.Command {
	var f turncatFlags
	c := &cobra.Command{
		Use:   "turncat CLIENT SERVER PEER",
		Short: "Carry data of local clients through a TURN server to a UDP peer",
		Long:  turncatHelp,
		Example: `  turncat - turn://ada:secret@192.0.2.1:3478 udp://10.0.0.7:9001
  turncat udp://127.0.0.1:5000 k8s://media/front-door:udp-listener udp://10.0.0.7:9001
  turncat --pace echo - 'turn://192.0.2.1?transport=tls' --secret-file key udp://[2001:db8::7]:9001 <in >out`,
		Args: cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error { return g.turncat(c.Context(), f, args) },
	}
	flags := c.Flags()
	f.addFlags(flags)
	flags.BoolVar(&f.stats, "stats", false, "print statistics at the end")
	flags.StringVar(
		&f.pace,
		"pace",
		string(turncat.PaceServer),
		"what bounds the bytes in flight: server, echo or none",
	)
	flags.IntVar(&f.Window, "window", window, "bytes in flight")
	flags.IntVar(&f.MaxClients, "max-clients", 100, "clients at one time")
	flags.DurationVar(&f.Idle, "idle", time.Minute, "a UDP client without datagrams for this time is ended")
	flags.DurationVar(&f.Linger, "linger", time.Second, "wait for the peer this long after the end of the input")
	return c
}

func (g *globals) turncat(ctx context.Context, f turncatFlags, args []string) (err error) {
	if f.Client, err = turncat.ParseListener(args[0]); err != nil {
		return usageError{err}
	}
	target, err := turncat.ParseTarget(args[1])
	if err != nil {
		return usageError{err}
	}
	switch f.Pace = turncat.Pace(f.pace); {
	case f.Pace != turncat.PaceServer && f.Pace != turncat.PaceEcho && f.Pace != turncat.PaceNone:
		return usagef("--pace: use server, echo or none")
	case f.Window < 1500 || f.MaxClients < 1 || f.Idle <= 0 || f.Linger <= 0:
		return usagef("--window must be at least 1500, and --max-clients, --idle and --linger positive")
	}
	if f.Peer, err = turncat.ParsePeer(args[2]); err != nil {
		return usageError{err}
	}
	if f.Server, err = g.server(f, target); err != nil {
		return err
	}
	level := g.log
	if g.verbose && level == "all:WARN" {
		level = "all:INFO"
	}
	levels, err := telemetry.ParseLevels(level)
	if err != nil {
		return usagef("--log: %w", err)
	}
	f.Log = telemetry.Scope(telemetry.NewLog(g.ErrOut, "text", levels), "turncat")
	f.In, f.Out, f.Stats = g.In, g.Out, new(turncat.Stats)
	defer printOnSignal(g.ErrOut, f.Stats)()
	if f.stats || g.verbose {
		defer func() { fmt.Fprint(g.ErrOut, f.Stats) }()
	}
	return turncat.Run(ctx, f.Options)
}

// server returns the TURN server of the command line.
func (g *globals) server(f turncatFlags, t turncat.Target) (turncat.Server, error) {
	if f.Client.Network == "stdin" && (f.passwordFile == "-" || f.secretFile == "-") {
		return nil, usagef("the standard input is the client, and cannot contain a password: name a file")
	}
	if t.Gateway != "" {
		return g.gatewayServer(f.turnFlags, t)
	}
	roots, err := readRoots(f.caFile)
	if err != nil {
		return nil, err
	}
	authority, err := f.authority(g.In, t)
	if err != nil {
		return nil, err
	}
	if authority == (credential.Authority{}) {
		return nil, usagef(
			"no credential: write turn://USER:PASSWORD@HOST:PORT, or use --user with --password-file, or --secret-file",
		)
	}
	mint := minter(authority)
	return func(ctx context.Context) (turncat.Endpoint, error) {
		credential, err := mint(ctx)
		return turncat.Endpoint{
			Host: t.URI.Host, Port: t.URI.Port, Protocol: t.URI.Protocol(), ServerName: f.sni, Roots: roots,
			Insecure: f.insecure, Credential: credential,
		}, err
	}, nil
}

// readSecret reads a password or key from a file, or from in if the file is "-". White space around it is removed.
func readSecret(file string, in io.Reader) (credential.Secret, error) {
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer func() { _ = opened.Close() }()
		in = opened
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSecretFile))
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(data))
	if secret == "" {
		return "", errors.New("the file is empty")
	}
	return credential.Secret(secret), nil
}

// readRoots reads CA certificates. If no file is given, it returns nil, which means the CA certificates of the system.
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	opened, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--turn-ca-file: %w", err)
	}
	defer func() { _ = opened.Close() }()
	pem, err := io.ReadAll(io.LimitReader(opened, maxCAFile))
	if err != nil {
		return nil, fmt.Errorf("--turn-ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--turn-ca-file: no PEM certificate in %s", file)
	}
	return pool, nil
}
