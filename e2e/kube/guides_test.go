package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/e2e/internal/guide"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// TestGuidesWorkAtAPIServer applies the manifests of each guide in docs/guides to the API server with kubectl. Every
// condition of their Gateways and UDPRoutes that reports a problem fails the test. The guides run one after another,
// and not beside other tests, because their manifests have fixed names, and Gateways of other tests could use the
// address of the node.
//
// Objects of cert-manager are left out, because its CRDs are not installed; a Secret takes the place of a Certificate.
func TestGuidesWorkAtAPIServer(t *testing.T) {
	s := prepare(t, t.TempDir(), nameOf(t))
	s.must(installKEDA())
	s.startWatching("", "--controller-name", documentedController, "--scaler-url", renderedScaler)
	common := s.tenant(t)
	for _, page := range guide.All(t) {
		t.Run(page.Name, func(t *testing.T) {
			n := common.in(metav1.NamespaceDefault)
			n.T = t
			on := server{n}
			applied := on.objects(installedByChart(t, nodesOf[page.Name]))
			defer func() { on.clear(applied) }()
			for _, o := range on.objects(withoutDocuments(page.Manifests(), "kind: Certificate\n")) {
				if o.GetKind() == "Namespace" {
					n.must(client.IgnoreAlreadyExists(n.Create(n.Context(), o)))
					continue
				}
				applied = append(applied, o)
			}
			for _, o := range applied {
				if ns := o.GetNamespace(); ns != "" {
					err := n.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
					n.must(client.IgnoreAlreadyExists(err))
				}
				n.must(n.try(o))
			}
			for _, object := range page.Objects(t) {
				if object["kind"] == "Certificate" {
					metadata := object["metadata"].(map[string]any)
					n.in(metadata["namespace"].(string)).certify(metadata["name"].(string))
				}
			}
			n.await(func(ctx context.Context) error { return on.inForce(ctx, applied) })
		})
	}
}

// nodesOf are the spec.providerID of the nodes in guides for one provider.
var nodesOf = map[string]string{
	"aws": "aws:///eu-central-1a/i-0a1", "gke": "gce://media/europe-west3-a/node", "aks": "azure:///subscriptions/media/node",
	"digitalocean": "digitalocean://1", "hetzner": "hcloud://1",
}

// installedByChart returns the GatewayClass, GatewayConfig, Dataplane and credentials of the chart, and a node for
// Gateways with node ports. The node has a spec.providerID unless it is empty.
func installedByChart(t *testing.T, providerID string) string {
	t.Helper()
	var documents []string
	for _, name := range []string{"dataplane", "gatewayconfig", "gatewayclass"} {
		documents = append(documents, harnesstest.Read(t, "kustomize/components/defaults/"+name+".yaml"))
	}
	return strings.Join(append(documents, `
apiVersion: v1
kind: Secret
metadata: {name: stunner-turn-credentials, namespace: stunner-system}
stringData: {type: ephemeral, secret: generated-by-the-operator-in-a-cluster}
---
apiVersion: v1
kind: Node
metadata: {name: node}
spec: {providerID: "`+providerID+`"}
status: {addresses: [{type: ExternalIP, address: 203.0.113.20}]}
`), "---\n")
}

// withoutDocuments returns the YAML documents that do not contain a text.
func withoutDocuments(documents, text string) string {
	var kept []string
	for document := range strings.SplitSeq(documents, "---\n") {
		if !strings.Contains(document, text) {
			kept = append(kept, document)
		}
	}
	return strings.Join(kept, "---\n")
}

// inForce returns nil if the Gateways and UDPRoutes are in force, as far as this can be tested at an API server without
// pods: each Gateway has an address, a config with all listeners, no condition that names a mistake, and none about its
// load balancer.
func (s server) inForce(ctx context.Context, all []*unstructured.Unstructured) error {
	for _, o := range all {
		live := o.DeepCopy()
		switch o.GetKind() {
		case "Gateway":
			if _, err := s.made(ctx, o); err != nil { // gives the Services an address
				return err
			}
			if err := s.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
				return err
			}
			conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
			listeners, _, _ := unstructured.NestedSlice(live.Object, "status", "listeners")
			wanted, _, _ := unstructured.NestedSlice(o.Object, "spec", "listeners")
			if len(listeners) != len(wanted) {
				return fmt.Errorf("Gateway %s has the status of %d listeners, want %d", o.GetName(), len(listeners), len(wanted))
			}
			if err := healthy(conditions, live.GetGeneration(), "Accepted", "Programmed"); err != nil {
				return fmt.Errorf("Gateway %s: %w", o.GetName(), err)
			}
			for _, c := range conditions {
				if condition := c.(map[string]any); condition["type"] == "LoadBalancerLimited" {
					return fmt.Errorf("Gateway %s: %v", o.GetName(), condition["message"])
				}
			}
			for _, l := range listeners {
				conditions, _, _ := unstructured.NestedSlice(l.(map[string]any), "conditions")
				if err := healthy(conditions, live.GetGeneration(), "Accepted", "ResolvedRefs", "Programmed"); err != nil {
					return fmt.Errorf("Gateway %s, listener %v: %w", o.GetName(), l.(map[string]any)["name"], err)
				}
			}
		case "UDPRoute":
			if err := s.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
				return err
			}
			parents, _, _ := unstructured.NestedSlice(live.Object, "status", "parents")
			if len(parents) == 0 {
				return fmt.Errorf("UDPRoute %s has no parents in its status", o.GetName())
			}
			for _, p := range parents {
				conditions, _, _ := unstructured.NestedSlice(p.(map[string]any), "conditions")
				if err := healthy(conditions, live.GetGeneration(), "Accepted", "ResolvedRefs"); err != nil {
					return fmt.Errorf("UDPRoute %s: %w", o.GetName(), err)
				}
			}
		}
	}
	return nil
}

// healthy returns an error unless conditions of these types are True for a generation. No pods run at the API server of
// the tests: a Gateway that is not Programmed for this reason only is healthy.
func healthy(conditions []any, generation int64, types ...string) error {
	var errs []error
	for _, want := range types {
		found := false
		for _, c := range conditions {
			condition := c.(map[string]any)
			if condition["type"] != want {
				continue
			}
			found = true
			noPods := want == "Programmed" && condition["reason"] == "Pending"
			if observed, _ := condition["observedGeneration"].(int64); observed != generation ||
				condition["status"] != "True" && !noPods {
				errs = append(errs, fmt.Errorf("%s is %v (%v): %v", want, condition["status"], condition["reason"], condition["message"]))
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("there is no condition %s", want))
		}
	}
	return errors.Join(errs...)
}
