package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Snapshot is everything that the rules read, at one time.
type Snapshot struct {
	// Now is the clock of this machine.
	Now time.Time `json:"now"`
	// Folder is set if the objects come from a file provider. Then there are no Services, pods and events.
	Folder bool `json:"folder,omitempty"`
	// HostAddresses are the addresses of this host if Folder is set, or empty if they are unknown.
	HostAddresses []netip.Addr `json:"hostAddresses,omitempty"`
	// Remote is set if only the operator was asked, so that there are no Objects.
	Remote bool `json:"remote,omitempty"`
	// Objects are the objects of all kinds in Kinds that could be read.
	Objects []unstructured.Unstructured `json:"-"`
	// Unreadable lists the kinds whose objects could not be read.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
	// Served lists the resources that the API server serves, as GROUP/VERSION/RESOURCE. It is empty if unknown.
	Served []string `json:"served,omitempty"`
	// Live contains the answers of the operator about each Gateway, by NAMESPACE/NAME.
	Live map[string]*Live `json:"live,omitempty"`
	// Operator is the answer of the operator about itself, or nil.
	Operator *Operator `json:"operator,omitempty"`
	// OperatorError says why the operator could not be asked about itself.
	OperatorError string `json:"operatorError,omitempty"`
	// Unreached says why the operator could not be reached, so that Live is empty. It is nil if it was reached.
	Unreached *Unreached `json:"unreached,omitempty"`
	// Auth contains the answers of the auth services, whose bodies are AuthStatus, or is nil.
	Auth *inspection.List `json:"auth,omitempty"`
	// AuthError is the error of the requests to the auth services.
	AuthError string `json:"authError,omitempty"`
	// OperatorNamespace is the namespace of the operator.
	OperatorNamespace string `json:"operatorNamespace,omitempty"`
	// OperatorApp and AuthApp are the values of the label app of the pods of the operator and of the auth service; empty
	// means those of a release without fullnameOverride.
	OperatorApp string `json:"operatorApp,omitempty"`
	AuthApp     string `json:"authApp,omitempty"`
	// Readers are the accounts in --discovery-readers of the operator, as NAMESPACE/SERVICEACCOUNT.
	Readers []string `json:"readers,omitempty"`
	// ControllerName is the controller name of the diagnosed operator; empty means every name that starts with
	// controllerPrefix.
	ControllerName string `json:"controllerName,omitempty"`
	// Clocks are the clocks of other machines.
	Clocks []Clock `json:"clocks,omitempty"`
	// Asked selects the peer and the user or client of the command why.
	Asked Asked `json:"asked,omitzero"`
	// Probes are the results of the packets that were sent to each Gateway, by NAMESPACE/NAME; nil if none were sent.
	Probes map[string]*Probe `json:"probes,omitempty"`

	lists map[string]any
}

// Asked holds the flags of the command why. Empty fields are not checked.
type Asked struct {
	Peer   string `json:"peer,omitempty"`
	User   string `json:"user,omitempty"`
	Client string `json:"client,omitempty"`
}

// hasClient reports whether a user or a client is selected.
func (a Asked) hasClient() bool { return a.User != "" || a.Client != "" }

// Unreadable is a kind whose objects could not be read.
type Unreadable struct {
	Kind string `json:"kind"`
	// Namespace is the only namespace that could not be read. If it is empty, no namespace except Except could be read.
	Namespace string `json:"namespace,omitempty"`
	Except    string `json:"except,omitempty"`
	// Right is the missing right, such as "list nodes" or "list pods -n meet". It is empty if there is another reason.
	Right string `json:"right,omitempty"`
	// Reason is the error of the API server. It is empty if the operator was not found.
	Reason string `json:"reason,omitempty"`
}

// Unreached says why the operator could not be reached.
type Unreached struct {
	Problem string `json:"problem"`
	// Remedy is empty if the error has none.
	Remedy string `json:"remedy,omitempty"`
	// Denied is set if the user has no right to connect.
	Denied bool `json:"denied,omitempty"`
}

