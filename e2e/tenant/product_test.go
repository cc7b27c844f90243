// Package tenant attacks the control plane as a tenant: a user with ClusterRole edit in one namespace, and the right to
// write Gateways there. The product runs in an environment of package env, whose two Gateways belong to others: clients
// call through them all the time.
//
// Each attempt is a row of a table: the objects and requests of the tenant, and the checks that it has no effect on
// others.
//
//	product_test.go  the product, the objects of others, and the checks that they are as before
//	attempt_test.go  the attempts and the tenant
//	settle_test.go   waiting for the operator
//	request_test.go  requests to config discovery and to the auth service
//	marker_test.go   secrets in all objects, logs and metrics
//
// The other files have one family of attempts each.
package tenant

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/objects"
	"github.com/stunner-gateway/stunner/services/api/config"
)

const (
	// limit is the timeout of steps that take a second on an idle machine.
	limit = time.Minute
	// soon is the timeout for a state that is already reached, or almost.
	soon = 20 * time.Second
)

// Names and addresses of the environment with number 1. The first Gateway accepts only routes of its own namespace. The
// second Gateway accepts routes of all namespaces.
const (
	class       = "calls-1"
	system      = "system-1"
	operator    = "system:serviceaccount:system-1:stunner-operator-1"
	others      = "media-1"
	first       = "media-1/gateway0"
	shared      = "games-1/gateway1"
	mediaServer = "10.1.240.2" // media server of the first Gateway
	workerNode  = "net1-node1"
	node        = "10.1.1.2"
	nodeOutside = "203.0.113.33"
)

// Addresses that no tenant may reach or get.
const (
	dnsService   = "10.96.0.10"
	dnsPod       = "10.244.0.2"
	apiService   = "10.96.0.1"
	apiServer    = "192.0.2.1"
	classSecret  = "Secret " + system + "/turn"
	authorityKey = "private key of config discovery"
)

// forbidden are addresses of nodes, of the API server and of kube-system.
var forbidden = []string{dnsService, dnsPod, apiService, apiServer, node, nodeOutside}

// more are objects of others that the environment does not have. SECRET(NAME) stands for a marker.
const more = `
{apiVersion: v1, kind: Node, metadata: {name: control-1}}
---
apiVersion: v1
kind: Secret
metadata: {name: cloud-admin, namespace: kube-system}
stringData: {token: SECRET(cloud-admin), type: SECRET(cloud-admin), secret: SECRET(cloud-admin), key: SECRET(cloud-admin),
  username: SECRET(cloud-admin), password: SECRET(cloud-admin), crt: SECRET(cloud-admin)}
---
apiVersion: v1
kind: Secret
metadata: {name: database, namespace: system-1}
stringData: {type: static, username: SECRET(database), password: SECRET(database)}
---
apiVersion: v1
kind: Secret
metadata: {name: turn, namespace: media-1}
stringData: {type: SECRET(turn), secret: SECRET(turn), username: SECRET(turn), password: SECRET(turn)}
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
apiVersion: v1
kind: Service
metadata: {name: web, namespace: media-1}
spec: {type: NodePort, ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30053}]}
---
{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: office, namespace: media-1}, spec: {prefixes: [198.18.0.0/24]}}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: for-a-friend, namespace: media-1}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: friend}, {group: stunner.l7mp.io, kind: GatewayConfig, namespace: friend},
    {group: stunner.l7mp.io, kind: UDPRoute, namespace: friend}]
  to: [{group: "", kind: Secret}, {group: "", kind: Service}]
---
{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: default}, spec: {image: "stunnerd:0"}}
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: for-admins}
spec: {hostNetwork: true, podTemplatePatch: {spec: {volumes: [{name: host, hostPath: {path: /}}]}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: club, labels: {team: members}}}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: own, namespace: club}
spec: {authType: static, userName: caller, password: SECRET(password of GatewayConfig club/own)}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: members-only, namespace: club}
spec:
  gatewayClassName: calls-1
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own}}
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: members}}}}}]
---
# What a tenant of these tests has beside ClusterRole edit.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: writes-gateways}
rules: [{apiGroups: [gateway.networking.k8s.io], resources: [gateways, udproutes, referencegrants], verbs: ["*"]}]
---
# What clusters let editors do that were made before Kubernetes 1.22 (CVE-2021-25740).
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: writes-endpoints}
rules: [{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: ["*"]}]
`

