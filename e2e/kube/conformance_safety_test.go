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

// Invalid or malicious objects do no harm, and secrets are not exposed.
func TestConformance_Safety(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.allow("workloads", "hostNetwork", "true")
	s.allow("workloads", "offload", "true")
	s.shared(map[string]func(*tenant){
		"secrets":     secretsAreNotExposed,
		"annotations": badAnnotationsChangeNothing,
		"restricted":  podsMeetRestrictedPodSecurity,
		"offload":     offloadFollowsPodSecurity,
	})
}

// K-02, K-04: no ConfigMap, event, status, log or metric of the operator has a secret, plain, in base64 or in hex.
func secretsAreNotExposed(n *tenant) {
	const password, shared, vault = "marker-of-a-password", "marker-of-a-shared-secret", "marker-in-a-vault"
	n.certify(n.name, "door")
	door := &corev1.Secret{}
	n.must(n.read(n.Context(), "door", door))
	key := strings.Split(string(door.Data[corev1.TLSPrivateKeyKey]), "\n")[1] // the first line of base64
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
	log, err := os.ReadFile(n.stage.operator.Log)
	n.must(err)
	written["log"] = string(log) // the stage runs the operator at the most verbose level
	metrics, _ := n.stage.read(fmt.Sprintf("http://127.0.0.1:%d/metrics", n.stage.health))
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

// K-09: an invalid annotation, or one that the API server rejects, leaves the Service unchanged. A condition describes
// the error.
func badAnnotationsChangeNothing(n *tenant) {
	// In the part of the node port range from which the API server does not allocate at random.
	const good = `{"udp": 30047}`
	gateway := func(name, nodePort, targetPort string) {
		n.Helper()
		n.apply(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: %s
  annotations:
    stunner.l7mp.io/service-type: NodePort
    stunner.l7mp.io/nodeport: %q
    stunner.l7mp.io/targetport: %q
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`, name, nodePort, targetPort))
	}
	spec := func(name string) string {
		n.Helper()
		svc := &corev1.Service{}
		n.await(func(ctx context.Context) error { return n.read(ctx, name, svc) })
		p := svc.Spec.Ports[0]
		return fmt.Sprintf("%s %d>%s@%d", svc.Spec.Type, p.Port, p.TargetPort.String(), p.NodePort)
	}
	gateway("lobby", good, `{"udp": 34780}`)
	n.gateway("lobby", programmed)
	n.awaitText("NodePort 3478>34780@30047", func(context.Context) (string, error) { return spec("lobby"), nil })
	for _, bad := range []struct{ nodePort, targetPort string }{
		{`{"udp": 30047`, ""}, {`{"udp": "many"}`, ""}, {`{"udp": 70000}`, ""}, {`{"udp": -1}`, ""},
		{`{"udp": 1, "udp": 2}`, ""}, {`[30047]`, ""},
		{good, `{"udp": 0}`}, {good, `34780`}, {good, `{"udp": {"port": 1}}`},
		{good, strings.Repeat(`udp-and-more=1,`, 4000)},
	} {
		gateway("lobby", bad.nodePort, bad.targetPort)
		n.gateway("lobby", "!Accepted:Pending !Programmed:Invalid")
		if got := spec("lobby"); got != "NodePort 3478>34780@30047" {
			n.Errorf("with %.40q and %.40q the Service is %s", bad.nodePort, bad.targetPort, got)
		}
	}
	gateway("lobby", `{"nobody": 1, "udp": 30047}`, `{"udp": 34780, "nobody": 2}`)
	n.gateway("lobby", programmed)

	gateway("lobby", `{"udp": 80}`, `{"udp": 34780}`)
	n.await(func(ctx context.Context) error {
		gw := &gwapiv1.Gateway{}
		if err := n.read(ctx, "lobby", gw); err != nil {
			return err
		}
		c := meta.FindStatusCondition(gw.Status.Conditions, "Programmed")
		if c == nil || c.Status != metav1.ConditionFalse ||
			!strings.Contains(c.Message, "the API server refuses Service "+n.name+"/lobby") {
			return fmt.Errorf("no condition reports the rejected node port: %v", c)
		}
		return nil
	})
	if got := spec("lobby"); got != "NodePort 3478>34780@30047" {
		n.Errorf("with a node port out of range the Service is %s", got)
	}
}

// K-11: a namespace with Pod Security level "restricted" admits the pods of a Deployment and of a DaemonSet. Pods with
// hostNetwork are rejected.
func podsMeetRestrictedPodSecurity(n *tenant) {
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
