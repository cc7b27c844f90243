package node

import (
	"context"
	"embed"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Addresses from ranges that are not routed on the internet: RFC 2544 §C.2.2 and RFC 1918.
const (
	clientAddress = "198.18.0.2"  // address of the test process
	nodeAddress   = "198.18.0.%d" // the last byte starts at firstNode
	firstNode     = 11
	serviceRange  = "10.96.0.0/16"
	dnsAddress    = "10.96.0.10"
	podRange      = "10.244.0.0/16"
	nodePods      = "10.244.%d.0/24"
)

// nodeName is the name of the first node.
const nodeName = "node"

//go:embed config
var configs embed.FS

func (c *Cluster) certify(ctx context.Context) error {
	config := "--config=" + c.first.file("kubeadm.yaml")
	if err := c.first.run(ctx, "kubeadm", "init", "phase", "certs", "all", config); err != nil {
		return err
	}
	return c.first.run(ctx, "kubeadm", "init", "phase", "kubeconfig", "all", config, "--kubeconfig-dir="+c.dir)
}

// startControl starts etcd, API server, controllers and scheduler.
func (c *Cluster) startControl(ctx context.Context) (err error) {
	const store = "http://127.0.0.1:2379"
	if _, err := c.first.start("etcd", "--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+store, "--advertise-client-urls="+store, "--listen-peer-urls=http://127.0.0.1:2380"); err != nil {
		return err
	}
	pki := func(name string) string { return filepath.Join(c.dir, "pki", name) }
	c.api, err = c.first.start("kube-apiserver",
		"--etcd-servers="+store, "--advertise-address="+c.first.address(), "--secure-port=6443",
		"--service-cluster-ip-range="+serviceRange, "--allow-privileged",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--client-ca-file="+pki("ca.crt"), "--tls-cert-file="+pki("apiserver.crt"),
		"--tls-private-key-file="+pki("apiserver.key"),
		"--kubelet-client-certificate="+pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+pki("sa.pub"), "--service-account-signing-key-file="+pki("sa.key"),
		// These flags enable the aggregation layer, for metrics servers and autoscalers.
		"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+pki("front-proxy-client.crt"),
		"--proxy-client-key-file="+pki("front-proxy-client.key"),
	)
	if err != nil {
		return err
	}
	if c.Admin, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	c.Admin.QPS = -1 // no client-side rate limit
	if c.Client, err = kubernetes.NewForConfig(c.Admin); err != nil {
		return err
	}
	err = c.api.Until(ctx, func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return logged(c.api, err)
	}
	// As in kubeadm, the API server gets the right to fetch logs and forward ports through the kubelet.
	admins := "kubeadm:cluster-admins"
	if _, err := c.Kubectl(
		ctx, "create", "clusterrolebinding", admins, "--clusterrole=cluster-admin", "--group="+admins,
	); err != nil {
		return err
	}
	if _, err := c.first.start(
		"kube-scheduler", "--kubeconfig="+c.file("scheduler.conf"), "--leader-elect=false",
	); err != nil {
		return err
	}
	config := c.file("controller-manager.conf")
	_, err = c.first.start("kube-controller-manager",
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--kube-api-qps=200", "--kube-api-burst=400", "--leader-elect=false", "--use-service-account-credentials",
		"--root-ca-file="+pki("ca.crt"), "--service-account-private-key-file="+pki("sa.key"),
		"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"),
		"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"),
	)
	return err
}

func (c *Cluster) startDNS(ctx context.Context) error {
	if _, err := c.Kubectl(ctx, "create", "-f", c.first.file("dns.yaml")); err != nil {
		return err
	}
	_, err := c.Kubectl(
		ctx, "wait", "--for=condition=Available", "--timeout="+timeout.String(), "--namespace=kube-system",
		"deployment/dns",
	)
	return err
}
