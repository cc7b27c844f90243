// Package env runs the product in any of its shapes: the number of Gateways, listeners and pods, the addresses for
// clients, the kind of credentials, and an event that has happened before. A test requests a Shape and gets an Env,
// with clients, peers, addresses, programs and faults. The test does not depend on the way in which they are created.
//
//	shape.go      the factors, their values, and the pairs that exclude each other
//	cover.go      shapes in which each pair of values occurs
//	env.go        start and end of an Env
//	objects.go    the YAML of a shape
//	place.go      where clients reach the pods
//	proxy.go      load balancers that end connections
//	gateway.go    Gateways and listeners: addresses, peers, routes
//	cluster.go    objects at an API server, with pods that kubelets run
//	services.go   Services: load balancers, node ports, kube-proxy
//	folder.go     objects in a folder
//	auth.go       the auth service, credentials
//	identity.go   revocations, usage, an additional route of the listeners
//	events.go     updates, crashes and other events
//	clients.go    media servers and calls
//	requests.go   single requests of clients
//	flows.go      clients whose datagrams move between pods, floods
//	control.go    stunnerctl, status and metrics of dataplanes
//
// If the machine lacks something that a shape needs, the error names the command that installs it.
package env

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// Limit is the longest time that Await waits. On an idle machine every condition is true much earlier.
const Limit = time.Minute

// failingLimit is the longest time that Await waits while a condition returns the expected error; see Failing.
const failingLimit = 10 * time.Second

// Options of an Env.
type Options struct {
	Shape Shape
	// Number distinguishes the environments of a process: 1 to 254.
	Number int
	// Cluster is the API server of shapes with Input APIServer.
	Cluster *cluster.Cluster
	// Dir takes programs, objects, volumes and logs.
	Dir string
	// PerGateway signs ephemeral credentials with a key of each Gateway instead of the shared secret.
	PerGateway bool
	// Annotation is an additional annotation of each Gateway, NAME: VALUE.
	Annotation string
	// OperatorArguments and AuthArguments are additional flags of the programs in a cluster. The last value of a flag
	// counts.
	OperatorArguments, AuthArguments []string
	// Logf logs events.
	Logf func(format string, args ...any)
}

// Env is a running product.
type Env struct {
	Options
	Net      *topology.Network
	Gateways []*Gateway

	input input
	auth  authService
	peers peers

	// class names the GatewayClass and the Dataplane, system the namespace of the operator.
	class, controller, system string
	// user and secret are the static user name, and the password or shared secret.
	user, secret string
	userQuota    int                         // 0 for none
	clients      []topology.Both[netip.Addr] // hosts that share an address
	dialed       atomic.Int64                // number of calls of these hosts
	sessions     atomic.Int64                // number of ICE sessions
	pods         int                         // number of pods of each Gateway
	root         string                      // root of the repository
}

// input is the source of objects.
type input interface {
	// prepare creates everything that the programs need.
	prepare(ctx context.Context) error
	// startOperator and startAuth start the programs and wait until they are ready.
	startOperator(ctx context.Context) error
	startAuth(ctx context.Context, a *authService) error
	// restart kills the operator, the auth service or both at once, and waits until they are ready again.
	restart(ctx context.Context, operator, auth bool) error
	// apply writes objects in YAML. remove deletes an object, by KIND/NAME.
	apply(ctx context.Context, namespace, text string) error
	remove(ctx context.Context, namespace, object string) error
	// status returns the status of an object as JSON, or "" if it has none.
	status(ctx context.Context, namespace, object string) (string, error)
	// dataplanes returns the running dataplanes of a Gateway.
	dataplanes(g *Gateway) ([]Dataplane, error)
	// removed returns nil when no object or process of a deleted Gateway is left.
	removed(ctx context.Context, g *Gateway) error
	// applyDataplane applies the Dataplane with the wanted number of pods.
	applyDataplane(ctx context.Context) error
	// update replaces the program of all dataplanes.
	update(ctx context.Context) error
	// ctl returns the flags of stunnerctl.
	ctl(ctx context.Context) ([]string, error)
	// ctlPeer are the addresses of media servers that stunnerctl makes, in the network in which ctlHost calls a
	// function.
	ctlPeer() topology.Both[netip.Addr]
	ctlHost(func())
	// host calls a function in the network of the control plane, and address is an address there.
	host(func())
	address() netip.Addr
	close() error
}

// Dataplane is a running stunnerd.
type Dataplane struct {
	// Name is the name in errors. ID changes with an update.
	Name, ID string
	// Admin is the base URL of probes, status and sessions. Metrics is the URL of the metrics.
	Admin, Metrics string
	// Addrs are the addresses of its relays.
	Addrs []netip.Addr
	// Crash kills the process that serves, and Signal sends it another signal.
	Crash  func() error
	Signal func(syscall.Signal) error
	// Stop starts the termination, without waiting for its end.
	Stop func(context.Context) error
	// Done is closed when its process has ended; nil if it is not known.
	Done <-chan struct{}
	// Net is its network. It is nil if the dataplane uses the network of a node.
	Net *topology.Pod
	// Log returns the last lines of the log.
	Log func() []string
}

