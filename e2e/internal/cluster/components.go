package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// issuer is the issuer of ServiceAccount tokens, as kubeadm sets it. It is also the default audience of tokens.
const issuer = "https://kubernetes.default.svc.cluster.local"

// controllers are the controllers that have an effect without nodes and running pods.
var controllers = []string{
	"clusterrole-aggregation-controller",
	"daemonset-controller",
	"deployment-controller",
	"endpoints-controller",
	"endpointslice-controller",
	"endpointslice-mirroring-controller",
	"garbage-collector-controller",
	"namespace-controller",
	"replicaset-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"validatingadmissionpolicy-status-controller",
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) command(component string, args ...string) harness.Command {
	return harness.Command{
		Name: component, Path: c.program, Args: append([]string{component}, args...), Dir: c.dir, Logs: c.dir,
		Death: syscall.SIGKILL, // a paused API server would not handle SIGTERM until SIGCONT
	}
}

// startServer starts etcd and the API server.
func (c *Cluster) startServer(ctx context.Context, roomy bool) (err error) {
	var quota, ports []string
	if roomy {
		quota = []string{"--quota-backend-bytes=8589934592"}
		ports = []string{"--service-node-port-range=5000-65000"}
	}
	store, err := freeAddress()
	if err != nil {
		return err
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	c.url = "https://" + address
	if err := c.writeFiles(); err != nil {
		return err
	}
	if c.Admin, err = c.User("admin", "system:masters"); err != nil {
		return err
	}
	c.Admin.Config.QPS = -1 // no client-side rate limit

	c.etcd, err = harness.Start(c.command("etcd", append(quota, "--data-dir="+c.file("etcd"), "--unsafe-no-fsync",
		"--log-level=warn", "--listen-client-urls=http://"+store, "--advertise-client-urls=http://"+store,
		"--listen-peer-urls=http://"+harness.Loopback+":0")...))
	if err != nil {
		return err
	}
	if err := c.etcd.Until(ctx, harness.Answers("http://"+store+"/health", http.StatusOK)); err != nil {
		return logged(c.etcd, err)
	}
	host, port, _ := strings.Cut(address, ":")
	c.api, err = harness.Start(c.command("kube-apiserver", append(ports,
		"--etcd-servers=http://"+store,
		"--bind-address="+host, "--advertise-address="+host, "--secure-port="+port,
		"--endpoint-reconciler-type=none", // Endpoints must not contain loopback addresses
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		"--allow-privileged",
		"--authorization-mode=RBAC",
		"--client-ca-file="+c.file("ca.crt"), "--tls-cert-file="+c.file("server.crt"),
		"--tls-private-key-file="+c.file("server.key"),
		"--service-account-issuer="+issuer,
		"--service-account-key-file="+c.file("accounts.key"),
		"--service-account-signing-key-file="+c.file("accounts.key"),
		"--audit-policy-file="+c.file("audit.yaml"), "--audit-log-path="+c.file("audit.log"),
		"--audit-log-mode=blocking", "--audit-log-maxsize=100000", // in MB: the log is not rotated
	)...))
	if err != nil {
		return err
	}
	return c.awaitServer(ctx)
}

func freeAddress() (string, error) {
	port, err := harness.FreePort()
	return net.JoinHostPort(harness.Loopback, strconv.Itoa(port)), err
}

// writeFiles writes the keys, certificates and config files of the components.
func (c *Cluster) writeFiles() (err error) {
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	chain, key, err := c.ca.server()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": c.ca.chain, "accounts.key": c.ca.accounts, "server.crt": chain, "server.key": key,
		"audit.yaml": []byte(auditPolicy),
	} {
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// startManager starts the controllers and waits for the first object that they create.
func (c *Cluster) startManager(ctx context.Context) error {
	manager, err := c.User("system:kube-controller-manager")
	if err != nil {
		return err
	}
	c.manager, err = harness.Start(c.command("kube-controller-manager",
		"--kubeconfig="+manager.Kubeconfig, "--kube-api-qps=200", "--kube-api-burst=400",
		"--leader-elect=false",
		"--secure-port=0",
		"--controllers="+strings.Join(controllers, ","),
		"--use-service-account-credentials", // one ServiceAccount per controller, as in a real cluster
		"--root-ca-file="+c.file("ca.crt"), "--service-account-private-key-file="+c.file("accounts.key"),
	))
	if err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "wait", "--for=create", "--timeout="+timeout.String(), "serviceaccount/default")
	return logged(c.manager, err)
}

// awaitServer waits until the API server is ready.
func (c *Cluster) awaitServer(ctx context.Context) error {
	client, err := rest.HTTPClientFor(c.Admin.Config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	err = c.api.Until(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/readyz", nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("the API server is not ready: status %d", res.StatusCode)
		}
		return nil
	})
	return logged(c.api, err)
}

// Pause stops the API server with SIGSTOP. Connections stay open, the kernel accepts more, and no request is answered
// until Resume.
func (c *Cluster) Pause() error { return c.api.Signal(syscall.SIGSTOP) }

// Server returns the process of the API server.
func (c *Cluster) Server() *harness.Process { return c.api }

// Resume continues a paused API server.
func (c *Cluster) Resume() error { return c.api.Signal(syscall.SIGCONT) }

// logged adds the last log lines of a process to an error.
func logged(p *harness.Process, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nlast of %s:\n%s", err, p.Name, strings.Join(p.Tail(20), "\n"))
}
