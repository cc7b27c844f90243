package manifest

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// offloadCapabilities are the capabilities that the dataplane needs to forward media in the kernel.
var offloadCapabilities = []corev1.Capability{"BPF", "NET_ADMIN"}

// NeedsOffload reports whether the pods of a Dataplane need capabilities to forward media in the kernel. Auto means
// None on the host network, because packets that are forwarded in the kernel bypass the packet filter of the node.
func NeedsOffload(t stunnerv1.DataplaneSpec) bool {
	switch t.OffloadEngine {
	case stunnerv1.OffloadTC, stunnerv1.OffloadXDP:
		return true
	case stunnerv1.OffloadAuto:
		return !t.HostNetwork
	}
	return false
}

// withOffload adds the capabilities of in-kernel forwarding to a container security context. The container runs as user
// 0, because Kubernetes has no ambient capabilities (KEP-2763): a process of another user loses added capabilities when
// it starts, unless its file has them, and allowPrivilegeEscalation false (no_new_privs) disables capabilities of
// files. User 0 keeps exactly the added capabilities. runAsUser and runAsNonRoot of spec.securityContext take
// precedence.
func withOffload(c *corev1.SecurityContext, t stunnerv1.DataplaneSpec) *corev1.SecurityContext {
	c.Capabilities.Add = slices.Clone(offloadCapabilities)
	if own := t.SecurityContext; own == nil || own.RunAsUser == nil && own.RunAsNonRoot == nil {
		c.RunAsUser, c.RunAsNonRoot = new(int64(0)), new(false)
	}
	return c
}

// WithoutOffload returns a copy of a workload without the capabilities of in-kernel forwarding, because admission
// policies may reject them. It returns nil for any other object, and for a workload without exactly these capabilities.
func WithoutOffload(o runtime.Object) resource.Object {
	var template *corev1.PodTemplateSpec
	o = o.DeepCopyObject()
	switch w := o.(type) {
	case *appsv1.Deployment:
		template = &w.Spec.Template
	case *appsv1.DaemonSet:
		template = &w.Spec.Template
	default:
		return nil
	}
	for i := range template.Spec.Containers {
		c := template.Spec.Containers[i].SecurityContext
		if template.Spec.Containers[i].Name != ContainerName || c == nil || c.Capabilities == nil ||
			!slices.Equal(c.Capabilities.Add, offloadCapabilities) {
			continue
		}
		c.Capabilities.Add = nil
		if c.RunAsUser != nil && *c.RunAsUser == 0 { // withOffload sets user 0 for the capabilities
			c.RunAsUser, c.RunAsNonRoot = nil, nil
		}
		return o.(resource.Object)
	}
	return nil
}

// CheckOffload returns the reason why spec.offloadEngine has no effect in the pods of a Dataplane.
func CheckOffload(template *stunnerv1.Dataplane) error {
	t := template.Spec
	pod, err := patched(Workload{Template: template}.pod(Owner{}), t.PodTemplatePatch)
	if err != nil {
		return nil // CheckPatch returns this error
	}
	if t.OffloadEngine == stunnerv1.OffloadAuto && pod.Spec.HostNetwork {
		return finding.Errorf("use TC to accept this, or None", "on the host network Auto means None, because packets that are forwarded in the kernel bypass the packet filter of the node")
	}
	if !NeedsOffload(t) {
		return nil
	}
	if users := pod.Spec.HostUsers; users != nil && !*users {
		return finding.Errorf("leave hostUsers out", "spec.podTemplatePatch sets hostUsers to false, and a user namespace cannot load programs into the kernel")
	}
	own := cmp.Or(pod.Spec.Containers[0].SecurityContext, &corev1.SecurityContext{})
	for _, capability := range offloadCapabilities {
		if !hasCapability(own, capability) {
			return finding.Errorf("add it to spec.containerSecurityContext.capabilities", "container %s has no capability %s", ContainerName, capability)
		}
	}
	all := cmp.Or(pod.Spec.SecurityContext, &corev1.PodSecurityContext{})
	if user := cmp.Or(own.RunAsUser, all.RunAsUser); user == nil || *user != 0 {
		return finding.Errorf("set runAsUser to 0 in spec.containerSecurityContext", "container %s does not run as user 0, and other users lose its capabilities", ContainerName)
	}
	return nil
}

// hasCapability reports whether a container has a capability in its bounding set. Container runtimes accept the name in
// any case, with or without the prefix CAP_.
func hasCapability(c *corev1.SecurityContext, capability corev1.Capability) bool {
	if c.Privileged != nil && *c.Privileged {
		return true
	}
	return c.Capabilities != nil && slices.ContainsFunc(c.Capabilities.Add, func(added corev1.Capability) bool {
		name := strings.TrimPrefix(strings.ToUpper(string(added)), "CAP_")
		return name == string(capability) || name == "ALL"
	})
}
