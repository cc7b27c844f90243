// Package scaler lets KEDA ask how much there is to do for the dataplanes of a Gateway: it is an external scaler, over gRPC.
//
// KEDA turns the answer into a number of pods, and takes pods away when it is low. Therefore an answer never says less than is true: what is not
// known for sure is an error, and with an error KEDA and the HorizontalPodAutoscaler leave the pods that there are. For the same reason a
// Gateway is always active: what is not may be scaled to no pod at all, and then nobody is there to take the first call.
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

// MetricName is what the one metric is called that there is.
const MetricName = "stunner-allocations"

// ErrUnknown says that there is no such Gateway. Every other error says that it cannot be found out now.
var ErrUnknown = errors.New("this operator serves no such Gateway")

// Options say what a Server answers, and who hears of it.
type Options struct {
	// Allocations counts those of a Gateway on all pods that take new ones.
	Allocations func(gateway types.NamespacedName) (int, error)
	// OnAnswer hears how each question was answered; nil means nobody does.
	OnAnswer func(codes.Code)
	// Log gets the faults of this process.
	Log *slog.Logger
}

// service answers what KEDA asks. StreamMetricSpec, which is optional, is left out: what it would tell changes with the ScaledObject only.
type service struct {
	pb.UnimplementedExternalScalerServer
	Options
	// calls and streams are how many there are now; streams are calls.
	calls, streams atomic.Int64
	// stopping is closed when streams have to end.
	stopping chan struct{}
}

// GetMetricSpec says for how many allocations there is to be a pod. It depends on the question alone: KEDA makes an autoscaler without a metric
// where it gets none.
func (s *service) GetMetricSpec(_ context.Context, ref *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	q, err := parse(ref)
	if err != nil {
		return nil, err
	}
	return &pb.GetMetricSpecResponse{MetricSpecs: []*pb.MetricSpec{{
		MetricName: MetricName, TargetSize: q.perReplica, TargetSizeFloat: float64(q.perReplica),
	}}}, nil
}

// GetMetrics says how many allocations there are.
func (s *service) GetMetrics(_ context.Context, r *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error) {
	q, err := parse(r.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	if r.GetMetricName() != MetricName {
		return nil, status.Errorf(codes.InvalidArgument, "metricName %s: ask for %s", quoted(r.GetMetricName()), MetricName)
	}
	n, err := s.allocations(q)
	if err != nil {
		return nil, err
	}
	return &pb.GetMetricsResponse{MetricValues: []*pb.MetricValue{{MetricName: MetricName, MetricValue: int64(n), MetricValueFloat: float64(n)}}}, nil
}

// IsActive is true for every Gateway that there is, however many allocations are known.
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

// StreamIsActive says once what never changes, and stays open as KEDA expects of the trigger external-push.
func (s *service) StreamIsActive(ref *pb.ScaledObjectRef, stream grpc.ServerStreamingServer[pb.IsActiveResponse]) error {
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

func (s *service) allocations(q question) (int, error) {
	n, err := s.Allocations(q.gateway)
	switch {
	case errors.Is(err, ErrUnknown):
		return 0, status.Errorf(codes.NotFound, "gateway %s: %v", q.gateway, err)
	case err != nil:
		return 0, status.Errorf(codes.Unavailable, "gateway %s: %v", q.gateway, err)
	}
	return n, nil
}

// unary is around every answer: that one of them fails is no reason for the others to.
func (s *service) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (response any, err error) {
	defer s.answered(info.FullMethod, &err)
	return answer(ctx, request)
}

// stream does the same for streams, as many as there may be: those as well over which the question never comes.
func (s *service) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, answer grpc.StreamHandler) (err error) {
	defer s.answered(info.FullMethod, &err)
	defer s.streams.Add(-1)
	if s.streams.Add(1) > maxStreams {
		return status.Errorf(codes.ResourceExhausted, "%d streams are open: use the trigger external, which needs none", maxStreams)
	}
	return answer(server, stream)
}

// answered is to be deferred.
func (s *service) answered(method string, err *error) {
	if fault := recover(); fault != nil {
		s.Log.Error("answer KEDA", "method", method, "panic", fault, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "a fault of the operator: see its log")
	}
	if s.OnAnswer != nil {
		s.OnAnswer(status.Code(*err))
	}
}
