package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// Limits of every HTTP server of the product.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 10 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 16 << 10
	stopTimeout       = 5 * time.Second
	maxConnections    = 1000
)

// Listen listens on the TCP address that a flag names.
func Listen(flag, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: stop what uses the port or choose another address", flag, address, err)
	}
	return ln, nil
}

// Serve serves h on ln until ctx ends. Then it waits up to stopTimeout for running requests and closes ln. The end of
// ctx is not an error. The contexts of requests, including hijacked requests, end when Serve returns.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	return ServeUpTo(ctx, ln, h, maxConnections)
}

// ServeUpTo is Serve with a given limit of connections. Hijacked connections do not count.
func ServeUpTo(ctx context.Context, ln net.Listener, h http.Handler, limit int) error {
	requests, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end() // ends hijacked streams, which the server does not track
	connections := newConnLimiter(limit)
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		// net/http adds 4 KiB to this limit.
		MaxHeaderBytes: maxHeaderBytes - 4<<10,
		BaseContext:    func(net.Listener) context.Context { return requests },
		ConnState:      connections.track,
		ErrorLog:       log.New(ownErrors{log.Writer()}, "", log.LstdFlags),
	}
	server.RegisterOnShutdown(connections.end)
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err := server.Shutdown(grace)
		if err != nil {
			err = errors.Join(err, server.Close())
		}
		stopped <- err
	})
	err := server.Serve(ln)
	if stop() { // ctx has not ended
		return fmt.Errorf("serve http on %s: %w", ln.Addr(), err)
	}
	if err := <-stopped; err != nil {
		return fmt.Errorf("stop http on %s: %w", ln.Addr(), err)
	}
	return nil
}

// ownErrors drops log lines about failed TLS handshakes. Any client can cause such lines, and could fill the log with
// them.
type ownErrors struct{ to io.Writer }

func (o ownErrors) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error")) {
		return len(line), nil
	}
	return o.to.Write(line)
}
