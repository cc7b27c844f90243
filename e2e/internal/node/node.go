// Package node runs a Kubernetes cluster of one node for tests: the released programs, a container engine, pods, Services with addresses that
// clients reach, and DNS. All of it is in namespaces of its own and ends with the one process that holds them.
//
// The test is in a network of its own too, beyond the node, where the clients of a cluster are. It reaches the API server and the addresses
// of Services, and nothing else.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// patience is for a start, which takes seconds on a machine that is free.
const patience = 5 * time.Minute

// Images is what the names of images begin with; those that are for tests have the tag e2e.
const Images = "ghcr.io/stunner-gateway"

// Node is a cluster of one node that runs.
type Node struct {
	Admin  *rest.Config // may do everything, whatever RBAC says
	Client kubernetes.Interface

	root    string // of the repository
	dir     string // of keys, configs, data and logs
	control string // folder of the programs of the control plane
	others  string // folder of the others
	pid     int    // of the process that holds the namespaces
	holder  *bed.Process
	api     *bed.Process
	engine  *bed.Process
	stop    context.CancelFunc // of what this process does for the cluster
}

// steps of a start, in this order.
var steps = []struct {
	name string
	do   func(*Node, context.Context) error
}{
	{"programs", (*Node).find},
	{"namespaces", (*Node).unshare},
	{"certificates", (*Node).certify},
	{"control plane", (*Node).startControl},
	{"container engine", (*Node).startEngine},
	{"images", (*Node).load},
	{"node", (*Node).startNode},
	{"addresses of Services", (*Node).startBalancer},
	{"DNS", (*Node).startDNS},
}

// Start starts a cluster and returns when pods can run, find each other by name, and be reached. It says what it does and how long that took.
func Start(ctx context.Context, say func(step string, took time.Duration)) (*Node, error) {
	n := &Node{}
	for _, s := range steps {
		begun := time.Now()
		if err := s.do(n, ctx); err != nil {
			return nil, fmt.Errorf("start %s: %w", s.name, errors.Join(err, n.Stop()))
		}
		say(s.name, time.Since(begun))
	}
	return n, nil
}

// Stop ends the cluster and everything that runs in it, and removes its files.
func (n *Node) Stop() error {
	if n.stop != nil {
		n.stop()
	}
	var errs []error
	if n.holder != nil {
		errs = append(errs, n.holder.Kill()) // the kernel ends a process namespace with its first process
		errs = append(errs, removeGroups())
	}
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}

func (n *Node) file(name string) string { return filepath.Join(n.dir, name) }

// find finds what make has built.
func (n *Node) find(ctx context.Context) (err error) {
	if n.root, err = bed.Root(); err != nil {
		return err
	}
	for program, folder := range map[string]*string{"kube": &n.control, "node": &n.others} {
		out, err := exec.CommandContext(ctx, filepath.Join(n.root, ".ci/kube/build"), "-n", program).Output()
		if err != nil {
			return fmt.Errorf("find Kubernetes: %w", err)
		}
		*folder = strings.TrimSpace(string(out))
		if _, err := os.Stat(*folder); err != nil {
			return fmt.Errorf("find Kubernetes: %w: run `make %s`", err, program)
		}
	}
	if n.dir, err = os.MkdirTemp("", "node-"); err != nil {
		return err
	}
	return n.writeConfigs()
}

// in is a command in the namespaces of the node.
func (n *Node) in(name, program string, args ...string) bed.Command {
	enter := []string{"--target", fmt.Sprint(n.pid), "--mount", "--net", "--pid", "--uts", "--ipc", "--", program}
	return bed.Command{
		Name: name, Path: "nsenter", Args: append(enter, args...), Dir: n.dir, Logs: n.dir, Death: syscall.SIGKILL,
		Env: []string{"PATH=" + n.control + ":" + n.others + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + n.dir},
	}
}

// run runs a command in the node to its end.
func (n *Node) run(ctx context.Context, program string, args ...string) error {
	p, err := bed.Start(n.in(filepath.Base(program), program, args...))
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return logged(p, p.Err())
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.Kill())
	}
}

// Kubectl runs kubectl with every right, and returns what it prints.
func (n *Node) Kubectl(ctx context.Context, args ...string) (string, error) {
	return n.Apply(ctx, "", args...)
}

// Apply runs kubectl as Kubectl does, with something to read.
func (n *Node) Apply(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(n.control, "kubectl"), append([]string{"--kubeconfig", n.file("super-admin.conf")}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+n.dir) // its caches
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// logged adds to an error what the process has logged last.
func logged(p *bed.Process, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nlast of %s:\n%s", err, p.Name, strings.Join(p.Tail(20), "\n"))
}

// Tag gives an image that the node has another name.
func (n *Node) Tag(ctx context.Context, image, name string) error {
	return n.run(ctx, "ctr", n.ctr("images", "tag", image, name)...)
}
