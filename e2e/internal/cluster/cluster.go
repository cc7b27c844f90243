// Package cluster runs a Kubernetes control plane for tests: etcd, API server and controllers as they are released, as child processes on
// the loopback address, with the CRDs of the product in it. There are no nodes: a pod is never scheduled, and a test writes the statuses
// that kubelet or a cloud would write.
//
// A package of tests starts one with [Main] and gives every test a namespace of its own.
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

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// patience is for a start, which takes seconds on a machine that is free.
const patience = 5 * time.Minute

// Options of a cluster; none are needed.
type Options struct {
	// Bare leaves the CRDs out. The garbage collector learns of CRDs that come later only after half a minute.
	Bare bool
	// Still leaves the controllers out: nobody acts but who is tested.
	Still bool
}

// Cluster is a control plane that runs. Its processes die with this one.
type Cluster struct {
	Admin Access // may do everything, whatever RBAC says

	root    string // of the repository
	dir     string // of keys, configs, data and logs
	program string // every component in one
	ca      *authority
	server  bed.Command // the API server, to start it again
	url     string
	etcd    *bed.Process
	api     *bed.Process
	manager *bed.Process
	fields  fields
}

// Main runs the tests of a package with *c, says how long that took to start, and returns the exit code for [os.Exit].
func Main(tests interface{ Run() int }, c **Cluster) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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

// Start starts a cluster and returns when it serves every kind and its controllers are at work.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{}
	if err := c.start(ctx, o); err != nil {
		return nil, fmt.Errorf("start cluster: %w", errors.Join(err, c.Stop()))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, o Options) (err error) {
	if c.root, err = bed.Root(); err != nil {
		return err
	}
	control, err := bed.Published(ctx, c.root, "kube")
	if err != nil {
		return err
	}
	c.program = filepath.Join(control, "kube")
	if c.dir, err = os.MkdirTemp("", "cluster-"); err != nil {
		return err
	}
	if err := c.startServer(ctx); err != nil {
		return err
	}
	// Before the controllers: they look for kinds when they start, and then seldom.
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

// Stop ends the cluster and removes its files. A component that has ended by itself is an error.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range []*bed.Process{c.manager, c.api, c.etcd} {
		if p == nil {
			continue
		}
		select {
		case <-p.Done():
			errs = append(errs, fmt.Errorf("%s has ended by itself: %v\n%s", p.Name, p.Err(), strings.Join(p.Tail(10), "\n")))
		default:
			errs = append(errs, p.Kill()) // nobody will read its data again
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// Kubectl runs kubectl as Admin, and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := c.Command(ctx, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Command is kubectl as the administrator, for who wants to start it himself.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.program, append([]string{"kubectl", "--kubeconfig", c.Admin.Kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // its caches
	return cmd
}
