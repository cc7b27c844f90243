package largest

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Names in the YAML of rows. Copies of an object have other names of the same length.
const (
	name     = "object-00000"
	attacker = "attacker" // the namespace of the objects
)

// row is a kind of objects that the operator reads, with the objects that make the operator read them. The fields that
// grow come from the schema of the kind.
type row struct {
	name string
	// object is valid YAML of the object, whose name is NAME. Its lists have an element, if elements of their schema
	// alone are not valid. with are the objects that each copy needs.
	object, with string
	// uses are the rows of the objects to which the object refers, by their names in the object. The largest objects of
	// those rows are tried too.
	uses map[string]string
	// owned adds the identity of objects that the operator generates for a Gateway.
	owned bool
}

const podTemplate = `{
  selector: {matchLabels: {app: NAME}},
  template: {metadata: {labels: {app: NAME}, annotations: {a: b}}, spec: {containers: [{name: c, image: i}]}}}`

// gateway returns a Gateway with more fields of its spec.
func gateway(name, more string) string {
	return fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: %s}, spec: {gatewayClassName: turn%s,
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}}
`, name, more)
}

// route returns a UDPRoute through the Gateway door to a backend.
func route(version, backend string) string {
	return fmt.Sprintf(`{apiVersion: %s, kind: UDPRoute, metadata: {name: NAME}, spec: {
  parentRefs: [{name: door}], rules: [{backendRefs: [{%s}]}]}}
`, version, backend)
}

const (
	ours     = "stunner.l7mp.io/v1"
	official = "gateway.networking.k8s.io/v1"
	service  = "{apiVersion: v1, kind: Service, metadata: {name: NAME}, spec: {clusterIP: None, ports: [{name: udp, port: 7000, protocol: UDP}]}}\n"
	slice    = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: NAME, labels: {kubernetes.io/service-name: NAME}},
  addressType: IPv4, ports: [{name: udp, port: 7000, protocol: UDP}], endpoints: [{addresses: [10.9.0.1]}]}
`
	next = "---\n"
)

// Names of rows to which other rows refer.
const (
	ofCertificate = "Secret of a Gateway"
	ofEndpoints   = "EndpointSlice"
	ofPrefixes    = "StaticService"
	ofCredentials = "Secret of a GatewayConfig"
	ofConfig      = "GatewayConfig"
)

// rows are the kinds that the operator reads. CHAIN and KEY are a certificate.
var rows = []row{
	{name: ofCertificate,
		object: `{apiVersion: v1, kind: Secret, metadata: {name: NAME}, type: kubernetes.io/tls, data: {tls.crt: CHAIN, tls.key: KEY}}`,
		with: `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: NAME}, spec: {gatewayClassName: turn,
  listeners: [{name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: NAME}]}}]}}`},
	{name: ofCredentials,
		object: `{apiVersion: v1, kind: Secret, metadata: {name: NAME}, data: {type: c3RhdGlj, username: dXNlcg==, password: cGFzcw==}}`,
		with: `{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: NAME}, spec: {authRef: {name: NAME}}}
` + next + gateway("NAME", ", infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: NAME}}")},
	{name: "Gateway", uses: map[string]string{"used-certificate": ofCertificate, "used-config": ofConfig},
		object: `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: NAME}, spec: {gatewayClassName: turn,
  infrastructure: {labels: {a: b}, annotations: {a: b}, parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: used-config}},
  listeners: [{name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: used-certificate}]},
    allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}}}}]}}`},
	{name: ofConfig, uses: map[string]string{"used-credentials": ofCredentials},
		object: `{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: NAME}, spec: {userName: user, password: pass,
  deniedBackends: [{namespace: other}], loadBalancerServiceAnnotations: {a: b}}}`,
		with: gateway("NAME", ", infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: NAME}}")},
	{name: "UDPRoute", uses: map[string]string{"used-endpoints": ofEndpoints},
		object: route(ours, "name: used-endpoints")},
	{name: "UDPRoute to prefixes", uses: map[string]string{"used-prefixes": ofPrefixes},
		object: route(ours, "group: stunner.l7mp.io, kind: StaticService, name: used-prefixes")},
	{name: "UDPRoute of the Gateway API", uses: map[string]string{"used-endpoints": ofEndpoints},
		object: route(official, "name: used-endpoints, port: 7000")},
	{name: ofPrefixes,
		object: `{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: NAME}, spec: {prefixes: [10.8.0.0/16]}}`,
		with:   route(ours, "group: stunner.l7mp.io, kind: StaticService, name: NAME")},
	{name: "ReferenceGrant",
		object: `{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: NAME}, spec: {
  from: [{group: stunner.l7mp.io, kind: UDPRoute, namespace: good-0}], to: [{group: "", kind: Service}]}}`},
	{name: "Revocation", object: `{apiVersion: stunner.l7mp.io/v1, kind: Revocation, metadata: {name: NAME}, spec: {user: NAME, gateways: [door]}}`},
	{name: "Service", object: service, with: slice + next + route(ours, "name: NAME")},
	{name: "Service that names a Gateway", with: slice + next + route(ours, "name: NAME"),
		object: strings.Replace(service, "{name: NAME}", "{name: NAME, annotations: {stunner.l7mp.io/related-gateway-name: attacker/door}}", 1)},
	{name: "generated Service", owned: true, object: service, with: slice + next + route(ours, "name: NAME")},
	{name: ofEndpoints, object: slice, with: service + next + route(ours, "name: NAME")},
	{name: "generated Deployment", owned: true, object: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: NAME}, spec: ` + podTemplate + `}`},
	{name: "generated DaemonSet", owned: true, object: `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: NAME}, spec: ` + podTemplate + `}`},
	{name: "generated ConfigMap", owned: true, object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: NAME}, data: {stunnerd.conf: "{}", other: o}}`},
	{name: "generated Secret", owned: true, object: `{apiVersion: v1, kind: Secret, metadata: {name: NAME}, type: stunner.l7mp.io/standby-config,
  data: {stunnerd.conf.gz: YQ==, other: YQ==}}`},
	{name: "generated NetworkPolicy", owned: true, object: `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: NAME}, spec: {podSelector: {}}}`},
	{name: "generated PodDisruptionBudget", owned: true, object: `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: NAME}, spec: {maxUnavailable: 0,
  selector: {matchLabels: {app: NAME}}}}`},
	{name: "generated ScaledObject", owned: true, object: `{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {name: NAME}, spec: {
  scaleTargetRef: {name: door}, triggers: [{type: external, metadata: {a: b}}]}}`},
	{name: "generated TriggerAuthentication", owned: true, object: `{apiVersion: keda.sh/v1alpha1, kind: TriggerAuthentication, metadata: {name: NAME}, spec: {
  secretTargetRef: [{parameter: a, name: b, key: c}]}}`},
	{name: "pod of a Gateway", object: `{apiVersion: v1, kind: Pod, metadata: {name: NAME, labels: {app: stunner,
  stunner.l7mp.io/related-gateway-name: door, stunner.l7mp.io/related-gateway-namespace: attacker}}, spec: {
  automountServiceAccountToken: false, containers: [{name: c, image: i}]}}`},
	{name: "Namespace", object: `{apiVersion: v1, kind: Namespace, metadata: {name: NAME, labels: {a: b}}}`},
	{name: "Node", object: `{apiVersion: v1, kind: Node, metadata: {name: NAME}}`},
	{name: "GatewayClass", object: `{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: NAME}, spec: {
  controllerName: stunner.l7mp.io/gateway-operator, parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: turn, namespace: home}}}`},
	{name: "Dataplane", object: `{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: NAME}, spec: {image: i}}`},
}

