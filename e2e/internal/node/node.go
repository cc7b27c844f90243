// Package node runs a Kubernetes cluster for tests: the released programs, a container engine, pods, Services with addresses that clients
// reach, and DNS. It has one node, and further ones when a test wants them. A node is a set of namespaces, and all that is in it ends with the
// one process that holds them.
//
// The test is in a network of its own too, where the clients of a cluster are. It reaches the API server, the nodes and the addresses of
// Services, and nothing else.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// patience is for a start, which takes seconds on a machine that is free.
const patience = 5 * time.Minute

// Images is what the names of images begin with; those that are for tests alone have the tag e2e.
const Images = "ghcr.io/stunner-gateway"

// needed are the images without which nothing runs: of the product, and of what every cluster has.
var needed = []string{"operator", "stunnerd", "auth", "pause", "dns", "echo"}

// Cluster that runs.
type Cluster struct {
	Admin  *rest.Config // may do everything, whatever RBAC says
	Client kubernetes.Interface

	root    string // of the repository
	dir     string // of keys, configs, data and logs
	control string // folder of the programs of the control plane
	others  string // folder of the others

	first  *machine   // runs the control plane too
	nodes  []*machine // all of them, the first included
	made   int        // how many there ever were
	images []string   // archives that every node has
	keda   bool       // is installed

	api  *bed.Process
	stop context.CancelFunc // of what this process does for the cluster
}

// steps of a start, in this order.
var steps = []struct {
	name string
	do   func(*Cluster, context.Context) error
}{
	{"programs", (*Cluster).find},
	{"namespaces", (*Cluster).connect},
	{"certificates", (*Cluster).certify},
	{"control plane", (*Cluster).startControl},
	{"container engine", func(c *Cluster, ctx context.Context) error { return c.first.startEngine(ctx) }},
	{"images", func(c *Cluster, ctx context.Context) error { return c.first.load(ctx, c.images...) }},
	{"node", func(c *Cluster, ctx context.Context) error { return c.first.startNode(ctx) }},
	{"addresses of Services", (*Cluster).startBalancer},
	{"DNS", (*Cluster).startDNS},
}

// Start starts a cluster and returns when pods can run, find each other by name, and be reached. It says what it does and how long that took.
func Start(ctx context.Context, say func(step string, took time.Duration)) (*Cluster, error) {
	c := &Cluster{}
	for _, s := range steps {
		begun := time.Now()
		if err := s.do(c, ctx); err != nil {
			return nil, fmt.Errorf("start %s: %w", s.name, errors.Join(err, c.Stop()))
		}
		say(s.name, time.Since(begun))
	}
	return c, nil
}

// Stop ends the cluster and everything that runs in it.
func (c *Cluster) Stop() error {
	if c.stop != nil {
		c.stop()
	}
	var errs []error
	for _, m := range slices.Backward(c.nodes) {
		errs = append(errs, m.end())
	}
	return errors.Join(errs...)
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// Kubeconfig is a file with every right.
func (c *Cluster) Kubeconfig() string { return c.file("super-admin.conf") }

// find finds what make has built.
func (c *Cluster) find(ctx context.Context) (err error) {
	if c.root, err = bed.Root(); err != nil {
		return err
	}
	for program, folder := range map[string]*string{"kube": &c.control, "node": &c.others} {
		if *folder, err = bed.Published(ctx, c.root, program); err != nil {
			return err
		}
	}
	for _, name := range needed {
		archive := filepath.Join(c.root, "bin/images", name+".tar")
		if _, err := os.Stat(archive); err != nil {
			return fmt.Errorf("find image: %w: run `make e2e`, which packs it", err)
		}
		c.images = append(c.images, archive)
	}
	c.dir = os.Getenv(inside)
	c.first, err = c.machine(nodeName)
	return err
}

// Kubectl runs kubectl with every right, and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.Apply(ctx, "", args...)
}

// Apply runs kubectl as Kubectl does, with something to read.
func (c *Cluster) Apply(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.control, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // its caches
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// ImportCommand is the command with which images of an archive are given to the first node: the path of the archive is its last word.
func (c *Cluster) ImportCommand() []string {
	return append([]string{"ctr"}, c.first.ctr("images", "import")...)
}

// Tag gives an image that the nodes have another name.
func (c *Cluster) Tag(ctx context.Context, image, name string) error {
	for _, m := range c.nodes {
		if err := m.run(ctx, "ctr", m.ctr("images", "tag", "--force", image, name)...); err != nil {
			return err
		}
	}
	return nil
}
