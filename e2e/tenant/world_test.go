package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// Addresses that no tenant may reach or get.
const (
	dnsService   = "10.96.0.10"
	dnsPod       = "10.244.0.2"
	apiService   = "10.96.0.1"
	apiServer    = "192.0.2.1"
	node         = "192.0.2.101"
	nodeOutside  = "203.0.113.101"
	balanced     = "198.51.100.7" // address of the victim's load balancer
	mediaPod     = "10.244.1.5"   // of the victim
	laterPrefix  = "10.99."       // of endpoints that are added later, see victim.proceeds
	classSecret  = "Secret stunner-system/stunner-turn-credentials"
	authoritySec = "private key of config discovery"
)

// forbidden are addresses of nodes, of the API server and of kube-system.
var forbidden = []string{dnsService, dnsPod, apiService, apiServer, node, nodeOutside}

// others are the objects of the cluster and of other tenants. SECRET(NAMESPACE/NAME) stands for a marker.
const others = `
apiVersion: v1
kind: Node
metadata: {name: worker-1}
---
apiVersion: v1
kind: Node
metadata: {name: control-1}
---
apiVersion: v1
kind: Secret
metadata: {name: cloud-admin, namespace: kube-system}
stringData: {token: "SECRET(kube-system/cloud-admin)", type: "SECRET(kube-system/cloud-admin)", secret: "SECRET(kube-system/cloud-admin)", username: "SECRET(kube-system/cloud-admin)",
  password: "SECRET(kube-system/cloud-admin)", userName: "SECRET(kube-system/cloud-admin)", sharedSecret: "SECRET(kube-system/cloud-admin)", crt: "SECRET(kube-system/cloud-admin)", key: "SECRET(kube-system/cloud-admin)"}
---
apiVersion: v1
kind: Secret
metadata: {name: database, namespace: stunner-system}
stringData: {type: static, username: "SECRET(stunner-system/database)", password: "SECRET(stunner-system/database)"}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec: {clusterIP: 10.96.0.10, ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [10.244.0.2]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1]}]
ports: [{name: https, port: 6443, protocol: TCP}]
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: for-admins}
spec: {hostNetwork: true, podTemplatePatch: {spec: {volumes: [{name: host, hostPath: {path: /}}]}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: victim, labels: {team: members}}
---
apiVersion: v1
kind: Secret
metadata: {name: turn, namespace: victim}
stringData: {type: "SECRET(victim/turn)", secret: "SECRET(victim/turn)", username: "SECRET(victim/turn)", password: "SECRET(victim/turn)", userName: "SECRET(victim/turn)", sharedSecret: "SECRET(victim/turn)"}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: own, namespace: victim}
spec: {authType: static, userName: caller, password: "SECRET(password of GatewayConfig victim/own)"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: side-door, namespace: victim}
spec:
  gatewayClassName: stunner
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own}}
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: for-a-friend, namespace: victim}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: friend}, {group: stunner.l7mp.io, kind: GatewayConfig, namespace: friend}, {group: stunner.l7mp.io, kind: UDPRoute, namespace: friend}]
  to: [{group: "", kind: Secret}, {group: "", kind: Service}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: victim}
spec: {type: NodePort, ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30053}]}
---
apiVersion: v1
kind: Service
metadata: {name: sfu, namespace: victim}
spec: {clusterIP: None, ports: [{name: rtp, port: 10000, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sfu, namespace: victim, labels: {kubernetes.io/service-name: sfu}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.5]}]
---
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: office, namespace: victim}
spec: {prefixes: [198.18.0.0/24]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front-door, namespace: victim}
spec:
  gatewayClassName: stunner
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: door}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: members-only, namespace: victim}
spec:
  gatewayClassName: stunner
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: members}}}}}]
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: media, namespace: victim}
spec: {parentRefs: [{name: front-door}], rules: [{backendRefs: [{name: sfu}]}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: lobby}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lounge, namespace: lobby}
spec:
  gatewayClassName: stunner
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: v1
kind: Service
metadata: {name: sfu, namespace: lobby}
spec: {clusterIP: None, ports: [{name: rtp, port: 10000, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sfu, namespace: lobby, labels: {kubernetes.io/service-name: sfu}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.6]}]
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: house, namespace: lobby}
spec: {parentRefs: [{name: lounge}], rules: [{backendRefs: [{name: sfu}]}]}
---
# What a tenant of these tests has beside ClusterRole edit.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: writes-gateways}
rules:
- {apiGroups: [gateway.networking.k8s.io], resources: [gateways, udproutes, referencegrants], verbs: ["*"]}
---
# What clusters let editors do that were made before Kubernetes 1.22 (CVE-2021-25740).
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: writes-endpoints}
rules:
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: ["*"]}
`

