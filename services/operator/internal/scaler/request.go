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

// The scaler reads these keys in the metadata of a KEDA trigger. KEDA forwards all metadata of the trigger, so a
// request contains other keys as well.
const (
	GatewayKey    = "gateway"
	NamespaceKey  = "namespace" // default: the namespace of the ScaledObject
	PerReplicaKey = "allocationsPerReplica"
)

type request struct {
	gateway    types.NamespacedName
	perReplica int64
}

// parse reads the ScaledObjectRef of a request. KEDA sets its namespace to that of the ScaledObject, so users can only
// query Gateways in namespaces in which they may create ScaledObjects. A client other than KEDA could send any
// namespace, but it would only learn the number of allocations, and a NetworkPolicy can exclude such clients.
func parse(ref *pb.ScaledObjectRef) (q request, err error) {
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

// quoted quotes text from a client, truncated to 64 characters.
func quoted(text string) string { return fmt.Sprintf("%.64q", text) }
