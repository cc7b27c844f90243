package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Parts of the messages with which policies refuse a field.
var refusals = map[string]string{
	"account":      "serviceAccountName admin of dataplane pods is not allowed",
	"baseline":     "are those of the Pod Security Standard baseline",
	"capabilities": "privileged containers",
	"externalIPs":  "externalIPs is not allowed",
	"externalName": "Services of type ExternalName are not allowed",
	"host":         "hostNetwork and hostPort",
	"namespaces":   "hostPID and hostIPC",
	"node":         "nodeName of dataplane pods is not allowed",
	"priority":     "PriorityClasses system-*",
	"probe":        "has a host, to which the node would connect",
	"restricted":   "satisfy the Pod Security Standard restricted",
	"selector":     "select the pods of their Gateway",
	"sysctl":       "is not in the Pod Security Standard baseline",
	"template":     "not allowed in pod template",
	"token":        "no token for the API server",
	"volume":       "volumes of dataplane pods",
	"invalid":      "is invalid", // error of the API server itself
}

// dangers lists every field of a pod template and of a Service with attempts to change it: path | value | refusals. The
// operator may use a field without refusals. "-" is a field without an attempt, because it does not widen the rights of
// the pod or the API server does not let workloads set it. A value that begins with "/" is a whole container, pod or
// Service spec.
const dangers = `
pod.ephemeralContainers | [{"name":"e","image":"example.net/e"}] | template
pod.restartPolicy | -
pod.terminationGracePeriodSeconds | 10 |
pod.activeDeadlineSeconds | -
pod.dnsPolicy | "Default" |
pod.nodeSelector | {"zone":"a"} |
pod.serviceAccountName | "admin" | account
pod.serviceAccountName | "default" |
pod.serviceAccount | "admin" | account
pod.automountServiceAccountToken | true | token
pod.automountServiceAccountToken | null | token
pod.nodeName | "control-plane" | node
pod.hostNetwork | true,"securityContext":{"sysctls":null} | host
pod.hostPID | true | namespaces
pod.hostIPC | true | namespaces
pod.shareProcessNamespace | true |
pod.imagePullSecrets | [{"name":"a"}] |
pod.hostname | "a" |
pod.subdomain | "a" |
pod.affinity | {"nodeAffinity":{}} |
pod.schedulerName | "packer" |
pod.tolerations | [{"operator":"Exists"}] |
pod.hostAliases | [{"ip":"192.0.2.1","hostnames":["a"]}] |
pod.priorityClassName | "system-node-critical" | priority
pod.priorityClassName | "system-cluster-critical" | priority
pod.priorityClassName | "media" |
pod.priority | -
pod.dnsConfig | {"nameservers":["192.0.2.53"]} |
pod.readinessGates | -
pod.runtimeClassName | "gvisor" |
pod.enableServiceLinks | false |
pod.preemptionPolicy | -
pod.overhead | -
pod.topologySpreadConstraints | -
pod.setHostnameAsFQDN | -
pod.os | -
pod.hostUsers | false |
pod.hostUsers | false,"containers":[{"name":"stunner-daemon","securityContext":{"procMount":"Unmasked"}}] | baseline
pod.schedulingGates | -
pod.resourceClaims | -
pod.resources | -
pod.hostnameOverride | -
pod.schedulingGroup | -

pod.securityContext | null | restricted
pod.securityContext.seLinuxOptions.user | "system_u" | baseline
pod.securityContext.seLinuxOptions.role | "sysadm_r" | baseline
pod.securityContext.seLinuxOptions.type | "spc_t" | baseline
pod.securityContext.seLinuxOptions.type | "container_t" |
pod.securityContext.seLinuxOptions.level | "s0:c1,c2" |
pod.securityContext.windowsOptions.gmsaCredentialSpecName | -
pod.securityContext.windowsOptions.gmsaCredentialSpec | -
pod.securityContext.windowsOptions.runAsUserName | -
pod.securityContext.windowsOptions.hostProcess | true | baseline invalid
pod.securityContext.runAsUser | 0 | restricted
pod.securityContext.runAsUser | 1000 |
pod.securityContext.runAsGroup | 1000 |
pod.securityContext.runAsNonRoot | false | restricted
pod.securityContext.supplementalGroups | [1000] |
pod.securityContext.supplementalGroupsPolicy | -
pod.securityContext.fsGroup | 1000 |
pod.securityContext.sysctls | [{"name":"kernel.msgmax","value":"1"}] | sysctl
pod.securityContext.sysctls | [{"name":"net.core.somaxconn","value":"1"}] | sysctl
pod.securityContext.sysctls | [{"name":"net.ipv4.tcp_syncookies","value":"1"}] |
pod.securityContext.fsGroupChangePolicy | -
pod.securityContext.seccompProfile | null | restricted
pod.securityContext.seccompProfile.type | "Unconfined" | baseline
pod.securityContext.seccompProfile.localhostProfile | "a.json","type":"Localhost" |
pod.securityContext.appArmorProfile.type | "Unconfined" | baseline
pod.securityContext.appArmorProfile.localhostProfile | "a","type":"Localhost" |
pod.securityContext.seLinuxChangePolicy | -

container.name | -
container.image | "example.net/dataplane:1" |
container.command | ["sh"] |
container.args | ["-c"] |
container.workingDir | -
container.ports.name | -
container.ports.hostPort | /{"ports":[{"containerPort":53,"hostPort":53,"protocol":"UDP"}]} | host
container.ports.containerPort | /{"ports":[{"containerPort":53,"protocol":"UDP"}]} |
container.ports.protocol | -
container.ports.hostIP | -
container.envFrom | -
container.env | [{"name":"A","value":"b"}] |
container.resources | {"limits":{"memory":"1Gi"}} |
container.resizePolicy | -
container.restartPolicy | -
container.restartPolicyRules | -
container.volumeMounts | -
container.volumeDevices | -
container.livenessProbe | /{"livenessProbe":{"httpGet":null,"tcpSocket":{"port":80}}} |
container.livenessProbe | /{"livenessProbe":{"httpGet":{"host":"192.0.2.1","port":80}}} | probe
container.livenessProbe | /{"livenessProbe":{"httpGet":null,"tcpSocket":{"host":"192.0.2.1","port":80}}} | probe
container.readinessProbe | /{"readinessProbe":{"httpGet":{"host":"192.0.2.1","port":80}}} | probe
container.readinessProbe | /{"readinessProbe":{"httpGet":null,"tcpSocket":{"host":"192.0.2.1","port":80}}} | probe
container.startupProbe | /{"startupProbe":{"httpGet":{"host":"192.0.2.1","port":80}}} | probe
container.startupProbe | /{"startupProbe":{"tcpSocket":{"host":"192.0.2.1","port":80}}} | probe
container.lifecycle.postStart.exec | -
container.lifecycle.postStart.httpGet | /{"lifecycle":{"postStart":{"httpGet":{"host":"192.0.2.1","port":80}}}} | probe
container.lifecycle.postStart.tcpSocket | /{"lifecycle":{"postStart":{"tcpSocket":{"host":"192.0.2.1","port":80}}}} | probe
container.lifecycle.postStart.sleep | -
container.lifecycle.preStop.exec | -
container.lifecycle.preStop.httpGet | /{"lifecycle":{"preStop":{"httpGet":{"host":"192.0.2.1","port":80}}}} | probe
container.lifecycle.preStop.tcpSocket | /{"lifecycle":{"preStop":{"tcpSocket":{"host":"192.0.2.1","port":80}}}} | probe
container.lifecycle.preStop.sleep | -
container.lifecycle.stopSignal | -
container.terminationMessagePath | -
container.terminationMessagePolicy | -
container.imagePullPolicy | "Always" |
container.stdin | -
container.stdinOnce | -
container.tty | -

container.securityContext | null | restricted
container.securityContext.capabilities.add | ["SYS_ADMIN"] | capabilities
container.securityContext.capabilities.add | ["BPF","NET_ADMIN"] | capabilities
container.securityContext.capabilities.add | ["NET_BIND_SERVICE"] |
container.securityContext.capabilities.drop | ["NET_RAW"] | restricted
container.securityContext.privileged | true,"allowPrivilegeEscalation":true | capabilities
container.securityContext.seLinuxOptions.user | "system_u" | baseline
container.securityContext.seLinuxOptions.role | "sysadm_r" | baseline
container.securityContext.seLinuxOptions.type | "spc_t" | baseline
container.securityContext.seLinuxOptions.type | "container_init_t" |
container.securityContext.seLinuxOptions.level | "s0:c1,c2" |
container.securityContext.windowsOptions.gmsaCredentialSpecName | -
container.securityContext.windowsOptions.gmsaCredentialSpec | -
container.securityContext.windowsOptions.runAsUserName | -
container.securityContext.windowsOptions.hostProcess | true | baseline invalid
container.securityContext.runAsUser | 0 | restricted
container.securityContext.runAsUser | 1000 |
container.securityContext.runAsGroup | 1000 |
container.securityContext.runAsNonRoot | false | restricted
container.securityContext.readOnlyRootFilesystem | false |
container.securityContext.allowPrivilegeEscalation | true | restricted
container.securityContext.allowPrivilegeEscalation | null | restricted
container.securityContext.procMount | "Unmasked" | baseline invalid
container.securityContext.seccompProfile.type | "Unconfined" | baseline
container.securityContext.seccompProfile.localhostProfile | "a.json","type":"Localhost" |
container.securityContext.appArmorProfile.type | "Unconfined" | baseline
container.securityContext.appArmorProfile.localhostProfile | "a","type":"Localhost" |

volume.hostPath | {"path":"/"} | volume
volume.emptyDir | {} |
volume.gcePersistentDisk | {"pdName":"a"} | volume
volume.awsElasticBlockStore | {"volumeID":"a"} | volume
volume.gitRepo | {"repository":"https://example.net/a"} | volume
volume.secret | {"secretName":"a"} |
volume.nfs | {"server":"192.0.2.1","path":"/"} | volume
volume.iscsi | {"targetPortal":"192.0.2.1:3260","iqn":"iqn.2001-04.com.example:a","lun":0} | volume
volume.glusterfs | {"endpoints":"a","path":"a"} | volume
volume.persistentVolumeClaim | {"claimName":"victim"} | volume
volume.rbd | {"monitors":["a"],"image":"a"} | volume
volume.flexVolume | {"driver":"a/b"} | volume
volume.cinder | {"volumeID":"a"} | volume
volume.cephfs | {"monitors":["a"]} | volume
volume.flocker | {"datasetName":"a"} | volume
volume.downwardAPI | {} |
volume.fc | {"targetWWNs":["a"],"lun":0} | volume
volume.azureFile | {"secretName":"a","shareName":"b"} | volume
volume.configMap | {"name":"a"} |
volume.vsphereVolume | {"volumePath":"a"} | volume
volume.quobyte | {"registry":"192.0.2.1:1","volume":"a"} | volume
volume.azureDisk | {"diskName":"a","diskURI":"https://example.net/a"} | volume
volume.photonPersistentDisk | {"pdID":"a"} | volume
volume.projected.sources.secret | /{"projected":{"sources":[{"secret":{"name":"a"}}]}} |
volume.projected.sources.downwardAPI | -
volume.projected.sources.configMap | -
volume.projected.sources.serviceAccountToken | /{"projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}} | token
volume.projected.sources.serviceAccountToken | /{"projected":{"sources":[{"serviceAccountToken":{"path":"t","audience":"sts.example.net"}}]}} | token
volume.projected.sources.serviceAccountToken | /{"projected":{"sources":[{"serviceAccountToken":{"path":"t","audience":"stunner-discovery"}}]}} |
volume.projected.sources.clusterTrustBundle | -
volume.projected.sources.podCertificate | /{"projected":{"sources":[{"podCertificate":{"signerName":"kubernetes.io/kube-apiserver-client-pod","keyType":"ED25519","credentialBundlePath":"a"}}]}} | token invalid
volume.projected.defaultMode | -
volume.portworxVolume | {"volumeID":"a"} | volume
volume.scaleIO | {"gateway":"a","system":"a","secretRef":{"name":"a"},"volumeName":"a"} | volume
volume.storageos | {"volumeName":"a","volumeNamespace":"a"} | volume
volume.csi | {"driver":"a.example.net"} | volume
volume.ephemeral | {"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}} | volume
volume.image | {"reference":"example.net/a"} | volume invalid

service.ports | -
service.selector | {"app":"victim"} | selector
service.clusterIP | -
service.clusterIPs | -
service.type | "ExternalName","externalName":"evil.example.net","clusterIP":null,"clusterIPs":null | externalName
service.type | "NodePort" |
service.externalIPs | ["10.96.0.10"] | externalIPs
service.externalIPs | ["2001:db8::1"] | externalIPs
service.sessionAffinity | "None","sessionAffinityConfig":null |
service.loadBalancerIP | "192.0.2.9" |
service.loadBalancerSourceRanges | ["192.0.2.0/24"] |
service.externalName | "evil.example.net" | externalName
service.externalTrafficPolicy | "Local" |
service.healthCheckNodePort | -
service.publishNotReadyAddresses | -
service.sessionAffinityConfig | -
service.ipFamilies | -
service.ipFamilyPolicy | "PreferDualStack" |
service.allocateLoadBalancerNodePorts | false |
service.loadBalancerClass | -
service.internalTrafficPolicy | -
service.trafficDistribution | -
`

