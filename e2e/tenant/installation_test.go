// Package tenant attacks the control plane as a tenant: a user with ClusterRole edit in one namespace, and the right to
// write Gateways there. The API server, its authorizer, the rights, the admission policies and the two services are
// those of an installation with default settings.
//
// Each attempt is a row of a table: the objects and requests of the tenant, and the checks that it has no effect on
// others.
//
// One file a family of attacks; world_test.go has the cluster of the other tenants.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/objects"
)

const (
	// patience is the timeout of steps that take a second on an idle machine.
	patience = time.Minute
	// moment is the timeout for a state that is reached already, or almost.
	moment = 5 * time.Second
	// system is the namespace of the product.
	system = "stunner-system"
)

var (
	control *cluster.Cluster
	house   *installation
)

func TestMain(m *testing.M) {
	bedtest.Parallel(12)
	ctrllog.SetLogger(logr.Discard())
	os.Exit(cluster.Main(installed{m}, &control))
}

// installed runs tests in a cluster with the product installed.
type installed struct{ tests *testing.M }

// Run installs the product, runs the tests and stops the services.
func (i installed) Run() int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	begun := time.Now()
	house = &installation{}
	err := house.install(ctx)
	code := 1
	if err == nil {
		fmt.Printf("product ready after %s\n", time.Since(begun).Round(100*time.Millisecond))
		code = i.tests.Run()
	}
	if err := errors.Join(err, house.end()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// installation is the product in the cluster, with its two services as child processes.
type installation struct {
	client.Client // as the administrator
	dir           string
	root          string
	operator      *bed.Process
	auth          *bed.Process
	health        string // HOST:PORT of the operator's probes and metrics
	discovery     string // HOST:PORT of config discovery
	service       string // HOST:PORT of the auth service
	token         string // file with the token of the auth service for config discovery
	ca            string // file with the CA certificate of config discovery
	markers       markers
	victim        *victim
}

func (h *installation) install(ctx context.Context) (err error) {
	if h.root, err = bed.Root(); err != nil {
		return err
	}
	if h.dir, err = os.MkdirTemp("", "tenant-"); err != nil {
		return err
	}
	if err := bed.Build(ctx, h.root, h.dir, bed.Operator, bed.Auth); err != nil {
		return err
	}
	if h.Client, err = connect(control.Admin.Config); err != nil {
		return err
	}
	if _, err := control.Kubectl(ctx, "apply", "-k", filepath.Join(h.root, "kustomize/overlays/default")); err != nil {
		return err
	}
	h.markers = newMarkers()
	if err := h.furnish(ctx); err != nil {
		return err
	}
	if err := h.startOperator(ctx); err != nil {
		return err
	}
	if err := h.startAuth(ctx); err != nil {
		return err
	}
	h.victim, err = h.follow(ctx)
	return err
}

// connect returns a client without rate limits of its own.
func connect(config *rest.Config) (client.Client, error) {
	scheme, err := objects.Scheme()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	o := client.Options{Scheme: scheme}
	if house.Client != nil {
		o.Mapper = house.RESTMapper()
	}
	return client.New(config, o)
}

// apply applies YAML as the administrator.
func (h *installation) apply(ctx context.Context, text string) error {
	list, err := objects.Read(h, "", text)
	if err != nil {
		return err
	}
	for _, o := range list {
		if err := objects.Apply(ctx, h, o); err != nil {
			return err
		}
	}
	return nil
}

// startOperator runs the operator with the flags and the environment of its Deployment, and with a token of its
// ServiceAccount.
func (h *installation) startOperator(ctx context.Context) error {
	access, err := control.Account(ctx, system, "stunner-operator")
	if err != nil {
		return err
	}
	token, err := h.tokenFile(ctx, "stunner-operator")
	if err != nil {
		return err
	}
	args, env, err := h.container(ctx, "stunner-operator")
	if err != nil {
		return err
	}
	scaler, err := freeAddresses(&h.discovery, &h.health)
	if err != nil {
		return err
	}
	// The last value of a repeated flag is used.
	args = append(args, "--kubeconfig="+access.Kubeconfig, "--identity=operator", "--discovery-address="+h.discovery, "--scaler-address="+scaler,
		"--health-address="+h.health, "--discovery-token-file="+token, "--address=127.0.0.1", "--log=all:TRACE")
	h.operator, err = bed.Start(
		bed.Command{Name: "operator", Path: filepath.Join(h.dir, "operator"), Args: args, Env: env, Logs: h.dir},
	)
	if err != nil {
		return err
	}
	return h.ready(ctx, h.operator, h.health)
}

// startAuth runs the auth service with the flags of its Deployment. Its environment contains a marker.
func (h *installation) startAuth(ctx context.Context) error {
	bundle := &corev1.ConfigMap{}
	if err := bed.Until(ctx, func(ctx context.Context) error {
		return h.Get(ctx, types.NamespacedName{Namespace: system, Name: "stunner-discovery-ca"}, bundle)
	}); err != nil {
		return err
	}
	h.ca = filepath.Join(h.dir, "ca.crt")
	if err := os.WriteFile(h.ca, []byte(bundle.Data["ca.crt"]), 0o600); err != nil {
		return err
	}
	var err error
	if h.token, err = h.tokenFile(ctx, "stunner-auth"); err != nil {
		return err
	}
	args, env, err := h.container(ctx, "stunner-auth")
	if err != nil {
		return err
	}
	health, err := freeAddresses(&h.service)
	if err != nil {
		return err
	}
	_, port, _ := strings.Cut(h.service, ":")
	args = append(args, "--config=https://localhost:"+portOf(
		h.discovery,
	), "--discovery-token-file="+h.token, "--discovery-ca-file="+h.ca, "--address="+bed.Loopback,
		"--port="+port, "--health-address="+health, "--log-level=all:TRACE")
	args = append(args, insideRates...)
	env = append(env, "MARKER="+h.markers.of("environment of the auth service"))
	h.auth, err = bed.Start(
		bed.Command{Name: "auth", Path: filepath.Join(h.dir, "auth"), Args: args, Env: env, Logs: h.dir},
	)
	if err != nil {
		return err
	}
	return h.ready(ctx, h.auth, health)
}

func (h *installation) ready(ctx context.Context, p *bed.Process, address string) error {
	if err := p.Until(ctx, bed.Answers("http://"+address+"/ready", http.StatusOK)); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.Join(p.Tail(20), "\n"))
	}
	return nil
}

