// Package scaler is a KEDA external scaler, over gRPC. Its metric is the number of allocations of a Gateway.
//
// KEDA scales the pods of the Gateway by the metric. A value below the true number would delete pods with calls, so the
// scaler returns an error instead of an uncertain value: KEDA and the HorizontalPodAutoscaler then keep the number of
// pods. For the same reason, a Gateway is always active: KEDA may scale an inactive Gateway to zero pods, and no pod
// would accept the first call.
//
// # Files
//
//	scaler.go   answers
//	request.go  requests
//	server.go   limits of clients
package scaler

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync/atomic"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// MetricName is the name of the only metric of the scaler.
const MetricName = "stunner-allocations"

// ErrUnknown is the error of Options.Allocations for a Gateway that this operator does not serve. Any other error means
// that the number of allocations is currently unknown.
var ErrUnknown = errors.New("this operator serves no such Gateway")

// Options configure Serve.
type Options struct {
	// Allocations returns the number of allocations of a Gateway on all pods that accept new allocations.
	Allocations func(gateway types.NamespacedName) (int, error)
	// OnAnswer is called with the status code of each request, except those above the limit of concurrent calls; it may
	// be nil.
	OnAnswer func(codes.Code)
	// Log receives panics of request handlers.
	Log *slog.Logger
}

// service implements the gRPC service ExternalScaler of KEDA. It does not implement the optional StreamMetricSpec,
// because the metric spec changes only with the ScaledObject.
type service struct {
	pb.UnimplementedExternalScalerServer
	Options
	// calls is the number of open calls, including streams. streams is the number of open streams.
	calls, streams atomic.Int64
	// stopping is closed when streams must end.
	stopping chan struct{}
}

// GetMetricSpec returns the target number of allocations per pod. It succeeds even if the number of allocations is
// unknown, because without a metric spec KEDA would create an autoscaler without a metric.
func (s *service) GetMetricSpec(_ context.Context, ref *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	q, err := parse(ref)
	if err != nil {
		return nil, err
	}
	return &pb.GetMetricSpecResponse{MetricSpecs: []*pb.MetricSpec{{
		MetricName: MetricName, TargetSize: q.perReplica, TargetSizeFloat: float64(q.perReplica),
	}}}, nil
}

// GetMetrics returns the number of allocations.
func (s *service) GetMetrics(_ context.Context, r *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error) {
	q, err := parse(r.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	if r.GetMetricName() != MetricName {
		return nil, status.Errorf(codes.InvalidArgument, "metricName %s: ask for %s",
			quoted(r.GetMetricName()), MetricName)
	}
	n, err := s.allocations(q)
	if err != nil {
		return nil, err
	}
	return &pb.GetMetricsResponse{
		MetricValues: []*pb.MetricValue{{MetricName: MetricName, MetricValue: int64(n), MetricValueFloat: float64(n)}},
	}, nil
}

// IsActive returns true, even if the number of allocations is unknown, because KEDA may scale an inactive Gateway to
// zero. For a Gateway that this operator does not serve, it returns the error NotFound.
func (s *service) IsActive(_ context.Context, ref *pb.ScaledObjectRef) (*pb.IsActiveResponse, error) {
	q, err := parse(ref)
	if err != nil {
		return nil, err
	}
	if _, err := s.allocations(q); status.Code(err) == codes.NotFound {
		return nil, err
	}
	return &pb.IsActiveResponse{Result: true}, nil
}

// StreamIsActive sends the result of IsActive only once, because the result never changes. It then keeps the stream
// open, as KEDA expects for the trigger external-push.
func (s *service) StreamIsActive(
	ref *pb.ScaledObjectRef, stream grpc.ServerStreamingServer[pb.IsActiveResponse],
) error {
	answer, err := s.IsActive(stream.Context(), ref)
	if err != nil {
		return err
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	case <-s.stopping:
		return status.Error(codes.Unavailable, "this replica of the operator ends: ask another")
	}
}

func (s *service) allocations(q request) (int, error) {
	n, err := s.Allocations(q.gateway)
	switch {
	case errors.Is(err, ErrUnknown):
		return 0, status.Errorf(codes.NotFound, "gateway %s: %v", q.gateway, err)
	case err != nil:
		return 0, status.Errorf(codes.Unavailable, "gateway %s: %v", q.gateway, err)
	}
	return n, nil
}

// interceptUnary is the interceptor of unary gRPC calls. It recovers from panics.
func (s *service) interceptUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, answer grpc.UnaryHandler,
) (response any, err error) {
	defer s.finishCall(info.FullMethod, &err)
	return answer(ctx, request)
}

// interceptStream is the interceptor of gRPC streams. It recovers from panics, and limits the number of streams. A
// stream on which no request was sent counts as well.
func (s *service) interceptStream(
	server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, answer grpc.StreamHandler,
) (err error) {
	defer s.finishCall(info.FullMethod, &err)
	defer s.streams.Add(-1)
	if s.streams.Add(1) > maxStreams {
		return status.Errorf(codes.ResourceExhausted, "%d streams are open: use the trigger external, which needs none",
			maxStreams)
	}
	return answer(server, stream)
}

// finishCall recovers from a panic and reports the result of a gRPC call. It must be deferred.
func (s *service) finishCall(method string, err *error) {
	if fault := recover(); fault != nil {
		s.Log.Error("panic while answering KEDA", "method", method, "panic", fault, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "a fault of the operator: see its log")
	}
	if s.OnAnswer != nil {
		s.OnAnswer(status.Code(*err))
	}
}
