package floods

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
)

// operator is the program under test, in its own memory cgroup.
type operator struct{ *runner.Operator }

func newOperator(t *testing.T, kube *cluster.Cluster) *operator {
	t.Helper()
	return &operator{runner.New(t, kube, "system:masters", memory)}
}

// peak returns the peak memory of the cgroup in MiB.
func (o *operator) peak() int64 {
	o.Helper()
	n, err := o.Memory.Peak()
	o.Must(err)
	return n >> 20
}

// start starts the operator in the cgroup.
func (o *operator) start() {
	o.Helper()
	o.Start(home, "off")
}

// ready waits until the readiness probe succeeds.
func (o *operator) ready(most time.Duration) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), most)
	defer cancel()
	if err := o.Process.Until(ctx, bed.Answers("http://"+o.Health+"/ready", http.StatusOK)); err != nil {
		o.Errorf("the operator is not ready within %s: %v", most, err)
	}
}

// revive restarts the operator if it exited, and returns the number of exits.
func (o *operator) revive() int {
	o.Helper()
	select {
	case <-o.Process.Done():
		o.Logf("the operator has exited: %v", o.Process.Err())
		o.start()
		return 1
	default:
		return 0
	}
}

// crash kills the operator.
func (o *operator) crash() {
	o.Helper()
	o.Must(o.Process.Kill())
}

func (o *operator) stop() {
	o.Helper()
	_ = o.Process.Kill()
}