// patches are changes of existing objects by the administrator and the cluster.
var patches = []struct{ namespace, object, patch, subresource string }{
	{system, "gatewayconfig/turn", `{"spec":{"allowedAddresses":null,"requireReferenceGrants":true,
		"userQuota":10,"sourceQuota":20,"sessionByteRate":30000,"userByteRate":40000}}`, ""},
	{"games-1", "gateway/gateway1", `{"spec":{"listeners":[
		{"name":"udp","port":3478,"protocol":"TURN-UDP","allowedRoutes":{"namespaces":{"from":"All"}}}]}}`, ""},
	{"", "node/control-1", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, "status"},
}

// product is the running product with the objects of others.
type product struct {
	*env.Env
	env.ControlPlane
	admin   client.Client
	markers markers
	roots   *x509.CertPool // CAs of config discovery
	calls   env.Calls      // calls through the Gateways of others
	begun   time.Time
	before  map[string]config.Config // configs of the Gateways of others
	// annotations are the names of the annotations in the reference.
	annotations []string
	// balanced is the address of the load balancer of the first Gateway.
	balanced string

	mu   sync.Mutex
	next *pass // the next pass, which has not begun
	turn sync.Mutex
	last int // number of the newest object of settle
}

// run is the product of the running test.
var run *product

func TestMain(m *testing.M) {
	harnesstest.Parallel(40)
	ctrllog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// start starts the product and creates the objects of others.
func start(t *testing.T) *product {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*limit)
	defer cancel()
	shape, err := env.ParseShape("udp,1pod,2owners,ipv4,keeps,apiserver,ephemeral,userspace,nothing")
	must(err)
	control, err := cluster.Start(ctx, cluster.Options{})
	must(err)
	t.Cleanup(func() { must(control.Stop()) })
	p := &product{markers: newMarkers(), before: map[string]config.Config{}}
	row := regexp.MustCompile("(?m)^\\| `stunner\\.l7mp\\.io/([a-z-]+)` \\|")
	for _, found := range row.FindAllStringSubmatch(harnesstest.Read(t, "docs/reference/annotations.md"), -1) {
		p.annotations = append(p.annotations, found[1])
	}
	p.Env, err = env.New(ctx, env.Options{
		Shape: shape, Number: 1, Cluster: control, Dir: t.TempDir(), Logf: t.Logf, PerGateway: true,
		OperatorArguments: []string{"--log=all:TRACE"}, AuthArguments: authArguments,
	})
	must(err)
	t.Cleanup(func() { must(p.Close()) })
	must(p.Start(ctx))
	p.admin, err = p.connect(control.Admin.Config)
	must(err)
	p.balanced = p.Gateways[0].Listeners[0].Addresses()[0].Addr().String()
	text := more
	for before, rest, found := strings.Cut(text, "SECRET("); found; before, rest, found = strings.Cut(text, "SECRET(") {
		name, after, _ := strings.Cut(rest, ")")
		text = before + p.markers.of(name) + after
	}
	must(control.Apply(ctx, "", text+"---\n"+harnesstest.Read(t, "kustomize/base/roles.yaml")))
	for _, c := range patches {
		var subresources []string
		if c.subresource != "" {
			subresources = []string{c.subresource}
		}
		must(control.Patch(ctx, c.namespace, c.object, types.MergePatchType, c.patch, subresources...))
	}
	chain, private, err := harness.Certificate()
	must(err)
	must(p.admin.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: others, Name: "door"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: private},
	}))
	must(p.learnSecrets(ctx, private))
	p.ControlPlane, err = p.Env.ControlPlane(ctx)
	must(err)
	authority, err := os.ReadFile(p.CAFile)
	must(err)
	p.roots = x509.NewCertPool()
	p.roots.AppendCertsFromPEM(authority)
	must(p.settle(ctx))
	p.calls, err = p.DialAll(t.Context(), "someone") // a call ends with its context
	must(err)
	t.Cleanup(func() { p.calls.HangUp() })
	must(p.ChangeRoutes(ctx)) // when this change takes effect, dataplanes have applied all earlier configs
	for _, g := range p.Gateways {
		c, err := p.configOf(ctx, g)
		must(err)
		if p.before[g.ID()] = c; len(c.Clusters) != 1 {
			t.Fatalf("the config of %s has no cluster for its route: %+v", g.ID(), c)
		}
	}
	p.begun = time.Now()
	return p
}

// connect returns a client without rate limits of its own.
func (p *product) connect(config *rest.Config) (client.Client, error) {
	scheme, err := objects.Scheme()
	if err != nil {
		return nil, err
	}
	o := client.Options{Scheme: scheme}
	if p.admin != nil {
		o.Mapper = p.admin.RESTMapper()
	}
	return client.New(config, o)
}

