package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// timeout limits operations that take about a second on an idle machine.
const timeout = time.Minute

// prometheusOperator is the module with the CRDs of PodMonitors and PrometheusRules.
const prometheusOperator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"

var foreign sync.Once

// needForeign installs third-party CRDs once.
func needForeign(t *testing.T) {
	t.Helper()
	foreign.Do(func() {
		cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", prometheusOperator)
		cmd.Env = append(os.Environ(), "GOWORK=off")
		cmd.Dir = t.TempDir() // a folder outside of any module
		out, err := cmd.Output()
		var m struct{ Dir, Error string }
		if bad := json.Unmarshal(out, &m); bad != nil || m.Error != "" {
			t.Fatalf("download %s: %v %v %s", prometheusOperator, err, bad, m.Error)
		}
		prefix := filepath.Join(m.Dir, "example/prometheus-operator-crd/monitoring.coreos.com_")
		kubectl(t, "apply", "--server-side", "-f", prefix+"podmonitors.yaml,"+prefix+"prometheusrules.yaml")
		if err := control.InstallKEDA(t.Context()); err != nil { // InstallKEDA waits for all CRDs
			t.Fatal(err)
		}
	})
}

// combinations are sets of values.
var combinations = map[string]release{
	"nothing set": {},
	"openova":     {files: []string{"values-openova.yaml"}},
	"offload":     {files: []string{"values-offload.yaml"}},
	"all switched on": {set: `
commonLabels: {team: calls, helm.sh/chart: mine}
stunnerGatewayOperator:
  discovery: {readers: [tools/inspector]}
  deployment:
    replicas: 3
    podLabels: {app: mine, sidecar: "no"}
    podAnnotations: {example.org/a: b}
    priorityClassName: system-cluster-critical
    imagePullSecrets: [{name: pull}]
    tolerations: [{key: dedicated, operator: Exists}]
    affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [edge]}]}]}}}
    topologySpreadConstraints: [{topologyKey: rack, maxSkew: 2, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: stunner-operator}}}]
    container: {manager: {args: ["--log=all:DEBUG"], env: [{name: GOMEMLIMIT, value: 400MiB}]}}
  dataplane: {spec: {image: {name: mirror.example.org/stunnerd, tag: v1, pullPolicy: Always}, autoscaling: {maxReplicas: 10}, hostNetwork: true}}
stunnerAuthService:
  jwt: {issuer: https://id.example.org, audience: calls, existingSecret: jwt}
  corsOrigins: [https://meet.example.org]
  trustedProxies: [10.0.0.0/8]
  demo: true
  service: {type: LoadBalancer, annotations: {example.org/a: b}}
  deployment: {podLabels: {a: b}, container: {authService: {args: ["--cap-to-token"], env: [{name: A, value: b}]}}}
networkPolicy: {egressPorts: [443, 6443], discoveryFrom: [{ipBlock: {cidr: 192.0.2.0/24}}]}
monitoring: {podMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}
extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: "extra-{{ .Release.Name }}", namespace: "{{ .Release.Namespace }}"}}]`},
	"all switched off": {set: `
stunnerAuthService: {enabled: false}
defaults: {create: false}
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
stunnerGatewayOperator: {discovery: {auth: "off"}, admissionPolicy: {enabled: false}, deployment: {replicas: 1, nodeSelector: null}}`},
	"only the auth service for old dataplanes": {set: `
stunnerGatewayOperator: {enabled: false, discovery: {auth: "off"}}
stunnerAuthService: {jwt: {issuer: https://id.example.org, audience: calls, jwksURL: https://id.example.org/keys}}
defaults: {gatewayConfig: {spec: {authType: static, userName: ada, password: {name: turn}}}}`},
	"rows of other charts": {set: `
rbac: {aggregateRoles: false}
fullnameOverride: edge
namespaceOverride: stunner-system
global: {imageRegistry: mirror.example.org, imagePullSecrets: [{name: mirror}]}
pods:
  revisionHistoryLimit: 2
  hostAliases: [{ip: 192.0.2.1, hostnames: [id.example.org]}]
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.53], options: [{name: ndots, value: "2"}]}
  enableServiceLinks: false
  livenessProbe: {periodSeconds: 20}
podDisruptionBudget: {unhealthyPodEvictionPolicy: IfHealthyBudget, minAvailable: 50%}
stunnerGatewayOperator:
  log: {level: "all:DEBUG", format: json}
  serviceAccount: {name: turn, annotations: {example.org/a: b}, labels: {team: calls}}
  discovery: {service: {ipFamilyPolicy: PreferDualStack, labels: {a: b}}}
  workloadPolicy: {serviceAccountNames: [media], hostNetwork: true, hostPaths: [/dev/net], privileged: true, baseline: true, workloadNames: [a, b], externalName: true, images: [r.example.org/, a/b], externalIPs: [192.0.2.0/24, "2001:db8::/64"]}
  deployment:
    annotations: {example.org/a: b}
    extraVolumes: [{name: ca, configMap: {name: ca}}]
    extraContainers: [{name: proxy, image: "example.org/proxy:1", securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
    container: {manager: {extraVolumeMounts: [{name: ca, mountPath: /etc/ssl/certs, readOnly: true}]}}
stunnerAuthService:
  jwt: {issuer: https://id.example.org, audience: calls, jwksFile: /keys/jwks.json}
  service: {type: NodePort, nodePort: 30088, labels: {a: b}, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}
  ingress: {enabled: true, className: web, hosts: [calls.example.org], tls: [{secretName: web, hosts: [calls.example.org]}]}
  httpRoute: {enabled: true, parentRefs: [{name: web, namespace: default}], hostnames: [calls.example.org]}
  autoscaling: {enabled: true}
  deployment:
    extraVolumes: [{name: keys, configMap: {name: keys}}]
    container: {authService: {extraVolumeMounts: [{name: keys, mountPath: /keys}]}}
monitoring: {podMonitor: {enabled: true, relabelings: [{targetLabel: site, replacement: a}], metricRelabelings: [{action: labeldrop, regex: x}]}}`},
	"some namespaces": {set: `
watchNamespaces: [stunner-system, default]
stunnerGatewayOperator: {discovery: {auth: permissive}}`},
}