// looked are struct types whose fields dangers lists one by one.
var looked = map[reflect.Type]bool{
	reflect.TypeFor[corev1.PodSecurityContext](): true, reflect.TypeFor[corev1.SecurityContext](): true,
	reflect.TypeFor[corev1.SELinuxOptions](): true, reflect.TypeFor[corev1.SeccompProfile](): true,
	reflect.TypeFor[corev1.AppArmorProfile](): true, reflect.TypeFor[corev1.Capabilities](): true,
	reflect.TypeFor[corev1.WindowsSecurityContextOptions](): true, reflect.TypeFor[corev1.ContainerPort](): true,
	reflect.TypeFor[corev1.Lifecycle](): true, reflect.TypeFor[corev1.LifecycleHandler](): true,
	reflect.TypeFor[corev1.ProjectedVolumeSource](): true, reflect.TypeFor[corev1.VolumeProjection](): true,
}

// addFields adds the paths of the fields of a struct type, with the fields of looked types in their place.
func addFields(paths map[string]bool, path string, of reflect.Type) {
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		switch {
		case f.Anonymous:
			addFields(paths, path, inner)
		case looked[inner]:
			addFields(paths, path+"."+name, inner)
		default:
			paths[path+"."+name] = true
		}
	}
}

// K-05: with the token of the operator, an attacker cannot set a field of a pod template or of a Service that gives the
// pods rights on their node, or that directs the traffic of others to them. A field that a new version of Kubernetes
// adds needs a line in dangers.
func TestRightsOfAStolenTokenField(t *testing.T) {
	t.Parallel()
	paths := map[string]bool{}
	addFields(paths, "pod", reflect.TypeFor[corev1.PodSpec]())
	addFields(paths, "container", reflect.TypeFor[corev1.Container]())
	addFields(paths, "volume", reflect.TypeFor[corev1.VolumeSource]())
	addFields(paths, "service", reflect.TypeFor[corev1.ServiceSpec]())
	for _, other := range []string{"pod.containers", "pod.initContainers", "pod.volumes"} {
		delete(paths, other) // container and volume list these fields
	}
	fieldNames := slices.Collect(maps.Keys(paths))
	s := newInstallation(t)
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.sees("service/front-door", ".spec.ports[0].name", "udp")
	s.stop() // the operator would revert the attempts
	// The API server gets each policy through a watch.
	s.await(func(ctx context.Context) error {
		for patched, patch := range map[string]string{
			"deployment": `{"spec":{"template":{"spec":{"hostPID":true}}}}`, "service": `{"spec":{"externalIPs":["192.0.2.1"]}}`,
		} {
			if s.asOperator(ctx, "patch "+patched+" front-door", patch) == nil {
				return errors.New("the policies are not in force")
			}
		}
		return nil
	})
	refused := 0
	for line := range strings.Lines(dangers) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		if len(fields) < 2 {
			continue
		}
		path, value := strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1])
		if !slices.ContainsFunc(fieldNames, func(f string) bool { return f == path || strings.HasPrefix(f, path+".") }) {
			t.Errorf("dangers: field %s does not exist", path)
		}
		delete(paths, path)
		if value == "-" {
			continue
		}
		for kind, patch := range attempts(path, value) {
			wanted := strings.Fields(fields[2])
			err := s.asOperator(t.Context(), "patch "+kind+" front-door", patch)
			if len(wanted) == 0 {
				if err != nil {
					t.Errorf("%s %s: the operator needs it: %v", path, patch, err)
				}
				continue
			}
			refused++
			if err == nil || !slices.ContainsFunc(wanted, func(w string) bool { return strings.Contains(err.Error(), refusals[w]) }) {
				t.Errorf("%s %s: want it refused (%v), got %v", path, patch, wanted, err)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		t.Errorf("dangers has no line for field %s: state whether the operator may set it", path)
	}
	t.Logf("%d attempts were refused", refused)
}

