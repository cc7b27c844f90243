package charts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Each value that configures a field of an object changes that field.
func TestValues_SetFieldsOfObjects(t *testing.T) {
	const operator, auth = "Deployment/" + home + "/stunner-operator", "Deployment/" + home + "/stunner-auth"
	const service, discovery = "Service/" + home + "/stunner-auth", "Service/" + home + "/stunner-config-discovery"
	const pod = "spec.template.spec."
	releases := map[string]map[string]object{} // rendered objects by values and name
	for _, c := range []struct{ set, object, field, want string }{
		{`rbac: {aggregateRoles: false}`, "ClusterRole/stunner-edit", "", "null"},
		{`rbac: {aggregateRoles: false}`, "ClusterRole/stunner-view", "", "null"},
		{`{}`, "RoleBinding/" + home + "/stunner-reach", "", "null"},
		{`inspection: {reachableBy: [{kind: Group, name: turn-operators}]}`, "RoleBinding/" + home + "/stunner-reach", "subjects",
			`[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"turn-operators"}]`},
		{`inspection: {reachableBy: [{kind: ServiceAccount, name: ci, namespace: tools}]}`, "RoleBinding/" + home + "/stunner-reach", "subjects",
			`[{"kind":"ServiceAccount","name":"ci","namespace":"tools"}]`},
		{`rbac: {aggregateRoles: false}`, "ClusterRole/stunner-viewer", "kind", `"ClusterRole"`},
		{`{}`, "ClusterRoleBinding/stunner-inspector", "roleRef.name", `"stunner-inspector"`},
		{`watchNamespaces: [stunner-system, meet]`, "ClusterRoleBinding/stunner-inspector", "", "null"},
		{`watchNamespaces: [stunner-system, meet]`, "RoleBinding/meet/stunner-inspector", "roleRef.name", `"stunner-inspector"`},

		// ServiceAccounts.
		{`stunnerGatewayOperator: {serviceAccount: {create: false, name: turn}}`, "ServiceAccount/" + home + "/stunner-inspector", "automountServiceAccountToken", "false"},
		{`stunnerGatewayOperator: {serviceAccount: {name: turn}}`, operator, pod + "serviceAccountName", `"turn"`},
		{`stunnerGatewayOperator: {serviceAccount: {name: turn}}`, "ServiceAccount/" + home + "/turn", "kind", `"ServiceAccount"`},
		{`stunnerGatewayOperator: {serviceAccount: {name: turn}}`, "ClusterRoleBinding/stunner-operator", "subjects.0.name", `"turn"`},
		{`stunnerGatewayOperator: {serviceAccount: {name: turn}}`, "RoleBinding/" + home + "/stunner-operator", "subjects.0.name", `"turn"`},
		{`stunnerGatewayOperator: {serviceAccount: {name: turn}}`, "ValidatingAdmissionPolicy/stunner-operator-pods", "spec.matchConditions.0.expression",
			`"request.userInfo.username.matches('^system:serviceaccount:stunner-system:turn$')"`},
		{`stunnerGatewayOperator: {serviceAccount: {name: turn}}`, "ValidatingAdmissionPolicy/stunner-operator", "spec.variables.1.expression",
			`"request.userInfo.username == 'system:serviceaccount:' + request.namespace + ':turn'"`},
		{`stunnerGatewayOperator: {serviceAccount: {name: turn}}`, operator, pod + "containers.0.args", `"--discovery-readers=$(POD_NAMESPACE)/turn,$(POD_NAMESPACE)/stunner-auth"`},
		{`stunnerGatewayOperator: {serviceAccount: {create: false, name: turn}}`, "ServiceAccount/" + home + "/turn", "", "null"},
		{`stunnerGatewayOperator: {serviceAccount: {annotations: {a: b}}}`, "ServiceAccount/" + home + "/stunner-operator", "metadata.annotations", `{"a":"b"}`},
		{`stunnerGatewayOperator: {serviceAccount: {automount: false}}`, "ServiceAccount/" + home + "/stunner-operator", "automountServiceAccountToken", "false"},
		{`stunnerAuthService: {serviceAccount: {name: web, annotations: {a: b}}}`, "ServiceAccount/" + home + "/web", "metadata.annotations", `{"a":"b"}`},
		{`stunnerAuthService: {serviceAccount: {create: false}}`, "ServiceAccount/" + home + "/stunner-auth", "", "null"},

		// Pods.
		{`stunnerGatewayOperator: {deployment: {extraVolumes: [{name: ca, configMap: {name: ca}}]}}`, operator, pod + "volumes.1.name", `"ca"`},
		{`stunnerGatewayOperator: {deployment: {container: {manager: {extraVolumeMounts: [{name: ca, mountPath: /ca}]}}}}`, operator, pod + "containers.0.volumeMounts.1.mountPath", `"/ca"`},
		{`stunnerGatewayOperator: {deployment: {extraContainers: [{name: proxy, image: p}]}}`, operator, pod + "containers.1.name", `"proxy"`},
		{`stunnerAuthService: {deployment: {extraVolumes: [{name: keys, configMap: {name: keys}}]}}`, auth, pod + "volumes.1.name", `"keys"`},
		{`stunnerAuthService: {deployment: {container: {authService: {extraVolumeMounts: [{name: keys, mountPath: /keys}]}}}}`, auth, pod + "containers.0.volumeMounts.1.mountPath", `"/keys"`},
		{`stunnerAuthService: {deployment: {extraContainers: [{name: proxy, image: p}]}}`, auth, pod + "containers.1.name", `"proxy"`},
		{`stunnerAuthService: {jwt: {issuer: me, audience: calls, jwksFile: /keys/jwks.json}}`, auth, pod + "containers.0.args", `"--jwt-jwks-file=/keys/jwks.json"`},
		{`stunnerAuthService: {policy: {existingConfigMap: callers}}`, auth, pod + "containers.0.args", `"--policy=/var/run/stunner-policy/policy.yaml"`},
		{`stunnerAuthService: {policy: {existingConfigMap: callers}}`, auth, pod + "volumes.1.configMap.name", `"callers"`},
		{`stunnerAuthService: {policy: {existingSecret: callers}}`, auth, pod + "volumes.1.secret.secretName", `"callers"`},
		{`stunnerAuthService: {policy: {existingSecret: callers, clusterKeys: true}}`, auth, pod + "volumes.2.projected.sources.1.configMap.name", `"kube-root-ca.crt"`},
		{`stunnerAuthService: {policy: {existingSecret: callers, clusterKeys: true}}`, auth, pod + "containers.0.volumeMounts.2.mountPath", `"/var/run/secrets/kubernetes.io/serviceaccount"`},
		{`stunnerAuthService: {clusters: {existingSecret: regions}}`, auth, pod + "containers.0.args.0", `"--clusters=/var/run/stunner-clusters/clusters.yaml"`},
		{`stunnerAuthService: {clusters: {existingSecret: regions}}`, auth, pod + "containers.0.volumeMounts.1.mountPath", `"/var/run/stunner-clusters"`},
		{`stunnerAuthService: {clusters: {existingSecret: regions}}`, auth, pod + "volumes.1.secret.secretName", `"regions"`},
		{`stunnerAuthService: {clusters: {existingSecret: regions}}`, auth, pod + "volumes.0.projected.sources.1.configMap.optional", "null"},
		{`{stunnerGatewayOperator: {enabled: false}, stunnerAuthService: {clusters: {existingSecret: regions}}}`, auth, pod + "volumes.0.projected.sources.1.configMap.optional", "true"},
		{`stunnerGatewayOperator: {enabled: false}`, auth, pod + "volumes.0.projected.sources.1.configMap.optional", "null"},
		{`{networkPolicy: {egressPorts: [6443]}, stunnerAuthService: {clusters: {existingSecret: regions, egressPorts: [8443]}}}`, "NetworkPolicy/" + home + "/stunner-auth", "spec.egress.2.ports",
			`[{"port":8443}]`},
		{`stunnerAuthService: {policy: {existingSecret: callers}, revocations: {enabled: true}}`, auth, pod + "volumes.2.projected.sources.1.configMap.name", `"kube-root-ca.crt"`},
		{`stunnerAuthService: {policy: {existingSecret: callers}, revocations: {enabled: true}}`, auth, pod + "containers.0.args", `"--revocations=kubernetes"`},
		{`stunnerAuthService: {policy: {existingSecret: callers}, revocations: {enabled: true}}`, "ClusterRole/stunner-auth-revocations", "rules", `[{"apiGroups":["stunner.l7mp.io"],"resources":["revocations"],"verbs":["list","create","patch","delete"]}]`},
		{`stunnerAuthService: {policy: {existingSecret: callers}, revocations: {enabled: true}, serviceAccount: {name: web}}`, "ClusterRoleBinding/stunner-auth-revocations", "subjects", `[{"kind":"ServiceAccount","name":"web","namespace":"stunner-system"}]`},
		{`stunnerAuthService: {policy: {existingSecret: callers}}`, "ClusterRole/stunner-auth-revocations", "", "null"},
		{`{rbac: {create: false}, stunnerAuthService: {policy: {existingSecret: callers}, revocations: {enabled: true}}}`, "ClusterRole/stunner-auth-revocations", "", "null"},
		{`{networkPolicy: {egressPorts: [6443]}, stunnerAuthService: {policy: {existingSecret: callers}, revocations: {enabled: true}}}`, "NetworkPolicy/" + home + "/stunner-auth", "spec.egress.2.ports",
			`[{"port":443},{"port":6443}]`},
		{`stunnerAuthService: {policy: {existingSecret: callers}, service: {type: LoadBalancer}}`, service, "spec.type", `"LoadBalancer"`},
		{`{networkPolicy: {egressPorts: [6443]}, stunnerAuthService: {policy: {existingSecret: callers, clusterKeys: true}}}`, "NetworkPolicy/" + home + "/stunner-auth", "spec.egress.2.ports",
			`[{"port":443},{"port":6443}]`},
		{`{networkPolicy: {egressPorts: [6443]}, stunnerAuthService: {policy: {existingSecret: callers, egressPorts: [8443]}}}`, "NetworkPolicy/" + home + "/stunner-auth", "spec.egress.2.ports",
			`[{"port":8443}]`},
		{`stunnerGatewayOperator: {deployment: {podAnnotations: {a: b}}}`, operator, "spec.template.metadata.annotations", `{"a":"b"}`},
		{`pods: {updateStrategy: {type: Recreate, rollingUpdate: null}}`, auth, "spec.strategy", `{"type":"Recreate"}`},
		{`pods: {revisionHistoryLimit: 2}`, operator, "spec.revisionHistoryLimit", "2"},
		{`pods: {hostAliases: [{ip: 192.0.2.1, hostnames: [id]}]}`, auth, pod + "hostAliases.0.ip", `"192.0.2.1"`},
		{`pods: {dnsPolicy: Default}`, operator, pod + "dnsPolicy", `"Default"`},
		{`pods: {dnsConfig: {nameservers: [192.0.2.1]}}`, auth, pod + "dnsConfig.nameservers.0", `"192.0.2.1"`},
		{`pods: {enableServiceLinks: false}`, operator, pod + "enableServiceLinks", "false"},
		{`pods: {runtimeClassName: gvisor}`, auth, pod + "runtimeClassName", `"gvisor"`},
		{`pods: {livenessProbe: {failureThreshold: 9}}`, operator, pod + "containers.0.livenessProbe", `{"failureThreshold":9,"httpGet":{"path":"/live","port":"health"}}`},
		{`pods: {readinessProbe: {timeoutSeconds: 3}}`, auth, pod + "containers.0.readinessProbe", `{"httpGet":{"path":"/ready","port":"health"},"periodSeconds":5,"timeoutSeconds":3}`},
		{`stunnerGatewayOperator: {log: {level: "all:DEBUG", format: json}}`, operator, pod + "containers.0.args", `"--log=all:DEBUG"`},
		{`stunnerGatewayOperator: {log: {level: "all:DEBUG", format: json}}`, operator, pod + "containers.0.args", `"--log-format=json"`},
		{`stunnerAuthService: {log: {level: "all:DEBUG,rest:TRACE", format: json}}`, auth, pod + "containers.0.args", `"--log-level=all:DEBUG,rest:TRACE"`},

		{`logging: {operator: {level: debug, format: JSON}}`, operator, pod + "containers.0.args", `"--log=all:DEBUG"`},
		{`logging: {operator: {level: debug, format: JSON}}`, operator, pod + "containers.0.args", `"--log-format=json"`},
		{`logging: {operator: {level: 2}}`, operator, pod + "containers.0.args", `"--log=all:TRACE"`},
		{`logging: {operator: {level: PANIC}}`, operator, pod + "containers.0.args", `"--log=all:ERROR"`},
		{`{logging: {operator: {level: debug}}, stunnerGatewayOperator: {log: {level: "all:WARN"}}}`, operator, pod + "containers.0.args", `"--log=all:WARN"`},
		{`{logging: {authService: {format: json}}}`, auth, pod + "containers.0.args", `"--log-format=json"`},
		{`{logging: {authService: {format: text}}, stunnerAuthService: {log: {format: json}}}`, auth, pod + "containers.0.args", `"--log-format=json"`},
		{`logging: {dataplane: {format: json}}`, "Dataplane/default", "spec.args", `["-w","--udp-thread-num=16","--log-format=json"]`},
		{`{logging: {dataplane: {format: json}}, stunnerGatewayOperator: {dataplane: {spec: {args: [-w]}}}}`, "Dataplane/default", "spec.args", `["-w","--log-format=json"]`},
		{`{logging: {dataplane: {format: json}}, stunnerGatewayOperator: {dataplane: {spec: {command: [stunnerd]}}}}`, "Dataplane/default", "spec.args", `["--log-format=json"]`},
		{`logging: {dataplane: {format: text}}`, "Dataplane/default", "spec.args", "null"},

		// Names and images.
		{`fullnameOverride: edge`, "Deployment/" + home + "/edge-auth", "spec.selector.matchLabels.app", `"edge-auth"`},
		{`fullnameOverride: edge`, "Service/" + home + "/edge-auth", "spec.selector.app", `"edge-auth"`},
		{`fullnameOverride: edge`, discovery, "spec.selector.app", `"edge-operator"`},
		{`nameOverride: turn`, "NetworkPolicy/" + home + "/stunner-turn-operator", "spec.podSelector.matchLabels.app", `"stunner-turn-operator"`},
		{`global: {imageRegistry: "mirror.example.org:5000"}`, operator, pod + "containers.0.image", `"mirror.example.org:5000/stunner-gateway/operator:0.1.0"`},
		{`global: {imageRegistry: mirror.example.org/hub/}`, operator, pod + "containers.0.env.2.value", `"mirror.example.org/hub/stunner-gateway/stunnerd:0.1.0"`},
		{`{global: {imageRegistry: mirror.example.org}, stunnerGatewayOperator: {dataplane: {spec: {image: {name: team/stunnerd}}}}}`, "Dataplane/default", "spec.image", `"mirror.example.org/team/stunnerd:0.1.0"`},
		{`{global: {imagePullSecrets: [{name: a}]}, stunnerAuthService: {deployment: {imagePullSecrets: [{name: b}, {name: a}]}}}`, auth, pod + "imagePullSecrets", `[{"name":"b"},{"name":"a"}]`},
		{`global: {imagePullSecrets: [{name: a}]}`, "Dataplane/default", "spec.imagePullSecrets", `[{"name":"a"}]`},

		// Rows of other charts.
		{`namespaceOverride: calls`, "Deployment/calls/stunner-operator", "kind", `"Deployment"`},
		{`namespaceOverride: calls`, "RoleBinding/calls/stunner-operator", "subjects.0.namespace", `"calls"`},
		{`namespaceOverride: calls`, "ClusterRoleBinding/stunner-operator-calls", "roleRef.name", `"stunner-operator-calls"`},
		{`namespaceOverride: calls`, "GatewayConfig/calls/stunner", "kind", `"GatewayConfig"`},
		{`namespaceOverride: calls`, "GatewayClass/stunner", "spec.parametersRef.namespace", `"calls"`},
		{`namespaceOverride: calls`, "ValidatingAdmissionPolicy/stunner-operator-pods-calls", "spec.matchConditions.0.expression",
			`"request.userInfo.username.matches('^system:serviceaccount:calls:stunner-operator$')"`},
		{`rbac: {create: false}`, "ClusterRole/stunner-operator", "", "null"},
		{`rbac: {create: false}`, "ClusterRoleBinding/stunner-operator", "", "null"},
		{`rbac: {create: false}`, "Role/" + home + "/stunner-operator", "", "null"},
		{`{rbac: {create: false}, inspection: {reachableBy: [{kind: Group, name: a}]}}`, "RoleBinding/" + home + "/stunner-reach", "", "null"},
		{`rbac: {create: false}`, "ServiceAccount/" + home + "/stunner-operator", "kind", `"ServiceAccount"`},
		{`rbac: {create: false}`, "ValidatingAdmissionPolicy/stunner-operator", "kind", `"ValidatingAdmissionPolicy"`},
		{`stunnerGatewayOperator: {serviceAccount: {labels: {team: calls}}}`, "ServiceAccount/" + home + "/stunner-operator", "metadata.labels.team", `"calls"`},
		{`stunnerAuthService: {serviceAccount: {labels: {team: calls}}}`, "ServiceAccount/" + home + "/stunner-auth", "metadata.labels.team", `"calls"`},
		{`stunnerGatewayOperator: {deployment: {annotations: {a: b}}}`, operator, "metadata.annotations", `{"a":"b"}`},
		{`stunnerAuthService: {deployment: {annotations: {a: b}}}`, auth, "metadata.annotations", `{"a":"b"}`},
		{`{}`, "PodDisruptionBudget/" + home + "/stunner-operator", "spec.maxUnavailable", "1"},
		{`podDisruptionBudget: {maxUnavailable: "50%"}`, "PodDisruptionBudget/" + home + "/stunner-auth", "spec.maxUnavailable", `"50%"`},
		{`podDisruptionBudget: {minAvailable: 0}`, "PodDisruptionBudget/" + home + "/stunner-auth", "spec.minAvailable", "0"},
		{`podDisruptionBudget: {minAvailable: 1}`, "PodDisruptionBudget/" + home + "/stunner-operator", "spec.maxUnavailable", "null"},

		// Services and routes to the auth service.
		{`stunnerAuthService: {jwt: {issuer: me, audience: calls, existingSecret: web-app}, service: {type: NodePort, nodePort: 30088}}`, service, "spec.ports.0.nodePort", "30088"},
		{`stunnerAuthService: {service: {nodePort: 30088}}`, service, "spec.ports.0.nodePort", "null"},
		{`stunnerAuthService: {jwt: {issuer: me, audience: calls, existingSecret: web-app}, service: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24]}}`, service, "spec.loadBalancerSourceRanges", `["192.0.2.0/24"]`},
		{`stunnerAuthService: {service: {ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6, IPv4]}}`, service, "spec.ipFamilies", `["IPv6","IPv4"]`},
		{`stunnerAuthService: {service: {labels: {team: calls, app: mine}}}`, service, "metadata.labels.app", `"stunner-auth"`},
		{`stunnerAuthService: {service: {labels: {team: calls}}}`, service, "metadata.labels.team", `"calls"`},
		{`stunnerGatewayOperator: {discovery: {service: {ipFamilyPolicy: RequireDualStack, annotations: {a: b}}}}`, discovery, "spec.ipFamilyPolicy", `"RequireDualStack"`},
		{`stunnerGatewayOperator: {discovery: {service: {labels: {team: calls}}}}`, discovery, "metadata.labels.team", `"calls"`},
		{`stunnerAuthService: {jwt: {issuer: me, audience: calls, existingSecret: web-app}, ingress: {enabled: true, className: nginx, hosts: [a.example.org, b.example.org], tls: [{secretName: web, hosts: [a.example.org]}]}}`,
			"Ingress/" + home + "/stunner-auth", "spec.rules.1.host", `"b.example.org"`},
		{`stunnerAuthService: {jwt: {issuer: me, audience: calls, existingSecret: web-app}, ingress: {enabled: true, tls: [{secretName: web}]}}`, "Ingress/" + home + "/stunner-auth", "spec.tls.0.secretName", `"web"`},
		{`stunnerAuthService: {jwt: {issuer: me, audience: calls, existingSecret: web-app}, ingress: {enabled: true}}`, "Ingress/" + home + "/stunner-auth", "spec.rules.0.http.paths.0.backend.service", `{"name":"stunner-auth","port":{"name":"http"}}`},
		{`stunnerAuthService: {jwt: {issuer: me, audience: calls, existingSecret: web-app}, httpRoute: {enabled: true, parentRefs: [{name: web}], hostnames: [a.example.org]}}`, "HTTPRoute/" + home + "/stunner-auth", "spec.rules.0.backendRefs.0", `{"name":"stunner-auth","port":8088}`},
		{`stunnerAuthService: {autoscaling: {enabled: true, maxReplicas: 5}}`, "HorizontalPodAutoscaler/" + home + "/stunner-auth", "spec.maxReplicas", "5"},
		{`stunnerAuthService: {autoscaling: {enabled: true}}`, auth, "spec.replicas", "null"},
		{`stunnerAuthService: {autoscaling: {enabled: true, minReplicas: 1}}`, "PodDisruptionBudget/" + home + "/stunner-auth", "", "null"},
		{`podDisruptionBudget: {unhealthyPodEvictionPolicy: IfHealthyBudget}`, "PodDisruptionBudget/" + home + "/stunner-auth", "spec.unhealthyPodEvictionPolicy", `"IfHealthyBudget"`},
		{`monitoring: {podMonitor: {enabled: true, relabelings: [{targetLabel: site, replacement: a}], metricRelabelings: [{action: labeldrop, regex: x}]}}`,
			"PodMonitor/" + home + "/stunner-auth", "spec.podMetricsEndpoints.0.relabelings.2.targetLabel", `"site"`},
		{`monitoring: {podMonitor: {enabled: true}}`,
			"PodMonitor/" + home + "/stunner-auth", "spec.podMetricsEndpoints.0.relabelings.1", `{"replacement":"stunner","targetLabel":"release"}`},
		{`monitoring: {podMonitor: {enabled: true, metricRelabelings: [{action: labeldrop, regex: x}]}}`,
			"PodMonitor/" + home + "/stunner-dataplane", "spec.podMetricsEndpoints.0.metricRelabelings.0.action", `"labeldrop"`},

		// Limits for dataplane pods.
		{`stunnerGatewayOperator: {workloadPolicy: {serviceAccountNames: [media]}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.0", `{"expression":"[\"media\"]","name":"serviceAccountNames"}`},
		{`stunnerGatewayOperator: {workloadPolicy: {hostPaths: [/dev/net]}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.2.expression", `"[\"/dev/net\"]"`},
		{`stunnerGatewayOperator: {workloadPolicy: {privileged: true}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.3.expression", `"true"`},
		{`stunnerGatewayOperator: {workloadPolicy: {images: [r.example.org/]}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.4.expression", `"[\"r.example.org/\"]"`},
		{`stunnerGatewayOperator: {workloadPolicy: {offload: true}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.5", `{"expression":"true","name":"offload"}`},
		{`stunnerGatewayOperator: {dataplane: {spec: {offloadEngine: None}}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.5.expression", `"false"`},
		{`stunnerGatewayOperator: {dataplane: {spec: {offloadEngine: Auto}}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.5.expression", `"true"`},
		{`stunnerGatewayOperator: {dataplane: {spec: {offloadEngine: Auto, hostNetwork: true}}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.5.expression", `"false"`},
		{`stunnerGatewayOperator: {dataplane: {spec: {offloadEngine: TC, hostNetwork: true}}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.5.expression", `"true"`},
		{`stunnerGatewayOperator: {dataplane: {spec: {hostNetwork: true}}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.1", `{"expression":"true","name":"hostNetwork"}`},
		{`stunnerGatewayOperator: {workloadPolicy: {baseline: true}}`, "ValidatingAdmissionPolicy/stunner-operator-workloads", "spec.variables.6", `{"expression":"true","name":"baseline"}`},
		{`stunnerGatewayOperator: {workloadPolicy: {externalName: true}}`, "ValidatingAdmissionPolicy/stunner-operator-services", "spec.variables.1", `{"expression":"true","name":"externalName"}`},
		{`stunnerGatewayOperator: {workloadPolicy: {workloadNames: [a]}, dataplane: {spec: {workloadName: b}}}`, "ValidatingAdmissionPolicy/stunner-operator-objects", "spec.variables.0", `{"expression":"[\"a\",\"b\"]","name":"workloadNames"}`},
		{`stunnerGatewayOperator: {workloadPolicy: {externalIPs: [192.0.2.0/24]}}`, "ValidatingAdmissionPolicy/stunner-operator-services", "spec.variables.0.expression", `"[\"192.0.2.0/24\"]"`},
	} {
		objects, rendered := releases[c.set]
		if !rendered {
			objects = byName(t, release{chart: app, set: c.set}.objects(t))
			releases[c.set] = objects
		}
		var fields any
		if o, there := objects[c.object]; there {
			fields = at(o.Object, c.field)
		} else if c.want != "null" {
			t.Errorf("%s: %s is missing", c.set, c.object)
			continue
		}
		if args, list := fields.([]any); list && !strings.HasPrefix(c.want, "[") && slices.ContainsFunc(
			args, func(arg any) bool { return fmt.Sprintf("%q", arg) == c.want },
		) {
			continue // the wanted value is one of several flags
		}
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if string(text) != c.want {
			t.Errorf("%s: %s of %s is %s, want %s", c.set, c.field, c.object, text, c.want)
		}
	}
}

// at returns the field at a path of names and indexes, or nil. The empty path returns the whole object.
func at(fields any, path string) any {
	for step := range strings.SplitSeq(path, ".") {
		switch of := fields.(type) {
		case map[string]any:
			if step != "" {
				fields = of[step]
			}
		case []any:
			n, err := strconv.Atoi(step)
			if err != nil || n >= len(of) {
				return nil
			}
			fields = of[n]
		default:
			return nil
		}
	}
	return fields
}

// Two releases fit in one namespace: the second installs another auth service, whose account the first operator
// accepts. Its objects refer neither to the first auth service nor to an operator of its own, which does not exist.
func TestReleases_FitInOneNamespace(t *testing.T) {
	for title, both := range map[string]string{
		"defaults": "",
		"with everything optional": `
monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}
networkPolicy: {egressPorts: [6443]}
stunnerAuthService: {policy: {existingConfigMap: policy}, revocations: {enabled: true}}`,
	} {
		t.Run(title, func(t *testing.T) {
			first := byName(t, release{
				chart: app, set: `stunnerGatewayOperator: {discovery: {readers: [stunner-system/partners-auth]}}` + both,
			}.objects(t))
			for _, o := range (release{
				chart: app,
				set:   "fullnameOverride: partners\nstunnerGatewayOperator: {enabled: false}\ndefaults: {create: false}" + both,
			}).objects(t) {
				if _, both := first[name(o)]; both {
					t.Errorf("%s is in both", name(o))
				}
				o = *o.DeepCopy()
				delete(o.Object, "data") // the data of the boards contain all services
				if o.GetKind() == "PrometheusRule" {
					continue // so do the rules of the alerts
				}
				for _, of := range []string{"stunner-auth", "partners-operator"} {
					if text := fmt.Sprint(o.Object); strings.Contains(strings.ReplaceAll(text, "replacement:stunner-auth", ""), of) {
						t.Errorf("%s refers to %s: %s", name(o), of, text)
					}
				}
			}
		})
	}
}

// The pod of `helm test` requests credentials from the release's auth service.
func TestHook_RequestsCredentials(t *testing.T) {
	for set, want := range map[string]string{
		`{}`: "http://stunner-auth.stunner-system.svc.cluster.local:8088/v1/ice-servers",
		`{fullnameOverride: partners, stunnerGatewayOperator: {clusterDomain: example.org}}`: "http://partners-auth.stunner-system.svc.example.org:8088/v1/ice-servers",
		`stunnerAuthService: {enabled: false}`:                                               "",
	} {
		var asks string
		for _, o := range (release{chart: app, set: set}).all(t) {
			if o.GetAnnotations()[hook] == "test" {
				asks += fmt.Sprint(at(o.Object, "spec.containers.0.args.1"))
			}
		}
		if asks != want {
			t.Errorf("%s: the test sends the request to %q, want %q", set, asks, want)
		}
	}
}

// The notes warn if the CRDs in the cluster have another version than the operator.
func TestNotes_WarnOfOldCRDs(t *testing.T) {
	apply(t, release{chart: crds}.objects(t))
	for title, c := range map[string]struct {
		release release
		told    bool
	}{
		"newer operator": {release{chart: app, upgraded: true}, true},
		"same version":   {release{chart: app, live: true}, false},
	} {
		notes := c.release.notes(t)
		if told := strings.Contains(notes, "The CRDs have version 0.1.0"); told != c.told {
			t.Errorf("%s: warning %t, want %t:\n%s", title, told, c.told, notes)
		}
	}
}

// The metadata for Artifact Hub lists changes of known kinds, and an existing icon.
func TestMetadata(t *testing.T) {
	for _, c := range []string{app, crds} {
		metadata := load(t, c).Metadata
		if path, ours := strings.CutPrefix(
			metadata.Icon, "https://raw.githubusercontent.com/stunner-gateway/stunner/main/",
		); !ours || harnesstest.Read(t, path) == "" {
			t.Errorf("%s: icon %q is not in the repository", c, metadata.Icon)
		}
		var changes []struct{ Kind, Description string }
		if err := yaml.UnmarshalStrict([]byte(metadata.Annotations["artifacthub.io/changes"]), &changes); err != nil ||
			len(changes) == 0 {
			t.Errorf("%s: changes %v: %v", c, changes, err)
		}
		for _, change := range changes {
			if !strings.Contains("added changed deprecated removed fixed security", change.Kind) ||
				change.Description == "" {
				t.Errorf("%s: change %+v", c, change)
			}
		}
	}
}