// container returns arguments and environment of the first container of a Deployment.
func (h *installation) container(ctx context.Context, deployment string) (args, env []string, err error) {
	d := &appsv1.Deployment{}
	if err := h.Get(ctx, types.NamespacedName{Namespace: system, Name: deployment}, d); err != nil {
		return nil, nil, err
	}
	c := d.Spec.Template.Spec.Containers[0]
	for _, arg := range c.Args {
		args = append(args, strings.NewReplacer("$(POD_NAMESPACE)", system, "$(POD_IP)", bed.Loopback).Replace(arg))
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			env = append(env, e.Name+"="+e.Value)
		}
	}
	return args, env, nil
}

// tokenFile writes the token with which an account of the product reads config discovery.
func (h *installation) tokenFile(ctx context.Context, account string) (string, error) {
	token, err := control.Kubectl(
		ctx, "create", "token", account, "-n", system, "--audience=stunner-discovery", "--duration=24h",
	)
	if err != nil {
		return "", err
	}
	path := filepath.Join(h.dir, account+".token")
	return path, os.WriteFile(path, []byte(strings.TrimSpace(token)), 0o600)
}

// end stops the services. It is an error if one has exited before.
func (h *installation) end() error {
	var errs []error
	for _, p := range []*bed.Process{h.operator, h.auth} {
		if p == nil {
			continue
		}
		select {
		case <-p.Done():
			errs = append(
				errs, fmt.Errorf("%s exited before the end of the tests: %v\n%s", p.Name, p.Err(), strings.Join(p.Tail(20), "\n")),
			)
		default:
			errs = append(errs, p.Kill())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}

// freeAddresses sets free addresses of this host, and returns one more.
func freeAddresses(fill ...*string) (more string, err error) {
	for _, address := range append(fill, &more) {
		port, err := bed.FreePort()
		if err != nil {
			return "", err
		}
		*address = fmt.Sprintf("%s:%d", bed.Loopback, port)
	}
	return more, nil
}

func portOf(address string) string {
	_, port, _ := strings.Cut(address, ":")
	return port
}
