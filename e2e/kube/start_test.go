package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

// Operator and CRDs may be installed in any order. The operator also stops on SIGTERM while the API server does not
// respond, and its liveness probe does not fail because of that.
func TestStart_WaitsForCRDsAndStopsOnSIGTERM(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bare, err := cluster.Start(ctx, cluster.Options{Bare: true, Still: true})
	must(err)
	t.Cleanup(func() {
		if err := bare.Stop(); err != nil {
			t.Error(err)
		}
	})
	root, err := bed.Root()
	must(err)
	dir := t.TempDir()
	must(bed.Build(ctx, root, dir, bed.Operator))
	health, err := bed.FreePort()
	must(err)
	operator, err := bed.Start(bed.Command{Name: "operator", Path: filepath.Join(
		dir, "operator",
	), Logs: dir, Args: []string{
		"--provider=kubernetes", "--kubeconfig", bare.Admin.Kubeconfig, "--namespace=default", "--discovery-auth=off",
		"--discovery-address=127.0.0.1:0", "--scaler-address=", "--health-address", fmt.Sprintf("127.0.0.1:%d", health),
	}})
	must(err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last log lines of the operator:\n%s", strings.Join(operator.Tail(30), "\n"))
		}
		_ = operator.Kill()
	})
	probe := func(path string) string { return fmt.Sprintf("http://127.0.0.1:%d/%s", health, path) }
	must(operator.Until(ctx, func(ctx context.Context) error {
		code, body, err := bed.Get(ctx, probe("ready"))
		if err == nil &&
			(code != http.StatusServiceUnavailable || !strings.Contains(
				string(body), "install the CustomResourceDefinitions",
			)) {
			err = fmt.Errorf("/ready: status %d: %s", code, body)
		}
		return err
	}))
	must(bare.InstallCRDs(ctx))
	must(operator.Until(ctx, bed.Answers(probe("ready"), http.StatusOK)))
	must(operator.Until(ctx, func(ctx context.Context) error {
		if leads, err := bed.Metric(ctx, probe("metrics"), "stunner_operator_leader"); err != nil || leads != 1 {
			return errors.Join(err, errors.New("is not the leader yet"))
		}
		return nil
	}))

	must(bare.Pause())
	defer func() { must(bare.Resume()) }()
	// Longer than the lease duration.
	must(operator.Until(ctx, func(ctx context.Context) error {
		leads, err := bed.Metric(ctx, probe("metrics"), "stunner_operator_leader")
		if err == nil && leads != 0 {
			err = errors.New("is the leader without a lease")
		}
		return err
	}))
	must(bed.Answers(probe("ready"), http.StatusOK)(ctx))
	must(bed.Answers(probe("live"), http.StatusOK)(ctx))
	must(operator.Stop(5 * time.Second))
}
