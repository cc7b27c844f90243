// Package node runs a Kubernetes cluster for tests: the released programs, a container engine, pods, LoadBalancer
// Services that clients can reach, and DNS. It has one node, and a test can add more. A node is a set of namespaces.
// Its first process holds them, and all processes of the node end with it.
//
// The test itself runs in the network namespace of the clients. From there it can reach only the API server, the nodes
// and the addresses of Services.
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

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// timeout limits a start. On an idle machine a start takes seconds.
const timeout = 5 * time.Minute

// Images is the registry prefix of images. Images for tests only have the tag e2e.
const Images = "ghcr.io/stunner-gateway"

// needed are the images that every test cluster needs.
var needed = []string{"operator", "stunnerd", "auth", "pause", "dns", "echo"}

// Cluster is a running cluster.
type Cluster struct {
	Admin  *rest.Config // credentials that RBAC does not restrict
	Client kubernetes.Interface

	root    string // root of the repository
	dir     string // of keys, configs, data and logs
	control string // folder with the control plane's programs
	others  string // folder with the other programs

	first  *machine   // also runs the control plane
	nodes  []*machine // including the first
	made   int        // number of nodes ever created
	images []string   // archives that were imported into every node
	keda   bool       // KEDA is installed

	api  *harness.Process
	stop context.CancelFunc // stops the informers of this process
}

// steps are the steps of the start, in order.
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

// Start starts a cluster. It returns when pods run, resolve each other's names and are reachable. It calls say after
// each step.
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

// Stop ends the cluster and all its processes.
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

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.file("super-admin.conf") }

// find locates the programs and images that make has built.
func (c *Cluster) find(ctx context.Context) (err error) {
	if c.root, err = harness.Root(); err != nil {
		return err
	}
	for program, folder := range map[string]*string{"kube": &c.control, "node": &c.others} {
		if *folder, err = harness.Published(ctx, c.root, program); err != nil {
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

// Kubectl runs kubectl as the administrator and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.Apply(ctx, "", args...)
}

// Apply runs kubectl with the given input on stdin.
func (c *Cluster) Apply(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(
		ctx, filepath.Join(c.control, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...,
	)
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // folder of kubectl's caches
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// ImportCommand returns the command that imports an image archive into the first node. The path of the archive must be
// appended.
func (c *Cluster) ImportCommand() []string {
	return append([]string{"ctr"}, c.first.ctr("images", "import")...)
}

// Tag adds a name to an image on every node.
func (c *Cluster) Tag(ctx context.Context, image, name string) error {
	for _, m := range c.nodes {
		if err := m.run(ctx, "ctr", m.ctr("images", "tag", "--force", image, name)...); err != nil {
			return err
		}
	}
	return nil
}
