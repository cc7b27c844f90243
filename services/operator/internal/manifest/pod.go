package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Default ports of the metrics and health check endpoints in a pod.
const (
	MetricsPort = 8080
	HealthPort  = 8086
)

// ProcessPorts are the TCP ports of the health check and metrics endpoints of a dataplane. 0 means the default port.
type ProcessPorts struct{ Health, Metrics int32 }

// OrDefault returns the ports with defaults.
func (p ProcessPorts) OrDefault() ProcessPorts {
	return ProcessPorts{Health: cmp.Or(p.Health, HealthPort), Metrics: cmp.Or(p.Metrics, MetricsPort)}
}

// ContainerName is the name of the dataplane container.
const ContainerName = "stunner-daemon"

// The dataplane saves its last good config and the journal of its sessions in a volume of the pod, so that they survive
// a restart of the container. The volume is in memory (tmpfs), because the config contains secrets, which must not be
// written to a disk.
const (
	stateVolume = "state"
	stateDir    = "/var/lib/stunner"
	// minStateSize is the least size limit of the volume. maxStateSize is the size limit for a pod without a memory
	// limit.
	minStateSize = 16 << 20
	maxStateSize = 1 << 30
	// stateShare is the part of the memory limit that the volume may use. A dataplane admits one session for each 64
	// KiB of memory. A session needs about 350 bytes in the journal. The journal uses 5/16 of the volume for sessions,
	// because it grows before it is compacted into a second file. Therefore 2 KiB a session suffice.
	stateShare = 32
)

// With host network, the journal is in a folder of the node, so that the next pod on the node continues the sessions of
// a pod that has ended. The folder is in memory, and every user may create files in it, because kubelet creates folders
// for root only, and gives a subPath the mode of its volume.
const (
	journalVolume = "journal"
	journalDir    = "/var/lib/stunner-journal"
	journalHost   = "/dev/shm"
	journalPrefix = "stunner-"
)

// livenessGrace is the time in seconds between SIGTERM and SIGKILL after a failed liveness probe, the least that
// Kubernetes permits. The grace period of the pod, which is for draining, would keep a stuck process for an hour.
const livenessGrace = 1

// nonRoot is the user and group "nonroot" of distroless images.
const nonRoot = 65532

// pod returns the pod template of a workload. Its defaults satisfy the Pod Security Standard "restricted", except with
// in-kernel forwarding.
func (w Workload) pod(o Owner) corev1.PodTemplateSpec {
	t := w.Template.DeepCopy().Spec
	labels := map[string]string{}
	maps.Copy(labels, t.Labels)
	maps.Copy(labels, o.podLabels())
	annotations := map[string]string{}
	maps.Copy(annotations, t.Annotations)
	maps.Copy(annotations, o.relation())
	secretName := func(s corev1.LocalObjectReference) string { return s.Name }
	spec := corev1.PodSpec{
		Containers:                    []corev1.Container{w.container(o, t)},
		Volumes:                       []corev1.Volume{stateInMemory(t.Resources), standbyFiles(o)},
		ImagePullSecrets:              lastOfEach(t.ImagePullSecrets, secretName),
		HostNetwork:                   t.HostNetwork,
		Affinity:                      affinity(o, t),
		Tolerations:                   t.Tolerations,
		TopologySpreadConstraints:     t.TopologySpreadConstraints,
		SecurityContext:               orConfined(t.SecurityContext, confinedPod(t.HostNetwork)),
		TerminationGracePeriodSeconds: graceOf(t),
		// The dataplane does not use the Kubernetes API.
		AutomountServiceAccountToken: new(false),
	}
	if w.Secured {
		spec.Volumes = append(spec.Volumes, discoveryFiles(o))
	}
	if t.HostNetwork {
		// A pod with host network and the default DNS policy cannot resolve the name of the discovery Service.
		spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet
		spec.Volumes = append(spec.Volumes, journalOnHost())
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec:       spec,
	}
}

