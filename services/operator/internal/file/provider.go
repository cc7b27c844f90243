// Package file runs STUNner without a cluster. A folder of YAML files replaces the API server, processes on this host
// replace pods, and an output folder receives statuses, generated objects and a report.
//
//	folder ─▶ ledger (objects in use) ─▶ resource.View ─▶ translate ─▶ config discovery ─▶ dataplane processes
//	                                                            └─▶ output folder
//
// The loop is one goroutine that owns all state. The watcher of the folder, the processes and the reports of dataplanes
// notify it through channels.
//
// # Files
//
//	loop.go               the goroutine of the loop
//	translation.go        translation, and how its result is put in force
//	folder.go watch.go    the input folder and its changes
//	ledger.go             which objects are in use
//	output.go status.go   the output folder, and the statuses in it
//	report.go summary.go  status.txt and problems.yaml
//	ports.go              ports of this host for listeners
//	state.go              state that the next run reads
//	faults.go             problems of the host
//	inspection.go         state and problems for the inspection API
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
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Authorization of config discovery.
const (
	AuthToken = "token" // a bearer token in the output folder
	AuthOff   = "off"
)

// ErrNotInForce is returned by Run without Stunnerd and Watch if something in the input folder would not be in force.
var ErrNotInForce = errors.New("not everything would be in force: see status.txt and problems.yaml in the output folder")

// Provider runs the operator for a folder of YAML files.
type Provider struct {
	// Input is the folder with the YAML files. Output is the output folder.
	Input, Output string
	// Addresses are the IP addresses of this host to which clients connect, at most one of each family.
	Addresses []string
	// Stunnerd is the path of the dataplane program. If the path is empty, no dataplanes are started, and only the
	// output folder is written.
	Stunnerd string
	// Watch means that changes of the input folder are applied while the operator runs. Otherwise the folder is read
	// once.
	Watch bool
	// DiscoveryAddress is the listen address HOST:PORT of config discovery. HealthAddress is the listen address of
	// probes and metrics.
	DiscoveryAddress, HealthAddress string
	// DiscoveryAuth is AuthToken or AuthOff.
	DiscoveryAuth string
	// Bound makes the dataplane processes end whenever the operator process ends, even if it crashes. Otherwise they
	// continue after a crash of the operator.
	Bound bool
	// LeaveDataplanes keeps dataplanes running when Run returns.
	LeaveDataplanes bool
	// StopGrace is how long a dataplane may take to stop before it is killed.
	StopGrace time.Duration
	// Options are the options of the translation.
	Options translate.Options
	Log     *slog.Logger
}

// TokenFile returns the path of the file with the bearer token of config discovery.
func (p Provider) TokenFile() string { return filepath.Join(p.Output, "discovery.token") }

// urlFile returns the path of the file with the URL of config discovery and of the inspection API.
func (p Provider) urlFile() string { return filepath.Join(p.Output, "discovery.url") }

// stateDir returns the folder of files that only the operator and the dataplanes read.
func (p Provider) stateDir() string { return filepath.Join(p.Output, "state") }

// publishedDir returns the folder of the published configs, which the next run of the operator reads.
func (p Provider) publishedDir() string { return filepath.Join(p.stateDir(), "published") }

// serves reports whether the provider serves configs. Otherwise it writes the output folder once and ends.
func (p Provider) serves() bool { return p.Stunnerd != "" || p.Watch }

// logs returns the folder with the logs of dataplanes.
func (p Provider) logs() string { return filepath.Join(p.Output, "logs") }

// lastGood returns the folder with the last good configs of dataplanes.
func (p Provider) lastGood() string { return filepath.Join(p.stateDir(), "dataplanes") }

// Run runs the file provider until ctx ends. It returns an error if a setting is invalid or an HTTP server fails.
// Invalid YAML is reported in the output folder only. Without Stunnerd and Watch, Run writes the output folder once and
// returns, with ErrNotInForce if something would not be in force. It then replaces missing objects by the default
// objects of an installation, as stunnerctl lint does.
func (p Provider) Run(ctx context.Context) error {
	if err := p.prepare(); err != nil {
		return err
	}
	guard, err := lock(p.stateDir())
	if err != nil {
		return err
	}
	defer guard.Close()
	if !p.serves() {
		return p.render()
	}
	return p.serve(ctx)
}

