package scaler

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Bounds of what a client may cost. KEDA has one connection for all ScaledObjects that name the same address and CA, and asks a few short questions
// over it for each of them now and then; each object with the trigger external-push holds one stream as well.
const (
	maxConnections = 128
	maxStreams     = 1_000
	// maxCalls are those of all connections; one may have half of them. That is more than all streams, which must not keep questions from being asked.
	maxCalls     = 4 * maxStreams
	maxMessage   = 64 << 10
	maxHeaders   = 16 << 10
	handshake    = 5 * time.Second
	answerTime   = 5 * time.Second // for a question to come in whole, and to be answered
	stopTime     = time.Second
	idleTime     = 5 * time.Minute
	quietTime    = 30 * time.Second // after which it is asked whether the client is still there
	pulse        = 10 * time.Second
	fastestPulse = 10 * time.Second // how often a client may ask the same
	// A connection is made anew now and then: the client sees a new certificate, and replicas share the work.
	connectionAge = 30 * time.Minute
)

// Serve answers KEDA on a port until ctx ends. Without security it does so in clear text.
func Serve(ctx context.Context, ln net.Listener, security *tls.Config, o Options) error {
	s := &service{Options: o, stopping: make(chan struct{})}
	server := grpc.NewServer(
		grpc.Creds(transport(security)),
		grpc.ConnectionTimeout(handshake),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxCalls/2),
		grpc.InTapHandle(s.admit),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleTime, MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: answerTime, Time: quietTime, Timeout: pulse,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: fastestPulse, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream),
	)
	pb.RegisterExternalScalerServer(server, s)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		close(s.stopping)
		late := time.AfterFunc(stopTime, server.Stop)
		defer late.Stop()
		server.GracefulStop()
	})
	err := server.Serve(netutil.LimitListener(ln, maxConnections))
	if stop() { // it was not ctx that ended
		server.Stop()
		return fmt.Errorf("serve KEDA on %s: %w", ln.Addr(), err)
	}
	<-stopped
	return nil
}

// transport shows the certificate of config discovery. Only HTTP/2 is spoken here.
func transport(security *tls.Config) credentials.TransportCredentials {
	if security == nil {
		return insecure.NewCredentials()
	}
	security = security.Clone()
	security.NextProtos = nil // credentials name it themselves
	return credentials.NewTLS(security)
}

// admit bounds the number of calls, and the time of every call but a stream that is meant to stay: also of one whose question never comes.
func (s *service) admit(ctx context.Context, call *tap.Info) (context.Context, error) {
	if s.calls.Add(1) > maxCalls {
		s.calls.Add(-1)
		return ctx, status.Errorf(codes.ResourceExhausted, "%d questions wait for an answer: come again", maxCalls)
	}
	end := func() {}
	if call.FullMethodName != pb.ExternalScaler_StreamIsActive_FullMethodName {
		ctx, end = context.WithTimeout(ctx, answerTime)
	}
	context.AfterFunc(ctx, func() { end(); s.calls.Add(-1) })
	return ctx, nil
}