// Live contains the answers of the operator about one Gateway. An answer that was not requested is nil.
type Live struct {
	Config   *Published       `json:"config,omitempty"`
	Status   *inspection.List `json:"status,omitempty"`
	Sessions *inspection.List `json:"sessions,omitempty"`
	Refusals *inspection.List `json:"refusals,omitempty"`
	Reach    *inspection.List `json:"reach,omitempty"`
	Grants   *inspection.List `json:"grants,omitempty"`
	// Errors are the errors of those requests that failed, by the last element of their path.
	Errors map[string]string `json:"errors,omitempty"`
	// AskedAt is when the operator was asked for the statuses, by the clock of this machine.
	AskedAt time.Time `json:"askedAt,omitzero"`
}

// Published contains the fields of the published config of a Gateway that the rules read.
type Published struct {
	Revision string `json:"revision"`
	// AuthRevision is the revision of the part that auth services receive, or empty.
	AuthRevision string `json:"authRevision,omitempty"`
}

// Operator contains the fields of the operator's answer about itself that the rules read.
type Operator struct {
	Version string `json:"version"`
	// Now is the clock of the replica that answered.
	Now time.Time `json:"now"`
	// Problems are the documents of a file provider that are not in force, and conditions that report a problem.
	Problems []inspection.Problem `json:"problems,omitempty"`
	// Omitted is the number of further problems.
	Omitted int `json:"omitted,omitempty"`
	// Output is the output folder of a file provider. Faults are the faults of its host.
	Output string            `json:"output,omitempty"`
	Faults []finding.Finding `json:"faults,omitempty"`
}

// Clock is the clock of another machine.
type Clock struct {
	// Of describes the machine, such as "API server".
	Of   string    `json:"of"`
	Time time.Time `json:"time"`
	// At is the clock of this machine when Time was read.
	At time.Time `json:"at"`
}

// Kind is a kind of objects that the rules read.
type Kind struct {
	Kind string
	schema.GroupVersionResource
	// Names are the only objects that are read; empty means all.
	Names []string
}

// Groups of kinds.
const (
	gatewayAPI = "gateway.networking.k8s.io"
	ownAPI     = "stunner.l7mp.io"
	admission  = "admissionregistration.k8s.io"
)

func kind(name, group, version, resource string, names ...string) Kind {
	return Kind{name, schema.GroupVersionResource{Group: group, Version: version, Resource: resource}, names}
}

// The kinds that the rules read. None of them is a Secret.
var (
	// ClusterKinds have no namespace.
	ClusterKinds = []Kind{
		kind("GatewayClass", gatewayAPI, "v1", "gatewayclasses"),
		kind("Dataplane", ownAPI, "v1", "dataplanes"),
		kind("Node", "", "v1", "nodes"),
	}
	// InstallationKinds have no namespace, and belong to the installation.
	InstallationKinds = []Kind{
		kind(
			"CustomResourceDefinition",
			"apiextensions.k8s.io",
			"v1",
			"customresourcedefinitions",
			"gatewayclasses."+gatewayAPI,
			"gateways."+gatewayAPI,
			"referencegrants."+gatewayAPI,
			"udproutes."+gatewayAPI,
			"gatewayconfigs."+ownAPI,
			"dataplanes."+ownAPI,
			"staticservices."+ownAPI,
			"udproutes."+ownAPI,
		),
		kind("ValidatingAdmissionPolicy", admission, "v1", "validatingadmissionpolicies"),
		kind("ValidatingAdmissionPolicyBinding", admission, "v1", "validatingadmissionpolicybindings"),
	}
	// RoutingKinds may be in any namespace.
	RoutingKinds = []Kind{
		kind("Gateway", gatewayAPI, "v1", "gateways"),
		kind("GatewayConfig", ownAPI, "v1", "gatewayconfigs"),
		kind("UDPRoute", ownAPI, "v1", "udproutes"),
		kind("UDPRoute", gatewayAPI, "v1", "udproutes"),
		kind("StaticService", ownAPI, "v1", "staticservices"),
	}
	// GatewayKinds are in the namespaces of Gateways.
	GatewayKinds = []Kind{
		kind("Pod", "", "v1", "pods"),
		kind("Event", "", "v1", "events"),
		kind("Deployment", "apps", "v1", "deployments"),
		kind("DaemonSet", "apps", "v1", "daemonsets"),
		kind("ResourceQuota", "", "v1", "resourcequotas"),
		kind("LimitRange", "", "v1", "limitranges"),
		kind("ScaledObject", "keda.sh", "v1alpha1", "scaledobjects"),
	}
	// BackendKinds are in the namespaces of Gateways and of backends.
	BackendKinds = []Kind{
		kind("Service", "", "v1", "services"),
		kind("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices"),
		kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
	}
	// OperatorKinds are in the namespaces of the operator and of auth services.
	OperatorKinds = []Kind{
		kind("Pod", "", "v1", "pods"),
		kind("Service", "", "v1", "services"),
		kind("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices"),
	}
	// SystemKinds are in SystemNamespace.
	SystemKinds = []Kind{
		kind("ConfigMap", "", "v1", "configmaps", "kube-proxy", "cilium-config"),
		kind("DaemonSet", "apps", "v1", "daemonsets", "cilium"),
	}
)

