// Package file runs the product without a cluster. A folder of YAML takes the place of the API server, processes on this host take the
// place of pods, and a second folder takes what would be written to the cluster: statuses, rendered objects and a report for people.
//
//	folder ─▶ ledger (what is in force) ─▶ resource.View ─▶ translate ─▶ config discovery ─▶ dataplane processes
//	                                                            └─▶ output folder
//
// One goroutine, the loop, owns all of that. Everybody else, the watcher of the folder, the processes, the reports of dataplanes, only
// knocks.
package file

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Authorization of config discovery.
const (
	AuthToken = "token" // a bearer token that lies in the output folder
	AuthOff   = "off"
)

// ErrNotInForce is returned by a provider that only renders when a document is not in force.
var ErrNotInForce = errors.New("not every document is in force: see problems.yaml in the output folder")

// Provider turns a folder of YAML into a running gateway.
type Provider struct {
	// Input is the folder of YAML, Output the one that is written.
	Input, Output string
	// Address is the address of this host that clients connect to.
	Address string
	// Stunnerd is the program that serves a Gateway. Empty means to render only.
	Stunnerd string
	// Watch follows changes of the folder. Without it the folder is read once.
	Watch bool
	// DiscoveryAddress and HealthAddress are where HTTP is served, HOST:PORT.
	DiscoveryAddress, HealthAddress string
	// DiscoveryAuth is AuthToken or AuthOff.
	DiscoveryAuth string
	// Bound makes dataplanes end together with the operator, however it ends. Otherwise they outlive its crash.
	Bound bool
	// LeaveDataplanes lets dataplanes go on when the operator is told to stop.
	LeaveDataplanes bool
	// StopGrace is how long a dataplane may take to end.
	StopGrace time.Duration
	// Options are those of the translation.
	Options translate.Options
	Log     *slog.Logger
}

// TokenFile is where the bearer token of config discovery lies.
func (p Provider) TokenFile() string { return filepath.Join(p.Output, "discovery.token") }

// stateDir is the folder of what only the provider reads.
func (p Provider) stateDir() string { return filepath.Join(p.Output, "state") }

// logs is the folder of what dataplanes write, lastGood the one of their last good configs.
func (p Provider) logs() string     { return filepath.Join(p.Output, "logs") }
func (p Provider) lastGood() string { return filepath.Join(p.stateDir(), "dataplanes") }

// Run serves until ctx ends. It returns early when something is wrong with the settings or when an endpoint fails; trouble with YAML is
// reported in the output folder and ends nothing.
func (p Provider) Run(ctx context.Context) error {
	if err := p.prepare(); err != nil {
		return err
	}
	guard, err := lock(p.stateDir())
	if err != nil {
		return err
	}
	defer guard.Close()
	if p.Stunnerd == "" && !p.Watch {
		return p.render()
	}
	return p.serve(ctx)
}

// prepare checks what can be checked and makes the folders.
func (p *Provider) prepare() (err error) {
	if info, err := os.Stat(p.Input); err != nil || !info.IsDir() {
		return fmt.Errorf("--input %s: is no folder: create it or name another", p.Input)
	}
	for _, path := range []*string{&p.Input, &p.Output} {
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("find %s: %w", *path, err)
		}
	}
	if err := os.MkdirAll(p.Output, 0o755); err != nil {
		return fmt.Errorf("--output: create folder: %w", err)
	}
	for _, private := range []string{p.stateDir(), p.logs(), p.lastGood()} {
		if err := os.MkdirAll(private, 0o700); err != nil {
			return fmt.Errorf("--output: create folder: %w", err)
		}
	}
	if sameFile(p.Input, p.Output) {
		return fmt.Errorf("--output %s: is the input folder as well: name another", p.Output)
	}
	if p.Stunnerd == "" {
		return nil
	}
	// The path that the kernel shows, so that a running dataplane is recognised by it.
	program, err := filepath.EvalSymlinks(p.Stunnerd)
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if info, statErr := os.Stat(program); err != nil || statErr != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("--stunnerd %s: is no program: build it or name another", p.Stunnerd)
	}
	p.Stunnerd = program
	return nil
}

// render does one round without serving anything.
func (p Provider) render() error {
	l, err := newLoop(p, discovery.NewServer(discovery.ServerOptions{Log: p.Log}), "")
	if err != nil {
		return err
	}
	if err := l.round(); err != nil {
		return err
	}
	if l.summary.notInForce() > 0 {
		return ErrNotInForce
	}
	return nil
}

// serve runs the loop and the two HTTP servers.
func (p Provider) serve(ctx context.Context) error {
	authorize, err := p.authorize()
	if err != nil {
		return err
	}
	configs, err := listen("--discovery-address", p.DiscoveryAddress)
	if err != nil {
		return err
	}
	probes, err := listen("--health-address", p.HealthAddress)
	if err != nil {
		configs.Close()
		return err
	}
	said := make(chan struct{}, 1)
	server := discovery.NewServer(discovery.ServerOptions{Log: p.Log, Authorize: authorize, OnReport: func(discovery.Report) { touch(said) }})
	l, err := newLoop(p, server, origin(configs.Addr()))
	if err != nil {
		configs.Close()
		probes.Close()
		return err
	}
	l.said = said
	p.Log.Info("operator serves", "input", p.Input, "output", p.Output, "discovery", configs.Addr().String(), "health", probes.Addr().String())
	group, ctx := errgroup.WithContext(ctx)
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer end() // discovery goes on until the dataplanes have ended, so that they report how
		return l.run(ctx)
	})
	group.Go(func() error { return telemetry.Serve(serving, configs, server) })
	group.Go(func() error { return telemetry.Serve(serving, probes, telemetry.Probes(l.meters.registry, l.ready)) })
	return group.Wait()
}

// authorize returns who may read configs: holders of the token, or everybody.
func (p Provider) authorize() (func(*http.Request) (discovery.Grant, error), error) {
	if p.DiscoveryAuth == AuthOff {
		p.Log.Warn("config discovery is open: everyone who reaches it can read every TURN secret", "flag", "--discovery-auth=off")
		return nil, nil
	}
	secret, err := token(p.TokenFile())
	if err != nil {
		return nil, fmt.Errorf("make discovery token: %w", err)
	}
	return func(r *http.Request) (discovery.Grant, error) { return grant(r, secret) }, nil
}

// grant lets the holder of the token read everything.
func grant(r *http.Request, secret credential.Secret) (discovery.Grant, error) {
	scheme, presented, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare([]byte(presented), []byte(secret)) != 1 {
		return discovery.Grant{}, errors.New("authorize reader of configs: send the bearer token from discovery.token in the output folder")
	}
	return discovery.Grant{All: true}, nil
}

func listen(flag, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: stop what uses the port or choose another address", flag, address, err)
	}
	return ln, nil
}

// origin is where processes on this host find config discovery.
func origin(addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// touch knocks without waiting.
func touch(knock chan<- struct{}) {
	select {
	case knock <- struct{}{}:
	default:
	}
}
