package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// machine is a node: a set of namespaces, and the processes in them.
type machine struct {
	cluster *Cluster
	name    string
	index   int    // the addresses of the node are derived from the index
	dir     string // for configs, data and logs
	pid     int    // PID of the process that holds the namespaces
	holder  *harness.Process
	engine  *harness.Process
	kubelet *harness.Process
}

// machine creates a node without starting it.
func (c *Cluster) machine(name string) (*machine, error) {
	m := &machine{cluster: c, name: name, index: c.made, dir: c.file(name)}
	if err := os.MkdirAll(m.file("cni"), 0o700); err != nil {
		return nil, err
	}
	if err := m.writeConfigs(); err != nil {
		return nil, err
	}
	c.made++
	c.nodes = append(c.nodes, m)
	return m, nil
}

func (m *machine) file(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) address() string { return fmt.Sprintf(nodeAddress, firstNode+m.index) }
func (m *machine) pods() string    { return fmt.Sprintf(nodePods, m.index) }

// writeConfigs renders the config files of the node's components.
func (m *machine) writeConfigs() error {
	version, err := os.ReadFile(filepath.Join(m.cluster.root, ".ci/kube/go.mod"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(version), "k8s.io/kubernetes ")
	release, _, _ := strings.Cut(rest, "\n")
	values := map[string]string{
		"Version": release, "Cluster": m.cluster.dir, "Dir": m.dir, "Group": m.group(), "Images": Images,
		"Name": m.name,
		"Node": m.address(), "Pods": m.pods(), "Control": fmt.Sprintf(nodeAddress, firstNode),
		"Client": clientAddress, "Services": serviceRange, "AllPods": podRange, "DNS": dnsAddress,
	}
	all, err := template.ParseFS(configs, "config/*.*")
	if err != nil {
		return err
	}
	for _, t := range all.Templates() {
		var out bytes.Buffer
		if err := t.Execute(&out, values); err != nil {
			return err
		}
		name := t.Name()
		if filepath.Ext(name) == ".conflist" {
			name = "cni/" + name
		}
		if err := os.WriteFile(m.file(name), out.Bytes(), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(m.file("resolv.conf"), nil, 0o600) // no upstream DNS
}

// in returns a command in the namespaces of the node.
func (m *machine) in(name, program string, args ...string) harness.Command {
	enter := []string{"--target", fmt.Sprint(m.pid), "--mount", "--net", "--pid", "--uts", "--ipc", "--", program}
	return harness.Command{
		Name: name, Path: "nsenter", Args: append(enter, args...), Dir: m.dir, Logs: m.dir, Death: syscall.SIGKILL,
		Env: []string{
			"PATH=" + m.cluster.control + ":" + m.cluster.others + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + m.dir,
		},
	}
}

// start starts a component in the node. The component ends with the node.
func (m *machine) start(name string, args ...string) (*harness.Process, error) {
	return harness.Start(m.in(name, name, args...))
}

// run runs a command in the node and waits for its end.
func (m *machine) run(ctx context.Context, program string, args ...string) error {
	p, err := harness.Start(m.in(filepath.Base(program), program, args...))
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

// logged adds the last log lines of a process to an error.
func logged(p *harness.Process, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nlast of %s:\n%s", err, p.Name, strings.Join(p.Tail(20), "\n"))
}

func (m *machine) ctr(args ...string) []string {
	return append([]string{"--address", m.file("containerd.sock"), "--namespace", "k8s.io"}, args...)
}

func (m *machine) startEngine(ctx context.Context) (err error) {
	if m.engine, err = m.start("containerd", "--config="+m.file("containerd.toml")); err != nil {
		return err
	}
	return logged(
		m.engine,
		m.engine.Until(ctx, func(ctx context.Context) error { return m.run(ctx, "ctr", m.ctr("version")...) }),
	)
}

// load imports image archives into the container engine.
func (m *machine) load(ctx context.Context, archives ...string) error {
	for _, a := range archives {
		if err := m.run(ctx, "ctr", m.ctr("images", "import", a)...); err != nil {
			return err
		}
	}
	return nil
}

// startNode starts kubelet and kube-proxy, and waits until the node is Ready.
func (m *machine) startNode(ctx context.Context) error {
	c := m.cluster
	err := c.first.run(
		ctx, "kubeadm", "init", "phase", "kubeconfig", "kubelet", "--config="+m.file("kubeadm.yaml"),
		"--kubeconfig-dir="+m.dir,
	)
	if err != nil {
		return err
	}
	if err := m.startKubelet(); err != nil {
		return err
	}
	if _, err := m.start("kube-proxy", "--config="+m.file("kube-proxy.yaml")); err != nil {
		return err
	}
	for _, condition := range []string{"create", "condition=Ready"} {
		if _, err := c.Kubectl(
			ctx, "wait", "--for="+condition, "--timeout="+timeout.String(), "node/"+m.name,
		); err != nil {
			return logged(m.kubelet, err)
		}
	}
	return nil
}

func (m *machine) startKubelet() (err error) {
	m.kubelet, err = m.start("kubelet", "--config="+m.file("kubelet.yaml"), "--kubeconfig="+m.file("kubelet.conf"),
		"--root-dir="+m.file("kubelet"), "--hostname-override="+m.name, "--node-ip="+m.address())
	return err
}

// end kills the node's first process. The kernel then kills all processes of the PID namespace.
func (m *machine) end() error {
	if m.holder == nil {
		return nil
	}
	return m.holder.Kill()
}
