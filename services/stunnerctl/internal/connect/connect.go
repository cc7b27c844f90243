// Package connect gets the answers that commands print: from the inspection API of the operator, which asks the
// dataplanes, and from the API server. A Source is a cluster, the URL of an operator, or the output folder of a file
// provider.
//
// # Files
//
//	cluster.go  a cluster, tokens and TLS
//	forward.go  forwarded ports
//	api.go      the URL of an operator
//	folder.go   the output folder of a file provider
//	remedy.go   remedies of errors
package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Defaults of Options.
const (
	// DefaultOperatorNamespace is the namespace of the operator in the documentation.
	DefaultOperatorNamespace = "stunner-system"
	// ControllerPrefix starts the controllerName of the GatewayClasses of STUNner, unless the operator has another
	// controller name.
	ControllerPrefix = "stunner.l7mp.io/"
)

// Source is where answers come from. Its methods may be called concurrently.
type Source interface {
	// String names the source in messages.
	String() string
	// Gateways returns the Gateways of a namespace, or of all namespaces if namespace is "", sorted.
	Gateways(ctx context.Context, namespace string) ([]types.NamespacedName, error)
	// Objects returns the objects of the kinds, of a namespace or of all namespaces if namespace is "". A kind that
	// cannot be read is reported in Unread and is no error. Secrets are never read.
	Objects(ctx context.Context, namespace string, kinds ...schema.GroupKind) (Objects, error)
	// Ask sends a request about a Gateway to the operator.
	Ask(ctx context.Context, r Request) (inspection.List, error)
	// Get reads another path of the inspection API, such as "/api/v1/operator", and decodes the answer into the value.
	Get(ctx context.Context, path string, into any) error
	// Close ends the connections.
	Close() error
}

// Request is a request about a Gateway.
type Request struct {
	// Method is GET if it is empty.
	Method  string
	Gateway types.NamespacedName
	// Path is below the Gateway, such as "sessions" or "sessions/ID".
	Path  string
	Query url.Values
}

// URL returns path and query of the request.
func (r Request) URL() string {
	path := "/api/v1/gateways/" + url.PathEscape(
		r.Gateway.Namespace,
	) + "/" + url.PathEscape(
		r.Gateway.Name,
	) + "/" + r.Path
	if len(r.Query) > 0 {
		path += "?" + r.Query.Encode()
	}
	return path
}

// Objects are the Kubernetes objects that could be read.
type Objects struct {
	Items  []unstructured.Unstructured
	Unread []Unread
}

// Unread is a kind that could not be read.
type Unread struct {
	Kind schema.GroupKind
	// Missing is set if the source does not have the kind: in a cluster the CRD is not installed.
	Missing bool
	// Err is the error if Missing is not set, usually that the user may not list the kind.
	Err error
}

// Kinds that commands read. Core kinds have the empty group.
var (
	KindGateway       = schema.GroupKind{Group: "gateway.networking.k8s.io", Kind: "Gateway"}
	KindGatewayClass  = schema.GroupKind{Group: "gateway.networking.k8s.io", Kind: "GatewayClass"}
	KindGatewayConfig = schema.GroupKind{Group: "stunner.l7mp.io", Kind: "GatewayConfig"}
	KindDataplane     = schema.GroupKind{Group: "stunner.l7mp.io", Kind: "Dataplane"}
	KindUDPRoute      = schema.GroupKind{Group: "stunner.l7mp.io", Kind: "UDPRoute"}
	KindPod           = schema.GroupKind{Kind: "Pod"}
	KindSecret        = schema.GroupKind{Kind: "Secret"}
)

// Options select the source: the folder, or else the URL, or else the cluster of the kubeconfig.
type Options struct {
	// Folder is the output folder of a file provider.
	Folder string
	// URL is the address of config discovery at the operator, such as https://operator.example.com:13478.
	URL string
	// TokenFile contains the bearer token for URL, and CAFile the CA certificates in PEM. Without CAFile the
	// certificate is verified with the CAs of the host.
	TokenFile, CAFile string
	// Token is the bearer token for URL if TokenFile is empty.
	Token string
	// Kube reads the kubeconfig.
	Kube genericclioptions.RESTClientGetter
	// OperatorNamespace is the namespace of the operator. If it is empty, the operator is searched.
	OperatorNamespace string
	// ControllerName is the controllerName of the GatewayClasses whose Gateways are listed; if it is empty, every name
	// that starts with ControllerPrefix.
	ControllerName string
	// Progress is called before an operation that may take long, if it is not nil.
	Progress func(string)
}

// Controls reports whether the GatewayClasses with a controllerName belong to the operator with the name own. If own is
// empty, any operator of STUNner counts.
func Controls(operator, controller string) bool {
	if operator != "" {
		return controller == operator
	}
	return strings.HasPrefix(controller, ControllerPrefix)
}

// Open returns the source that the options select. It connects at the first request only.
func Open(o Options) (Source, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	switch {
	case o.Folder != "" && o.URL != "":
		return nil, errors.New("--folder and --operator: use one of them")
	case o.Folder != "":
		return openFolder(o.Folder)
	case o.URL != "":
		return openURL(o)
	case o.TokenFile != "" || o.CAFile != "":
		return nil, errors.New(
			"--token-file and --ca-file belong to --operator URL: add it, or use the flags of kubectl " +
				"for the API server (--token, --certificate-authority)",
		)
	}
	return openCluster(o)
}

// AsCluster returns the source as a cluster. For a folder or a URL it returns an error, which says that the command
// needs a cluster and what to do instead.
func AsCluster(s Source, command, instead string) (*Cluster, error) {
	if c, ok := s.(*Cluster); ok {
		return c, nil
	}
	return nil, fmt.Errorf("%s needs a cluster, and not %s: %s", command, s, instead)
}

// Error is an answer of the operator other than success.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return fmt.Sprintf("the operator does not accept the token (401): %s", e.Message)
	case http.StatusForbidden:
		return fmt.Sprintf("the operator refuses the request (403): %s", e.Message)
	case http.StatusNotFound:
		return fmt.Sprintf("not found (404): %s", e.Message)
	case http.StatusTooManyRequests:
		return fmt.Sprintf("the operator is busy (429): %s: try again", e.Message)
	}
	return fmt.Sprintf("the operator answers %d %s: %s", e.Status, http.StatusText(e.Status), e.Message)
}

// StatusOf returns the HTTP status of an error of the operator, or 0 for other errors.
func StatusOf(err error) int {
	var answer *Error
	if errors.As(err, &answer) {
		return answer.Status
	}
	return 0
}
