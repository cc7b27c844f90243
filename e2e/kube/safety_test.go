package kube

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// K-02, K-04: no ConfigMap, event, status, log or metric of the operator has a secret, plain, in base64 or in hex.
func TestSecretsAreNotExposed(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const password, shared, vault = "marker-of-a-password", "marker-of-a-shared-secret", "marker-in-a-vault"
	n.certify("door")
	door := &corev1.Secret{}
	n.must(n.read(n.Context(), "door", door))
	key := strings.Split(string(door.Data[corev1.TLSPrivateKeyKey]), "\n")[1] // the first line of base64 in the key
	n.apply(`
apiVersion: v1
kind: Secret
metadata: {name: vault}
stringData: {type: ephemeral, secret: ` + vault + `}
`)
	for name, auth := range map[string]string{
		"plain":  "userName: caller, password: " + password,
		"signed": "authType: ephemeral, sharedSecret: " + shared,
		"vault":  "authRef: {name: vault}",
		"broken": "authType: ephemeral, userName: caller, password: " + password + ", authRef: {name: missing}",
	} {
		n.apply(fmt.Sprintf(`
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: %[1]s}
spec: {dataplane: CLASS, %[2]s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %[1]s}
spec:
  gatewayClassName: CLASS
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: %[1]s}}
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: door}]}}
`, name, auth))
	}
	for _, name := range []string{"plain", "signed", "vault"} {
		n.gateway(name, homeless)
		n.await(func(ctx context.Context) error {
			m := &corev1.ConfigMap{}
			if err := n.read(ctx, name, m); err != nil {
				return err
			}
			if c, _, err := config.Parse([]byte(m.Data["stunnerd.conf"])); err != nil || len(c.Listeners) != 2 {
				return fmt.Errorf("the ConfigMap shows %d listeners: %v", len(c.Listeners), err)
			}
			return nil
		})
	}
	n.gateway("broken", "!Accepted:Pending !Programmed:Invalid")

	written := map[string]string{}
	for what, list := range map[string]client.ObjectList{
		"ConfigMaps": &corev1.ConfigMapList{}, "events": &eventsv1.EventList{}, "Services": &corev1.ServiceList{},
		"Deployments": &appsv1.DeploymentList{},
		"Gateways":    &gwapiv1.GatewayList{}, "classes": &gwapiv1.GatewayClassList{},
		"routes": &stunnerv1.UDPRouteList{},
	} {
		n.must(n.List(n.Context(), list))
		text, err := json.Marshal(list)
		n.must(err)
		written[what] = string(text)
	}
	configs := &stunnerv1.GatewayConfigList{}
	n.must(n.List(n.Context(), configs))
	for _, c := range configs.Items {
		written["statuses of GatewayConfigs"] += fmt.Sprint(c.Status)
	}
	log, err := os.ReadFile(n.process.Log)
	n.must(err)
	written["log"] = string(log) // the operator runs at the most verbose level
	metrics, _ := n.page(fmt.Sprintf("http://127.0.0.1:%d/metrics", n.health))
	written["metrics"] = string(metrics)
	for what, text := range written {
		for _, secret := range []string{password, shared, vault, key} {
			for _, form := range []string{
				secret, base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)),
			} {
				if strings.Contains(text, form) {
					n.Errorf("%s contain %s", what, form)
				}
			}
		}
	}
}

// K-11: a namespace with Pod Security level "restricted" admits the pods of a Deployment and of a DaemonSet. Pods with
// hostNetwork are rejected.
func TestPodsMeetRestrictedPodSecurity(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.patch(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}},
		`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`,
	)
	for name, spec := range map[string]string{
		"plain": "", "full": "enableMetricsEndpoint: true, replicas: 2, ",
		"everywhere": "dataplaneResource: DaemonSet, ", "host": "hostNetwork: true, ",
	} {
		n.apply(fmt.Sprintf(`
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: NAMESPACE-%[1]s}
spec: {%[2]sallowedNamespaces: {from: Selector, selector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: %[1]s}
spec: {dataplane: NAMESPACE-%[1]s, userName: caller, password: marzipan-and-rosewater}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %[1]s}
spec:
  gatewayClassName: CLASS
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: %[1]s}}
  listeners: [{name: udp, port: 443, protocol: TURN-UDP}]
`, name, spec))
	}
	for name, want := range map[string]int{"plain": 1, "full": 2} {
		n.await(func(ctx context.Context) error {
			pods := &corev1.PodList{}
			err := n.List(
				ctx, pods, client.InNamespace(n.name),
				client.MatchingLabels{"stunner.l7mp.io/related-gateway-name": name},
			)
			if err == nil && len(pods.Items) != want {
				d := &appsv1.Deployment{}
				err = errors.Join(
					n.read(ctx, name, d),
					fmt.Errorf("%d pods, want %d: %+v", len(pods.Items), want, d.Status.Conditions),
				)
			}
			return err
		})
	}
	everywhere, host := &appsv1.DaemonSet{}, &appsv1.Deployment{}
	n.await(func(ctx context.Context) error {
		return errors.Join(n.read(ctx, "everywhere", everywhere), n.read(ctx, "host", host))
	})
	if err := n.admits(everywhere.Spec.Template); err != nil {
		n.Errorf("pods of a DaemonSet: %v", err)
	}
	if err := n.admits(host.Spec.Template); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "hostNetwork=true") {
		n.Errorf("pods in the network of the host: %v", err)
	}
}

// admits sends a pod to the API server with dry-run.
func (n *tenant) admits(t corev1.PodTemplateSpec) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: n.name, GenerateName: "asked-for-", Labels: t.Labels, Annotations: t.Annotations,
	}, Spec: t.Spec}
	return n.Create(n.Context(), pod, client.DryRunAll)
}

// In a namespace whose Pod Security level forbids the capabilities of in-kernel forwarding, pods have no such
// capabilities, and the Gateway names the label. After a change of the label the pods have the capabilities, and the
// API server admits them.
func TestOffloadFollowsPodSecurity(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
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

	// Pods with the capabilities are admitted only because of the label.
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

// offloads waits until a pod of Gateway "offload" exists whose container has only these capabilities, and the message
// of condition Accepted contains this text.
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
