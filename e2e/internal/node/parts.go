package node

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// Addresses, all of ranges that no network outside has: RFC 2544 §C.2.2 and RFC 1918.
const (
	nodeAddress   = "198.18.0.1"
	clientAddress = "198.18.0.2" // ours
	serviceRange  = "10.96.0.0/16"
	dnsAddress    = "10.96.0.10"
	podRange      = "10.244.0.0/24"
)

const nodeName = "node"

//go:embed config
var configs embed.FS

// writeConfigs writes what the components read.
func (n *Node) writeConfigs() error {
	version, err := os.ReadFile(filepath.Join(n.root, ".ci/kube/go.mod"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(version), "k8s.io/kubernetes ")
	release, _, _ := strings.Cut(rest, "\n")
	values := map[string]string{
		"Version": release, "Dir": n.dir, "Group": group, "Images": Images, "Name": nodeName,
		"Node": nodeAddress, "Client": clientAddress, "Services": serviceRange, "Pods": podRange, "DNS": dnsAddress,
	}
	all, err := template.ParseFS(configs, "config/*")
	if err != nil {
		return err
	}
	if err := os.Mkdir(n.file("cni"), 0o700); err != nil {
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
		if err := os.WriteFile(n.file(name), out.Bytes(), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(n.file("resolv.conf"), nil, 0o600) // nobody outside is asked for names
}

func (n *Node) certify(ctx context.Context) error {
	config := "--config=" + n.file("kubeadm.yaml")
	if err := n.run(ctx, "kubeadm", "init", "phase", "certs", "all", config); err != nil {
		return err
	}
	return n.run(ctx, "kubeadm", "init", "phase", "kubeconfig", "all", config, "--kubeconfig-dir="+n.dir)
}

// start starts a component in the node. It ends with the node.
func (n *Node) start(name string, args ...string) (*bed.Process, error) {
	return bed.Start(n.in(name, name, args...))
}

// startControl starts etcd, API server, controllers and scheduler.
func (n *Node) startControl(ctx context.Context) (err error) {
	const store = "http://127.0.0.1:2379"
	if _, err := n.start("etcd", "--data-dir="+n.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+store, "--advertise-client-urls="+store, "--listen-peer-urls=http://127.0.0.1:2380"); err != nil {
		return err
	}
	pki := func(name string) string { return filepath.Join(n.dir, "pki", name) }
	n.api, err = n.start("kube-apiserver",
		"--etcd-servers="+store, "--advertise-address="+nodeAddress, "--secure-port=6443",
		"--service-cluster-ip-range="+serviceRange, "--allow-privileged",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--client-ca-file="+pki("ca.crt"), "--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"),
		"--kubelet-client-certificate="+pki("apiserver-kubelet-client.crt"), "--kubelet-client-key="+pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+pki("sa.pub"), "--service-account-signing-key-file="+pki("sa.key"),
		// Who may extend the API: metrics servers, autoscalers.
		"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+pki("front-proxy-client.crt"), "--proxy-client-key-file="+pki("front-proxy-client.key"),
	)
	if err != nil {
		return err
	}
	if n.Admin, err = clientcmd.BuildConfigFromFlags("", n.file("super-admin.conf")); err != nil {
		return err
	}
	n.Admin.QPS = -1 // a test waits for nobody but the server
	if n.Client, err = kubernetes.NewForConfig(n.Admin); err != nil {
		return err
	}
	err = n.api.Until(ctx, func(ctx context.Context) error {
		return n.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return logged(n.api, err)
	}
	if _, err := n.start("kube-scheduler", "--kubeconfig="+n.file("scheduler.conf"), "--leader-elect=false"); err != nil {
		return err
	}
	config := n.file("controller-manager.conf")
	_, err = n.start("kube-controller-manager",
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--kube-api-qps=200", "--kube-api-burst=400", "--leader-elect=false", "--use-service-account-credentials",
		"--root-ca-file="+pki("ca.crt"), "--service-account-private-key-file="+pki("sa.key"),
		"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"),
		"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"),
	)
	return err
}

func (n *Node) ctr(args ...string) []string {
	return append([]string{"--address", n.file("containerd.sock"), "--namespace", "k8s.io"}, args...)
}

func (n *Node) startEngine(ctx context.Context) (err error) {
	if n.engine, err = n.start("containerd", "--config="+n.file("containerd.toml")); err != nil {
		return err
	}
	return logged(n.engine, n.engine.Until(ctx, func(ctx context.Context) error { return n.run(ctx, "ctr", n.ctr("version")...) }))
}

// load gives the container engine every image that was packed.
func (n *Node) load(ctx context.Context) error {
	archives, err := filepath.Glob(filepath.Join(n.root, "bin/images/*.tar"))
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return errors.New("load images: none in bin/images: run `make e2e`, which packs them")
	}
	for _, a := range archives {
		if err := n.run(ctx, "ctr", n.ctr("images", "import", a)...); err != nil {
			return err
		}
	}
	return nil
}

// startNode starts kubelet and kube-proxy, and waits until the node takes pods.
func (n *Node) startNode(ctx context.Context) error {
	kubelet, err := n.start("kubelet", "--config="+n.file("kubelet.yaml"), "--kubeconfig="+n.file("kubelet.conf"),
		"--root-dir="+n.file("kubelet"), "--hostname-override="+nodeName, "--node-ip="+nodeAddress)
	if err != nil {
		return err
	}
	if _, err := n.start("kube-proxy", "--config="+n.file("kube-proxy.yaml")); err != nil {
		return err
	}
	for _, condition := range []string{"create", "condition=Ready"} {
		if _, err := n.Kubectl(ctx, "wait", "--for="+condition, "--timeout="+patience.String(), "node/"+nodeName); err != nil {
			return logged(kubelet, err)
		}
	}
	return nil
}

func (n *Node) startDNS(ctx context.Context) error {
	if _, err := n.Kubectl(ctx, "create", "-f", n.file("dns.yaml")); err != nil {
		return err
	}
	_, err := n.Kubectl(ctx, "wait", "--for=condition=Available", "--timeout="+patience.String(), "--namespace=kube-system", "deployment/dns")
	return err
}
