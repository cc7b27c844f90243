package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/kubelet"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// gatewayLabel is the label of dataplane pods with the name of their Gateway.
const gatewayLabel = "stunner.l7mp.io/related-gateway-name"

// Default ports of the endpoints of a dataplane pod.
const (
	healthPort  = 8086
	metricsPort = 8080
)

// audience is the audience of tokens for config discovery.
const audience = "stunner-discovery"

// inCluster is the product with the objects of an API server. The pods of operator and auth service are in the network
// of this process. The pods of Gateways have networks of their own.
type inCluster struct {
	*Env
	client   *kubernetes.Clientset
	kubelet  *kubelet.Kubelet
	services *services
	ports    struct{ discovery, health int } // ports of the operator
	updates  int                             // number of updates of the dataplanes

	mu       sync.Mutex
	failures []error
	networks map[netip.Addr]*topology.Pod // by the first address of the pod
}

func newCluster(e *Env) *inCluster {
	return &inCluster{Env: e, networks: map[netip.Addr]*topology.Pod{}}
}

func (e *Env) namespaces() (list []string) {
	list = append(list, e.Gateways[0].Namespace)
	if e.Shape[Gateways] == TwoOwners {
		list = append(list, e.Gateways[1].Namespace)
	}
	return list
}

func (c *inCluster) prepare(ctx context.Context) (err error) {
	if c.client, err = kubernetes.NewForConfig(c.Cluster.Admin.Config); err != nil {
		return err
	}
	for _, port := range []*int{&c.ports.discovery, &c.ports.health} {
		if *port, err = harness.FreePort(); err != nil {
			return err
		}
	}
	for _, namespace := range append(c.namespaces(), c.system) {
		text := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)
		if err := c.Cluster.Apply(ctx, "", text); err != nil {
			return err
		}
	}
	if err := c.permit(ctx); err != nil {
		return err
	}
	names := make([]string, 0, len(c.Net.Nodes))
	for _, n := range c.Net.Nodes {
		names = append(names, n.Name)
		if err := c.addNode(ctx, n); err != nil {
			return err
		}
	}
	c.kubelet = kubelet.Start(kubelet.Options{
		Client: c.client, Namespaces: append(c.namespaces(), c.system), Nodes: names, Dir: filepath.Join(c.Dir, "pods"),
		Sandbox: c.sandbox, Failed: c.fail,
		Program: func(image string) string {
			name, _, _ := strings.Cut(image, ":")
			return c.program(filepath.Base(name))
		},
	})
	c.services = startServices(c)
	return nil
}

// fail records an error of a background task. Close returns it.
func (c *inCluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err)
	c.Logf("%v", err)
}

// account is the ServiceAccount of the operator, and the name of its roles.
func (c *inCluster) account() string { return fmt.Sprintf("stunner-operator-%d", c.Number) }

// permit grants the operator the rights of an installation, under names of its own.
func (c *inCluster) permit(ctx context.Context) error {
	own := strings.NewReplacer(
		"stunner-system", c.system, "name: stunner-operator", "name: "+c.account(),
		"policyName: stunner-operator", "policyName: "+c.account(), ":stunner-operator", ":"+c.account(),
	)
	// Shapes with the host network or an offload engine need these settings of the admission policy.
	allow := strings.NewReplacer(
		"- name: hostNetwork\n      expression: \"false\"", "- name: hostNetwork\n      expression: \"true\"",
		"- name: offload\n      expression: \"false\"", "- name: offload\n      expression: \"true\"",
	)
	for _, file := range []string{"rbac.yaml", "inspection.yaml", "policy.yaml"} {
		text, err := os.ReadFile(filepath.Join(c.root, "kustomize/base", file))
		if err != nil {
			return err
		}
		if err := c.Cluster.Apply(ctx, c.system, allow.Replace(own.Replace(string(text)))); err != nil {
			return err
		}
	}
	// The auth service has an account that stores revocations. stunnerctl has an account without restrictions.
	text := fmt.Sprintf(`
{apiVersion: v1, kind: ServiceAccount, metadata: {name: stunner-auth, namespace: %[1]s}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: admin, namespace: %[1]s}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: admin, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s-revocations}
rules: [{apiGroups: [stunner.l7mp.io], resources: [revocations], verbs: [list, create, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-revocations}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s-revocations}
subjects: [{kind: ServiceAccount, name: stunner-auth, namespace: %[1]s}]
`, c.system)
	if err := c.Cluster.Apply(ctx, c.system, text); err != nil {
		return err
	}
	// The authorizer receives Roles, ClusterRoles and their bindings by separate watches, so the rights take effect one by
	// one.
	return c.Await(ctx, "rights of the operator", func(ctx context.Context) error {
		return errors.Join(c.may(ctx, "create", "leases", c.system), c.may(ctx, "list", "gateways.gateway.networking.k8s.io", ""))
	})
}

