package floods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

// operator is the program under test, in a memory cgroup of its own.
type operator struct {
	*testing.T
	dir       string
	group     string // folder of the cgroup
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
	o.must(o.confine())
	return o
}

// confine makes a cgroup that ends the operator when it takes more memory than it may.
func (o *operator) confine() error {
	kind, limit, swap := "memory", "memory.limit_in_bytes", "memory.swappiness"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		kind, limit, swap = "", "memory.max", "memory.swap.max"
	}
	o.group = filepath.Join("/sys/fs/cgroup", kind, fmt.Sprintf("stunner-floods-%d", os.Getpid()))
	if err := os.Mkdir(o.group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make a memory cgroup: %w: run this test as root, with /sys/fs/cgroup writable", err)
	}
	o.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		o.must(bed.Until(ctx, func(context.Context) error { return os.Remove(o.group) })) // the kernel needs a moment after the last process
	})
	_ = os.WriteFile(filepath.Join(o.group, swap), []byte("0"), 0o600) // where there is no swap there is no such file
	return os.WriteFile(filepath.Join(o.group, limit), []byte(strconv.Itoa(memory)), 0o600)
}

// peak is the most memory that the cgroup has had at a time, in MiB.
func (o *operator) peak() int {
	o.Helper()
	for _, name := range []string{"memory.max_usage_in_bytes", "memory.peak"} {
		if data, err := os.ReadFile(filepath.Join(o.group, name)); err == nil {
			n, err := strconv.Atoi(strings.TrimSpace(string(data)))
			o.must(err)
			return n >> 20
		}
	}
	o.Fatal("the cgroup says nothing of its peak")
	return 0
}

// start starts the operator inside of the cgroup.
func (o *operator) start() {
	o.Helper()
	var err error
	args := []string{
		"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, o.group, filepath.Join(o.dir, "operator"),
		"--provider=kubernetes", "--kubeconfig", o.access.Kubeconfig, "--namespace", home, "--log=all:WARN",
		"--discovery-auth=off", "--discovery-address", o.discovery, "--health-address", o.health, "--scaler-address=",
	}
	o.process, err = bed.Start(bed.Command{Name: "operator", Path: "/bin/sh", Logs: o.dir, Args: args})
	o.must(err)
	p := o.process
	o.Cleanup(func() {
		if o.Failed() {
			o.Logf("last words of the operator:\n%s", strings.Join(p.Tail(10), "\n"))
		}
		_ = p.Kill()
	})
}

// ready waits until the operator says so.
func (o *operator) ready(most time.Duration) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), most)
	defer cancel()
	if err := o.process.Until(ctx, bed.Answers("http://"+o.health+"/ready", http.StatusOK)); err != nil {
		o.Errorf("the operator is not ready within %s: %v", most, err)
	}
}

// revive starts an operator again that has ended, and returns how many have.
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

// crash ends the operator without leave.
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