// learnSecrets uses the secrets that the environment and the product have generated as markers.
func (p *product) learnSecrets(ctx context.Context, certificate []byte) error {
	line := func(pem []byte) string { return strings.Split(string(pem), "\n")[1] } // the first line after the header
	class, authority := &corev1.Secret{}, &corev1.Secret{}
	if err := errors.Join(
		p.admin.Get(ctx, types.NamespacedName{Namespace: system, Name: "turn"}, class),
		p.admin.Get(ctx, types.NamespacedName{Namespace: system, Name: "stunner-discovery-ca"}, authority),
	); err != nil {
		return err
	}
	p.markers.know(classSecret, string(class.Data["secret"]))
	p.markers.know(authorityKey, line(authority.Data["ca.key"]))
	p.markers.know("private key of Secret media-1/door", line(certificate))
	return nil
}

// configOf returns the part of the config of a Gateway of others that belongs to it and to its own route.
func (p *product) configOf(ctx context.Context, g *env.Gateway) (config.Config, error) {
	c, err := p.wholeConfigOf(ctx, g)
	if g.ID() != shared {
		return c, err
	}
	foreign := func(name string) bool { return name != g.ID()+"-first" }
	for i := range c.Listeners {
		c.Listeners[i].Routes = slices.DeleteFunc(c.Listeners[i].Routes, foreign)
	}
	c.Clusters = slices.DeleteFunc(c.Clusters, func(c config.Cluster) bool { return foreign(c.Name) })
	return c, err
}

// wholeConfigOf returns the config of a Gateway of others, with the token of its dataplane.
func (p *product) wholeConfigOf(ctx context.Context, g *env.Gateway) (c config.Config, err error) {
	pods, err := g.Dataplanes()
	if err != nil || len(pods) == 0 {
		return c, errors.Join(err, fmt.Errorf("%s has %d dataplanes", g.ID(), len(pods)))
	}
	token, err := p.tokenOf(ctx, g.Namespace, "default", &authenticationv1.BoundObjectReference{
		Kind: "Pod", APIVersion: "v1", Name: pods[0].Name,
	})
	if err != nil {
		return c, err
	}
	code, body, err := p.get(ctx, p.caller("127.0.0.1"), token, "/api/v1/configs/"+g.ID())
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("config of %s: status %d: %s", g.ID(), code, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &c)
	}
	return c, err
}

// tokenOf returns a token of an account for config discovery.
func (p *product) tokenOf(
	ctx context.Context, namespace, account string, bound *authenticationv1.BoundObjectReference,
) (string, error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, BoundObjectRef: bound},
	}
	o := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	err := p.admin.SubResource("token").Create(ctx, o, request)
	return request.Status.Token, err
}

// othersAreAsBefore: the calls of others continue, a change of their routes takes effect, their configs are as before,
// the operator has written none of their objects, and the auth service offers no Gateway of a tenant.
func othersAreAsBefore(t *testing.T) {
	if err := errors.Join(run.calls.AwaitEchoes(t.Context()), run.ChangeRoutes(t.Context())); err != nil {
		t.Error(err)
	}
	for _, g := range run.Gateways {
		now, err := run.configOf(t.Context(), g)
		if before := run.before[g.ID()]; err != nil || !reflect.DeepEqual(before, now) {
			t.Errorf("the config of %s: %v\n%+v\nbefore\n%+v", g.ID(), err, now, before)
		}
	}
	newTenant(t, attempt{}).isNotOffered()
	if len(writes(t, others, time.Time{})) == 0 {
		t.Error("the audit log has no write that made these objects")
	}
	for _, w := range writes(t, others, run.begun) {
		for _, resource := range []string{"gateways", "services", "deployments", "daemonsets", "secrets"} {
			if strings.Contains(w, " "+resource+"/") {
				t.Errorf("the operator has written in the namespace of others: %s", w)
			}
		}
	}
}

// writes returns the writes of the operator in a namespace since a time, as VERB RESOURCE/SUBRESOURCE NAME.
func writes(t *testing.T, namespace string, since time.Time) (list []string) {
	t.Helper()
	all, err := run.Cluster.Audit(since)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Write() && e.Namespace == namespace && e.User == operator && e.Resource != "events" {
			list = append(list, fmt.Sprintf("%s %s/%s %s: %d", e.Verb, e.Resource, e.Subresource, e.Name, e.Code))
		}
	}
	return list
}