// may returns nil if the operator has the given right.
func (c *inCluster) may(ctx context.Context, verb, resource, namespace string) error {
	user := "system:serviceaccount:" + c.system + ":" + c.account()
	allowed, err := c.Cluster.May(ctx, user, verb, resource, namespace)
	if err == nil && !allowed {
		err = fmt.Errorf("it may not %s %s", verb, resource)
	}
	return err
}

// addNode creates the Node of a node, with addresses of both families. Gateways of other environments see all nodes of
// the API server, and may need the other family.
func (c *inCluster) addNode(ctx context.Context, n *topology.Node) error {
	node, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, a := range n.Internal {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	for _, a := range n.External {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a.String()})
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// sandbox returns the network of a new pod.
func (c *inCluster) sandbox(namespace, node string, hostNetwork bool) (kubelet.Sandbox, error) {
	for _, n := range c.Net.Nodes {
		if n.Name != node {
			continue
		}
		host := c.families(n.Internal)
		if namespace == c.system {
			return kubelet.Sandbox{Do: c.host, Addrs: c.families(c.Net.Home), Host: host[0]}, nil
		}
		if hostNetwork {
			return kubelet.Sandbox{Do: n.Do, Addrs: host, Host: host[0]}, nil
		}
		pod, err := n.AddPod()
		if err != nil {
			return kubelet.Sandbox{}, err
		}
		c.mu.Lock()
		c.networks[c.families(pod.Addrs)[0]] = pod
		c.mu.Unlock()
		return kubelet.Sandbox{Do: pod.Do, Addrs: c.families(pod.Addrs), Host: host[0]}, nil
	}
	return kubelet.Sandbox{}, fmt.Errorf("no node %s", node)
}

// network returns the network of the pod with an address. It is nil if the pod uses the network of its node.
func (c *inCluster) network(a netip.Addr) *topology.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.networks[a]
}

// home returns the address at which operator and auth service listen.
func (c *inCluster) home(port int) string {
	return net.JoinHostPort(c.families(c.Net.Home)[0].String(), strconv.Itoa(port))
}

// deploymentYAML returns a Deployment of one pod of the product, with a token for config discovery and files of a
// ConfigMap.
func (c *inCluster) deploymentYAML(name, account string, health int, arguments []string, more string) string {
	quoted := make([]string, len(arguments))
	for i, a := range arguments {
		quoted[i] = strconv.Quote(a)
	}
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[1]s}}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      serviceAccountName: %[3]s
      containers:
      - name: %[1]s
        image: %[4]s
        args: [%[5]s]
        readinessProbe: {httpGet: {path: /ready, port: %[6]d}}
        volumeMounts: [{name: discovery, mountPath: /var/run/stunner}]
      volumes:
      - name: discovery
        projected: {sources: [{serviceAccountToken: {audience: %[7]s, path: token}}%[8]s]}
`, name, c.system, account, strings.TrimPrefix(name, "stunner-")+":1", strings.Join(quoted, ", "), health, audience, more)
}

// Names of the Deployments.
const (
	operatorName = "stunner-operator"
	authName     = "stunner-auth"
)

func (c *inCluster) startOperator(ctx context.Context) error {
	access, err := c.Cluster.User("system:serviceaccount:"+c.system+":"+c.account(),
		"system:serviceaccounts", "system:serviceaccounts:"+c.system)
	if err != nil {
		return err
	}
	text := c.deploymentYAML(operatorName, c.account(), c.ports.health, append([]string{
		"--provider=kubernetes", "--kubeconfig=" + access.Kubeconfig, "--namespace=" + c.system, "--identity=operator",
		"--controller-name=" + c.controller, "--own-gateway-configs=restricted", "--discovery-auth=strict",
		"--discovery-readers=" + c.system + "/" + c.account() + "," + c.system + "/" + authName,
		fmt.Sprintf("--discovery-address=:%d", c.ports.discovery), "--discovery-url=https://" + c.home(c.ports.discovery),
		"--address=" + c.address().String(), "--discovery-token-file=/var/run/stunner/token", "--scaler-address=",
		"--health-address=" + c.home(c.ports.health), "--log=all:DEBUG", "--image=" + image(0),
	}, c.OperatorArguments...), "")
	text += fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: stunner-config-discovery, namespace: %s, labels: {stunner.l7mp.io/config-discovery-service: "true"}}
spec: {%s, selector: {app: %s}, ports: [{name: cds, port: 13478, targetPort: %d}]}
`, c.system, c.ipFamilies(), operatorName, c.ports.discovery)
	if err := c.apply(ctx, c.system, text); err != nil {
		return err
	}
	return c.awaitProgram(ctx, operatorName, c.home(c.ports.health), nil)
}

