package scaler

import (
	"cmp"
	"fmt"
	"strconv"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Keys in the metadata of a trigger. KEDA forwards all metadata of the trigger, including its own; other keys are
// ignored.
const (
	GatewayKey    = "gateway"
	NamespaceKey  = "namespace" // default: the namespace of the ScaledObject
	PerReplicaKey = "allocationsPerReplica"
)

// question is a parsed request.
type question struct {
	gateway    types.NamespacedName
	perReplica int64
}

// parse reads the ScaledObjectRef of a request. The namespace in it is trustworthy if the request comes from KEDA,
// which takes it from the object. Therefore users can only query Gateways of namespaces in which they may create
// ScaledObjects. A client other than KEDA can send any namespace and learns a number; nothing can be modified here, and
// a NetworkPolicy excludes such clients.
func parse(ref *pb.ScaledObjectRef) (q question, err error) {
	metadata := ref.GetScalerMetadata()
	q.gateway = types.NamespacedName{
		Namespace: cmp.Or(metadata[NamespaceKey], ref.GetNamespace()), Name: metadata[GatewayKey],
	}
	switch {
	case ref.GetNamespace() == "":
		return q, invalid("namespace of the ScaledObject is missing: this is for KEDA to ask")
	case len(validation.IsDNS1123Label(ref.GetNamespace())) > 0:
		return q, invalid("namespace of the ScaledObject %s: no name of a namespace", quoted(ref.GetNamespace()))
	case q.gateway.Namespace != ref.GetNamespace():
		return q, status.Errorf(codes.PermissionDenied,
			"metadata.%s %s: a ScaledObject may ask about Gateways of its own namespace, %s: leave it out",
			NamespaceKey, quoted(q.gateway.Namespace), ref.GetNamespace())
	case q.gateway.Name == "":
		return q, invalid("metadata.%s is missing: name a Gateway", GatewayKey)
	case len(validation.IsDNS1123Subdomain(q.gateway.Name)) > 0:
		return q, invalid("metadata.%s %s: no name of a Gateway", GatewayKey, quoted(q.gateway.Name))
	}
	text, ok := metadata[PerReplicaKey]
	if !ok {
		return q, invalid("metadata.%s is missing: say for how many allocations there is to be a pod", PerReplicaKey)
	}
	q.perReplica, err = strconv.ParseInt(text, 10, 64)
	if err != nil || q.perReplica < 1 || q.perReplica > stunnerv1.MaxAllocationsPerReplica {
		return q, invalid("metadata.%s %s: use a whole number from 1 to %d", PerReplicaKey, quoted(text),
			stunnerv1.MaxAllocationsPerReplica)
	}
	return q, nil
}

func invalid(format string, values ...any) error {
	return status.Errorf(codes.InvalidArgument, format, values...)
}

// quoted formats text of a client, up to 64 bytes.
func quoted(text string) string { return fmt.Sprintf("%.64q", text) }
