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

// Limits for clients of the scaler. KEDA has one connection for all ScaledObjects with the same address and CA, and
// periodically sends a few short requests over it for each ScaledObject. Each ScaledObject with the trigger
// external-push also holds one stream.
const (
	maxConnections = 128
	maxStreams     = 1_000
	// maxCalls limits the calls of all connections together. One connection may have half of them. maxCalls is higher
	// than maxStreams, so that streams cannot block unary calls.
	maxCalls         = 4 * maxStreams
	maxMessage       = 64 << 10
	maxHeaders       = 16 << 10
	handshake        = 5 * time.Second
	answerTime       = 5 * time.Second // for receiving a request and answering it
	stopTime         = time.Second
	idleTime         = 5 * time.Minute
	keepaliveTime    = 30 * time.Second // of inactivity until the server sends a keepalive ping
	keepaliveTimeout = 10 * time.Second // for the response to a keepalive ping of the server
	minClientPing    = 10 * time.Second // minimum interval of a client's keepalive pings
	// After connectionAge, a client must reconnect. The client then verifies the current certificate, and clients are
	// distributed over all replicas.
	connectionAge = 30 * time.Minute
)

// Serve serves the KEDA external scaler until ctx ends. It uses TLS, or plain text if security is nil.
func Serve(ctx context.Context, ln net.Listener, security *tls.Config, o Options) error {
	s := &service{Options: o, stopping: make(chan struct{})}
	server := grpc.NewServer(
		grpc.Creds(transport(security)),
		grpc.ConnectionTimeout(handshake),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxCalls/2),
		grpc.InTapHandle(s.admit),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleTime, MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: answerTime,
			Time: keepaliveTime, Timeout: keepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.interceptUnary), grpc.StreamInterceptor(s.interceptStream),
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
	if stop() { // the error is not caused by the end of ctx
		server.Stop()
		return fmt.Errorf("serve KEDA on %s: %w", ln.Addr(), err)
	}
	<-stopped
	return nil
}

// transport returns the gRPC transport credentials for a TLS configuration; plain text if security is nil. It removes
// the HTTP/1.1 protocol of config discovery from a copy of the configuration.
func transport(security *tls.Config) credentials.TransportCredentials {
	if security == nil {
		return insecure.NewCredentials()
	}
	security = security.Clone()
	security.NextProtos = nil // credentials.NewTLS adds h2
	return credentials.NewTLS(security)
}

// admit rejects a call if too many calls are in progress. It also limits the duration of every call except
// StreamIsActive, even if the client never sends a request.
func (s *service) admit(ctx context.Context, call *tap.Info) (context.Context, error) {
	if s.calls.Add(1) > maxCalls {
		s.calls.Add(-1)
		return ctx, status.Errorf(codes.ResourceExhausted, "%d calls are in progress: retry later", maxCalls)
	}
	end := func() {}
	if call.FullMethodName != pb.ExternalScaler_StreamIsActive_FullMethodName {
		ctx, end = context.WithTimeout(ctx, answerTime)
	}
	context.AfterFunc(ctx, func() { end(); s.calls.Add(-1) })
	return ctx, nil
}
