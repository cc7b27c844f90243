// Package runner runs the built operator in a memory cgroup, for tests with a real API server.
package runner

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// User is the Kubernetes user of an operator without the policies of an installation.
const User = "stunner-operator"

// Operator is the program under test. It can be started several times.
type Operator struct {
	*testing.T
	Dir     string
	Process *harness.Process
	Memory  *harness.MemoryGroup
	// Discovery and Health are addresses HOST:PORT.
	Discovery, Health string
	// Env are NAME=value, added to the environment of the operator.
	Env []string
	// Args are more arguments of the operator.
	Args   []string
	access cluster.Access
}

// NewCluster starts an API server that is stopped with the test.
func NewCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	kube, err := cluster.Start(t.Context(), cluster.Options{Still: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kube.Stop(); err != nil {
			t.Error(err)
		}
	})
	return kube
}

// New returns an operator that is not started. It has the rights of a user in the given groups. memory is its limit in
// bytes.
func New(t *testing.T, kube *cluster.Cluster, memory int64, user string, groups ...string) *Operator {
	t.Helper()
	o := &Operator{T: t, Dir: t.TempDir()}
	root, err := harness.Root()
	o.Must(err)
	o.Must(harness.Build(t.Context(), root, o.Dir, harness.Operator))
	o.access, err = kube.User(user, groups...)
	o.Must(err)
	for _, address := range []*string{&o.Discovery, &o.Health} {
		port, err := harness.FreePort()
		o.Must(err)
		*address = net.JoinHostPort(harness.Loopback, strconv.Itoa(port))
	}
	o.Memory, err = harness.NewMemoryGroup("operator", memory)
	o.Must(err)
	o.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		o.Must(o.Memory.Remove(ctx))
	})
	return o
}

// Start starts the operator with its namespace and the authentication mode of config discovery.
func (o *Operator) Start(namespace, auth string) {
	o.Helper()
	command := harness.Command{Name: "operator", Path: filepath.Join(o.Dir, "operator"), Logs: o.Dir, Env: o.Env,
		Args: append([]string{
			"--provider=kubernetes", "--kubeconfig", o.access.Kubeconfig, "--namespace", namespace, "--log=all:WARN",
			"--discovery-auth=" + auth, "--discovery-address", o.Discovery, "--health-address", o.Health,
			"--scaler-address=",
		}, o.Args...)}
	p, err := harness.Start(o.Memory.Confine(command))
	o.Must(err)
	o.Process = p
	o.Cleanup(func() {
		if o.Failed() {
			o.Logf("last lines of the operator:\n%s", strings.Join(p.Tail(30), "\n"))
		}
		_ = p.Kill()
	})
}

// Must fails the test if there is an error.
func (o *Operator) Must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}
