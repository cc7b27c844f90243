package scale

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

// tick is the unit of CPU time in /proc (proc_pid_stat(5)). It is the same on every Linux that Go supports.
const tick = 10 * time.Millisecond

// operator is the program under test with its observable state.
type operator struct {
	*testing.T
	dir       string
	access    cluster.Access
	process   *bed.Process
	auth      string // of config discovery
	discovery string // HOST:PORT
	health    string
	memory    *bed.MemoryGroup
}

const user = "stunner-operator"

// newCluster starts an API server that is stopped with the test.
func newCluster(t *testing.T) *cluster.Cluster {
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

// newOperator returns an operator that is not started yet, with the rights of a group.
func newOperator(t *testing.T, kube *cluster.Cluster, auth, group string) *operator {
	t.Helper()
	o := &operator{T: t, dir: t.TempDir(), auth: auth}
	root, err := bed.Root()
	o.must(err)
	o.must(bed.Build(t.Context(), root, o.dir, bed.Operator))
	o.access, err = kube.User(user, group)
	o.must(err)
	for _, address := range []*string{&o.discovery, &o.health} {
		port, err := bed.FreePort()
		o.must(err)
		*address = net.JoinHostPort(bed.Loopback, strconv.Itoa(port))
	}
	o.memory, err = bed.NewMemoryGroup("scale", memory)
	o.must(err)
	o.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		o.must(o.memory.Remove(ctx))
	})
	return o
}

// start starts the operator and waits until it accepts connections.
func (o *operator) start() {
	o.Helper()
	var err error
	o.process, err = bed.Start(o.memory.Confine(bed.Command{Name: "operator", Path: filepath.Join(o.dir, "operator"), Logs: o.dir, Args: []string{
		"--provider=kubernetes", "--kubeconfig", o.access.Kubeconfig, "--namespace", namespaceOf(0), "--log=all:WARN",
		"--discovery-auth=" + o.auth, "--discovery-address", o.discovery, "--health-address", o.health, "--scaler-address=",
	}}))
	o.must(err)
	p := o.process
	o.Cleanup(func() {
		if o.Failed() {
			o.Logf("last words of the operator:\n%s", strings.Join(p.Tail(30), "\n"))
		}
		_ = p.Kill()
	})
	o.await("the operator listens", func(context.Context) error {
		conn, err := net.Dial("tcp", o.discovery)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func (o *operator) stop() {
	o.Helper()
	o.must(o.process.Stop(10 * time.Second))
}

func (o *operator) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

func (o *operator) await(what string, cond func(context.Context) error) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), patience)
	defer cancel()
	if err := o.process.Until(ctx, cond); err != nil {
		o.Fatalf("%s: %v", what, err)
	}
}

func (o *operator) metric(name string) float64 {
	o.Helper()
	v, err := bed.Metric(o.Context(), "http://"+o.health+"/metrics", name)
	if errors.Is(err, bed.ErrNoMetric) { // a counter with labels that is still 0
		return 0
	}
	o.must(err)
	return v
}

// settles waits until the operator is the leader and has not written for a while.
func (o *operator) settles() {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), patience)
	defer cancel()
	look := time.NewTicker(time.Second / 2) // a scrape takes the operator some milliseconds of CPU time
	defer look.Stop()
	for before, same := -1.0, 0; same < 6; {
		select {
		case <-look.C:
		case <-ctx.Done():
			o.Fatalf("the operator keeps writing: %.0f writes", before)
		}
		writes := o.metric("stunner_operator_writes_total")
		if same++; writes != before || o.metric("stunner_operator_leader") != 1 {
			before, same = writes, 0
		}
	}
}

// cpu returns the CPU time that the operator used.
func (o *operator) cpu() time.Duration {
	o.Helper()
	return cpuOf(o.T, o.process.PID())
}

// peak returns the peak memory of the operator in MiB.
func (o *operator) peak() int {
	o.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.process.PID()))
	o.must(err)
	_, after, _ := strings.Cut(string(data), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	o.must(err)
	return kib / 1024
}