func (c *inCluster) startAuth(ctx context.Context, a *authService) error {
	_, port, err := net.SplitHostPort(a.health)
	if err != nil {
		return err
	}
	health, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	token, err := c.token(ctx, authName)
	if err != nil {
		return err
	}
	ca := filepath.Join(c.Dir, "api-server.crt")
	if err := os.WriteFile(ca, c.Cluster.Admin.Config.CAData, 0o600); err != nil {
		return err
	}
	arguments := append([]string{
		"--config=https://" + c.home(c.ports.discovery), "--discovery-token-file=/var/run/stunner/token",
		"--discovery-ca-file=/var/run/stunner/ca.crt", "--revocations=" + c.Cluster.Admin.Config.Host,
		"--revocations-token-file=" + token, "--revocations-ca-file=" + ca,
	}, append(slices.Clip(a.arguments), c.AuthArguments...)...)
	const discoveryCA = ", {configMap: {name: stunner-discovery-ca, items: [{key: ca.crt, path: ca.crt}]}}"
	if err := c.apply(ctx, c.system, c.deploymentYAML(authName, authName, health, arguments, discoveryCA)); err != nil {
		return err
	}
	return c.awaitProgram(ctx, authName, a.health, nil)
}

// awaitProgram waits until the pod of a Deployment runs another process than the given one, and is ready.
func (c *inCluster) awaitProgram(ctx context.Context, name, health string, before *harness.Process) error {
	return c.Await(ctx, "start of "+name, func(ctx context.Context) error {
		pods := c.kubelet.Pods(c.system, "app", name)
		if len(pods) != 1 || pods[0].Process() == nil || pods[0].Process() == before {
			return errors.New("it does not run")
		}
		return pods[0].Process().Until(ctx, harness.Answers("http://"+health+"/ready", http.StatusOK))
	})
}

func (c *inCluster) restart(ctx context.Context, operator, auth bool) error {
	programs := map[string]string{}
	if operator {
		programs[operatorName] = c.home(c.ports.health)
	}
	if auth {
		programs[authName] = c.auth.health
	}
	before := map[string]*harness.Process{}
	for name := range programs {
		pods := c.kubelet.Pods(c.system, "app", name)
		if len(pods) != 1 {
			return fmt.Errorf("restart %s: it has %d pods", name, len(pods))
		}
		before[name] = pods[0].Process()
		if err := pods[0].Crash(); err != nil {
			return err
		}
	}
	for name, health := range programs {
		if err := c.awaitProgram(ctx, name, health, before[name]); err != nil {
			return err
		}
	}
	return nil
}

// token writes a token of an account in the namespace of the operator, and returns the file.
func (c *inCluster) token(ctx context.Context, account string, audiences ...string) (file string, err error) {
	seconds := int64(24 * 60 * 60)
	answer, err := c.client.CoreV1().ServiceAccounts(c.system).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of %s: %w", account, err)
	}
	file = filepath.Join(c.Dir, account+".token")
	return file, os.WriteFile(file, []byte(answer.Status.Token), 0o600)
}