// SystemNamespace is the namespace of kube-proxy.
const SystemNamespace = "kube-system"

// needed are the kinds that the API server must serve.
var needed = []Kind{
	ClusterKinds[0], ClusterKinds[1], RoutingKinds[0], RoutingKinds[1], RoutingKinds[2], RoutingKinds[4],
}

// readable reports whether all objects of a kind in a namespace could be read, so that an object that is not in the
// Snapshot does not exist.
func (s *Snapshot) readable(kind, namespace string) bool {
	return !slices.ContainsFunc(s.Unreadable, func(u Unreadable) bool {
		return u.Kind == kind && (u.Namespace == "" || u.Namespace == namespace) &&
			(u.Except == "" || u.Except != namespace)
	})
}

// list returns the objects of a kind as T. An object whose fields do not have the types of T is left out.
func list[T any](s *Snapshot, kind string) []*T {
	if s.lists == nil {
		s.lists = map[string]any{}
	}
	if known, ok := s.lists[kind].([]*T); ok {
		return known
	}
	var all []*T
	for i := range s.Objects {
		o := &s.Objects[i]
		if o.GetKind() != kind {
			continue
		}
		typed := new(T)
		if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed) == nil {
			all = append(all, typed)
		}
	}
	s.lists[kind] = all
	return all
}

// named is an object with metadata.
type named interface {
	GetNamespace() string
	GetName() string
}

// find returns the object of a kind with this namespace and name, or nil.
func find[T any](s *Snapshot, kind, namespace, name string) *T {
	for _, o := range list[T](s, kind) {
		if n := any(o).(named); n.GetNamespace() == namespace && n.GetName() == name {
			return o
		}
	}
	return nil
}

// ref returns "KIND NAMESPACE/NAME" of an object.
func ref(kind string, o named) string { return objectName(kind, o.GetNamespace(), o.GetName()) }

func objectName(kind, namespace, name string) string {
	if namespace == "" {
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}

// describe returns the kubectl command that shows an object with its events.
func describe(resource string, o named) string {
	if o.GetNamespace() == "" {
		return fmt.Sprintf("kubectl describe %s %s", resource, o.GetName())
	}
	return fmt.Sprintf("kubectl describe %s -n %s %s", resource, o.GetNamespace(), o.GetName())
}

// conditionOf returns the condition of a type, or nil.
func conditionOf(all []metav1.Condition, kind string) *metav1.Condition {
	at := slices.IndexFunc(all, func(c metav1.Condition) bool { return c.Type == kind })
	if at < 0 {
		return nil
	}
	return &all[at]
}

// count returns "1 pod", "2 pods".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// few joins at most four names.
func few(names []string) string {
	const most = 4
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
