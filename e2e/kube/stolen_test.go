package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// K-05: with the token of the operator, an attacker cannot change objects of others, and cannot give the objects of a
// Gateway properties that its Dataplane may not have.
func TestRightsOfAStolenToken(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.sees("service/front-door", ".spec.ports[0].name", "udp")
	s.sees("configmap/front-door", ".metadata.name", "front-door")
	s.apply(strings.ReplaceAll(s.fill(objectsOfOthers), "UID", s.get("gateway/front-door", ".metadata.uid")))
	s.stop() // the operator would revert the attempts

	const selects, account = "select", "serviceAccountName admin of dataplane pods is not allowed"
	const name = "is not that of an object of the Gateway that owns it"
	// If two policies reject a request, either message may be returned.
	const foreign = "only objects with the label stunner.l7mp.io/owned-by=stunner|the operator writes Secrets of type|labels of their Gateway|have the keys|" + selects
	pod := func(fields string) string { return `{"spec":{"template":{"spec":` + fields + `}}}` }
	known := map[string]bool{}
	main := func(fields string) string { return pod(`{"containers":[{"name":"stunner-daemon",` + fields + `}]}`) }
	for _, c := range []struct{ title, command, patch, refused string }{
		// Pods.
		{"image of a dataplane pod", "patch pod door-1", `{"spec":{"containers":[{"name":"c","image":"example.net/evil"}]}}`, "pod-deletion-cost only"},
		{"image of a foreign pod", "patch pod victim", `{"spec":{"containers":[{"name":"c","image":"example.net/evil"}]}}`, "pod-deletion-cost only"},
		{"cost of a foreign pod", "patch pod victim", `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"1"}}}`, "pod-deletion-cost only"},
		{"label of a dataplane pod", "patch pod door-1", `{"metadata":{"labels":{"k8s-app":"kube-dns"}}}`, "pod-deletion-cost only"},
		{"other annotation", "patch pod door-1", `{"metadata":{"annotations":{"example.net/a":"b"}}}`, "pod-deletion-cost only"},
		{"annotation taken away", "patch pod door-1", `{"metadata":{"annotations":{"example.net/kept":null}}}`, "pod-deletion-cost only"},
		{"finalizer", "patch pod door-1", `{"metadata":{"finalizers":["example.net/never"]}}`, "pod-deletion-cost only"},
		{"owner of a pod", "patch pod door-1", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"victim","uid":"1"}]}}`, "pod-deletion-cost only"},
		{"tolerations of a pod", "patch pod door-1 --type=json", `[{"op":"add","path":"/spec/tolerations/-","value":{"key":"a","operator":"Exists"}}]`, "pod-deletion-cost only"},
		{"deletion of a pod", "delete pod door-1", "", "cannot delete resource"},
		{"new pod", "create", s.fill(`{apiVersion: v1, kind: Pod, metadata: {name: new, namespace: NS}, spec: {containers: [{name: c, image: example.net/c}]}}`), "cannot create resource"},
		{"eviction", "create /api/v1/namespaces/NS/pods/door-1/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"door-1","namespace":"NS"}}`, "cannot create resource"},
		{"ephemeral container", "patch pod door-1 --subresource=ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"example.net/evil"}]}}`, "cannot patch resource"},

		// Objects of others.
		{"foreign Secret", "patch secret victim", `{"data":{"a":"YQ=="}}`, foreign},
		{"foreign Secret gone", "delete secret victim", "", foreign},
		{"foreign ConfigMap", "patch configmap victim", `{"data":{"stunnerd.conf":"b"}}`, "the operator changes and deletes only objects"},
		{"foreign ConfigMap marked", "patch configmap victim", `{"metadata":{"labels":{"stunner.l7mp.io/owned-by":"stunner"}}}`, foreign},
		{"foreign ConfigMap gone", "delete configmap victim", "", foreign},
		{"root CA of a namespace", "patch configmap kube-root-ca.crt", `{"data":{"ca.crt":"b"}}`, foreign},
		{"foreign Service", "patch service victim", `{"spec":{"selector":{"app":"evil"}}}`, foreign},
		{"foreign Service gone", "delete service victim", "", foreign},
		{"Service of a Gateway that somebody else has made", "patch service mesh", `{"spec":{"externalTrafficPolicy":"Local","type":"NodePort"}}`, foreign},
		{"foreign Deployment", "patch deployment victim", main(`"image":"example.net/evil"`), foreign},
		{"foreign Deployment scaled", "patch deployment victim", `{"spec":{"replicas":0}}`, foreign},
		{"foreign Deployment gone", "delete deployment victim", "", foreign},
		{"own Deployment", "patch deployment victim", `{"metadata":{"labels":{"stunner.l7mp.io/owned-by":"stunner"}}}`, foreign},
		{"foreign PodDisruptionBudget", "patch poddisruptionbudget victim", `{"spec":{"maxUnavailable":"100%"}}`, foreign},
		{"foreign NetworkPolicy gone", "delete networkpolicy victim", "", foreign},
		{"foreign Role", "patch role victim", `{"rules":[]}`, "cannot patch resource"},
		{"more rights", "create", s.fill(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: NS-more}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: User, name: NS}]}`), "cannot create resource"},
		{"policy switched off", "delete validatingadmissionpolicybinding ACCOUNT-pods", "", "cannot delete resource"},
		{"token of another account", "create /api/v1/namespaces/NS/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, "cannot create resource"},
		{"Gateway", "patch gateway front-door", `{"spec":{"gatewayClassName":"other"}}`, "cannot patch resource"},
		{"Dataplane", "patch dataplane NS", `{"spec":{"hostNetwork":true}}`, "cannot patch resource"},

		// New objects without an owner or without the label.
		{"Service without owner", "create", s.fill(`{apiVersion: v1, kind: Service, metadata: {name: new, namespace: NS, labels: {stunner.l7mp.io/owned-by: stunner}}, spec: {ports: [{port: 53, protocol: UDP}], externalIPs: [10.96.0.10]}}`), foreign},
		{"ConfigMap without owner", "create", s.fill(`{apiVersion: v1, kind: ConfigMap, metadata: {name: new, namespace: NS}}`), "that a Gateway owns"},
		{"Secret without owner", "create -n OTHER", s.fill(`{apiVersion: v1, kind: Secret, type: stunner.l7mp.io/standby-config, metadata: {name: new, namespace: OTHER, labels: {stunner.l7mp.io/owned-by: stunner}}}`), foreign},
		{"Deployment that a Deployment owns", "create", s.fill(
			strings.ReplaceAll(deployment, "gateway.networking.k8s.io/v1, kind: Gateway", "apps/v1, kind: Deployment"),
		), foreign},
		{"Deployment without mark", "create", s.fill(strings.ReplaceAll(deployment, "owned-by", "owned")), foreign},
		{"owner taken away", "patch deployment front-door", `{"metadata":{"ownerReferences":null}}`, foreign},
		{"NetworkPolicy of all pods", "create", s.fill(networkPolicy("{}")), selects},
		{"NetworkPolicy of foreign pods", "create", s.fill(networkPolicy("{matchLabels: {app: victim}}")), selects},
		{"PodDisruptionBudget of foreign pods", "create", s.fill(budget("{matchLabels: {app: victim}}")), selects},

		// Names and contents of new objects whose owner is the Gateway "new". This Gateway need not exist.
		{"Service of any name", "create", objectOfNew("v1", "Service", "victims-api", serviceSpec), name},
		{"Service of type ExternalName", "create", objectOfNew("v1", "Service", "new", `spec: {type: ExternalName, externalName: evil.example.net}`), "type ExternalName|" + selects},
		{"Service without selector", "create", objectOfNew("v1", "Service", "new", `spec: {ports: [{port: 443}]}`), selects},
		{"ConfigMap of any name", "create", objectOfNew("v1", "ConfigMap", "aws-auth", `data: {stunnerd.conf: a}`), name},
		{"ConfigMap that another program reads", "create", objectOfNew("v1", "ConfigMap", "new", `data: {mapRoles: a}`), "have the keys"},
		{"ConfigMap with binary data", "create", objectOfNew("v1", "ConfigMap", "new", `binaryData: {stunnerd.conf: YQ==}`), "have the keys"},
		{"ConfigMap of kube-system", "create -n kube-system", strings.ReplaceAll(objectOfNew("v1", "ConfigMap", "aws-auth", `data: {mapUsers: a}`), "namespace: NS", "namespace: kube-system"), name + "|have the keys|labels of the Gateway"},
		{"standby Secret of another Gateway", "create", objectOfNew("v1", "Secret", "front-door-standby", `type: stunner.l7mp.io/standby-config`), name + "|the operator writes Secrets"},
		{"Secret with the name of its Gateway", "create -n OTHER", strings.ReplaceAll(objectOfNew("v1", "Secret", "new", `type: stunner.l7mp.io/standby-config`), "namespace: NS", "namespace: OTHER"), name + "|labels of the Gateway"},
		{"Deployment of any name", "create", strings.Replace(deployment, "{name: new,", "{name: victim-2,", 1), "workloadPolicy.workloadNames"},
		{"DaemonSet of any name", "create", strings.Replace(strings.Replace(deployment, "kind: Deployment", "kind: DaemonSet", 1), "{name: new,", "{name: victim-2,", 1), "workloadPolicy.workloadNames"},
		{"PodDisruptionBudget of any name", "create", strings.Replace(budget(pods("new")), "{name: new,", "{name: victim-2,", 1), name},
		{"NetworkPolicy of any name", "create", strings.Replace(networkPolicy(pods("new")), "{name: new,", "{name: victim-2,", 1), name},
		{"PodDisruptionBudget of another Gateway", "create", budget(pods("front-door")), selects},
		{"NetworkPolicy of another Gateway", "create", networkPolicy(pods("front-door")), selects},
		{"label of another Gateway", "patch configmap front-door", `{"metadata":{"labels":{"stunner.l7mp.io/related-gateway-name":"other"}}}`, "labels of the Gateway"},
		{"key of a ConfigMap", "patch configmap front-door", `{"data":{"Corefile":"a"}}`, "have the keys"},
		{"AppArmor by annotation", "patch deployment front-door", `{"spec":{"template":{"metadata":{"annotations":{"container.apparmor.security.beta.kubernetes.io/stunner-daemon":"unconfined"}}}}}`, "annotations of dataplane pods|is invalid"},

		// Services of a Gateway.
		{"selector of a Service", "patch service front-door", `{"spec":{"selector":{"app":"victim"}}}`, selects},
		{"selector that is empty", "patch service front-door --type=json", `[{"op":"remove","path":"/spec/selector"}]`, selects},
		{"pods of another Gateway", "patch service front-door", `{"spec":{"selector":{"stunner.l7mp.io/related-gateway-name":"other"}}}`, selects},
		{"address of the cluster's DNS", "patch service front-door", `{"spec":{"externalIPs":["10.96.0.10"]}}`, "externalIPs is not allowed"},
		{"address of an IPv6 node", "patch service front-door", `{"spec":{"externalIPs":["2001:db8::1"]}}`, "externalIPs is not allowed"},

		// Workloads of a Gateway.
		{"another ServiceAccount", "patch deployment front-door", pod(`{"serviceAccountName":"admin"}`), account},
		{"another ServiceAccount by its old name", "patch deployment front-door", pod(`{"serviceAccount":"admin"}`), account},
		{"token for the API server", "patch deployment front-door", pod(`{"automountServiceAccountToken":true}`), "no token for the API server"},
		{"token by default", "patch deployment front-door", pod(`{"automountServiceAccountToken":null}`), "no token for the API server"},
		{"token by a volume", "patch deployment front-door", pod(`{"volumes":[{"name":"t","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}]}`), "no token for the API server"},
		{"network of the node", "patch deployment front-door", pod(`{"hostNetwork":true,"securityContext":{"sysctls":null}}`), "hostNetwork and hostPort"},
		{"processes of the node", "patch deployment front-door", pod(`{"hostPID":true}`), "hostPID and hostIPC"},
		{"memory of the node", "patch deployment front-door", pod(`{"hostIPC":true}`), "hostPID and hostIPC"},
		{"port of the node", "patch deployment front-door", main(`"ports":[{"containerPort":53,"hostPort":53,"protocol":"UDP"}]`), "hostNetwork and hostPort"},
		{"files of the node", "patch deployment front-door", pod(`{"volumes":[{"name":"h","hostPath":{"path":"/"}}]}`), "volumes of dataplane pods"},
		{"disk of another", "patch deployment front-door", pod(`{"volumes":[{"name":"h","persistentVolumeClaim":{"claimName":"victim"}}]}`), "volumes of dataplane pods"},
		{"disk over the network", "patch deployment front-door", pod(`{"volumes":[{"name":"h","nfs":{"server":"192.0.2.1","path":"/"}}]}`), "volumes of dataplane pods"},
		{"privileged container", "patch deployment front-door", main(`"securityContext":{"privileged":true,"allowPrivilegeEscalation":true}`), "privileged containers"},
		{"privileged init container", "patch deployment front-door", pod(`{"initContainers":[{"name":"i","image":"example.net/i","securityContext":{"privileged":true}}]}`), "privileged containers"},
		{"capability", "patch deployment front-door", main(`"securityContext":{"capabilities":{"add":["SYS_ADMIN"]}}`), "privileged containers"},
		{"capability of in-kernel forwarding", "patch deployment front-door", main(`"securityContext":{"capabilities":{"add":["BPF","NET_ADMIN"]}}`), "workloadPolicy.offload"},
		{"pods with the label of others", "create", s.fill(
			strings.ReplaceAll(deployment, "app: stunner", "app: victim"),
		), "labels of their Gateway"},
		{"pods of another Gateway", "create", s.fill(
			strings.ReplaceAll(deployment, "stunner.l7mp.io/related-gateway-name: new, stunner.l7mp.io/related-gateway-namespace: NS}}, spec", "stunner.l7mp.io/related-gateway-name: other, stunner.l7mp.io/related-gateway-namespace: NS}}, spec"),
		), "labels of their Gateway"},
	} {
		attempt := func(ctx context.Context) error {
			if err := s.asOperator(ctx, c.command, c.patch); err == nil || !containsAny(err, c.refused) {
				return fmt.Errorf("%s: want it refused with %q, got %v", c.title, c.refused, err)
			}
			return nil
		}
		if !known[c.refused] { // the API server gets each policy through a watch
			s.await(attempt)
			known[c.refused] = true
		} else if err := attempt(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.set("service/front-door-tcp", `{"spec":{"externalIPs":["198.51.100.7"]}}`)
	for _, c := range []struct{ title, command, patch string }{
		{"address that a Service has", "patch service front-door-tcp", `{"metadata":{"annotations":{"example.net/a":"b"}}}`},
		{"cost of a dataplane pod", "patch pod door-1", `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"7"}}}`},
		{"cost that is there", "patch pod door-2", `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"7"}}}`},
		{"annotation of an own object", "patch deployment front-door", `{"metadata":{"annotations":{"example.net/a":"b"}}}`},
		{"image of a Dataplane", "patch deployment front-door", main(`"image":"example.net/dataplane:1"`)},
		{"sidecar", "patch deployment front-door", pod(`{"initContainers":[` + confined + `]}`)},
		{"port below 1024", "patch deployment front-door", main(`"securityContext":{"capabilities":{"add":["NET_BIND_SERVICE"]}}`)},
		{"default account", "patch deployment front-door", pod(`{"serviceAccountName":"default"}`)},
		{"object that is taken over", "patch configmap front-door-old", `{"metadata":{"labels":{"stunner.l7mp.io/related-gateway-name":"front-door-old","stunner.l7mp.io/related-gateway-namespace":"` + s.name + `"},"ownerReferences":[{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway","name":"front-door-old","uid":"1","controller":true}]}}`},
		{"own object without its label", "patch deployment front-door", `{"metadata":{"labels":{"stunner.l7mp.io/owned-by":"stunner"}}}`},
		{"own object gone", "delete service front-door-tcp", ""},
	} {
		if err := s.asOperator(t.Context(), c.command, c.patch); err != nil {
			t.Errorf("%s: the operator needs it: %v", c.title, err)
		}
	}
	capabilities := func(names string) string { return `"securityContext":{"capabilities":{"add":[` + names + `]}}` }
	s.allow("workloads", "offload", "true")
	s.await(func(ctx context.Context) error {
		return s.asOperator(ctx, "patch deployment front-door", main(capabilities(`"BPF","NET_ADMIN"`)))
	})
	for title, patch := range map[string]string{
		"further capability":      main(capabilities(`"BPF","NET_ADMIN","SYS_ADMIN"`)),
		"capability of a sidecar": pod(`{"containers":[{"name":"tap","image":"example.net/tap:1",` + capabilities(`"NET_ADMIN"`) + `}]}`),
	} {
		if err := s.asOperator(t.Context(), "patch deployment front-door", patch); err == nil ||
			!containsAny(err, "privileged containers") {
			t.Errorf("%s, with offload: %v", title, err)
		}
	}
	onHost := func(path, container, mount string) string {
		return pod(`{"hostNetwork":true,"securityContext":{"sysctls":null},"volumes":[{"name":"journal","hostPath":{"path":"` +
			path + `"}}],"containers":[{"name":"` + container + `","image":"example.net/tap:1",` + unprivileged + `,"volumeMounts":[{"name":"journal",` +
			`"mountPath":"/journal"` + mount + `}]}]}`)
	}
	for _, c := range []struct{ policy, setting, expression, patch string }{
		{"workloads", "serviceAccountNames", "['media']", pod(`{"serviceAccountName":"media","automountServiceAccountToken":true}`)},
		{"workloads", "hostNetwork", "true", onHost("/dev/shm", "stunner-daemon", `,"subPath":"stunner-a1"`)},
		{"workloads", "hostPaths", "['/dev/net']", pod(`{"volumes":[{"name":"h","hostPath":{"path":"/dev/net/tun"}}]}`)},
		{"workloads", "baseline", "true", main(`"securityContext":{"runAsUser":0,"runAsNonRoot":false,"allowPrivilegeEscalation":true}`)},
		{"workloads", "privileged", "true", main(`"securityContext":{"capabilities":{"add":["NET_ADMIN"]}}`)},
		{"services", "externalIPs", "['192.0.2.0/24', '2001:db8::/64']", `{"spec":{"externalIPs":["192.0.2.7","2001:db8::7"]}}`},
		{"services", "externalName", "true", `{"spec":{"type":"ExternalName","externalName":"media.example.net","clusterIP":null,"clusterIPs":null}}`},
	} {
		kind := map[string]string{"workloads": "deployment", "services": "service"}[c.policy]
		s.allow(c.policy, c.setting, c.expression)
		s.await(func(ctx context.Context) error {
			return s.asOperator(ctx, "patch "+kind+" front-door", c.patch)
		})
		if c.setting != "hostNetwork" {
			continue
		}
		for title, patch := range map[string]string{
			"other folder":               onHost("/etc", "stunner-daemon", `,"subPath":"stunner-a1"`),
			"whole memory":               onHost("/dev/shm", "stunner-daemon", ""),
			"folder of another program":  onHost("/dev/shm", "stunner-daemon", `,"subPath":"pulse-1"`),
			"subPath of an environment":  onHost("/dev/shm", "stunner-daemon", `,"subPathExpr":"stunner-a1"`),
			"journal in another process": onHost("/dev/shm", "tap", `,"subPath":"stunner-a1"`),
		} {
			err := s.asOperator(t.Context(), "patch deployment front-door", patch)
			if err == nil || !containsAny(err, "volumes of dataplane pods") {
				t.Errorf("%s, with hostNetwork: %v", title, err)
			}
		}
	}
	s.allow("workloads", "images", "['example.net/tap', 'registry.example.net/']")
	s.await(func(ctx context.Context) error {
		if err := s.asOperator(
			ctx, "patch deployment front-door", main(`"image":"example.net/tapped:1"`),
		); err == nil || !containsAny(err, "an image of the dataplane pods is not allowed") {
			return fmt.Errorf("an image that is not allowed: %v", err)
		}
		return nil
	})
	for _, image := range []string{
		"example.net/tap", "example.net/tap:1", "example.net/tap@sha256:" + strings.Repeat("0", 64),
		"registry.example.net/a/b:1",
	} {
		if err := s.asOperator(t.Context(), "patch deployment front-door", main(`"image":"`+image+`"`)); err != nil {
			t.Errorf("an image that is allowed: %v", err)
		}
	}
	for _, policy := range []string{"", "-objects", "-pods", "-workloads", "-services", "-budgets", "-networks", "-configmaps", "-scaling"} {
		name := "validatingadmissionpolicy/" + s.account() + policy
		s.sees(name, ".status.observedGeneration", s.get(name, ".metadata.generation"))
		if warned := s.get(
			"validatingadmissionpolicy/"+s.account()+policy, ".status.typeChecking.expressionWarnings",
		); warned != "" {
			t.Errorf("warnings about policy %s: %s", policy, warned)
		}
	}
}

// containsAny reports whether an error contains one of several texts, separated by "|".
func containsAny(err error, wordings string) bool {
	return slices.ContainsFunc(
		strings.Split(wordings, "|"), func(w string) bool { return strings.Contains(err.Error(), w) },
	)
}

// objectsOfOthers are objects of others in the namespace of the test, and pods of its Gateway.
const objectsOfOthers = `
{apiVersion: v1, kind: Pod, metadata: {name: door-1, namespace: NS, labels: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door}, annotations: {example.net/kept: "1"}}, spec: {containers: [{name: c, image: example.net/c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: door-2, namespace: NS, labels: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door}, annotations: {controller.kubernetes.io/pod-deletion-cost: "1"}}, spec: {containers: [{name: c, image: example.net/c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: victim, namespace: NS, labels: {app: victim}}, spec: {containers: [{name: c, image: example.net/c}]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: victim, namespace: NS}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: victim, namespace: NS}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: front-door-old, namespace: NS, labels: {stunner.l7mp.io/owned-by: stunner}}}
---
{apiVersion: v1, kind: Service, metadata: {name: victim, namespace: NS}, spec: {selector: {app: victim}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: mesh, namespace: NS, ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: front-door, uid: UID, controller: true}]}, spec: {selector: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: NS}, ports: [{port: 80}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: victim, namespace: NS}, spec: {selector: {matchLabels: {app: victim}}, template: {metadata: {labels: {app: victim}}, spec: {containers: [{name: stunner-daemon, image: example.net/c}]}}}}
---
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: victim, namespace: NS}, spec: {maxUnavailable: 1, selector: {matchLabels: {app: victim}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: victim, namespace: NS}, spec: {podSelector: {}}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: victim, namespace: NS}}
`

// allow changes an allow-list of the policies, as an overlay does.
func (s *installation) allow(policy, setting, expression string) {
	s.Helper()
	policy = "validatingadmissionpolicy/" + s.account() + "-" + policy
	names := strings.Fields(s.get(policy, ".spec.variables[*].name"))
	s.patch(policy, types.JSONPatchType, fmt.Sprintf(`[{"op":"replace","path":"/spec/variables/%d/expression","value":%q}]`, slices.Index(names, setting), expression))
}

// unprivileged is the security context of a container that the Pod Security Standard restricted admits.
const unprivileged = `"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}`

// owned is the metadata of an object that the operator creates for the Gateway "new".
const owned = `{name: new, namespace: NS, labels: {stunner.l7mp.io/owned-by: stunner, stunner.l7mp.io/related-gateway-name: new, stunner.l7mp.io/related-gateway-namespace: NS}, ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: new, uid: "1", controller: true}]}`

const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: ` + owned + `, spec: {selector: {matchLabels: {app: stunner}}, template: {metadata: {labels: {app: stunner,
  stunner.l7mp.io/related-gateway-name: new, stunner.l7mp.io/related-gateway-namespace: NS}}, spec: {automountServiceAccountToken: false, securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}},
  containers: [{name: c, image: example.net/c, ` + unprivileged + `}]}}}}`

// serviceSpec is the spec of a Service of the Gateway "new".
const serviceSpec = `spec: {selector: {app: stunner, stunner.l7mp.io/related-gateway-name: new, stunner.l7mp.io/related-gateway-namespace: NS}, ports: [{port: 443}]}`

// pods returns a selector of the pods of a Gateway, as the operator writes it.
func pods(gateway string) string {
	return `{matchExpressions: [{key: app, operator: In, values: [stunner]}, {key: stunner.l7mp.io/related-gateway-name, operator: In, values: [` + gateway + `]}]}`
}

// objectOfNew returns an object with any name, which the Gateway "new" owns.
func objectOfNew(version, kind, name, content string) string {
	return `{apiVersion: ` + version + `, kind: ` + kind + `, metadata: ` + strings.Replace(owned, "{name: new,", "{name: "+name+",", 1) + `, ` + content + `}`
}

func networkPolicy(selector string) string {
	return `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: ` + owned + `, spec: {podSelector: ` + selector + `}}`
}

func budget(selector string) string {
	return `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: ` + owned + `, spec: {maxUnavailable: 0, selector: ` + selector + `}}`
}

// fill inserts the names of the test into YAML and commands.
func (s *installation) fill(text string) string {
	return strings.NewReplacer("NS", s.name, "OTHER", "default", "ACCOUNT", s.account()).Replace(text)
}

// asOperator requests a change with the operator's identity, as cluster.DryRun does.
func (s *installation) asOperator(ctx context.Context, command, input string) error {
	s.Helper()
	namespace := s.name
	if before, other, found := strings.Cut(command, " -n "); found {
		command, namespace = before, s.fill(other)
	}
	if command == "create" {
		input = s.fill(input)
	}
	return control.DryRun(ctx, s.user(), namespace, s.fill(command), input)
}
