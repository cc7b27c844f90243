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

// The metadata of a trigger. KEDA passes on all that there is, what is meant for KEDA itself as well; the rest is ignored.
const (
	GatewayKey    = "gateway"
	NamespaceKey  = "namespace" // that of the ScaledObject when it is left out
	PerReplicaKey = "allocationsPerReplica"
)

// question is what is asked.
type question struct {
	gateway    types.NamespacedName
	perReplica int64
}

// parse reads what KEDA tells of a ScaledObject. Its namespace is KEDA's word: KEDA takes it from the object, which nobody can make in a namespace
// where they have no rights, and so nobody scales, or watches, the Gateways of others through KEDA. Somebody who is not KEDA and connects anyway
// may write what they like, and learns a number. A NetworkPolicy keeps them out; there is nothing here that could be changed.
func parse(ref *pb.ScaledObjectRef) (q question, err error) {
	metadata := ref.GetScalerMetadata()
	q.gateway = types.NamespacedName{Namespace: cmp.Or(metadata[NamespaceKey], ref.GetNamespace()), Name: metadata[GatewayKey]}
	switch {
	case ref.GetNamespace() == "":
		return q, invalid("namespace of the ScaledObject is missing: this is for KEDA to ask")
	case len(validation.IsDNS1123Label(ref.GetNamespace())) > 0:
		return q, invalid("namespace of the ScaledObject %s: no name of a namespace", quoted(ref.GetNamespace()))
	case q.gateway.Namespace != ref.GetNamespace():
		return q, status.Errorf(codes.PermissionDenied, "metadata.%s %s: a ScaledObject may ask about Gateways of its own namespace, %s: leave it out",
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
		return q, invalid("metadata.%s %s: use a whole number from 1 to %d", PerReplicaKey, quoted(text), stunnerv1.MaxAllocationsPerReplica)
	}
	return q, nil
}

func invalid(format string, values ...any) error {
	return status.Errorf(codes.InvalidArgument, format, values...)
}

// quoted shows what somebody else has written, and not without end.
func quoted(text string) string { return fmt.Sprintf("%.64q", text) }