// caFile writes the CA of config discovery, when the operator has made it, and returns the file.
func (c *inCluster) caFile(ctx context.Context) (file string, err error) {
	file = filepath.Join(c.Dir, "discovery-ca.crt")
	err = c.Await(ctx, "CA of config discovery", func(ctx context.Context) error {
		m, err := c.client.CoreV1().ConfigMaps(c.system).Get(ctx, "stunner-discovery-ca", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return os.WriteFile(file, []byte(m.Data["ca.crt"]), 0o600)
	})
	return file, err
}

func (c *inCluster) apply(ctx context.Context, namespace, text string) error {
	return c.Cluster.Apply(ctx, namespace, text)
}

func (c *inCluster) remove(ctx context.Context, namespace, object string) error {
	return c.Cluster.Delete(ctx, namespace, object)
}

func (c *inCluster) status(ctx context.Context, namespace, object string) (string, error) {
	return c.Cluster.Field(ctx, namespace, object, ".status")
}

func (c *inCluster) dataplanes(g *Gateway) (list []Dataplane, err error) {
	for _, p := range c.kubelet.Pods(g.Namespace, gatewayLabel, g.Name) {
		if p.Terminating() || p.Process() == nil {
			continue
		}
		health, metrics := g.endpointPorts()
		base := "http://" + net.JoinHostPort(p.Addrs()[0].String(), "") // an empty port leaves the colon at the end
		list = append(list, Dataplane{
			Name: p.Name(), ID: p.Name(), Admin: base + strconv.Itoa(health), Metrics: base + strconv.Itoa(metrics) + "/metrics",
			Addrs: p.Addrs(), Crash: p.Crash, Signal: p.Signal, Done: p.Process().Done(), Net: c.network(p.Addrs()[0]),
			Stop: func(ctx context.Context) error {
				return c.client.CoreV1().Pods(g.Namespace).Delete(ctx, p.Name(), metav1.DeleteOptions{})
			},
			Log: func() []string { return p.Process().Tail(20) },
		})
	}
	return list, nil
}

func (c *inCluster) removed(ctx context.Context, g *Gateway) error {
	selected := metav1.ListOptions{LabelSelector: gatewayLabel + "=" + g.Name}
	pods, err := c.client.CoreV1().Pods(g.Namespace).List(ctx, selected)
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil { // another pod still drains its calls
			return fmt.Errorf("pod %s is left", p.Name)
		}
	}
	for _, object := range []string{
		"deployment/" + g.Name, "service/" + g.Name, "service/" + g.Name + "-tcp", "configmap/" + g.Name, "secret/" + g.Name + "-standby",
	} {
		name, err := c.Cluster.Field(ctx, g.Namespace, object, ".metadata.name")
		if err == nil && name != "" {
			err = fmt.Errorf("%s is left", object)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exposed returns nil when the addresses for clients lead to the pods of a Gateway.
func (c *inCluster) exposed(ctx context.Context, g *Gateway) error { return c.services.exposed(ctx, g) }

// applyDataplane applies the Dataplane with its current number of pods and image.
func (c *inCluster) applyDataplane(ctx context.Context) error {
	return c.apply(ctx, c.system, c.dataplaneYAML(image(c.updates), c.pods))
}

// update changes the image of the Dataplane.
func (c *inCluster) update(ctx context.Context) error {
	c.updates++
	return c.applyDataplane(ctx)
}

func (c *inCluster) ctl(ctx context.Context) ([]string, error) {
	token, err := c.token(ctx, "admin")
	if err != nil {
		return nil, err
	}
	ca, err := c.caFile(ctx)
	return []string{
		"--operator", "https://" + c.home(c.ports.discovery), "--token-file", token, "--ca-file", ca,
		"--kubeconfig", c.Cluster.Admin.Kubeconfig, "--operator-namespace", c.system,
	}, err
}

// ctlPeer returns the last of the addresses of the media servers.
func (c *inCluster) ctlPeer() topology.Both[netip.Addr] { return c.Net.Peer(ctlPeer) }

func (c *inCluster) ctlHost(f func()) { c.Net.Peers.Do(f) }

func (c *inCluster) host(f func()) { f() }

func (c *inCluster) address() netip.Addr { return c.families(c.Net.Home)[0] }

func (c *inCluster) close() (err error) {
	if c.services != nil {
		c.services.stop()
	}
	if c.kubelet != nil {
		c.kubelet.Stop()
	}
	if c.client == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	// The objects must not disturb other environments. No process needs them any more.
	for _, n := range append(c.namespaces(), c.system) {
		err = errors.Join(err, c.client.CoreV1().Namespaces().Delete(ctx, n, metav1.DeleteOptions{}))
	}
	for _, n := range c.Net.Nodes {
		err = errors.Join(err, c.client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}))
	}
	for _, object := range []string{"gatewayclass/" + c.class, "dataplane/" + c.class} {
		err = errors.Join(err, c.Cluster.Delete(ctx, "", object))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(append(c.failures, err)...)
}
