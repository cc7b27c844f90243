package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A namespace whose Pod Security level forbids the capabilities of in-kernel forwarding gets pods without them, and the
// Gateway names the label. After a change of the label the pods have the capabilities, and the API server admits them.
func offloadFollowsPodSecurity(n *tenant) {
	label := func(level string) {
		n.patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}},
			`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"`+level+`"}}}`)
	}
	label("baseline")
	n.apply(`
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: NAMESPACE-offload}
spec: {offloadEngine: TC, allowedNamespaces: {from: Selector, selector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: offload}
spec: {dataplane: NAMESPACE-offload, userName: caller, password: marzipan-and-rosewater}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: offload}
spec:
  gatewayClassName: CLASS
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: offload}}
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`)
	n.offloads("[]", "pod-security.kubernetes.io/enforce=baseline of namespace "+n.name+" forbids")
	label("privileged")
	n.offloads("[BPF NET_ADMIN]", "")

	// With the capabilities, the label is what admits the pods.
	d := &appsv1.Deployment{}
	n.must(n.read(n.Context(), "offload", d))
	label("baseline")
	n.await(func(context.Context) error {
		err := n.admits(d.Spec.Template)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `must not include "BPF", "NET_ADMIN"`) {
			return fmt.Errorf("pods with the capabilities: %w", err)
		}
		return nil
	})
	n.offloads("[]", "forbids")
}

// offloads waits until a pod of Gateway "offload" exists whose container has only these capabilities, and the message of
// condition Accepted contains this text.
func (n *tenant) offloads(capabilities, message string) {
	n.Helper()
	n.await(func(ctx context.Context) error {
		gw, pods := &gwapiv1.Gateway{}, &corev1.PodList{}
		if err := errors.Join(n.read(ctx, "offload", gw), n.List(
			ctx, pods, client.InNamespace(n.name), client.MatchingLabels{"stunner.l7mp.io/related-gateway-name": "offload"},
		)); err != nil {
			return err
		}
		accepted := meta.FindStatusCondition(gw.Status.Conditions, "Accepted")
		if accepted == nil || accepted.Status != metav1.ConditionTrue || !strings.Contains(accepted.Message, message) ||
			message == "" && accepted.Message != "" {
			return fmt.Errorf("want Accepted with %q: %+v", message, accepted)
		}
		var have []string
		for _, p := range pods.Items {
			c := p.Spec.Containers[0].SecurityContext.Capabilities.Add
			if have = append(have, fmt.Sprint(c)); have[len(have)-1] == capabilities {
				return nil
			}
		}
		return fmt.Errorf("no pod has the capabilities %s: %v", capabilities, have)
	})
}