// policy is the part of the GatewayConfig of the class that the administrator sets.
const policy = `{"spec":{"userQuota":10,"sourceQuota":20,"sessionByteRate":30000,"userByteRate":40000}}`

// furnish creates the objects of others.
func (h *installation) furnish(ctx context.Context) error {
	text := others
	for {
		before, after, found := strings.Cut(text, "SECRET(")
		if !found {
			break
		}
		name, rest, _ := strings.Cut(after, ")")
		text = before + h.markers.of(name) + rest
	}
	if err := h.apply(ctx, text); err != nil {
		return err
	}
	for name, addresses := range map[string][]corev1.NodeAddress{
		"worker-1": {
			{Type: corev1.NodeInternalIP, Address: node}, {Type: corev1.NodeExternalIP, Address: nodeOutside},
		},
		"control-1": {{Type: corev1.NodeInternalIP, Address: apiServer}},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Addresses: addresses}})
		if err != nil {
			return err
		}
		if err := h.Status().Patch(ctx, n, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return err
		}
	}
	if _, err := control.Kubectl(
		ctx, "patch", "gatewayconfig", "stunner", "-n", system, "--type=merge", "-p", policy,
	); err != nil {
		return err
	}
	chain, private, err := bed.Certificate()
	if err != nil {
		return err
	}
	// the first line after the PEM header
	h.markers.know("private key of Secret victim/door", strings.Split(string(private), "\n")[1])
	return h.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "victim", Name: "door"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: private},
	})
}

// victim is another tenant: two Gateways with the configs that their dataplanes received.
type victim struct {
	house *installation
	doors map[string]*door // by NAMESPACE/NAME

	mu      sync.Mutex
	later   int
	objects string // see state
}

// door is a Gateway with a dataplane that follows its config.
type door struct {
	client.ObjectKey
	cluster string // name of its own route

	mu      sync.Mutex
	config  config.Config
	stirred chan struct{} // closed by the next config
	// before is the config before any attempt.
	before config.Config
}

