package resource

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The types below hold state of the operator on which translations depend. They implement Object so that View handles
// them like Kubernetes objects. They do not exist in an API server.

// Trust holds the CA certificates of config discovery. A view has at most one, without a name.
type Trust struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Bundle is a list of CA certificates in PEM.
	Bundle string
}

// DeepCopyObject is part of runtime.Object.
func (t *Trust) DeepCopyObject() runtime.Object {
	return &Trust{TypeMeta: t.TypeMeta, ObjectMeta: *t.ObjectMeta.DeepCopy(), Bundle: t.Bundle}
}

// Scaling is the state of KEDA, the autoscaler of the cluster. A view has at most one, without a name.
type Scaling struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Missing means that the CRDs of KEDA are not installed.
	Missing bool
}

// DeepCopyObject is part of runtime.Object.
func (s *Scaling) DeepCopyObject() runtime.Object {
	return &Scaling{TypeMeta: s.TypeMeta, ObjectMeta: *s.ObjectMeta.DeepCopy(), Missing: s.Missing}
}

// Installations identifies this installation of the operator, and the other installations with the same controller name
// that no longer run. A view has at most one, without a name.
type Installations struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Own is the installation of this process. It is zero until the process has become the leader.
	Own Installation
	// Gone are the other installations that a GatewayClass names and that no longer run.
	Gone []Installation
}

// DeepCopyObject is part of runtime.Object.
func (i *Installations) DeepCopyObject() runtime.Object {
	return &Installations{
		TypeMeta: i.TypeMeta, ObjectMeta: *i.ObjectMeta.DeepCopy(), Own: i.Own, Gone: slices.Clone(i.Gone),
	}
}

// Rollout is the state of all dataplanes of the Gateway with the same name, according to the reports of these
// dataplanes. It contains only state that changes rarely, because each change causes a translation of the Gateway.
type Rollout struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	RolloutState
}

// RolloutState is the content of a Rollout. The zero value means that there is no problem, or that no dataplane has
// reported.
type RolloutState struct {
	// Pod and Problem are set if all dataplanes rejected the config or serve it only in part. Pod is the name of one of
	// these dataplanes, Problem is its error message.
	Pod, Problem string
	// Behind is 0 if at least one dataplane has started to run the published config in time, and otherwise the number
	// of dataplanes.
	Behind int
	// Draining is the number of dataplanes that are shutting down: they serve existing sessions but accept no new
	// clients.
	Draining int
	// OffloadPod is the name of a dataplane that does not forward media in the kernel as its config requests, and
	// OffloadProblem the reason. They are empty if there is none.
	OffloadPod, OffloadProblem string
	// RefusedPod is a pod that gets no config, because it connects to config discovery without TLS or a token; "" if there
	// is none. AllRefused means that no pod of the Gateway gets its config.
	RefusedPod string
	AllRefused bool
}

// DeepCopyObject is part of runtime.Object.
func (f *Rollout) DeepCopyObject() runtime.Object {
	return &Rollout{TypeMeta: f.TypeMeta, ObjectMeta: *f.ObjectMeta.DeepCopy(), RolloutState: f.RolloutState}
}

// NodePorts are the ports of nodes that the pods of the Gateway with the same name bind according to the published
// config. A view has one for each Gateway whose pods are in the host network. It stays while the Gateway cannot be
// served.
type NodePorts struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Sockets []NodeSocket
	// Pod contains the fields of the pods that choose their nodes.
	Pod corev1.PodSpec
}

// NodeSocket is a port of the nodes with its use in messages.
type NodeSocket struct {
	NodePort
	Use string
}

// NodePort is a port of the nodes.
type NodePort struct {
	Network string // udp or tcp
	Number  int32
}

// DeepCopyObject is part of runtime.Object.
func (n *NodePorts) DeepCopyObject() runtime.Object {
	return &NodePorts{TypeMeta: n.TypeMeta, ObjectMeta: *n.ObjectMeta.DeepCopy(), Sockets: slices.Clone(n.Sockets),
		Pod: *n.Pod.DeepCopy()}
}

// Rejection lists the objects of a Gateway that could not be written as generated, usually because the API server
// rejected them. It has the name of the Gateway.
type Rejection struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	RejectionState
}

// RejectionState is the content of a Rejection. The zero value means that all objects were written.
type RejectionState struct {
	// Serving is a rejected object that is needed to serve the Gateway. Scaling is a rejected object that is needed
	// only to scale its pods.
	Serving, Scaling RejectedObject
	// ExternalIPs is a Service that the API server accepted only after spec.externalIPs was removed.
	ExternalIPs RejectedObject
	// Offload is a workload that the API server accepted only after the capabilities of in-kernel forwarding were
	// removed.
	Offload RejectedObject
	// FormerWorkload is the workload that the operator of the existing STUNner created, while its pods may not be
	// replaced because the Gateway does not permit it; "" if there is none.
	FormerWorkload string
	// ScaledBy is the field manager that has scaled the Deployment, so that spec.replicas of the Dataplane is not in
	// force; "" if there is none.
	ScaledBy string
}

// RejectedObject is an object that the API server rejected, with the error. The zero value means that no object was
// rejected.
type RejectedObject struct {
	Object, Problem string
}

// DeepCopyObject is part of runtime.Object.
func (r *Rejection) DeepCopyObject() runtime.Object {
	return &Rejection{TypeMeta: r.TypeMeta, ObjectMeta: *r.ObjectMeta.DeepCopy(), RejectionState: r.RejectionState}
}

// OverBudget lists the routes that the Gateway with the same name does not serve because they exceed a budget. Only the
// translation of the Gateway reads all its routes, so it computes the list, and the translation of a route looks it up.
type OverBudget struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Routes are the refusals by NAMESPACE/NAME of the route.
	Routes map[string]BudgetRefusal
	// IgnoresRevocations means that the Gateway has no time-limited credentials. The translation of a Revocation looks it
	// up.
	IgnoresRevocations bool
}

// BudgetRefusal is the reason and the message of the condition of a route that exceeds a budget, and the remedy at the
// end of the message.
type BudgetRefusal struct {
	Reason, Message, Remedy string
}

// DeepCopyObject is part of runtime.Object.
func (h *OverBudget) DeepCopyObject() runtime.Object {
	return &OverBudget{TypeMeta: h.TypeMeta, ObjectMeta: *h.ObjectMeta.DeepCopy(), Routes: maps.Clone(h.Routes),
		IgnoresRevocations: h.IgnoresRevocations}
}
