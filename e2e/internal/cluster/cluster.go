// Package cluster runs a Kubernetes control plane for tests: the released etcd, API server and controllers as child
// processes on the loopback address, with the product's CRDs installed. There are no nodes. Pods are never scheduled,
// and a test writes the statuses that kubelet or a cloud controller would write.
//
// A test package starts one control plane with [Main], and each test uses a namespace of its own.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// timeout limits a start. On an idle machine a start takes seconds.
const timeout = 5 * time.Minute

// Options of a cluster. The zero value is a cluster with CRDs and controllers.
type Options struct {
	// Bare skips the CRDs. The garbage collector notices CRDs that are installed later only after 30 seconds.
	Bare bool
	// Still omits the controllers, so that only the program under test writes objects.
	Still bool
	// Roomy lets etcd store 8 GiB, and Services have 60,000 node ports.
	Roomy bool
}

// Cluster is a running control plane. Its processes are killed when this process dies.
type Cluster struct {
	Admin Access // in group system:masters: not restricted by RBAC

	root    string // root of the repository
	dir     string // of keys, configs, data and logs
	program string // binary of all components
	ca      *authority
	url     string
	etcd    *harness.Process
	api     *harness.Process
	manager *harness.Process
	clients clients
	audit   auditLog
}

// Main starts a cluster in *c, runs the tests of a package, and returns the exit code for [os.Exit]. It prints how long
// the start took.
func Main(tests interface{ Run() int }, c **Cluster) int {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	begun := time.Now()
	started, err := Start(ctx, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("cluster ready after %s\n", time.Since(begun).Round(100*time.Millisecond))
	*c = started
	code := tests.Run()
	if err := started.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// Start starts a cluster. It returns when the API server serves every kind and the controllers run.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{}
	if err := c.start(ctx, o); err != nil {
		return nil, fmt.Errorf("start cluster: %w", errors.Join(err, c.Stop()))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, o Options) (err error) {
	if c.root, err = harness.Root(); err != nil {
		return err
	}
	control, err := harness.Published(ctx, c.root, "kube")
	if err != nil {
		return err
	}
	c.program = filepath.Join(control, "kube")
	if c.dir, err = os.MkdirTemp("", "stunner-cluster-"); err != nil {
		return err
	}
	if err := c.startServer(ctx, o.Roomy); err != nil {
		return err
	}
	// The CRDs are installed before the controllers start, because running controllers refresh discovery rarely.
	if !o.Bare {
		if err := c.InstallCRDs(ctx); err != nil {
			return err
		}
	}
	if o.Still {
		return nil
	}
	return c.startManager(ctx)
}

// Stop ends the cluster and removes its files. It returns an error if a component exited before.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range []*harness.Process{c.manager, c.api, c.etcd} {
		if p == nil {
			continue
		}
		select {
		case <-p.Done():
			errs = append(
				errs, fmt.Errorf("%s exited before Stop: %v\n%s", p.Name, p.Err(), strings.Join(p.Tail(10), "\n")),
			)
		default:
			errs = append(errs, p.Kill()) // SIGKILL, because the data is deleted anyway
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// Kubectl runs kubectl as Admin and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := c.Command(ctx, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Command returns a kubectl command as Admin that is not started yet.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(
		ctx, c.program, append([]string{"kubectl", "--kubeconfig", c.Admin.Kubeconfig}, args...)...,
	)
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // folder of kubectl's caches
	return cmd
}