// New makes an environment in which nothing runs yet. Close must be called.
func New(ctx context.Context, o Options) (*Env, error) {
	e := &Env{
		Options: o, class: fmt.Sprintf("calls-%d", o.Number), controller: fmt.Sprintf("stunner.l7mp.io/calls-%d", o.Number),
		system: fmt.Sprintf("system-%d", o.Number), user: "caller", secret: "first-secret-of-this-environment",
		pods: o.Shape.PodCount(),
	}
	err := e.make(ctx)
	if err != nil {
		return nil, fmt.Errorf("make environment %s: %w", o.Shape, errors.Join(err, e.Close()))
	}
	return e, nil
}

func (e *Env) make(ctx context.Context) (err error) {
	if e.root, err = harness.Root(); err != nil {
		return err
	}
	// Containers run as another user, and need to reach their programs and volumes.
	for dir := e.Dir; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if err := os.Chmod(dir, info.Mode()|0o111); err != nil {
			return err
		}
	}
	if err := harness.Build(ctx, e.root, e.Dir, harness.Operator, harness.Stunnerd, harness.Auth, harness.Echo,
		harness.Stunnerctl); err != nil {
		return err
	}
	nodes := 1
	if e.Shape.place().hostNetwork {
		nodes = e.Shape.PodCount()
	}
	e.Net, err = topology.New(topology.Options{Number: e.Number, Nodes: nodes, XDP: e.Shape[MediaPath] == XDP})
	if err != nil {
		return err
	}
	if e.Shape.place().shared {
		if e.clients, err = e.Net.ShareClients(sharing); err != nil {
			return err
		}
	}
	if err := e.addGateways(ctx); err != nil {
		return err
	}
	if e.Shape[Input] == Folder {
		e.input = newFolder(e)
	} else {
		e.input = newCluster(e)
	}
	return e.servePeers()
}

// Start starts the product and waits until clients can call through each listener.
func (e *Env) Start(ctx context.Context) error {
	if err := e.input.prepare(ctx); err != nil {
		return err
	}
	if err := e.applyAll(ctx); err != nil {
		return err
	}
	if err := e.input.startOperator(ctx); err != nil {
		return err
	}
	if err := e.startAuth(ctx); err != nil {
		return err
	}
	return e.AwaitReady(ctx)
}

// applyAll writes all objects.
func (e *Env) applyAll(ctx context.Context) error {
	for _, text := range []string{e.classYAML(), e.dataplaneYAML(image(0), e.pods), e.secretYAML()} {
		if err := e.input.apply(ctx, e.system, text); err != nil {
			return err
		}
	}
	for _, g := range e.Gateways {
		if err := g.apply(ctx); err != nil {
			return err
		}
	}
	return nil
}

// image returns an image of the dataplane. All images contain the same program.
func image(number int) string { return fmt.Sprintf("stunnerd:%d", number) }

// Close ends everything. It returns errors of processes that have ended before.
func (e *Env) Close() (err error) {
	if e.input != nil {
		err = errors.Join(err, e.input.close())
	}
	for _, g := range e.Gateways {
		err = errors.Join(err, g.proxy.close())
	}
	e.peers.close()
	if e.Net != nil {
		err = errors.Join(err, e.Net.Close())
	}
	return err
}

// Await waits until cond returns nil, at most for Limit. what describes the condition in errors.
func (e *Env) Await(ctx context.Context, what string, cond func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Limit, fmt.Errorf("not within %s", Limit))
	defer cancel()
	if err := harness.Until(ctx, givingUp(ctx, cond)); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// symptomKey is the key of the symptom in a context that Failing returns.
type symptomKey struct{}

// Failing returns a context for a behaviour that is known to fail with an error that matches symptom. While a condition
// fails with this error, Await waits only for failingLimit.
func Failing(ctx context.Context, symptom *regexp.Regexp) context.Context {
	return context.WithValue(ctx, symptomKey{}, symptom)
}

// givingUp returns a condition that ends the wait when the expected error of cond lasts.
func givingUp(ctx context.Context, cond func(context.Context) error) func(context.Context) error {
	symptom, expected := ctx.Value(symptomKey{}).(*regexp.Regexp)
	if !expected {
		return cond
	}
	var since time.Time
	return func(ctx context.Context) error {
		err := cond(ctx)
		switch {
		case err == nil || !symptom.MatchString(err.Error()):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > failingLimit:
			return harness.Final(err)
		}
		return err
	}
}

// AwaitReady waits until the dataplanes of each Gateway are ready, in the number that the shape or the latest Scale
// requires.
func (e *Env) AwaitReady(ctx context.Context) error {
	for _, g := range e.Gateways {
		if err := e.Await(ctx, "dataplanes of "+g.ID(), g.ready); err != nil {
			return err
		}
	}
	return nil
}

// families returns the addresses of the families that the shape has.
func (e *Env) families(both topology.Both[netip.Addr]) []netip.Addr {
	switch e.Shape[Families] {
	case IPv4:
		return both[:1]
	case IPv6:
		return both[1:]
	}
	return both[:]
}

// program returns the path of a built program, by the name of an image.
func (e *Env) program(name string) string {
	path := filepath.Join(e.Dir, name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}