func (w Workload) container(o Owner, t stunnerv1.DataplaneSpec) corev1.Container {
	image := cmp.Or(t.Image, w.Image)
	c := corev1.Container{
		Name:            ContainerName,
		Image:           image,
		ImagePullPolicy: cmp.Or(t.ImagePullPolicy, pullPolicy(image)),
		Command:         t.Command,
		Args:            t.Args,
		EnvFrom:         t.EnvFrom,
		Env:             environment(w.identity(o), t.Env),
		Resources:       t.Resources,
		VolumeMounts:    []corev1.VolumeMount{{Name: stateVolume, MountPath: stateDir}, standbyMount()},
		SecurityContext: orConfined(t.ContainerSecurityContext, w.confinedContainer()),
	}
	if w.Secured {
		c.VolumeMounts = append(c.VolumeMounts, discoveryMount())
	}
	if t.HostNetwork {
		c.VolumeMounts = append(c.VolumeMounts, journalMount(o))
	}
	if len(c.Command) == 0 && len(c.Args) == 0 {
		c.Command, c.Args = []string{"stunnerd"}, []string{"-w", "--udp-thread-num=16"}
	}
	if t.EnableMetricsEndpoint {
		metrics := corev1.ContainerPort{
			Name: "metrics-port", ContainerPort: w.Ports.OrDefault().Metrics, Protocol: corev1.ProtocolTCP,
		}
		c.Ports = []corev1.ContainerPort{metrics}
	}
	if health := w.Ports.OrDefault().Health; !t.DisableHealthCheck {
		c.LivenessProbe, c.ReadinessProbe = probe("/live", health), probe("/ready", health)
		// A process that is not live cannot drain. It is killed at once, and the next process restores its sessions.
		c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(livenessGrace))
	}
	return c
}

// environment returns the environment variables of a dataplane container: the variables that the operator sets, and the
// variables in spec.env of the Dataplane, which take precedence.
func environment(identity, own []corev1.EnvVar) []corev1.EnvVar {
	return lastOfEach(append(identity, own...), func(e corev1.EnvVar) string { return e.Name })
}

// lastOfEach keeps only the last entry with each name, because Kubernetes uses the last one. Duplicates must be removed
// because server-side apply rejects them.
func lastOfEach[T any](all []T, name func(T) string) (last []T) {
	for i, entry := range all {
		if !slices.ContainsFunc(all[i+1:], func(later T) bool { return name(later) == name(entry) }) {
			last = append(last, entry)
		}
	}
	return last
}

// identity returns the environment variables with the Gateway of a dataplane, its pod, the source of its config, and
// settings of the Dataplane.
func (w Workload) identity(o Owner) []corev1.EnvVar {
	env := []corev1.EnvVar{
		{Name: "STUNNER_NAMESPACE", Value: o.Namespace},
		{Name: "STUNNER_NAME", Value: o.Name},
		{Name: "STUNNER_CONFIG_ORIGIN", Value: w.ConfigOrigin},
		{Name: "STUNNER_STATE_DIR", Value: stateDir},
		// A variable is used, because an image of an earlier release would not start with an unknown flag.
		{Name: "STUNNER_SUPERVISE", Value: "true"},
		standbyEnvironment(),
		{Name: "STUNNER_ADDR", ValueFrom: fieldRef("status.podIP")},
		{Name: "STUNNER_ADDRS", ValueFrom: fieldRef("status.podIPs")},
		{Name: "STUNNER_NODENAME", ValueFrom: fieldRef("spec.nodeName")},
		{Name: "STUNNER_POD", ValueFrom: fieldRef("metadata.name")},
	}
	if w.Secured {
		env = append(env, discoveryEnvironment()...)
	}
	if w.Template.Spec.HostNetwork {
		env = append(env, corev1.EnvVar{Name: "STUNNER_JOURNAL_DIR", Value: journalDir})
		// The next pod on a node starts only when the previous pod has ended. So the previous pod must not wait for its
		// calls. With autoscaling, most pods that end have no next pod on their node.
		if w.Template.Spec.Autoscaling == nil || isDaemonSet(w.Template.Spec) {
			env = append(env, corev1.EnvVar{Name: "STUNNER_HAND_OVER", Value: "true"})
		}
	}
	// Until the pod gets its config, the endpoint of the probes has this port. With the port of another process, stunnerd
	// would not start.
	switch health := w.Ports.OrDefault().Health; {
	case w.Template.Spec.DisableHealthCheck:
		env = append(env, corev1.EnvVar{Name: "STUNNER_HEALTHCHECK_ENDPOINT", Value: "none"})
	case health != HealthPort:
		url := fmt.Sprintf("http://:%d", health)
		env = append(env, corev1.EnvVar{Name: "STUNNER_HEALTHCHECK_ENDPOINT", Value: url})
	}
	if w.Template.Spec.RelayPortRange != nil {
		env = append(env, corev1.EnvVar{Name: "STUNNER_RELAY_PORTS", Value: RelayPorts(w.Template).String()})
	}
	// If the default drain timeout of stunnerd equals the grace period, it need not be set.
	if grace := *graceOf(w.Template.Spec); grace != stunnerv1.DefaultTerminationGracePeriodSeconds {
		seconds := fmt.Sprintf("%ds", min(grace, math.MaxInt32))
		env = append(env, corev1.EnvVar{Name: "STUNNER_DRAIN_TIMEOUT", Value: seconds})
	}
	return env
}