// confined is an init container that the Pod Security Standard restricted admits and that runs as long as the pod.
const confined = `{"name":"tap","image":"example.net/tap:1","restartPolicy":"Always",` +
	unprivileged + "}"

// attempts yields the kind and the patch of each attempt to set a field: for a field of a container, in the container
// of the dataplane and in an init container.
func attempts(path, value string) func(yield func(kind, patch string) bool) {
	subject, field, _ := strings.Cut(path, ".")
	body, whole := strings.CutPrefix(value, "/")
	if !whole {
		for _, name := range slices.Backward(strings.Split(field, ".")) {
			body = fmt.Sprintf("{%q:%s}", name, body)
		}
	}
	pod := func(spec string) string { return `{"spec":{"template":{"spec":` + spec + `}}}` }
	in := func(list, element, change string) string {
		var all, more map[string]any
		for text, to := range map[string]*map[string]any{element: &all, change: &more} {
			if err := json.Unmarshal([]byte(text), to); err != nil {
				panic(fmt.Sprintf("dangers: %s: %v in %s", path, err, text))
			}
		}
		merge(all, more)
		merged, err := json.Marshal(map[string]any{list: []any{all}})
		if err != nil {
			panic(err)
		}
		return string(merged)
	}
	return func(yield func(kind, patch string) bool) {
		switch subject {
		case "pod":
			yield("deployment", pod(body))
		case "volume":
			yield("deployment", pod(in("volumes", `{"name":"added"}`, body)))
		case "container":
			_ = yield("deployment", pod(in("containers", `{"name":"stunner-daemon"}`, body))) &&
				yield("deployment", pod(in("initContainers", confined, body)))
		case "service":
			yield("service", `{"spec":`+body+`}`)
		}
	}
}

// merge sets the fields of more in all.
func merge(all, more map[string]any) {
	for key, value := range more {
		inner, both := all[key].(map[string]any)
		if change, is := value.(map[string]any); is && both {
			merge(inner, change)
		} else {
			all[key] = value
		}
	}
}
