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

// Bounds of every HTTP server of the product. A client that sends slowly or too much is cut off.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 10 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 16 << 10
	stopTimeout       = 5 * time.Second
	maxConnections    = 1000
)

// Serve serves h on ln until ctx ends, then lets running requests end, for some seconds, and closes ln. The end of ctx is no error.
// The context of a request, also of one that was hijacked for a stream, ends when Serve returns.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	return ServeUpTo(ctx, ln, h, maxConnections)
}

// ServeUpTo is Serve with another bound of the connections that the server holds. A connection that was hijacked for a stream does not count.
func ServeUpTo(ctx context.Context, ln net.Listener, h http.Handler, limit int) error {
	requests, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end() // streams that were hijacked from the server, which does not know them any more
	connections := newCrowd(limit)
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		// net/http grants 4 KiB more than it is told.
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
	if stop() { // it was not ctx that ended
		return fmt.Errorf("serve http on %s: %w", ln.Addr(), err)
	}
	if err := <-stopped; err != nil {
		return fmt.Errorf("stop http on %s: %w", ln.Addr(), err)
	}
	return nil
}

// ownErrors are the errors of net/http that are faults of this process. That somebody breaks off a TLS handshake is none, and who does so
// often would fill the log.
type ownErrors struct{ to io.Writer }

func (o ownErrors) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error")) {
		return len(line), nil
	}
	return o.to.Write(line)
}