// G-07, K-11: the API server accepts the rendered charts and kustomizations without unknown fields and warnings.
// A namespace with the restricted Pod Security Standard admits their pods.
func TestAPIServer_AcceptsEveryCombination(t *testing.T) {
	needForeign(t)
	restricted(t, home)
	restricted(t, "stunner")
	rendered := map[string][]object{
		"kinds": release{chart: crds}.objects(t),
		"autoscaling": append(kustomize(t, "keda"),
			parse(t, harnesstest.Read(t, "keda/triggerauthentication.yaml"))...),
	}
	for title, r := range combinations {
		r.chart = app
		rendered[title] = r.all(t)
	}
	rendered["values of the existing chart"] = existing(t, existingImages, `{}`).all(t)
	for _, overlay := range []string{"dev", "ha"} { // the other overlays equal the chart
		rendered["overlay "+overlay] = kustomize(t, "kustomize/overlays/"+overlay)
	}
	for title, objects := range rendered {
		t.Run(title, func(t *testing.T) {
			pods := podsOf(t, objects)
			if said := apply(t, append(objects, pods...), "--dry-run=server"); strings.Contains(said, "Warning") {
				t.Error(said)
			}
		})
	}
}

// podsOf returns the pods that the Deployments would create. Their ServiceAccount need not exist.
func podsOf(t *testing.T, objects []object) (pods []object) {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		template := deployment(t, o).Spec.Template
		template.Spec.ServiceAccountName, template.Spec.PriorityClassName = "", ""
		pod, err := runtime.DefaultUnstructuredConverter.ToUnstructured(
			&corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec},
		)
		if err != nil {
			t.Fatal(err)
		}
		p := object{Object: pod}
		p.SetAPIVersion("v1")
		p.SetKind("Pod")
		p.SetName(o.GetName())
		p.SetNamespace(o.GetNamespace())
		pods = append(pods, p)
	}
	return pods
}

// An upgrade never changes immutable fields, for any change of other values.
func TestUpgrade_ChangesNoImmutableField(t *testing.T) {
	needForeign(t)
	const namespace = "upgraded"
	restricted(t, namespace)
	own := `
defaults: {gatewayClass: {name: upgraded}}
`
	before := release{chart: app, namespace: namespace, set: own}
	after := release{chart: app, namespace: namespace, upgraded: true, set: own + combinations["all switched on"].set}
	apply(t, before.objects(t))
	apply(t, after.objects(t))
	if got := kubectl(
		t, "get", "deployment/stunner-operator", "-n", namespace, "-o",
		"jsonpath={.spec.replicas} {.metadata.labels.helm\\.sh/chart}",
	); got != "3 stunner-99.0.0" {
		t.Errorf("after the upgrade the Deployment has %q", got)
	}
	kubectl(t, "delete", "gatewayclass/upgraded", "dataplane/default")
	kubectl(t, "delete", "namespace", namespace, "--wait=false")
}

// restricted creates a namespace with the restricted Pod Security Standard.
func restricted(t *testing.T, name string) {
	t.Helper()
	err := control.Apply(t.Context(), "", fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}`, name))
	if err != nil {
		t.Fatal(err)
	}
	await(t, func(ctx context.Context) error {
		account, err := control.Field(ctx, name, "serviceaccount/default", ".metadata.name")
		if err == nil && account == "" {
			err = errors.New("no account")
		}
		return err
	})
}

// apply sends objects to the API server with strict field validation. ClusterRoles are deleted at the end of the test.
func apply(t *testing.T, objects []object, flags ...string) string {
	t.Helper()
	var stream strings.Builder
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&stream, "---\n%s", text)
	}
	t.Cleanup(func() { // the chart rejects a release with the controller name of a remaining ClusterRole
		for _, o := range objects {
			if o.GetKind() != "ClusterRole" || slices.Contains(flags, "--dry-run=server") {
				continue
			}
			if err := control.Delete(context.WithoutCancel(t.Context()), "", "clusterrole/"+o.GetName()); err != nil {
				t.Error(err)
			}
		}
	})
	return kubectl(t, append(
		[]string{"apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", file(t, stream.String())},
		flags...,
	)...)
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := control.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func await(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := harness.Until(ctx, cond); err != nil {
		t.Fatal(err)
	}
}

func deployment(t *testing.T, o object) (d appsv1.Deployment) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &d, true); err != nil {
		t.Fatalf("%s: %v", name(o), err)
	}
	return d
}

// container returns the only container of a Deployment.
func container(t *testing.T, o object) corev1.Container {
	t.Helper()
	all := deployment(t, o).Spec.Template.Spec.Containers
	if len(all) != 1 {
		t.Fatalf("%s has %d containers", name(o), len(all))
	}
	return all[0]
}