// follow starts the dataplanes of the other tenants, and waits until their configs are complete.
func (h *installation) follow(ctx context.Context) (*victim, error) {
	v := &victim{house: h, doors: map[string]*door{
		"victim/front-door": {
			ObjectKey: client.ObjectKey{Namespace: "victim", Name: "front-door"}, cluster: "victim/media",
			stirred: make(chan struct{}),
		},
		"lobby/lounge": {
			ObjectKey: client.ObjectKey{Namespace: "lobby", Name: "lounge"}, cluster: "lobby/house",
			stirred: make(chan struct{}),
		},
	}}
	for id, d := range v.doors {
		if err := h.expose(ctx, d.ObjectKey); err != nil {
			return nil, err
		}
		pod, err := h.podOf(ctx, d.ObjectKey)
		if err != nil {
			return nil, err
		}
		token, err := control.Kubectl(
			ctx, "create", "token", "default", "-n", d.Namespace, "--audience=stunner-discovery",
			"--bound-object-kind=Pod", "--bound-object-name="+pod,
		)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(h.dir, d.Namespace+".token")
		if err := os.WriteFile(path, []byte(strings.TrimSpace(token)), 0o600); err != nil {
			return nil, err
		}
		source, err := discovery.Open(
			"https://localhost:"+portOf(h.discovery), discovery.Options{ID: id, TokenFile: path, CAFile: h.ca},
		)
		if err != nil {
			return nil, err
		}
		go d.listen(source.Watch(context.Background()))
		if err := d.await(ctx, func(c config.Config) error {
			unaddressed := func(l config.Listener) bool { return l.PublicAddress == "" || len(l.ServiceAddresses) == 0 }
			if c.Listeners == nil || slices.ContainsFunc(c.Listeners, unaddressed) ||
				len(c.Listeners[0].ServiceAddresses) < 2 {
				return fmt.Errorf("the config of %s is not complete: %+v", id, c.Listeners)
			}
			d.before = c
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if err := h.known(ctx); err != nil {
		return nil, err
	}
	return v, bed.Until(ctx, func(ctx context.Context) error {
		gw := &gwapiv1.Gateway{}
		if err := h.Get(ctx, v.doors["victim/front-door"].ObjectKey, gw); err != nil {
			return err
		}
		if c := gw.Status.Conditions; !slices.ContainsFunc(
			c, func(c metav1.Condition) bool { return c.Type == "Programmed" && c.Status == metav1.ConditionTrue },
		) {
			return fmt.Errorf("the Gateway of the victim is not programmed: %+v", c)
		}
		now, err := v.state(ctx)
		v.objects = now
		return err
	})
}

// known uses the secrets that the product generated as markers.
func (h *installation) known(ctx context.Context) error {
	drawn, authority := &corev1.Secret{}, &corev1.Secret{}
	if err := errors.Join(
		h.Get(ctx, types.NamespacedName{Namespace: system, Name: "stunner-turn-credentials"}, drawn),
		h.Get(ctx, types.NamespacedName{Namespace: system, Name: "stunner-discovery-ca"}, authority),
	); err != nil {
		return err
	}
	h.markers.know(classSecret, string(drawn.Data["secret"]))
	h.markers.know(authoritySec, strings.Split(string(authority.Data["ca.key"]), "\n")[1])
	return nil
}

// expose sets addresses of the Services of a Gateway, like a cloud provider.
func (h *installation) expose(ctx context.Context, gateway client.ObjectKey) error {
	return bed.Until(ctx, func(ctx context.Context) error {
		svc := &corev1.Service{}
		if err := h.Get(ctx, gateway, svc); err != nil {
			return err
		}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: balanced}}
		return h.Status().Update(ctx, svc)
	})
}

// podOf waits for a dataplane pod of a Gateway. There is no kubelet to run it.
func (h *installation) podOf(ctx context.Context, gateway client.ObjectKey) (name string, err error) {
	err = bed.Until(ctx, func(ctx context.Context) error {
		pods := &corev1.PodList{}
		err := h.List(
			ctx, pods, client.InNamespace(gateway.Namespace),
			client.MatchingLabels{"stunner.l7mp.io/related-gateway-name": gateway.Name},
		)
		if err == nil && len(pods.Items) == 0 {
			err = fmt.Errorf("no pod of Gateway %s", gateway)
		}
		if err == nil {
			name = pods.Items[0].Name
		}
		return err
	})
	return name, err
}

func (d *door) listen(events <-chan discovery.Event) {
	for e := range events {
		if e.ID == "" || e.Err != nil || e.Deleted {
			continue
		}
		d.mu.Lock()
		d.config = e.Config
		close(d.stirred)
		d.stirred = make(chan struct{})
		d.mu.Unlock()
	}
}

// await waits until the config of the dataplane satisfies wanted.
func (d *door) await(ctx context.Context, wanted func(config.Config) error) error {
	for {
		d.mu.Lock()
		c, stirred := d.config, d.stirred
		d.mu.Unlock()
		err := wanted(c)
		if err == nil {
			return nil
		}
		select {
		case <-stirred:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// proceeds changes an object of another tenant, waits until the change is published to its dataplane, and returns other
// changes there.
func (v *victim) proceeds(ctx context.Context, gateway string) error {
	v.mu.Lock()
	v.later++
	address := fmt.Sprintf("%s%d.%d", laterPrefix, v.later/250, v.later%250+1)
	name := fmt.Sprintf("later-%d", v.later)
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience/4)
	defer cancel()
	d := v.doors[gateway]
	if err := v.house.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "sfu"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}); err != nil {
		return err
	}
	var got config.Config
	if err := d.await(ctx, func(c config.Config) error {
		if !slices.ContainsFunc(
			c.Clusters,
			func(c config.Cluster) bool { return c.Name == d.cluster && slices.Contains(c.Endpoints, address) },
		) {
			return fmt.Errorf("endpoint %s of %s is not published", address, gateway)
		}
		got = c
		return nil
	}); err != nil {
		return err
	}
	return compare("the config of "+gateway, lines(d.own(d.before)), lines(d.own(got)))
}

// lines returns the listeners, the clusters and the rest of a config.
func lines(c config.Config) (list []string) {
	for _, l := range c.Listeners {
		list = append(list, fmt.Sprintf("%+v", l))
	}
	for _, cluster := range c.Clusters {
		list = append(list, fmt.Sprintf("%+v", cluster))
	}
	c.Listeners, c.Clusters = nil, nil
	return append(list, string(c.Canonical()))
}

// compare returns the differences.
func compare(what string, before, now []string) error {
	var changed []string
	for _, line := range before {
		if !slices.Contains(now, line) {
			changed = append(changed, "- "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			changed = append(changed, "+ "+line)
		}
	}
	if changed == nil {
		return nil
	}
	return fmt.Errorf("%s has changed:\n%s", what, strings.Join(changed, "\n"))
}

// own returns the part of a config that belongs to the Gateway and to its own route, without endpoints that are added
// later. A Gateway that allows routes of others has their clusters as well.
func (d *door) own(c config.Config) config.Config {
	foreign := func(name string) bool { return d.Name == "lounge" && name != d.cluster }
	c.Listeners, c.Clusters = slices.Clone(c.Listeners), slices.Clone(c.Clusters)
	for i := range c.Listeners {
		c.Listeners[i].Routes = slices.DeleteFunc(slices.Clone(c.Listeners[i].Routes), foreign)
	}
	c.Clusters = slices.DeleteFunc(c.Clusters, func(c config.Cluster) bool { return foreign(c.Name) })
	for i := range c.Clusters {
		c.Clusters[i].Endpoints = slices.DeleteFunc(
			slices.Clone(c.Clusters[i].Endpoints), func(e string) bool { return strings.HasPrefix(e, laterPrefix) },
		)
	}
	return c
}

// state returns the Services, workloads and Gateway statuses of the victim.
func (v *victim) state(ctx context.Context) (string, error) {
	gateways, services, deployments := &gwapiv1.GatewayList{}, &corev1.ServiceList{}, &appsv1.DeploymentList{}
	in := client.InNamespace("victim")
	if err := errors.Join(
		v.house.List(ctx, gateways, in), v.house.List(ctx, services, in), v.house.List(ctx, deployments, in),
	); err != nil {
		return "", err
	}
	state := map[string]any{}
	for _, g := range gateways.Items {
		state["Gateway "+g.Name] = g.Status
	}
	for _, s := range services.Items {
		state["Service "+s.Name] = []any{s.UID, s.Spec, s.Labels, s.Annotations}
	}
	for _, d := range deployments.Items {
		state["Deployment "+d.Name] = []any{d.UID, d.Generation, d.Labels}
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(state)) {
		text, err := json.Marshal(state[name])
		if err != nil {
			return "", err
		}
		lines = append(lines, name+" "+string(text))
	}
	return strings.Join(lines, "\n"), nil
}

// unharmed changes an object of the victim, and returns everything else that changed.
func (v *victim) unharmed(ctx context.Context) error {
	if err := v.proceeds(ctx, "victim/front-door"); err != nil {
		return err
	}
	now, err := v.state(ctx)
	if err != nil {
		return err
	}
	return compare("what the victim has", strings.Split(v.objects, "\n"), strings.Split(now, "\n"))
}