// affinity returns the affinity of the pods. With host network, at most one pod of a Gateway runs on a node, because
// two would need the same ports. The scheduler counts a pod until it has ended, so the next pod waits for a draining
// pod, and no other pod answers its probes. A DaemonSet has the same term, because pods of a former Deployment of the
// Gateway may still run.
func affinity(o Owner, t stunnerv1.DataplaneSpec) *corev1.Affinity {
	if !t.HostNetwork {
		return t.Affinity
	}
	a := cmp.Or(t.Affinity, new(corev1.Affinity)).DeepCopy()
	a.PodAntiAffinity = cmp.Or(a.PodAntiAffinity, new(corev1.PodAntiAffinity))
	terms := &a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	*terms = append(*terms, corev1.PodAffinityTerm{LabelSelector: selector(o), TopologyKey: corev1.LabelHostname})
	return a
}

// graceOf returns the termination grace period in seconds, during which the dataplane in a pod drains its calls.
func graceOf(t stunnerv1.DataplaneSpec) *int64 {
	return cmp.Or(t.TerminationGracePeriodSeconds, new(int64(stunnerv1.DefaultTerminationGracePeriodSeconds)))
}

func stateInMemory(r corev1.ResourceRequirements) corev1.Volume {
	size := int64(maxStateSize)
	if memory, ok := r.Limits[corev1.ResourceMemory]; ok && !memory.IsZero() {
		size = min(max(memory.Value()/stateShare, minStateSize), maxStateSize)
	}
	return corev1.Volume{Name: stateVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		Medium:    corev1.StorageMediumMemory,
		SizeLimit: resource.NewQuantity(size, resource.BinarySI),
	}}}
}

func journalOnHost() corev1.Volume {
	return corev1.Volume{Name: journalVolume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: journalHost, Type: new(corev1.HostPathDirectory),
	}}}
}

// journalMount returns the mount of a folder that only the pods of one Gateway use.
func journalMount(o Owner) corev1.VolumeMount {
	return corev1.VolumeMount{Name: journalVolume, MountPath: journalDir,
		SubPath: journalPrefix + cmp.Or(string(o.UID), o.Namespace+"_"+o.Name)}
}

func fieldRef(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

func probe(path string, port int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)},
		},
		PeriodSeconds:    15,
		TimeoutSeconds:   1,
		FailureThreshold: 3,
	}
}

// pullPolicy returns the pull policy that Kubernetes uses by default for an image. It is set explicitly because the API
// server sets the default only once: after a change of the image, the policy of the previous image would stay.
func pullPolicy(image string) corev1.PullPolicy {
	if strings.Contains(image, "@") {
		return corev1.PullIfNotPresent
	}
	_, tag, tagged := strings.Cut(path.Base(image), ":")
	if !tagged || tag == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// orConfined returns the security context of a Dataplane. If the Dataplane sets no field of it, orConfined returns the
// default of the operator. Values of the existing system's chart set empty security contexts.
func orConfined[T any](of, confined *T) *T {
	if of == nil || reflect.ValueOf(*of).IsZero() {
		return confined
	}
	return of
}

// confinedPod returns the pod security context. Its sysctl, which the Pod Security Standard "restricted" allows, lets
// the process bind ports such as 80 and 443 without privileges. The sysctl applies to the network namespace of the pod,
// so it cannot be set with host network.
func confinedPod(hostNetwork bool) *corev1.PodSecurityContext {
	c := &corev1.PodSecurityContext{
		RunAsNonRoot:   new(true),
		RunAsUser:      new(int64(nonRoot)),
		RunAsGroup:     new(int64(nonRoot)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if !hostNetwork {
		c.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	}
	return c
}

func (w Workload) confinedContainer() *corev1.SecurityContext {
	c := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if t := w.Template.Spec; NeedsOffload(t) && !w.Unprivileged {
		return withOffload(c, t)
	}
	return c
}