// shared are objects of the attacker that several rows refer to.
var shared = gateway("door", "")

// identity is the metadata by which the operator recognizes a generated object of the attacker's Gateway.
const identity = `{labels: {stunner.l7mp.io/owned-by: stunner}, annotations: {stunner.l7mp.io/related-gateway-name: attacker/door},
  ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: door, uid: forged, controller: true}]}`

// decoder decodes the YAML of rows.
type decoder struct{ chain, key string }

func newDecoder(t *testing.T) *decoder {
	t.Helper()
	chain, private, err := harness.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	return &decoder{encode(chain), encode(private)}
}

// read returns the objects in YAML in which NAME stands for a name.
func (d *decoder) read(text, name string) (all []map[string]any, err error) {
	text = strings.NewReplacer("NAME", name, "CHAIN", d.chain, "KEY", d.key).Replace(text)
	for document := range strings.SplitSeq(text, next) {
		if strings.TrimSpace(document) == "" {
			continue
		}
		o := map[string]any{}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return nil, fmt.Errorf("read YAML: %w:\n%s", err, document)
		}
		all = append(all, o)
	}
	return all, nil
}

// base returns the object of a row, with a name.
func (d *decoder) base(r row, name string) (map[string]any, error) {
	all, err := d.read(r.object, name)
	if err != nil || len(all) != 1 {
		return nil, fmt.Errorf("row %s: %d objects: %w", r.name, len(all), err)
	}
	if !r.owned {
		return all[0], nil
	}
	marks, err := d.read(identity, name)
	if err != nil {
		return nil, err
	}
	metadata := all[0]["metadata"].(map[string]any)
	for k, v := range marks[0] {
		metadata[k] = v
	}
	return all[0], nil
}

// kindOf returns the kind of an object.
func kindOf(o map[string]any) schema.GroupVersionKind {
	return (&unstructured.Unstructured{Object: o}).GroupVersionKind()
}

// clusterWide are the kinds without namespaces.
var clusterWide = map[string]bool{"Namespace": true, "Node": true, "GatewayClass": true, "Dataplane": true}

// pathOf returns the path of the API for the objects of a kind.
func pathOf(kind schema.GroupVersionKind, namespace string) string {
	base := "/apis/" + kind.GroupVersion().String()
	if kind.Group == "" {
		base = "/api/" + kind.Version
	}
	plural := strings.ToLower(kind.Kind) + "s"
	switch {
	case strings.HasSuffix(plural, "cys"):
		plural = strings.TrimSuffix(plural, "ys") + "ies"
	case strings.HasSuffix(plural, "ss"):
		plural = strings.TrimSuffix(plural, "s") + "es"
	}
	if !clusterWide[kind.Kind] {
		base += "/namespaces/" + namespace
	}
	return base + "/" + plural
}