// prepare validates the settings and creates the folders.
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
	for _, private := range []string{p.stateDir(), p.publishedDir(), p.logs(), p.lastGood()} {
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
	// The kernel reports the program of a running process by its path without symbolic links. Dataplanes that are
	// already running are found by the file name in this path.
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

// render runs one round without HTTP servers and dataplanes.
func (p Provider) render() error {
	l, err := newLoop(p, discovery.NewServer(discovery.ServerOptions{Log: p.Log}), "")
	if err != nil {
		return err
	}
	if err := l.round(); err != nil {
		return err
	}
	if l.summary.documentErrors() > 0 {
		return ErrNotInForce
	}
	return nil
}

// serve runs the loop and the two HTTP servers.
func (p Provider) serve(ctx context.Context) error {
	authorize, inspectors, err := p.authorize()
	if err != nil {
		return err
	}
	configs, err := telemetry.Listen("--discovery-address", p.DiscoveryAddress)
	if err != nil {
		return err
	}
	probes, err := telemetry.Listen("--health-address", p.HealthAddress)
	if err != nil {
		configs.Close()
		return err
	}
	reports := make(chan struct{}, 1)
	var l *loop // set before the server serves
	server := discovery.NewServer(discovery.ServerOptions{Log: p.Log, Authorize: authorize,
		OnReport:  func(discovery.Report) { notify(reports) },
		OnRefusal: func(why discovery.Refusal) { l.meters.refused.WithLabelValues(string(why)).Inc() },
		OnServing: func(pod string, kind inspection.Kind, serves bool) {
			if l.auths.serving(pod, kind, serves, time.Now()) {
				notify(reports)
			}
		}})
	l, err = newLoop(p, server, origin(configs.Addr()))
	if err != nil {
		configs.Close()
		probes.Close()
		return err
	}
	l.reports = reports
	if err := replaceFile(p.urlFile(), []byte(origin(configs.Addr())+"\n"), 0o644); err != nil {
		configs.Close()
		probes.Close()
		return err
	}
	inspector := inspect.New(inspect.Options{
		Pods: server, Running: l.inspectedDataplanes, Authorize: inspectors, State: l.state,
		OnRefusal: func(why string) { l.meters.inspectionRefused.WithLabelValues(why).Inc() },
		Version:   telemetry.Version("operator"), Log: p.Log,
	})
	p.Log.Info("operator serves", "input", p.Input, "output", p.Output,
		"discovery", configs.Addr().String(), "health", probes.Addr().String())
	group, ctx := errgroup.WithContext(ctx)
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer end() // config discovery serves until the dataplanes have ended, to receive their last reports
		return l.run(ctx)
	})
	group.Go(func() error { return telemetry.Serve(serving, configs, inspector.Or(server)) })
	group.Go(func() error { return telemetry.Serve(serving, probes, telemetry.Probes(l.meters.registry, l.ready)) })
	return group.Wait()
}

// authorize returns the functions that authorize clients of config discovery and callers of the inspection API. The
// first one is nil for AuthOff.
func (p Provider) authorize() (
	readers func(*http.Request) (discovery.Grant, error),
	inspectors func(*http.Request, inspect.Attributes) (string, error), err error,
) {
	if p.DiscoveryAuth == AuthOff {
		p.Log.Warn("config discovery is open: everyone who reaches it can read every TURN secret",
			"flag", "--discovery-auth=off")
		return nil, func(r *http.Request, _ inspect.Attributes) (string, error) { return inspector(r, nil) }, nil
	}
	secret, err := token(p.TokenFile())
	if err != nil {
		return nil, nil, fmt.Errorf("make discovery token: %w", err)
	}
	readers = func(r *http.Request) (discovery.Grant, error) { return grant(r, secret) }
	return readers, func(r *http.Request, _ inspect.Attributes) (string, error) { return inspector(r, readers) }, nil
}

// inspector authorizes a caller of the inspection API: on this host, and if readers is not nil, with the token of
// config discovery.
func inspector(r *http.Request, readers func(*http.Request) (discovery.Grant, error)) (string, error) {
	if !inspect.OnThisHost(r) {
		return "", inspect.Forbidden("the inspection API of a folder answers callers on the same host only")
	}
	if readers != nil {
		if _, err := readers(r); err != nil {
			return "", inspect.Unauthenticated("send the bearer token from discovery.token in the output folder")
		}
	}
	return "a caller on this host", nil
}

// grant allows a request with the bearer token to read all configs.
func grant(r *http.Request, secret credential.Secret) (discovery.Grant, error) {
	scheme, presented, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare([]byte(presented), []byte(secret)) != 1 {
		return discovery.Grant{}, errors.New("authorize reader of configs: " +
			"send the bearer token from discovery.token in the output folder")
	}
	return discovery.Grant{All: true}, nil
}

// origin returns the URL at which processes on this host reach config discovery.
func origin(addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// notify sends to a channel without blocking. If its buffer is full, the receiver will wake up anyway.
func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
