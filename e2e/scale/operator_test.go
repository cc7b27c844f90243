package scale

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
)

// tick is the unit of CPU time in /proc (proc_pid_stat(5)). It is the same on every Linux that Go supports.
const tick = 10 * time.Millisecond

// operator is the program under test with its observable state.
type operator struct {
	*runner.Operator
	auth string // mode of config discovery
}

// newOperator returns an operator that is not started yet, with the rights of a group.
func newOperator(t *testing.T, kube *cluster.Cluster, auth, group string) *operator {
	t.Helper()
	return &operator{runner.New(t, kube, memory, runner.User, group), auth}
}

// start starts the operator and waits until it accepts connections.
func (o *operator) start() {
	o.Helper()
	o.Start(namespaceOf(0), o.auth)
	o.await("the operator listens", func(context.Context) error {
		conn, err := net.Dial("tcp", o.Discovery)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func (o *operator) stop() {
	o.Helper()
	o.Must(o.Process.Stop(10 * time.Second))
}

func (o *operator) await(what string, cond func(context.Context) error) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), timeout)
	defer cancel()
	if err := o.Process.Until(ctx, cond); err != nil {
		o.Fatalf("%s: %v", what, err)
	}
}

func (o *operator) metric(name string) float64 {
	o.Helper()
	v, err := harness.Metric(o.Context(), "http://"+o.Health+"/metrics", name)
	if errors.Is(err, harness.ErrNoMetric) { // a counter with labels that is still 0
		return 0
	}
	o.Must(err)
	return v
}

// settles reads the number of writes at intervals of look, and returns when there was no write for the time quiet.
const (
	look  = time.Second / 4 // a scrape takes the operator some milliseconds of CPU time
	quiet = 6 * look
)

// settles waits until the operator is the leader and has not written for a while.
func (o *operator) settles() {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), timeout)
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for before, same := -1.0, 0; same < int(quiet/look); {
		select {
		case <-ticker.C:
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
	return cpuOf(o.T, o.Process.PID())
}

// peak returns the peak memory of the operator in MiB.
func (o *operator) peak() int {
	o.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.Process.PID()))
	o.Must(err)
	_, after, _ := strings.Cut(string(data), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	o.Must(err)
	return kib / 1024
}
