package floods

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

// operator is the program under test, in its own memory cgroup.
type operator struct {
	*testing.T
	dir       string
	memory    *bed.MemoryGroup
	access    cluster.Access
	process   *bed.Process
	discovery string // HOST:PORT
	health    string
}

func newOperator(t *testing.T, kube *cluster.Cluster) *operator {
	t.Helper()
	o := &operator{T: t, dir: t.TempDir()}
	root, err := bed.Root()
	o.must(err)
	o.must(bed.Build(t.Context(), root, o.dir, bed.Operator))
	o.access, err = kube.User("stunner-operator", "system:masters")
	o.must(err)
	for _, address := range []*string{&o.discovery, &o.health} {
		port, err := bed.FreePort()
		o.must(err)
		*address = net.JoinHostPort(bed.Loopback, strconv.Itoa(port))
	}
	o.memory, err = bed.NewMemoryGroup("floods", memory)
	o.must(err)
	o.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		o.must(o.memory.Remove(ctx))
	})
	return o
}

// peak returns the peak memory of the cgroup in MiB.
func (o *operator) peak() int64 {
	o.Helper()
	n, err := o.memory.Peak()
	o.must(err)
	return n >> 20
}

// start starts the operator in the cgroup.
func (o *operator) start() {
	o.Helper()
	var err error
	o.process, err = bed.Start(o.memory.Confine(bed.Command{Name: "operator", Path: filepath.Join(o.dir, "operator"), Logs: o.dir, Args: []string{
		"--provider=kubernetes", "--kubeconfig", o.access.Kubeconfig, "--namespace", home, "--log=all:WARN",
		"--discovery-auth=off", "--discovery-address", o.discovery, "--health-address", o.health, "--scaler-address=",
	}}))
	o.must(err)
	p := o.process
	o.Cleanup(func() {
		if o.Failed() {
			o.Logf("last words of the operator:\n%s", strings.Join(p.Tail(10), "\n"))
		}
		_ = p.Kill()
	})
}

// ready waits until the readiness probe succeeds.
func (o *operator) ready(most time.Duration) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), most)
	defer cancel()
	if err := o.process.Until(ctx, bed.Answers("http://"+o.health+"/ready", http.StatusOK)); err != nil {
		o.Errorf("the operator is not ready within %s: %v", most, err)
	}
}

// revive restarts the operator if it exited, and returns the number of exits.
func (o *operator) revive() int {
	o.Helper()
	select {
	case <-o.process.Done():
		o.Logf("the operator has ended: %v", o.process.Err())
		o.start()
		return 1
	default:
		return 0
	}
}

// crash kills the operator.
func (o *operator) crash() {
	o.Helper()
	o.must(o.process.Kill())
}

func (o *operator) stop() {
	o.Helper()
	_ = o.process.Kill()
}

func (o *operator) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}
